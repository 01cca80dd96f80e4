"""Convolutions of the parts of one input, side by side, become one convolution in groups.

So grouped convolutions are spelled where the exporting framework had none: a Split of the channels, a convolution of each part, a
Concat. The Split behind the one convolution meets that Concat, and moves behind activations on its way (`parallel.epilogues`).
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from eqsat.conditions import worthwhile
from eqsat.equations import named, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, apply, group_rule
from eqsat.rules.parallel.convolutions import explicit, window
from eqsat.rules.parallel.groups import Branch
from eqsat.rules.parallel.products import joined_biases, parts_of
from eqsat.rules.views.parts import Part, parts_by_class
from eqsat.samples import Drawing, Instance, Sampler, fixed


class _Branch(NamedTuple):
    """A convolution of some channels of a value."""

    part: Part
    conv: Branch

    @property
    def groups(self) -> int:
        return self.conv.node.attr("group", 1)


def _sample(d: Sampler) -> Instance:
    drawing = Drawing()
    rank, count, own = d.choose((1, 2, 2)), d.integer(2, 4), d.choose((1, 1, 1, 2))
    each, outputs = own * d.integer(1, 3), own * d.integer(1, 3)
    axis = 1 if d.chance(0.85) else 2  # an axis of the image, as long as there are channels
    total = count * each + (d.integer(1, 2) if axis == 1 and d.chance(0.1) else 0)
    image = [d.integer(5, 7) for _ in range(rank)] if axis == 1 else [total] * rank
    x = drawing.value(d.floats((d.integer(1, 3), total, *image)))
    if d.chance():
        sizes = [each] * count + ([total - count * each] if total > count * each else [])
        parts = drawing.op("Split", x, drawing.value(fixed(sizes, "int64")), outputs=len(sizes), axis=axis)[:count]
    else:
        bounds = [[drawing.value(fixed([v], "int64")) for v in (i * each, (i + 1) * each, axis)] for i in range(count)]
        parts = [drawing.op("Slice", x, *b) for b in bounds]
    how: dict[str, Any] = {"group": own} | ({"strides": (2,) * rank} if d.chance(0.2) else {})
    how |= d.choose(({}, {"pads": (1, *(0,) * (2 * rank - 1))}, {"auto_pad": "SAME_UPPER"}))
    values: list[str] = []
    for part in parts[: count - 1 if d.chance(0.1) else count]:
        kernel = (3,) * rank if axis == 1 and d.chance(0.95) else (1,) * rank
        channels = (each if axis == 1 else total) // own
        weights = d.floats((outputs if d.chance(0.95) else 2 * outputs, channels, *kernel))
        bias = [drawing.value(d.either(d.floats(weights.shape[:1])))] if d.chance(0.6) else []
        changed: dict[str, Any] = {"strides": (3,) * rank} if d.chance(0.05) else {}
        values.append(drawing.op("Conv", part, drawing.value(d.either(weights, 0.9)), *bias, **(how | changed)))
    return drawing.finish(*values)


OF_PARTS = stated(
    "node part w bias",
    worthwhile("weights and bias are constant: w.is_constant and (bias is None or bias.is_constant)"),
    "explicit padding: explicit(node)",
    "parts of the channels: part.axis == 1",
    worthwhile("of floats: w.dtype is float32"),
    functions=named(explicit),
)
WHOLE = stated(
    "starts ends whole",
    worthwhile("several parts: len(starts) > 1"),
    "one after the other: starts == [0, *ends[:-1]]",
    "all of the channels: ends[-1] == whole.shape[1]",
)


@group_rule(
    where=[*OF_PARTS, *WHOLE], exactness=Exactness.ROUNDING, source="definition of groups; ONNX Conv", sample=_sample
)
def merge_convs_of_parts_into_groups(view: GroupView) -> Iterator[Merge]:
    """``(Conv(x[:n], w1, b1), Conv(x[n:2*n], w2, b2), ...) == Split(Conv(x, Concat(w1, w2, ...), Concat(b1, b2, ...), group=N))``
    along the channels, where the parts are all of ``x`` and the convolutions differ in constant weights alone.
    """
    for group in _alike(view).values():
        by_start: dict[int, list[_Branch]] = {}
        for branch in group:
            by_start.setdefault(branch.part.start, []).append(branch)
        for row in zip(*(by_start[start] for start in sorted(by_start)), strict=False):
            bounds = {"starts": [b.part.start for b in row], "ends": [b.part.end for b in row]}
            if view.meets(WHOLE, whole=row[0].part.whole, **bounds):
                yield from _merged(row)


def _alike(view: GroupView) -> dict[Hashable, list[_Branch]]:
    """Convolutions of parts of the channels, by value and all but the elements of the weights and the bias."""
    found: dict[Hashable, list[_Branch]] = {}
    parts = parts_by_class(view)
    for node, (x, w, *rest) in view.nodes("Conv"):
        bias = rest[0] if rest else None
        for part in parts.get(x.handle, ()) if x is not None and w is not None else ():
            if w is not None and view.meets(OF_PARTS, node=node, part=part, w=w, bias=bias):
                branch = _Branch(part, Branch(part.whole, node, w, bias))
                key = part.whole.handle, part.end - part.start, branch.groups, w.static_shape, *window(node, w)
                found.setdefault(key, []).append(branch)
    return found


def _merged(row: Sequence[_Branch]) -> Iterator[Merge]:
    first, group = row[0], [branch.conv for branch in row]
    kernel, strides, dilations, pads = window(first.conv.node, first.conv.w)
    sizes = [branch.w.static_shape[0] for branch in group]
    weights = apply("Concat", *(branch.w for branch in group), axis=0)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    groups = first.groups * len(row)
    whole = apply("Conv", first.part.whole, weights, *joined_biases(group, sizes), group=groups, **attributes)
    yield from parts_of(whole, group, sizes, axis=1)
