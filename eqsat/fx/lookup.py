"""Looking up and scattering by indices in torch, sorting, running sums."""

from typing import Any

import numpy as np
import torch

from eqsat.fx.site import Site, Unwritten, writes
from eqsat.ir.types import Dim


def _indices(site: Site, axis: int) -> Any:
    """Indices along an axis as int64, those that count from the end counted from the front."""
    indices, known = site.operands[1], site.value(1)
    if known is not None and (known >= 0).all():
        return indices if known.dtype == np.int64 else site.constant(known.astype(np.int64))
    indices = indices.to(torch.int64)
    return site.call(torch.where, indices < 0, indices + site.operands[0].size(axis), indices)


@writes("Gather")
def _gather(site: Site) -> Any:
    x, axis = site.operands[0], site.axis()
    known = site.value(1)
    if known is not None and known.ndim == 0:
        return site.call(torch.select, x, axis, int(known))
    steady = None if known is None else _steady(known, (site.type(0).shape or ())[axis])
    if steady is not None:
        return _strided(x, axis, *steady)
    indices = site.operands[1]
    if known is not None and known.ndim == 1:
        return site.call(torch.index_select, x, axis, _indices(site, axis))
    scalar = site.rank(1) == 0  # an index of rank 0 would be read by the host
    indices = indices.reshape((1,)) if scalar else indices
    found = x[(*[slice(None)] * axis, indices)]
    return found.squeeze(axis) if scalar else found


Steady = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Indices ``start + sum(position * step)``: start, steps by axis, extents."""


def _steady(indices: np.ndarray, extent: Dim) -> Steady | None:
    """Constant indices of one or two axes as such a sum of steps above 0, one of which is 1 if there are two; ``None`` if they
    are none or need not lie within ``extent``. As loops, these are arithmetic; tensors of indices are read, and checked."""
    if indices.ndim not in (1, 2) or not indices.size or not isinstance(extent, int):
        return None
    indices = np.where(indices < 0, indices + extent, indices)
    start = int(indices.flat[0])
    steps = tuple(int(indices.take(1, k).flat[0]) - start if n > 1 else 1 for k, n in enumerate(indices.shape))
    sums = start + sum(places * d for places, d in zip(np.ix_(*map(np.arange, indices.shape)), steps, strict=True))
    if min(steps) < 1 or (len(steps) == 2 and 1 not in steps) or not 0 <= start <= indices.max() < extent:
        return None
    return (start, steps, indices.shape) if np.array_equal(sums, indices) else None


def _strided(x: Any, axis: int, start: int, steps: tuple[int, ...], extents: tuple[int, ...]) -> Any:
    """A view of ``x``: elements at steady places along an axis, or windows over it."""
    end = start + sum((n - 1) * d for n, d in zip(extents, steps, strict=True)) + 1
    if len(steps) == 1:
        return x[(*[slice(None)] * axis, slice(start, end, steps[0]))]
    within = 1 if steps[1] == 1 else 0
    windows = x.narrow(axis, start, end - start).unfold(axis, extents[within], steps[1 - within])
    return windows.movedim(-1, axis + within)


@writes("GatherElements")
def _gather_elements(site: Site) -> Any:
    x, axis = site.operands[0], site.axis()
    return site.call(torch.gather, x, axis, _indices(site, axis))


def _places(site: Site, batch: int) -> tuple[Any, ...]:
    """The last axis of the indices, a number for each axis they speak of, behind ``batch`` axes in step."""
    shape = site.type(1).shape
    if shape is None or not isinstance(shape[-1], int):
        raise Unwritten("how long its indices are is not known")
    indices, rank = site.operands[1], len(shape) - 1
    lead: list[Any] = []
    for i in range(batch):
        steps = site.call(torch.arange, site.operands[0].size(i), device=site.scope.device())
        lead.append(steps.reshape([-1 if i == j else 1 for j in range(rank)]))
    return (*lead, *(indices.select(-1, k) for k in range(shape[-1])))


@writes("GatherND")
def _gather_nd(site: Site) -> Any:
    return site.operands[0][_places(site, site.attr("batch_dims"))]


@writes("ScatterND")
def _scatter_nd(site: Site) -> Any:
    x, _, updates = site.operands
    if site.attr("reduction") not in (None, "none", "add"):
        raise Unwritten(f"reduction {site.attr('reduction')}")
    return site.call(torch.index_put, x, _places(site, 0), updates, site.attr("reduction") == "add")


@writes("ScatterElements")
def _scatter_elements(site: Site) -> Any:
    x, _, updates = site.operands
    axis, reduction = site.axis(), site.attr("reduction")
    indices = _indices(site, axis)
    if reduction in (None, "none"):
        return site.call(torch.scatter, x, axis, indices, updates)
    name = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return site.call(torch.scatter_reduce, x, axis, indices, updates, name)


@writes("CumSum")
def _cumulative_sum(site: Site) -> Any:
    x, axis = site.operands[0], site.number(1) % max(site.rank(), 1)
    if site.attr("exclusive"):
        raise Unwritten("it leaves out the element itself")
    if not site.attr("reverse"):
        return site.call(torch.cumsum, x, axis, dtype=site.dtype)
    return site.call(
        torch.flip, site.call(torch.cumsum, site.call(torch.flip, x, [axis]), axis, dtype=site.dtype), [axis]
    )


@writes("TopK")
def _top_k(site: Site) -> Any:
    """By a stable sort: of equal elements the first."""
    x, axis = site.operands[0], site.axis()
    found = site.call(torch.sort, x, stable=True, dim=axis, descending=bool(site.attr("largest")))
    return [found[i].narrow(axis, 0, site.dims(1)[0]) for i in range(2)]


@writes("Einsum")
def _einsum(site: Site) -> Any:
    y = site.call(torch.einsum, site.attr("equation"), *site.operands)
    return y.to(site.dtype) if site.result.dtype.is_integer else y  # sums that are no products are 64 bits wide
