"""Convolutions of one input become one convolution: N-way, never pair by pair.

Their weights stand side by side along the output channels, and a Split along the channels gives the parts back. Kernels of
several sizes can be one, too: the smaller are enlarged by zeros. That is more work in fewer kernels; which of the groupings
runs, if any, is decided by cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.parallel.products import Branch, Products
from eqsat.rules.terms import int64s
from eqsat.samples import Drawing, Sampler, fixed

SOURCE = "linearity of the convolution; TVM CombineParallelConv2D, TASO"


def _sample(d: Sampler) -> Any:
    """Convolutions of one input: kernels of several sizes, mostly centred alike, some strided, dilated or in groups."""
    drawing = Drawing()
    rank = d.choose((1, 2, 2))
    batch, channels = d.extents(2, ones=0.2)
    x = drawing.value(d.floats((batch, channels, *(d.integer(6, 8) for _ in range(rank)))))
    values = []
    stride = d.choose((1, 1, 2))
    common = d.choose((1, 3, 3, 5))
    for _ in range(d.integer(2, 4)):
        kernel = [common if d.chance(0.6) else d.choose((1, 2, 3)) for _ in range(rank)]
        attributes: dict[str, Any] = {"strides": (stride if d.chance(0.9) else 3 - stride,) * rank}
        if d.chance(0.9):
            attributes["pads"] = tuple((k - 1) // 2 for k in kernel) * 2
        elif d.chance():
            attributes["auto_pad"] = d.choose(("SAME_UPPER", "VALID"))
        if d.chance(0.1):
            attributes["dilations"] = (2,) * rank
        group = channels if d.chance(0.1) else 1
        weight = d.floats((group * d.integer(1, 3), channels // group, *kernel))
        if any(2 * (k - 1) >= 6 for k in kernel) and "dilations" in attributes:
            del attributes["dilations"]
        operands = [x, drawing.value(d.either(weight, 0.9))]
        if d.chance():
            operands.append(drawing.value(fixed(d.floats((weight.shape[0],)))))
        values.append(drawing.op("Conv", *operands, group=group, **attributes))
        if d.chance(0.2):
            values.append(drawing.op("Mul", values[-1], drawing.value(fixed(d.floats((1,))))))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_sample)
def merge_convs_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(Conv(x, w1, b1), Conv(x, w2, b2), ...) == Split(Conv(x, Concat(w1, w2, ...), Concat(b1, b2, ...)))``.

    Kernels, strides, dilations and pads are equal, the group is 1. An absent bias is zero.
    """
    convolutions = _Convolutions(view)
    yield from convolutions.merged(convolutions.shape, enlarge=False)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_sample)
def merge_convs_with_enlarged_kernels(view: GroupView) -> Iterator[Merge]:
    """``(Conv(x, w1), Conv(x, w2), ...) == Split(Conv(x, Concat(Pad(w1), Pad(w2), ...)))`` with zeros around small kernels.

    All windows have the same middle: pads differ by half of what kernels differ. Strides are equal, nothing is dilated, the
    group is 1, and the weights are constant.
    """
    convolutions = _Convolutions(view)
    yield from convolutions.merged(convolutions.middle, enlarge=True)


class _Convolutions:
    """The convolutions in the e-graph that may be merged, with their biases."""

    def __init__(self, view: GroupView) -> None:
        self._biases: dict[int, Ref | None] = {}
        self._nodes: dict[int, Ref] = {}
        self._products = Products(view, self._branches(view))

    def _branches(self, view: GroupView) -> Iterator[Branch]:
        for node, inputs in view.nodes("Conv"):
            x, w = inputs[0], inputs[1]
            if x is None or w is None or not _is_candidate(x, w, node) or node.handle in self._nodes:
                continue
            self._nodes[node.handle] = node
            self._biases[node.handle] = inputs[2] if len(inputs) > 2 else None
            yield x, node, w

    def shape(self, branch: Branch) -> Hashable:
        """What convolutions must share to be one: all but the number of output channels."""
        _, node, w = branch
        _, strides, dilations, pads = window(node, w)
        return w.dtype, w.shape[1:], strides, dilations, pads

    def middle(self, branch: Branch) -> Hashable:
        """What convolutions must share to be one after their kernels are enlarged."""
        _, node, w = branch
        kernel, strides, dilations, pads = window(node, w)
        if not w.is_constant or any(d != 1 for d in dilations):
            return None
        margins = tuple(2 * p - (k - 1) for p, k in zip(pads, (*kernel, *kernel), strict=True))
        return w.dtype, w.shape[1], strides, margins

    def merged(self, key: Any, *, enlarge: bool) -> Iterator[Merge]:
        for group in self._products.groups(key):
            kernels = {window(node, w)[0] for _, node, w in group}
            if (len(kernels) > 1) is enlarge and any(not self._products.is_cut(x, node) for x, node, _ in group):
                yield from self._merge(group, tuple(map(max, *kernels)) if enlarge else next(iter(kernels)))

    def _merge(self, group: Sequence[Branch], kernel: tuple[int, ...]) -> Iterator[Merge]:
        x, first, w = group[0]
        own, strides, dilations, pads = window(first, w)
        grown = tuple(p + (k - o) // 2 for p, k, o in zip(pads, (*kernel, *kernel), (*own, *own), strict=True))
        weights = apply("Concat", *(_enlarged(w, kernel) for _, _, w in group), axis=0)
        operands: list[Term] = [x, weights]
        operands += joined_biases([(w, self._biases[node.handle]) for _, node, w in group])
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": grown, "group": 1}
        sizes = int64s(int(w.shape[0]) for _, _, w in group)
        split = apply("Split", apply("Conv", *operands, **attributes), sizes, outputs=len(group), axis=1)
        for index, (_, node, _) in enumerate(group):
            yield node, split.output(index)


def joined_biases(branches: Sequence[tuple[Ref, Ref | None]]) -> list[Term]:
    """The biases of convolutions, each given beside its weights, in a row, an absent one as zeros; none if all are absent."""
    if all(bias is None for _, bias in branches):
        return []
    zeros = (literal(np.zeros(int(w.shape[0]), w.dtype.numpy)) for w, _ in branches)
    return [apply("Concat", *(z if b is None else b for (_, b), z in zip(branches, zeros, strict=True)), axis=0)]


def _is_candidate(x: Ref, w: Ref, node: Ref) -> bool:
    try:
        known = all(isinstance(n, int) and n > 0 for n in w.shape)
        plain = node.attr("group", 1) == 1 and node.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        return known and plain and x.rank == w.rank and x.dtype is DType.FLOAT and not node.is_constant
    except Unmet:
        return False


def window(node: Ref, w: Ref) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides, dilations and pads."""
    kernel = w.static_shape[2:]
    ones = (1,) * len(kernel)
    pads = tuple(node.attr("pads", ())) if node.attr("auto_pad", "NOTSET") == "NOTSET" else ()
    strides, dilations = tuple(node.attr("strides", ones)), tuple(node.attr("dilations", ones))
    return kernel, strides, dilations, pads or (0,) * (2 * len(kernel))


def _enlarged(w: Ref, kernel: tuple[int, ...]) -> Term:
    """Weights with zeros around the kernel, as many on either side."""
    own = w.static_shape[2:]
    if own == kernel:
        return w
    border = [(k - o) // 2 for k, o in zip(kernel, own, strict=True)]
    return apply("Pad", w, int64s([0, 0, *border, 0, 0, *border]))
