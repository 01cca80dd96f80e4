"""What follows every part of a Split alike moves before the Split: biases, scales, functions of single elements."""

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eqsat.conditions import constant
from eqsat.equations import form, group_rule
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import operator, traits_of
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, shared
from eqsat.rules.algebra.broadcasting import is_repeated
from eqsat.rules.cuts import Cut, cuts
from eqsat.rules.linear.alignment import lies_along, spread

Operands = tuple[Ref | None, ...]
Function = tuple[str, Attributes, tuple[Hashable, ...]]
"""An operator, its attributes, and in what the operands agree that it has for each part."""

_CONSTANT, _SHARED = "a constant for each part", "a value for all parts"


class _Factored(NamedTuple):
    """A constant for each part with a value that all parts share, by a function of the two."""

    op: str
    shared: Ref


CutsByPart = Mapping[tuple[int, int], Sequence[Cut]]
"""The cuts in which a value is a part, by that and the number of the part."""


@shared
def _cuts_by_part(view: GroupView) -> CutsByPart:
    found: dict[tuple[int, int], list[Cut]] = {}
    for cut in cuts(view):
        for index, part in enumerate(cut.parts):
            found.setdefault((part.handle, index), []).append(cut)
    return found


def _operands(view: GroupView, by_part: CutsByPart, cut: Cut, index: int, x: Ref) -> Iterator[tuple[Hashable, Ref]]:
    """What an operand beside a part is: the part of a value that is cut alike, a constant along the last axis, a value that is
    the same for all parts, or such a constant with such a value."""
    part = cut.parts[index]
    for other in by_part.get((x.handle, index), ()):
        if other.value.type == cut.value.type and (other.sizes, other.axis) == (cut.sizes, cut.axis):
            yield other.value.handle, other.value
    if x.is_constant:
        if lies_along(x, part, -1):
            yield _CONSTANT, x
        return
    if is_alike(x, part, cut.axis):
        yield (_SHARED, x.handle), x
    for op, inputs in view.spellings(x):
        definition = operator(op)
        pair = [i for i in inputs if i is not None]
        if len(pair) == len(inputs) == 2 and definition is not None and definition.commutative:
            for s, c in (pair, pair[::-1]):
                if is_alike(s, part, cut.axis) and not s.is_constant and c.is_constant and lies_along(c, part, -1):
                    yield _Factored(op, s), c


def is_alike(s: Ref, part: Ref, axis: int) -> bool:
    """Whether ``s`` is known to broadcast to the shape of ``part`` and to be the same all along an axis."""
    own = s.type.shape or ()
    place = axis - part.rank + len(own)
    return (place < 0 or own[place] == 1) and is_repeated(part, s)


def _functions(view: GroupView, by_part: CutsByPart, cut: Cut, index: int) -> Mapping[Function, tuple[Ref, Operands]]:
    """Functions of a part, each with its oldest result, and what its operands are; what leaves the part as it is comes last."""
    found: dict[Function, tuple[Ref, Operands]] = {}
    part = cut.parts[index]
    for op, user, inputs in sorted(view.users(part), key=lambda reader: reader[1].handle == part.handle):
        count, definition = traits_of(op).operands, operator(op)
        elements, numbers = inputs[:count], inputs[count:]
        single = all(n is None or n.type.size == 1 for n in numbers)
        if None in elements or not single or user.attr("block_size", 0):  # a scale of one block does not hold for all
            continue
        alike = tuple(None if n is None else n.handle for n in numbers)
        turns = definition is not None and definition.commutative
        for each in itertools.product(*(_operands(view, by_part, cut, index, x) for x in elements if x is not None)):
            chosen = sorted(each, key=lambda operand: _rank(operand[0])) if turns else each
            kinds = (*(kind for kind, _ in chosen), *alike)
            if next((kind for kind in kinds[:count] if isinstance(kind, int)), None) == cut.value.handle:
                operands = (*(x for _, x in chosen), *numbers)
                found.setdefault((op, user.attributes, kinds), (user, operands))
    return found


def _rank(kind: Hashable) -> tuple[bool, str]:
    """An order of operands: those that are cut first."""
    return not isinstance(kind, int), str(kind)


def _functions_of_all_parts(view: GroupView) -> Iterator[Match]:
    """Each function of all parts of a value, and for each of its operands what that is for each part."""
    by_part = _cuts_by_part(view)
    for cut in cuts(view):
        first = _functions(view, by_part, cut, 0)
        others = [_functions(view, by_part, cut, index) for index in range(1, len(cut.parts))] if first else []
        for f in first:
            found = [of_part[f] for of_part in (first, *others) if f in of_part]
            if len(found) == len(cut.parts):
                columns = tuple(zip(*(operands for _, operands in found), strict=True))
                results = cut.results(view, [reader for reader, _ in found])
                yield from (Match({"cut": cut, "f": f, "columns": columns, "index": i}, known) for known, i in results)


def _joined(kind: Hashable, operands: Sequence[Ref], sizes: Sequence[int]) -> Term:
    """What stands beside the whole, by what does beside its parts: a number, such as an exponent, stays one."""
    if not _is_of_columns(kind):
        return operands[0]
    number = operands[0].type.size == 1 and len({x.handle for x in operands}) == 1
    columns = operands[0] if number else apply("Concat", *map(spread, operands, sizes), axis=0)
    return apply(kind.op, kind.shared, columns) if isinstance(kind, _Factored) else columns


def _is_of_columns(kind: Hashable) -> bool:
    return kind == _CONSTANT or isinstance(kind, _Factored)


def has_columns(f: Function) -> bool:
    return any(map(_is_of_columns, f[2]))


_CUT, _OTHER = "Split(x, k, outputs=2, axis=a)", "Split(y, j, outputs=2, axis=b)"
_X, _Y = "Split(x, k, outputs=2)", "Split(y, k, outputs=2)"


@group_rule(
    find=_functions_of_all_parts,
    where=["constants lie along the axis that is cut: cut.axis == cut.value.rank - 1 or not has_columns(f)"],
    source="a function of single elements does not see its neighbours",
    forms=[
        f"Relu({_CUT}[0]) + Relu({_CUT}[1])",
        f"Concat(Neg({_CUT}[0]), Neg({_CUT}[1]), axis=b)",
        form(f"Concat(Clip({_CUT}[0], *l, *h), Clip({_CUT}[1], *l, *h), axis=b)", constant("l", "h")),
        *(
            form(f"{both}({_CUT}[0] {sign} c, {_CUT}[1] {sign} e{axis})", constant("c", "e"))
            for both, axis in (("Sub", ""), ("Concat", ", axis=b"))
            for sign in "+*/"
        ),
        *(f"{_CUT}[0] {sign} s - {_CUT}[1] {sign} s" for sign in "*/"),
        *(form(f"{_CUT}[0] {sign} (s * c) - {_CUT}[1] {sign} (s * e)", constant("c", "e")) for sign in "*/"),
        f"({_CUT}[0] - {_OTHER}[0]) * ({_CUT}[1] - {_OTHER}[1])",
        f"Concat({_CUT}[0] + {_OTHER}[0], {_OTHER}[1] + {_CUT}[1], axis=c)",
        f"({_X}[0] - {_Y}[0]) * ({_X}[1] - {_Y}[1])",
        f"SwiGLU({_CUT}[0], {_OTHER}[0], **m) * SwiGLU({_CUT}[1], {_OTHER}[1], **n)",
    ],
)
def merge_functions_of_one_split(m: Match) -> Term:
    """``(f(p1, q1, c1), f(p2, q2, c2), ...) == Split(f(v, u, Concat(c1, c2, ...)))`` where ``(p1, p2, ...) == Split(v)`` and, cut
    alike, ``(q1, q2, ...) == Split(u)``, for an elementwise function of parts, of constants along the last axis if that is cut,
    at times with a factor that all parts share, and of the same values for all parts, as bounds are.

    Where these are the parts of a value ``w``, ``w == f(v, u, ...)``.
    """
    op, attributes, kinds = m.f
    operands = (_joined(kind, column, m.cut.sizes) for kind, column in zip(kinds, m.columns, strict=True))
    return m.cut.result(Apply(op, tuple(operands), attributes), m.index)
