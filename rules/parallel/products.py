"""Products of one left operand become one product: N-way, never pair by pair.

``x @ w1, x @ w2, ...`` is the product of ``x`` with the right operands side by side, cut by a Split. What follows every part
alike moves before the Split (`eqsat.rules.parallel.epilogues`). A Gemm takes part as the product and sum that it is.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import stated
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Operator, traits_of
from eqsat.ir.traits import Product, Traits
from eqsat.ir.types import Shape
from eqsat.rewrite import (
    Apply,
    GroupView,
    Merge,
    Ref,
    Term,
    apply,
    for_each_operator,
    group_rule,
    literal,
    present,
)
from eqsat.rules.linear.alignment import FLOATS
from eqsat.rules.linear.folding import axes_of, definition, has_bias_by_channel, is_of_matrices, is_unbiased, product_of
from eqsat.rules.terms import complete_nodes, outputs_of, split
from eqsat.samples.linear import products_of_one_value

SOURCE = "block matrices; TVM CombineParallelDense, CombineParallelConv2D, pull request 14446; TASO"
_WINDOW = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""What attributes of convolutions are where they are absent."""


class Branch(NamedTuple):
    """A product, or convolution, of a value."""

    x: Ref
    node: Ref
    w: Ref
    bias: Ref | None = None
    inputs: Sequence[Ref | None] = ()


MERGEABLE = stated(
    "x node w outer",
    worthwhile("of floats: x.dtype in FLOATS"),
    worthwhile("not constant: not node.is_constant"),
    "the number of channels is known: isinstance(w.shape[outer], int) and w.shape[outer] > 0",
    functions={"FLOATS": FLOATS},
)


def products(view: GroupView, op: str) -> Iterator[Branch]:
    """What a linear operator computes, of all that may be merged."""
    bias = product_of(definition(op)).bias
    for node, inputs in view.nodes(op):
        x, w = inputs[:2]
        if x is not None and w is not None:
            outer = axes_of(definition(op))(node.attributes).outer
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
    return is_unbiased(op) or has_bias_by_channel(op)


@for_each_operator(stands_beside)
def merge_products(op: str) -> None:
    """``L(x, A, a), L(x, B, b) == Split(L(x, Concat(A, B), Concat(a, b)))``"""
    spelled, product = op.lower().replace("::", "_").replace(".", "_"), product_of(definition(op))

    def merge(view: GroupView) -> Iterator[Merge]:
        axes_by = axes_of(definition(op))

        def key(branch: Branch) -> Hashable:
            axes, w = axes_by(branch.node.attributes), branch.w
            read = {"packed": product.packed, "inputs": branch.inputs[1:]}
            if not view.meets(ALIKE, axes=axes) or not view.meets(NO_VECTORS, x=branch.x, w=w):
                return None
            if not view.meets(READ_ONCE, **read):
                return None
            others = tuple(_key(branch, i, product.columns) for i in _others(product, branch))
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
    where = [*MERGEABLE, *ALIKE, *(NO_VECTORS if is_of_matrices(definition(op)) else ())]
    where += READ_ONCE if product.packed else ()
    group_rule(where=where, exactness=Exactness.ROUNDING, source=SOURCE, sample=partial(products_of_one_value, op=op))(
        merge
    )


def _others(product: Product, branch: Branch) -> Iterator[int]:
    """The inputs beside data, weights and bias."""
    return (i for i in range(2, len(branch.inputs)) if i != product.bias and branch.inputs[i] is not None)


def _key(branch: Branch, index: int, columns: Mapping[int, int]) -> Hashable:
    """In what products that stand side by side agree, of one of the other inputs."""
    value = branch.inputs[index]
    assert value is not None
    return (index, value.dtype, _without(value, columns[index])) if index in columns else (index, value.handle)


def _without(value: Ref, axis: int) -> Shape:
    """The extents of a value, one of them left open."""
    return tuple("" if i == axis % value.rank else d for i, d in enumerate(value.shape))


def _wide(op: str, group: Sequence[Branch], sizes: Sequence[int]) -> Apply:
    """One application in place of a group: side by side what is of single channels, all else as it is."""
    first, product = group[0], product_of(definition(op))
    axes = axes_of(definition(op))(first.node.attributes)
    operands: list[Term | None] = [*first.inputs, *[None] * ((product.bias or 0) + 1 - len(first.inputs))]
    for index, axis in {product.weights: axes.outer, **product.columns}.items():
        parts = [b.inputs[index] for b in group if index < len(b.inputs)]
        of_all = [part for part in parts if part is not None]
        if of_all:
            operands[index] = apply("Concat", *of_all, axis=axis % of_all[0].rank)
    if product.bias is not None:
        operands[product.bias] = next(iter(joined_biases(group, sizes)), None)
    counted = {product.counted: sum(sizes)} if product.counted else {}
    return Apply(op, present(*operands), first.node.attributes.updated(**counted))


def _resizes(traits: Traits) -> bool:
    """Whether an operator joins values, or fills one up."""
    return traits.moves and len(traits.sources) > 1


def _rearranges(traits: Traits) -> bool:
    """Whether weights may be scaled, moved, joined or filled up by an operator."""
    return traits.moves or (traits.homogeneous and traits.operands == 2)


class Products:
    """The products of two values in the e-graph, by left operand: matrix products, or convolutions of one input."""

    def __init__(self, view: GroupView, branches: Iterable[Branch]) -> None:
        self._view = view
        self._of: dict[int, dict[int, Branch]] = {}
        for branch in branches:
            self._of.setdefault(branch.x.handle, {}).setdefault(branch.node.handle, branch)
        self._made_from: dict[int, dict[int, Ref]] = {}
        self._origins_of: dict[int, set[int]] = {}

    def groups(self, key: Callable[[Branch], Hashable]) -> Iterator[list[Branch]]:
        """Branches that can be one product, those with equal ``key``, oldest first; ``None`` is no key."""
        for handle in sorted(self._of):
            alike: dict[Hashable, list[Branch]] = {}
            for branch in self._distinct(self._of[handle]):
                found = key(branch)
                if found is not None:
                    alike.setdefault(found, []).append(branch)
            for group in alike.values():
                independent = self._independent(group)
                if len(independent) > 1:
                    yield independent

    def is_cut(self, x: Ref, node: Ref) -> bool:
        """Whether the product is already cut from a wider product of ``x``."""
        return any(wide in self._of[x.handle] for wide in self._cut_from.get(node.handle, ()))

    @cached_property
    def _cut_from(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for node, (value, *_) in complete_nodes(self._view, "Split"):
            for part in outputs_of(self._view, node).values():
                found.setdefault(part.handle, set()).add(value.handle)
        return found

    @cached_property
    def _sums(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for node, inputs in self._view.nodes("Add"):
            found.setdefault(node.handle, set()).update(i.handle for i in inputs if i is not None)
        return found

    def _distinct(self, branches: dict[int, Branch]) -> Iterator[Branch]:
        """The branches, one for each weight: not also a scaled form of it, nor the wide product it is part of."""
        taken: set[int] = set()
        for branch in branches.values():
            if not self._is_superseded(branches, branch):
                origins = self._origins(branch.w)
                if not origins & taken:
                    taken |= origins
                    yield branch

    def _origins(self, weight: Ref) -> set[int]:
        """The values that ``weight`` is a scaled, rearranged or joined form of, itself among them."""
        known = self._origins_of.get(weight.handle)
        if known is not None:
            return known
        found = self._origins_of[weight.handle] = {weight.handle}
        waiting = [weight]
        while waiting:
            for handle, operand in self._operands(waiting.pop()).items():
                if handle not in found:
                    found.add(handle)
                    waiting.append(operand)
        return found

    def _operands(self, value: Ref) -> dict[int, Ref]:
        known = self._made_from.get(value.handle)
        if known is None:
            known = self._made_from[value.handle] = {}
            for op, inputs in self._view.spellings(value):
                traits = traits_of(op)
                if _rearranges(traits):
                    resized = _resizes(traits)
                    operands = [i for i in inputs if i is not None and (resized or _same_size(i, value))]
                    known.update((i.handle, i) for i in operands)
        return known

    def _is_superseded(self, branches: dict[int, Branch], branch: Branch) -> bool:
        """Whether every reader of the product, or of its sum with a bias, can use a scaled form of the product instead."""
        node, weight = branch.node, branch.w
        forms = {h for h, b in branches.items() if h != node.handle and weight.handle in self._origins(b.w)}

        def elsewhere(op: str, reader: Ref) -> bool:
            if reader.handle in forms:
                return True
            return op == "Add" and self._all_readers(reader, lambda _, r: bool(forms & self._sums.get(r.handle, set())))

        return bool(forms) and self._all_readers(node, elsewhere)

    def _all_readers(self, value: Ref, holds: Callable[[str, Ref], bool]) -> bool:
        readers = [(op, reader) for op, reader, _ in self._view.users(value)]
        return bool(readers) and all(holds(op, reader) for op, reader in readers)

    def _independent(self, group: list[Branch]) -> list[Branch]:
        """The group without the right operands that are computed from one of its products."""
        computed = [branch.w for branch in group if not branch.w.is_constant]
        if not computed or len(group) < 2:
            return group
        reached = computed_from(self._view, computed, {branch.node.handle for branch in group})
        return [branch for branch in group if branch.w.handle not in reached]


def _same_size(a: Ref, b: Ref) -> bool:
    return a.type.is_static and b.type.is_static and a.type.size == b.type.size


def computed_from(view: GroupView, targets: Sequence[Ref], sources: set[int]) -> set[int]:
    """The e-classes among ``targets`` that some spelling computes from one of ``sources``.

    The search runs backwards: right operands are mostly constants in disguise, with few operands of their own.
    """
    return {target.handle for target in targets if _is_computed_from(view, target, sources)}


def _is_computed_from(view: GroupView, target: Ref, sources: set[int]) -> bool:
    seen = {target.handle}
    waiting = [target]
    while waiting:
        value = waiting.pop()
        if value.handle in sources:
            return True
        operands = (operand for _, inputs in view.spellings(value) for operand in inputs)
        for operand in operands:
            if operand is not None and operand.handle not in seen:
                seen.add(operand.handle)
                waiting.append(operand)
    return False
