"""A norm of a sum as one operator that also gives the sum: SkipLayerNormalization and its simplified form."""

from __future__ import annotations

from collections.abc import Iterator

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Unmet, apply, group_rule
from eqsat.samples import Drawing, Instance, Sampler

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime"
Operands = tuple[Ref | None, ...]

FUSED = {
    "LayerNormalization": f"{DOMAIN}::SkipLayerNormalization",
    "RMSNormalization": f"{DOMAIN}::SkipSimplifiedLayerNormalization",
}


def _normed_sum(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(2, 4, ones=0.05)
    row = shape[-1:]
    summands = [shape if d.chance(0.9) else d.broadcast_of(shape) for _ in range(2)]
    parts = [drawing.value(d.floats(s)) for s in summands]
    if d.chance():
        parts[d.integer(0, 1)] = drawing.op("Add", parts[0], drawing.value(d.either(d.floats(row))))
    total = drawing.op("Add", *parts)
    if summands != [shape, shape]:
        total = drawing.op("Add", total, drawing.value(d.floats(shape)))
    op = d.choose(tuple(FUSED))
    beta = [drawing.value(d.floats(row))] if op == "LayerNormalization" and d.chance() else []
    axis = d.choose((-1, len(shape) - 1, -1, -2))
    if axis == -2:
        row = shape[-2:]
        beta = []
    normed = drawing.op(op, total, drawing.value(d.floats(row)), *beta, axis=axis, epsilon=d.choose((1e-5, 0.5)))
    return drawing.finish(normed, total)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_normed_sum, domain=DOMAIN)
def normalise_sum(view: GroupView) -> Iterator[Merge]:
    """``LayerNormalization(x + skip) == SkipLayerNormalization(x, skip)``, whose fourth output is ``x + skip``; likewise
    ``RMSNormalization``, and with a vector among the summands: ``(x + bias) + skip``.
    """
    sums: dict[int, list[tuple[Ref, Ref]]] = {}
    for node, (a, b) in view.nodes("Add"):
        if a is not None and b is not None:
            sums.setdefault(node.handle, []).append((a, b))
    for op, fused in FUSED.items():
        for node, inputs in view.nodes(op):
            data, gamma, beta = (*inputs, None)[:3]
            if data is None or gamma is None or data.handle not in sums:
                continue
            try:
                if not over_last_axis(node, data, gamma, beta):
                    continue
                found = [s for pair in sums[data.handle] for s in _summands(data, pair, sums)]
            except Unmet:
                continue
            for x, skip, bias in found:
                norm = (gamma, beta, bias) if op == "LayerNormalization" else (gamma, bias)
                term = apply(fused, x, skip, *norm, outputs=4, epsilon=node.attr("epsilon", 1e-5))
                yield node, term.output(0)
                yield data, term.output(3)


def over_last_axis(node: Ref, data: Ref, gamma: Ref, beta: Ref | None) -> bool:
    """Whether ``node`` is a norm of float32 over the last axis with vectors, as the kernels compute it."""
    vectors = all(v is None or (v.rank == 1 and v.static_shape[0] == data.shape[-1]) for v in (gamma, beta))
    plain = node.attr("axis", -1) in (-1, data.rank - 1) and node.attr("stash_type", 1) == 1
    return vectors and plain and data.rank in (2, 3) and data.dtype is DType.FLOAT and not node.is_constant


def _summands(
    data: Ref, pair: tuple[Ref, Ref], sums: dict[int, list[tuple[Ref, Ref]]]
) -> Iterator[tuple[Ref, Ref, Ref | None]]:
    """``(x, skip, bias)`` with ``x + bias + skip`` equal to ``data``; both orders of ``pair`` are spellings of their own."""
    x, skip = pair
    if skip.type != data.type or skip.is_constant or x.is_constant:
        return
    inner = [(a, b) for a, b in sums.get(x.handle, ()) if _is_row(b, data) and a.type == data.type]
    if inner:
        yield (*inner[0][:1], skip, inner[0][1])
    elif x.type == data.type and x.handle <= skip.handle:
        yield x, skip, None


def _is_row(value: Ref, data: Ref) -> bool:
    return value.is_constant and value.rank == 1 and value.static_shape[0] == data.shape[-1]
