"""Convolutions of the parts of one input, side by side, become one convolution in groups.

So grouped convolutions are spelled where the exporting framework had none: a Split of the channels, a convolution of each part, a
Concat. The Split behind the one convolution meets that Concat, and moves behind activations on its way (`parallel.epilogues`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, apply, group_rule
from eqsat.rules.attention.rotary_reading import parts_by_class
from eqsat.rules.parallel.convolutions import joined_biases, window
from eqsat.rules.terms import int64s
from eqsat.rules.views.parts import Part
from eqsat.samples import Drawing, Instance, Sampler, fixed


class _Branch(NamedTuple):
    """A convolution of some channels of a value."""

    node: Ref
    part: Part
    weights: Ref
    bias: Ref | None

    @property
    def groups(self) -> int:
        return self.node.attr("group", 1)


def _sample(d: Sampler) -> Instance:
    drawing = Drawing()
    rank, count, own = d.choose((1, 2, 2)), d.integer(2, 4), d.choose((1, 1, 1, 2))
    each, outputs = own * d.integer(1, 3), own * d.integer(1, 3)
    total = count * each + (d.integer(1, 2) if d.chance(0.1) else 0)
    x = drawing.value(d.floats((d.integer(1, 3), total, *(d.integer(5, 7) for _ in range(rank)))))
    if d.chance():
        sizes = [each] * count + ([total - count * each] if total > count * each else [])
        parts = drawing.op("Split", x, drawing.value(fixed(sizes, "int64")), outputs=len(sizes), axis=1)[:count]
    else:
        bounds = [[drawing.value(fixed([v], "int64")) for v in (i * each, (i + 1) * each, 1)] for i in range(count)]
        parts = [drawing.op("Slice", x, *b) for b in bounds]
    how: dict[str, Any] = {"group": own} | ({"strides": (2,) * rank} if d.chance(0.2) else {})
    how |= {"pads": (1, *(0,) * (2 * rank - 1))} if d.chance() else {}
    values = []
    for part in parts[: count - 1 if d.chance(0.1) else count]:
        kernel = (3,) * rank if d.chance(0.95) else (1,) * rank
        weights = d.floats((outputs if d.chance(0.95) else 2 * outputs, each // own, *kernel))
        bias = [drawing.value(d.either(d.floats(weights.shape[:1])))] if d.chance(0.6) else []
        changed: dict[str, Any] = {"strides": (3,) * rank} if d.chance(0.05) else {}
        values.append(drawing.op("Conv", part, drawing.value(d.either(weights, 0.9)), *bias, **(how | changed)))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.ROUNDING, source="definition of groups; ONNX Conv", sample=_sample)
def merge_convs_of_parts_into_groups(view: GroupView) -> Iterator[Merge]:
    """``(Conv(x[:n], w1, b1), Conv(x[n:2*n], w2, b2), ...) == Split(Conv(x, Concat(w1, w2, ...), Concat(b1, b2, ...), group=N))``
    along the channels, where the parts are all of ``x`` and the convolutions differ in constant weights alone.
    """
    for group in _alike(view).values():
        by_start: dict[int, list[_Branch]] = {}
        for branch in group:
            by_start.setdefault(branch.part.start, []).append(branch)
        for row in zip(*(by_start[start] for start in sorted(by_start)), strict=False):
            try:
                if _is_whole(row):
                    yield from _merged(row)
            except Unmet:
                continue


def _alike(view: GroupView) -> dict[Hashable, list[_Branch]]:
    """Convolutions of parts of the channels, by value and all but the elements of the weights and the bias."""
    found: dict[Hashable, list[_Branch]] = {}
    parts = parts_by_class(view)
    for node, inputs in view.nodes("Conv"):
        x, w = inputs[0], inputs[1]
        if (
            x is None
            or w is None
            or x.handle not in parts
            or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        ):
            continue
        for part in parts[x.handle]:
            bias = inputs[2] if len(inputs) > 2 else None
            constant = w.is_constant and w.type.is_static and (bias is None or bias.is_constant)
            if part.axis != 1 or x.dtype is not DType.FLOAT or not constant:
                continue
            branch = _Branch(node, part, w, bias)
            key = part.whole.handle, part.end - part.start, branch.groups, w.static_shape, *window(node, w)
            found.setdefault(key, []).append(branch)
    return found


def _is_whole(row: Sequence[_Branch]) -> bool:
    """Whether the branches read all channels between them, one after the other."""
    ends = [0, *(branch.part.end for branch in row)]
    whole = row[0].part.whole
    return len(row) > 1 and [b.part.start for b in row] == ends[:-1] and ends[-1] == whole.shape[1]


def _merged(row: Sequence[_Branch]) -> Iterator[Merge]:
    first = row[0]
    kernel, strides, dilations, pads = window(first.node, first.weights)
    operands: list[Term] = [first.part.whole, apply("Concat", *(b.weights for b in row), axis=0)]
    operands += joined_biases([(b.weights, b.bias) for b in row])
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    whole = apply("Conv", *operands, group=first.groups * len(row), **attributes)
    split = apply("Split", whole, int64s(b.weights.static_shape[0] for b in row), outputs=len(row), axis=1)
    for index, branch in enumerate(row):
        yield branch.node, split.output(index)


__all__ = ["merge_convs_of_parts_into_groups"]
