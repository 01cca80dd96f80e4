"""Views and copies of torch: where elements go, and tensors made of extents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from eqsat.fx.site import Site, Unwritten, writes
from eqsat.ir.operators.generator import constant_of
from eqsat.ir.operators.slicing import elements, equal_parts
from eqsat.ir.shape_values import shape_range

_FAR = 2**31 - 1


# --- views


@writes("Flatten")
def _shaped(site: Site) -> Any:
    """The operand in the shape of the result, which its type tells."""
    shape = site.shape()
    if shape is None:
        raise Unwritten(f"its extents {site.result} are not known")
    return site.operands[0].reshape(shape)


@writes("Squeeze")
def _squeeze(site: Site) -> Any:
    axes = site.axes(1)
    if axes is None:
        return _shaped(site)
    return site.call(torch.squeeze, site.operands[0], tuple(sorted(set(axes))))


@writes("Unsqueeze")
def _unsqueeze(site: Site) -> Any:
    x, axes, rank = site.operands[0], site.value(1), site.result.rank or 0
    if axes is None:
        return _shaped(site)
    for axis in sorted(int(a) % rank for a in axes.reshape(-1)):
        x = x.unsqueeze(axis)
    return x


@writes("Reshape")
def _reshape(site: Site) -> Any:
    x, shape = site.operands[0], site.shape()
    if shape is None or not all(isinstance(d, int) for d in shape):
        given = site.known_dims(1) or shape
        if given is None:  # read at run time, a 0 would have to be told from an extent that is to be kept
            raise Unwritten(f"its extents {site.result} are not known")
        keeps = not site.attr("allowzero")
        shape = [x.size(i) if isinstance(d, int) and d == 0 and keeps else d for i, d in enumerate(given)]
    return x.reshape(shape)


@writes("Expand")
def _expand(site: Site) -> Any:
    x, shape = site.operands[0], site.shape()
    if shape is None:
        shape = site.call(torch.broadcast_shapes, site.call(getattr, x, "shape"), tuple(site.dims(1)))
    return x.expand(shape)


@writes("Transpose")
def _transpose(site: Site) -> Any:
    """Keys, whose last two axes are exchanged, in two steps: where Inductor takes a spelled-out attention for its own, it
    exchanges these two of whatever is permuted, however it is (torch 2.13, ``fuse_attention._sfdp_pattern_5``)."""
    x, rank, perm = site.operands[0], site.rank(), site.node.attributes.get("perm")
    order = tuple(range(rank)[::-1]) if perm is None else tuple(perm)
    before = (*order[:-2], *order[-1:-3:-1])
    if rank < 4 or before == tuple(range(rank)) or order[-1] == rank - 1:
        return x.permute(order)
    return x.permute(before).transpose(-2, -1)


# --- parts


@writes("Slice")
def _slice(site: Site) -> Any:
    x = site.operands[0]
    starts, ends = site.dims(1), site.dims(2)
    axes = site.axes(3) if site.has(3) else list(range(len(starts)))
    steps: list[Any] = site.dims(4) if site.has(4) else [1] * len(starts)
    shape = site.type(0).shape or ()
    for start, end, axis, step in zip(starts, ends, axes or (), steps, strict=True):
        if not isinstance(step, int):
            raise Unwritten("its steps are computed")
        if step > 0:
            first, last = (max(b, 1 - 2**63) if isinstance(b, int) else b for b in (start, end))
            x = x[(*[slice(None)] * axis, slice(first, last, step))]
            continue
        d = shape[axis]
        if isinstance(d, int) and isinstance(start, int) and isinstance(end, int):
            picked = np.array(elements(d, start, end, step), np.int64)
            x = site.call(torch.index_select, x, axis, site.constant(picked))
        elif start == -1 and step == -1 and isinstance(end, int) and end <= -_FAR:
            x = site.call(torch.flip, x, [axis])
        else:
            raise Unwritten("it goes backwards through an extent that is not known")
    return x


@writes("Split")
def _split(site: Site) -> Any:
    axis = site.axis()
    sizes: Any
    if site.has(1):
        sizes = site.dims(1)
    else:
        parts, d = site.attr("num_outputs"), (site.type(0).shape or ())[axis]
        sizes = equal_parts(d, parts) if isinstance(d, int) else (site.operands[0].size(axis) + parts - 1) // parts
    found = site.call(torch.split, site.operands[0], sizes, axis)
    return [found[i] for i in range(len(site.node.outputs))]


@writes("Concat")
def _concat(site: Site) -> Any:
    """The last part of a value before its first is the value rolled, which Inductor reads in place, as it does not the parts."""
    axis = site.axis()
    parts = [p for value in site.node.inputs if (p := _part(site, value, axis)) is not None]
    if len(parts) == len(site.operands) == 2 and parts[0][0] == parts[1][0]:
        value, last, first = parts[0][0], parts[0][1], parts[1][1]
        whole = len(last) + len(first) == site.scope.shape(value)[axis]
        if whole and (first.start, first.stop) == (0, last.start):
            return site.call(torch.roll, site.scope.values[value], -last.start, axis)
    return site.call(torch.cat, site.operands, axis)


def _part(site: Site, value: str, axis: int) -> tuple[str, range] | None:
    """Of what a value is a part along an axis alone, and which; ``None`` where it is none, or extents are not known."""
    node = site.scope.producers.get(value)
    if node is None or node.key not in ("Slice", "Split"):
        return None
    of = Site(site.scope, node, [site.scope.values[v] if v else None for v in node.inputs])
    d = (of.type(0).shape or ())[axis]
    if not isinstance(d, int):
        return None
    listed = [None if (found := of.value(i)) is None else found.reshape(-1).tolist() for i in range(1, 5)]
    if node.key == "Split" and of.axis() == axis and not (of.has(1) and listed[0] is None):
        ends = np.cumsum(listed[0] or equal_parts(d, of.attr("num_outputs"))).tolist()
        i = node.outputs.index(value)
        return node.inputs[0], range(([0, *ends])[i], ends[i])
    starts, ends, axes, steps = listed
    if (
        node.key == "Split"
        or axes not in ([axis], [axis - of.rank()])
        or not starts
        or not ends
        or steps not in (None, [1])
    ):
        return None
    return node.inputs[0], elements(d, starts[0], ends[0], 1)


@writes("Tile")
def _tile(site: Site) -> Any:
    return site.operands[0].repeat(site.dims(1)) if site.rank() else site.operands[0]


@writes("Pad")
def _pad(site: Site) -> Any:
    x, rank = site.operands[0], site.rank()
    pads = site.dims(1)
    axes = site.axes(3) if site.has(3) else list(range(rank))
    assert axes is not None
    widths: list[Any] = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        place = 2 * (rank - 1 - axis)
        widths[place : place + 2] = pads[i], pads[i + len(axes)]
    mode = site.attr("mode")
    if mode == "constant":
        return site.call(F.pad, x, widths, value=site.number(2, 0))
    for axis, d in enumerate(site.type(0).shape or ()):
        pair = widths[2 * (rank - 1 - axis) :][:2]
        known = all(isinstance(n, int) for n in pair)
        if known and not any(pair):
            continue
        if known and isinstance(d, int):
            kept = np.arange(d)[max(-pair[0], 0) : d - max(-pair[1], 0)]
            picked = site.constant(np.pad(kept, (max(pair[0], 0), max(pair[1], 0)), mode))
        elif known and min(pair) >= 0:
            picked = _border_places(site, x.size(axis), pair, mode)
        else:
            raise Unwritten(f"{mode} by widths that are negative or not known")
        x = site.call(torch.index_select, x, axis, picked)
    return x


def _border_places(site: Site, extent: Any, widths: Sequence[int], mode: str) -> Any:
    """Which elements along an axis are in front of, in and behind it, where its extent is not known."""
    last = extent - 1
    places = site.call(torch.arange, -widths[0], extent + widths[1], device=site.scope.device())
    if mode == "edge":
        return site.call(torch.clamp, places, 0, last)
    if mode == "wrap":
        return site.call(torch.remainder, places, extent)
    period = site.call(torch.sym_max, 2 * last, 1)
    return last - (site.call(torch.remainder, places, period) - last).abs()


@writes("DepthToSpace", "SpaceToDepth")
def _blocks(site: Site) -> Any:
    x, b = site.operands[0], site.attr("blocksize")
    n, c, h, w = (x.size(i) for i in range(4))
    if site.node.op == "SpaceToDepth":
        order = (0, 1, 3, 5, 2, 4) if site.attr("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
        return x.reshape((n, c, h // b, b, w // b, b)).permute(order).reshape((n, c * b * b, h // b, w // b))
    if site.attr("mode") == "CRD":
        moved = x.reshape((n, c // (b * b), b, b, h, w)).permute((0, 1, 4, 2, 5, 3))
    else:
        moved = x.reshape((n, b, b, c // (b * b), h, w)).permute((0, 3, 4, 1, 5, 2))
    return moved.reshape((n, c // (b * b), h * b, w * b))


@writes("Trilu")
def _trilu(site: Site) -> Any:
    diagonal = site.dims(1)[0] if site.has(1) else 0
    return site.call(torch.triu if site.attr("upper") else torch.tril, site.operands[0], diagonal)


# --- tensors made of extents


@writes("Shape")
def _shape(site: Site) -> Any:
    picked = range(site.rank())[shape_range(site.node.attributes, site.rank())]
    if not picked:
        return site.constant(np.zeros(0, np.int64))
    x, kind = site.operands[0], site.like()
    return site.call(torch.stack, [site.call(torch.scalar_tensor, x.size(i), **kind) for i in picked])


@writes("Size")
def _size(site: Site) -> Any:
    return site.call(torch.scalar_tensor, site.operands[0].numel(), **site.like())


@writes("Constant")
def _constant(site: Site) -> Any:
    return site.constant(constant_of(site.node.attributes))


@writes("ConstantOfShape")
def _constant_of_shape(site: Site) -> Any:
    shape = site.shape()
    fill = site.node.attributes.get("value")
    value = fill.numpy().reshape(()).item() if fill is not None else 0.0
    return site.call(torch.full, site.dims(0) if shape is None else shape, value, **site.like())


@writes("EyeLike")
def _eye_like(site: Site) -> Any:
    rows, columns = (
        site.call(torch.arange, site.operands[0].size(axis), device=site.scope.device()) for axis in range(2)
    )
    return (rows.unsqueeze(1) + site.attr("k") == columns).to(site.dtype)


@writes("Range")
def _range(site: Site) -> Any:
    """As many steps as the type says, or from the start to the limit: torch fails where that lies before the start."""
    whole, count = site.result.dtype.is_integer, site.shape()
    start, limit, step = (site.dims(i)[0] if whole else _read(site, i) for i in range(3))
    if not isinstance(step, int | float):
        raise Unwritten("its step is computed")
    if count is not None and whole:
        limit = start + count[0] * step
    elif count is not None:
        limit = start + site.call(torch.sym_max, count[0] - 0.5, 0) * step
    else:
        limit = site.call(torch.sym_max if step > 0 else torch.sym_min, start, limit)
    return site.call(torch.arange, start, limit, step, **site.like())


def _read(site: Site, index: int) -> Any:
    """A number, read off its tensor when the module runs if it is computed."""
    return site.number(index) if site.value(index) is not None else site.operands[index].reshape(()).item()
