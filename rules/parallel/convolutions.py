"""Convolutions of one input with kernels of several sizes become one convolution: N-way, never pair by pair.

The smaller kernels are enlarged by zeros. That is more work in fewer kernels; which of the groupings runs, if any, is decided by
cost. Convolutions with kernels of one size are in `eqsat.rules.parallel.products`.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule, named, stated
from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Term, apply
from eqsat.rules.parallel.groups import Branch, Products
from eqsat.rules.parallel.products import MERGEABLE, joined_biases, parts_of, products
from eqsat.rules.terms import int64s
from eqsat.samples import Drawing, Instance, Sampler, fixed

Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def window(node: Ref, w: Ref) -> Window:
    """Kernel, strides, dilations and pads."""
    kernel = w.static_shape[2:]
    ones = (1,) * len(kernel)
    pads = tuple(node.attr("pads", ())) if node.attr("auto_pad", "NOTSET") == "NOTSET" else ()
    strides, dilations = tuple(node.attr("strides", ones)), tuple(node.attr("dilations", ones))
    return kernel, strides, dilations, pads or (0,) * (2 * len(kernel))


def explicit(*nodes: Ref) -> bool:
    """Whether the padding is stated."""
    return all(node.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID") for node in nodes)


def _sample(d: Sampler) -> Instance:
    """Convolutions of one input: kernels of several sizes, mostly centred alike, some strided, dilated or in groups."""
    drawing = Drawing()
    rank = d.choose((1, 2, 2))
    batch, channels = d.extents(2, ones=0.2)
    x = drawing.value(d.floats((batch, channels, *(d.integer(6, 8) for _ in range(rank)))))
    values: list[str] = []
    stride, common = d.choose((1, 1, 2)), d.choose((1, 3, 3, 5))
    for _ in range(d.integer(2, 4)):
        kernel = [common if d.chance(0.6) else d.choose((1, 2, 3)) for _ in range(rank)]
        attributes: dict[str, Any] = {"strides": (stride if d.chance(0.9) else 3 - stride,) * rank}
        if d.chance(0.75):
            attributes["pads"] = tuple((k - 1) // 2 for k in kernel) * 2
        elif d.chance():
            attributes["auto_pad"] = d.choose(("SAME_UPPER", "VALID"))
        if d.chance(0.1) and max(kernel) < 4:
            attributes["dilations"] = (2,) * rank
        group = channels if d.chance(0.25) else 1
        weight = d.floats((group * d.integer(1, 3), channels // group, *kernel))
        operands = [x, drawing.value(d.either(weight, 0.9))]
        if d.chance():
            operands.append(drawing.value(fixed(d.floats((weight.shape[0],)))))
        values.append(drawing.op("Conv", *operands, group=group, **attributes))
    return drawing.finish(*values)


CENTRED = stated(
    "node w kernel strides dilations pads",
    worthwhile("the weights are constant: w.is_constant"),
    "one group: node.attr('group', 1) == 1",
    "explicit padding: explicit(node)",
    "nothing is dilated: all(d == 1 for d in dilations)",
    functions=named(explicit),
)


@group_rule(
    where=[*MERGEABLE, *CENTRED],
    exactness=Exactness.ROUNDING,
    source="linearity of the convolution; TASO",
    sample=_sample,
)
def merge_convs_with_enlarged_kernels(view: GroupView) -> Iterator[Merge]:
    """``(Conv(x, w1), Conv(x, w2), ...) == Split(Conv(x, Concat(Pad(w1), Pad(w2), ...)))`` with zeros around small kernels.

    All windows have the same middle: pads differ by half of what kernels differ, and strides are equal.
    """

    def middle(branch: Branch) -> Hashable:
        w = branch.w
        kernel, strides, dilations, pads = window(branch.node, w)
        parts = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": pads}
        if not view.meets(CENTRED, node=branch.node, w=w, **parts):
            return None
        margins = tuple(2 * p - (k - 1) for p, k in zip(pads, (*kernel, *kernel), strict=True))
        return w.dtype, w.shape[1], strides, margins

    known = (branch for branch in products(view, "Conv") if branch.w.type.is_static)
    found = Products(view, known)
    for group in found.groups(middle):
        kernels = {window(branch.node, branch.w)[0] for branch in group}
        if len(kernels) > 1 and not all(found.is_cut(branch.x, branch.node) for branch in group):
            yield from _in_one(group, tuple(map(max, *kernels)))


def _in_one(group: Sequence[Branch], kernel: tuple[int, ...]) -> Iterator[Merge]:
    first, sizes = group[0], [branch.w.static_shape[0] for branch in group]
    own, strides, dilations, pads = window(first.node, first.w)
    grown = tuple(p + (k - o) // 2 for p, k, o in zip(pads, (*kernel, *kernel), (*own, *own), strict=True))
    weights = apply("Concat", *(enlarged(b.w, b.w.static_shape[2:], kernel) for b in group), axis=0)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": grown}
    whole = apply("Conv", first.x, weights, *joined_biases(group, sizes), group=1, **attributes)
    yield from parts_of(whole, group, sizes, axis=1)


def enlarged(w: Term, own: Sequence[int], kernel: Sequence[int]) -> Term:
    """Weights with zeros around their own kernel, as many on either side."""
    border = [(k - o) // 2 for k, o in zip(kernel, own, strict=True)]
    return apply("Pad", w, int64s([0, 0, *border, 0, 0, *border])) if any(border) else w
