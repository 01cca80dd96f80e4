"""Shorthands for terms, named after the operators."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from eqsat.ir.types import DType
from eqsat.rewrite import PROJECTION, Apply, GroupView, Literal, Ref, Term, Unmet, apply, literal, shared

T = TypeVar("T")
Node = tuple[str, Ref, tuple[Any, ...]]
"""An e-node: operator, class, inputs; ``None`` for those that are absent."""


def add(a: Term, b: Term) -> Apply:
    return apply("Add", a, b)


def total(a: Term | None, b: Term | None) -> Term | None:
    """The sum of two values, such as biases, either of which may be absent."""
    return b if a is None else a if b is None else add(a, b)


def sub(a: Term, b: Term) -> Apply:
    return apply("Sub", a, b)


def mul(a: Term, b: Term) -> Apply:
    return apply("Mul", a, b)


def div(a: Term, b: Term) -> Apply:
    return apply("Div", a, b)


def matmul(a: Term, b: Term) -> Apply:
    return apply("MatMul", a, b)


def transpose(x: Term, perm: Sequence[int]) -> Term:
    """``x`` with its axes permuted; ``x`` itself if they stay."""
    return x if list(perm) == list(range(len(perm))) else apply("Transpose", x, perm=tuple(perm))


def reshape(value: Term, shape: Iterable[int]) -> Apply:
    """``value`` under another static shape."""
    return apply("Reshape", value, int64s(shape))


def permutation_of(node: Ref) -> tuple[int, ...]:
    """The permutation of a matched Transpose; without ``perm`` it reverses the axes."""
    perm = node.attr("perm")
    return tuple(range(node.rank))[::-1] if perm is None else tuple(perm)


@shared
def transposes(view: GroupView) -> Sequence[tuple[Ref, Ref, tuple[int, ...]]]:
    """Every Transpose with its operand and permutation, but for those that reverse nobody knows how many axes."""
    return [
        (node, x, permutation_of(node))
        for node, (x,) in complete_nodes(view, "Transpose")
        if node.attr("perm") is not None or node.type.rank is not None
    ]


def heads_and_rows_exchanged(rank: int) -> tuple[int, ...]:
    """The permutation of (..., rows, heads, size) to (..., heads, rows, size), and back."""
    return (*range(rank - 3), rank - 2, rank - 3, rank - 1)


def last_axes_exchanged(rank: int) -> tuple[int, ...]:
    """The permutation that exchanges the last two axes of a value with ``rank`` axes, two or more."""
    return (*range(rank - 2), rank - 1, rank - 2)


def split(value: Term, sizes: Sequence[int], axis: int) -> Apply:
    """``value`` cut along an axis, counted from the front, into parts of so many elements."""
    return apply("Split", value, int64s(sizes), outputs=len(sizes), axis=axis)


def converted(term: Term, source: DType, target: DType) -> Term:
    """A term of element type ``source`` in another one, or as it is."""
    return term if source is target else apply("Cast", term, to=int(target))


def int64s(values: Iterable[int]) -> Literal:
    """A vector of int64, as shapes, axes and bounds are given."""
    return _vector(tuple(values))


@lru_cache(1 << 14)
def _vector(values: tuple[int, ...]) -> Literal:
    return literal(np.array(values, np.int64))


def complete_nodes(view: GroupView, *ops: str) -> Iterator[tuple[Ref, tuple[Ref, ...]]]:
    """Every e-node of the operators that has all its inputs."""
    for op in ops:
        for node, inputs in view.nodes(op):
            given = tuple(x for x in inputs if x is not None)
            if len(given) == len(inputs):
                yield node, given


def outputs_of(view: GroupView, node: Ref) -> dict[int, Ref]:
    """Those outputs of an operator with several that exist, by number."""
    return {int(user.attr("index")): user for op, user, _ in view.users(node) if op == PROJECTION}


def sizes_of_parts(split: Ref, whole: Ref, sizes: Ref | None = None) -> tuple[int, ...]:
    """The extents of the parts that a Split makes of ``whole``, whose number or ``sizes`` it is given; raises `Unmet`."""
    if sizes is not None:
        return tuple(int(n) for n in sizes.value.reshape(-1))
    axis: int = split.attr("axis", 0)
    extent, count = whole.shape[axis], split.attr("num_outputs")
    if not isinstance(extent, int):
        raise Unmet("the extent that is split is unknown")
    each = -(-extent // count)
    return tuple(max(min(each, extent - i * each), 0) for i in range(count))


def by_class(found: Iterable[tuple[Ref, T]]) -> dict[int, list[T]]:
    """What was found of each e-class."""
    grouped: dict[int, list[T]] = {}
    for ref, what in found:
        grouped.setdefault(ref.handle, []).append(what)
    return grouped


def closure(found: Iterable[int], steps: Iterable[tuple[Iterable[int], Sequence[int]]]) -> set[int]:
    """``found`` and what follows from it by ``steps``: what each needs, and what it adds once all of that is there."""
    known = set(found)
    missing: list[int] = []
    added: list[Sequence[int]] = []
    waiting: dict[int, list[int]] = {}
    for number, (needed, reached) in enumerate(steps):
        lacking = {n for n in needed if n not in known}
        missing.append(len(lacking))
        added.append(reached)
        for handle in lacking:
            waiting.setdefault(handle, []).append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    while ready:
        for handle in added[ready.pop()]:
            known.add(handle)
            for number in waiting.pop(handle, ()):
                missing[number] -= 1
                if not missing[number]:
                    ready.append(number)
    return known


def nodes_by_class(view: GroupView, ops: Iterable[str]) -> dict[int, list[Node]]:
    """The e-nodes of the operators, of each e-class."""
    return by_class((node, (op, node, inputs)) for op in ops for node, inputs in view.nodes(op))


def established(read: Callable[..., T | None], given: Iterable[Sequence[Any]]) -> Iterator[T]:
    """What is read of each of the ``given`` arguments, as far as it is anything and enough is known to say so."""
    for arguments in given:
        try:
            found = read(*arguments)
        except Unmet:
            continue
        if found is not None:
            yield found


class Functions(Generic[T]):
    """Which values are functions of one other value, the one farthest away; ``of`` gives ``None`` if there is none."""

    def __init__(self, view: GroupView, ops: Iterable[str]) -> None:
        self._nodes = nodes_by_class(view, ops)
        self._found: dict[int, T | None] = {}

    def of(self, value: Ref) -> T | None:
        if value.handle not in self._found:
            self._found[value.handle] = None  # until found: no value is a function of itself
            derived = next(established(self._applied, self._nodes.get(value.handle, ())), None)
            self._found[value.handle] = derived or self._identity(value)
        return self._found[value.handle]

    def _applied(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> Any:
        """The operator on what its operands are functions of. Raises `Unmet`."""
        raise NotImplementedError

    def _identity(self, value: Ref) -> T | None:
        """The function that a value is of itself, if it may be the one farthest away."""
        raise NotImplementedError
