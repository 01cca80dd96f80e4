"""Products of one left operand become one product: N-way, never pair by pair.

``x @ w1, x @ w2, ...`` is the product of ``x`` with the right operands side by side, cut by a Split. What follows every part
alike moves before the Split (`eqsat.rules.parallel.epilogues`). A Gemm takes part as the product and sum that it is.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule, stated
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Operator, defined
from eqsat.ir.traits import Product
from eqsat.ir.types import Dim, Shape
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, apply, for_each_operator, literal, present
from eqsat.rules.linear.alignment import FLOATS
from eqsat.rules.linear.operators import (
    axes_of,
    has_bias_by_channel,
    is_of_matrices,
    is_unbiased,
    multiplies_integers,
    product_of,
)
from eqsat.rules.parallel.groups import Branch, Products
from eqsat.rules.terms import split
from eqsat.samples.products import products_of_one_value

SOURCE = "block matrices; TVM CombineParallelDense, CombineParallelConv2D, pull request 14446; TASO"
_WINDOW = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""What attributes of convolutions are where they are absent."""


MERGEABLE = stated(
    "x node w outer",
    worthwhile("of floats or codes: x.dtype in FLOATS or x.dtype.bits == 8"),
    worthwhile("not constant: not node.is_constant"),
    "the number of channels is known: isinstance(w.shape[outer], int) and w.shape[outer] > 0",
    functions={"FLOATS": FLOATS},
)


def products(view: GroupView, op: str) -> Iterator[Branch]:
    """What a linear operator computes, of all that may be merged."""
    bias = product_of(defined(op)).bias
    for node, inputs in view.nodes(op):
        x, w = inputs[:2]
        if x is not None and w is not None:
            outer = axes_of(defined(op))(node.attributes).outer
            if view.meets(MERGEABLE, x=x, node=node, w=w, outer=outer):
                yield Branch(x, node, w, inputs[bias] if bias is not None and bias < len(inputs) else None, inputs)


def parts_of(whole: Term, group: Sequence[Branch], sizes: Sequence[int], axis: int) -> Iterator[Merge]:
    """The products of a group are the parts of ``whole``, of so many elements along ``axis``."""
    parts = split(whole, sizes, axis)
    yield from ((branch.node, parts.output(index)) for index, branch in enumerate(group))


def joined_biases(group: Sequence[Branch], sizes: Sequence[int]) -> tuple[Term, ...]:
    """The biases, so many elements each, in a row, an absent one as zeros; none if all are absent."""
    if all(branch.bias is None for branch in group):
        return ()
    biases = ((b.bias, literal(np.zeros(n, b.x.dtype.numpy))) for b, n in zip(group, sizes, strict=True))
    return (apply("Concat", *(zeros if bias is None else bias for bias, zeros in biases), axis=0),)


def plain(attributes: Attributes) -> dict[str, Any]:
    """Attributes without those that are as if they were absent, or follow from the weights."""

    def says_nothing(name: str, value: Any) -> bool:
        if name in _WINDOW:
            return all(n == _WINDOW[name] for n in value)
        return name == "kernel_shape" or (name, value) in (("group", 1), ("auto_pad", "NOTSET"), ("auto_pad", "VALID"))

    return {name: value for name, value in attributes.items() if not says_nothing(name, value)}


# --- products of one value side by side

ALIKE = stated("axes", "channels in one group: axes.groups == 1")
NO_VECTORS = stated("x w", "of no vectors: x.rank >= 2 and w.rank >= 2")
READ_ONCE = stated(
    "packed inputs",
    worthwhile("constants that kernels read once: not packed or all(c is None or c.is_constant for c in inputs)"),
)


def stands_beside(op: Operator) -> bool:
    """Whether products by it stand side by side: a channel has its own weights, and a bias, if there is one, is a number for each
    channel."""
    return is_unbiased(op) or has_bias_by_channel(op) or multiplies_integers(op)


@for_each_operator(stands_beside)
def merge_products(op: str) -> None:
    """``L(x, A, a), L(x, B, b) == Split(L(x, Concat(A, B), Concat(a, b)))``"""
    spelled, product = op.lower().replace("::", "_").replace(".", "_"), product_of(defined(op))

    def merge(view: GroupView) -> Iterator[Merge]:
        axes_by = axes_of(defined(op))

        def key(branch: Branch) -> Hashable:
            axes, w = axes_by(branch.node.attributes), branch.w
            read = {"packed": product.packed, "inputs": branch.inputs[1:]}
            if not view.meets(ALIKE, axes=axes) or not view.meets(NO_VECTORS, x=branch.x, w=w):
                return None
            if not view.meets(READ_ONCE, **read):
                return None
            others = tuple(_key(branch, i, product, axes.outer) for i in _others(product, branch))
            attributes = {k: v for k, v in plain(branch.node.attributes).items() if k != product.counted}
            return w.dtype, _without(w, axes.outer), others, Attributes(attributes)

        found = Products(view, products(view, op))
        for group in found.groups(key):
            if not all(found.is_cut(b.x, b.node) for b in group):
                axes = axes_by(group[0].node.attributes)
                sizes = [int(b.w.shape[axes.outer]) for b in group]
                yield from parts_of(_wide(op, group, sizes), group, sizes, axes.result % group[0].node.rank)

    merge.__name__ = f"merge_{spelled}s_of_one_input"
    merge.__doc__ = f"""``({op}(x, w1), {op}(x, w2), ...) == Split({op}(x, Concat(w1, w2, ...)))`` along the channels put out.

    The weights agree in all other extents, the operators in their attributes; an absent bias is zero. Left out are vectors,
    products of which only a scaled form is used that is itself a product of ``x``, and weights computed from another product of
    the group.
    """
    where = [*MERGEABLE, *ALIKE, *(NO_VECTORS if is_of_matrices(defined(op)) else ())]
    where += READ_ONCE if product.packed else ()
    exactness = Exactness.EXACT if multiplies_integers(defined(op)) else Exactness.ROUNDING
    group_rule(where=where, exactness=exactness, source=SOURCE, sample=partial(products_of_one_value, op=op))(merge)


def _others(product: Product, branch: Branch) -> Iterator[int]:
    """The inputs beside data, weights and bias."""
    return (i for i in range(2, len(branch.inputs)) if i != product.bias and branch.inputs[i] is not None)


def _key(branch: Branch, index: int, product: Product, outer: int) -> Hashable:
    """In what products that stand side by side agree, of one of the other inputs."""
    value, axis = branch.inputs[index], product.columns.get(index)
    assert value is not None
    if axis is None or not _is_by_channel(value, axis, branch.w.shape[outer]):
        return (index, value.handle)
    return (index, value.dtype, _without(value, axis))


def _is_by_channel(value: Ref, axis: int, channels: Dim) -> bool:
    """Whether a value has so much for each channel along an axis: a zero point may be one number for all."""
    extent = value.shape[axis] if value.rank else 0
    return isinstance(extent, int) and isinstance(channels, int) and extent > 0 and extent % channels == 0


def _without(value: Ref, axis: int) -> Shape:
    """The extents of a value, one of them left open."""
    return tuple("" if i == axis % value.rank else d for i, d in enumerate(value.shape))


def _wide(op: str, group: Sequence[Branch], sizes: Sequence[int]) -> Apply:
    """One application in place of a group: side by side what is of single channels, all else as it is."""
    first, product = group[0], product_of(defined(op))
    axes = axes_of(defined(op))(first.node.attributes)
    operands: list[Term | None] = [*first.inputs, *[None] * ((product.bias or 0) + 1 - len(first.inputs))]
    for index, axis in {product.weights: axes.outer, **product.columns}.items():
        parts = [b.inputs[index] for b in group if index < len(b.inputs)]
        of_all = [part for part in parts if part is not None]
        if of_all and _is_by_channel(of_all[0], axis, sizes[0]):
            operands[index] = apply("Concat", *of_all, axis=axis % of_all[0].rank)
    if product.bias is not None:
        operands[product.bias] = next(iter(joined_biases(group, sizes)), None)
    counted = {product.counted: sum(sizes)} if product.counted else {}
    return Apply(op, present(*operands), first.node.attributes.updated(**counted))
