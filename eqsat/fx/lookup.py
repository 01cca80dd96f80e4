"""Looking up and scattering by indices in torch, sorting, running sums."""

from typing import Any

import numpy as np
import torch

from eqsat.fx.site import Site, Unwritten, writes


def _indices(site: Site, index: int, extent: Any) -> Any:
    """Indices as int64, those that count from the end counted from the front."""
    known = site.value(index)
    if known is not None and (known >= 0).all():
        return site.operands[index] if known.dtype == np.int64 else site.constant(known.astype(np.int64))
    x = site.operands[index].to(torch.int64)
    return site.call(torch.where, x < 0, x + extent, x)


@writes("Gather")
def _gather(site: Site) -> Any:
    x, axis = site.operands[0], site.axis()
    known = site.value(1)
    if known is not None and known.ndim == 0:
        return site.call(torch.select, x, axis, int(known))
    indices = site.operands[1]
    if known is not None and known.ndim == 1:
        return site.call(torch.index_select, x, axis, _indices(site, 1, x.size(axis)))
    scalar = site.rank(1) == 0  # an index of rank 0 would be read by the host
    indices = indices.reshape((1,)) if scalar else indices
    found = x[(*[slice(None)] * axis, indices)]
    return found.squeeze(axis) if scalar else found


@writes("GatherElements")
def _gather_elements(site: Site) -> Any:
    x, axis = site.operands[0], site.axis()
    return site.call(torch.gather, x, axis, _indices(site, 1, x.size(axis)))


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
    indices = _indices(site, 1, x.size(axis))
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
    return site.call(torch.einsum, site.attr("equation"), *site.operands)
