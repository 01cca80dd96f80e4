"""Convolutions of the parts of one input, side by side, become one convolution in groups.

So grouped convolutions are spelled where the exporting framework had none: a Split of the channels, a convolution of each part, a
Concat. The Split behind the one convolution meets that Concat, and moves behind activations on its way (`parallel.epilogues`).
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule, named, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, apply
from eqsat.rules.parallel.convolutions import explicit, window
from eqsat.rules.parallel.groups import Branch
from eqsat.rules.parallel.products import joined_biases, parts_of
from eqsat.rules.views.parts import Part, parts_by_class
from eqsat.samples import Drawing, Instance, Sampler, fixed


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
        by_start: dict[int, list[tuple[Part, Branch]]] = {}
        for part, conv in group:
            by_start.setdefault(part.start, []).append((part, conv))
        for row in zip(*(by_start[start] for start in sorted(by_start)), strict=False):
            parts, convs = zip(*row, strict=True)
            bounds = {"starts": [p.start for p in parts], "ends": [p.end for p in parts]}
            if view.meets(WHOLE, whole=convs[0].x, **bounds):
                yield from _merged(convs)


def _alike(view: GroupView) -> dict[Hashable, list[tuple[Part, Branch]]]:
    """Convolutions of parts of the channels, by value and all but the elements of the weights and the bias."""
    found: dict[Hashable, list[tuple[Part, Branch]]] = {}
    parts = parts_by_class(view)
    for node, inputs in view.nodes("Conv"):
        x, w, bias = (*inputs, None)[:3]
        for part in parts.get(x.handle, ()) if x is not None else ():
            if w is not None and view.meets(OF_PARTS, node=node, part=part, w=w, bias=bias):
                key = part.whole.handle, part.end - part.start, node.attr("group", 1), w.static_shape, *window(node, w)
                found.setdefault(key, []).append((part, Branch(part.whole, node, w, bias)))
    return found


def _merged(group: Sequence[Branch]) -> Iterator[Merge]:
    x, node, w, *_ = group[0]
    kernel, strides, dilations, pads = window(node, w)
    sizes = [branch.w.static_shape[0] for branch in group]
    weights = apply("Concat", *(branch.w for branch in group), axis=0)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    groups = node.attr("group", 1) * len(group)
    whole = apply("Conv", x, weights, *joined_biases(group, sizes), group=groups, **attributes)
    yield from parts_of(whole, group, sizes, axis=1)
