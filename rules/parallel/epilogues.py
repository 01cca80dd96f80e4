"""What follows every part of a Split alike moves before the Split: biases, scales, functions of single elements."""

from collections.abc import Iterator
from typing import NamedTuple

from eqsat.conditions import constant, worthwhile
from eqsat.equations import form, stated
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import operator, traits_of
from eqsat.rewrite import Apply, GroupView, Match, Merge, Ref, Term, apply, group_rule
from eqsat.rules.cuts import cuts
from eqsat.rules.linear.alignment import lies_along, spread
from eqsat.rules.terms import by_class

_CUT, _OTHER = "Split(x, k, outputs=2, axis=a)", "Split(y, j, outputs=2, axis=b)"

# --- one function of each part

FUNCTIONS = "a function of single elements does not see its neighbours"


def _functions_of_all_parts(view: GroupView) -> Iterator[Match]:
    for cut in cuts(view):
        readers = [_functions(view, part) for part in cut.parts]
        for key in readers[0]:
            found = [of_part[key] for of_part in readers if key in of_part]
            if len(found) == len(readers):
                bound = {"cut": cut, "f": key[0], "attributes": key[1], "numbers": found[0][1]}
                results = cut.results(view, [reader for reader, _ in found])
                yield from (Match(bound | {"index": i}, known) for known, i in results)


@group_rule(
    find=_functions_of_all_parts,
    exactness=Exactness.EXACT,
    source=FUNCTIONS,
    forms=[
        form(f"Relu({_CUT}[0]) + Relu({_CUT}[1])"),
        form(f"Concat(Neg({_CUT}[0]), Neg({_CUT}[1]), axis=b)"),
        form(f"Concat(Clip({_CUT}[0], *l, *h), Clip({_CUT}[1], *l, *h), axis=b)", constant("l", "h")),
    ],
)
def merge_activations_of_one_split(m: Match) -> Term:
    """``(f(p1), f(p2), ...) == Split(f(v))`` where ``(p1, p2, ...) == Split(v)``, for one function of single elements and, where
    it takes them, the same numbers.

    Where these are the parts of ``u``, ``u == f(v)``.
    """
    return m.cut.result(Apply(m.f, (m.cut.value, *m.numbers), m.attributes), m.index)


Function = tuple[str, Attributes, tuple[int | None, ...]]
Numbers = tuple[Ref | None, ...]


def _functions(view: GroupView, part: Ref) -> dict[Function, tuple[Ref, Numbers]]:
    """Functions of a part, each by its operator, attributes and numbers, with its result."""
    found: dict[Function, tuple[Ref, Numbers]] = {}
    for op, user, (x, *numbers) in view.users(part):
        of_part = traits_of(op).operands == 1 and x is not None and x.handle == part.handle
        whole = not user.attr("block_size", 0)  # a scale of one block is no number that holds for all
        if of_part and whole and all(n is None or n.type.size == 1 for n in numbers):
            handles = tuple(None if n is None else n.handle for n in numbers)
            found.setdefault((op, user.attributes, handles), (user, tuple(numbers)))
    return found


# --- constants beside each part, and what all parts share

LAST = stated("cut", "cut along the last axis: cut.axis == cut.value.rank - 1")
BESIDE = (
    worthwhile(constant("c")),
    *stated("c part", "c lies along the last axis: lies_along(c, part, -1)", functions={"lies_along": lies_along}),
)


def is_of_rows(s: Ref, part: Ref) -> bool:
    """Whether ``s`` broadcasts to the shape of ``part`` and is the same for all columns."""
    extents = zip(reversed(s.shape), reversed(part.shape), strict=False)
    return s.rank <= part.rank and s.shape[-1:] in ((), (1,)) and all(d in (1, n) for d, n in extents)


SHARED = stated(
    "s part",
    worthwhile("not constant: not s.is_constant"),
    "the same for all columns: is_of_rows(s, part)",
    functions={"is_of_rows": is_of_rows},
)


def _of_constants(name: str, op: str, sign: str) -> None:
    """What adds a constant to every part, or multiplies it with one, does so to the whole."""

    def merge(view: GroupView) -> Iterator[Merge]:
        yield from _merge_constants(view, op)

    merge.__name__, merge.__module__ = name, __name__
    parts, cs = f"(p1 {sign} (s {sign} c1), p2 {sign} (s {sign} c2), ...)", f"s {sign} Concat(c1, c2, ...)"
    merge.__doc__ = f"""``{parts} == Split(v {sign} ({cs}))`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``c`` is constant and lies along that axis; a single number is repeated for every column of its part. ``s`` is the same
    for all columns. Either may be missing."""
    group_rule(
        where=[*LAST, *BESIDE, *SHARED],
        exactness=Exactness.EXACT,
        source=FUNCTIONS,
        forms=[
            form(f"{both}({op}({_CUT}[0], {first}), {op}({_CUT}[1], {second}){axis})", constant("c", "e"))
            for both, axis in (("Sub", ""), ("Concat", ", axis=b"))
            for first, second in (("c", "e"), ("s", "s"), (f"{op}(s, c)", f"{op}(s, e)"))
        ],
    )(merge)


_of_constants("merge_biases_of_one_split", "Add", "+")
_of_constants("merge_scales_of_one_split", "Mul", "*")


class _Beside(NamedTuple):
    """What a part is multiplied with, or has added: the result, what all parts share, and what is of this part alone."""

    reader: Ref
    shared: Ref | None
    own: Ref | None


def _merge_constants(view: GroupView, op: str) -> Iterator[Merge]:
    for cut in cuts(view):
        beside = [_beside(view, op, part) for part in cut.parts] if view.meets(LAST, cut=cut) else []
        for key in beside[0] if beside else ():
            found = [of_part[key] for of_part in beside if key in of_part]
            if len(found) == len(beside):
                terms: list[Term] = [] if found[0].shared is None else [found[0].shared]
                owns = [(each.own, size) for each, size in zip(found, cut.sizes, strict=True) if each.own is not None]
                if owns:
                    terms.append(apply("Concat", *(spread(c, size) for c, size in owns), axis=0))
                whole = apply(op, cut.value, terms[0] if len(terms) == 1 else apply(op, *terms))
                yield from cut.parts_of(view, whole, [each.reader for each in found])


def _beside(view: GroupView, op: str, part: Ref) -> dict[tuple[int, bool], _Beside]:
    """The oldest ``op`` of ``part`` for each value that other parts may share, with and without a constant of its own; one that
    changes nothing last of all."""
    found: dict[tuple[int, bool], _Beside] = {}
    for name, user, inputs in view.users(part):
        for own, other in (inputs, inputs[::-1]) if name == op else ():
            if own is None or other is None or own.handle != part.handle:
                continue
            for shared, c in _apart(view, op, other, part):
                key = (-1 if shared is None else shared.handle, c is not None)
                if key not in found or found[key].reader.handle == part.handle:
                    found[key] = _Beside(user, shared, c)
    return found


def _apart(view: GroupView, op: str, operand: Ref, part: Ref) -> Iterator[tuple[Ref | None, Ref | None]]:
    """An operand as what other parts may share, and a constant of this part: either alone, or both together."""
    if operand.is_constant:
        if view.meets(BESIDE, c=operand, part=part):
            yield None, operand
        return
    if view.meets(SHARED, s=operand, part=part):
        yield operand, None
    for name, inputs in view.spellings(operand):
        for s, c in (inputs, inputs[::-1]) if name == op else ():
            if s is None or c is None or not c.is_constant:
                continue
            if view.meets(SHARED, s=s, part=part) and view.meets(BESIDE, c=c, part=part):
                yield s, c


# --- one function of each pair of parts

ALIKE = stated("a b", "of one type: a.value.type == b.value.type", "cut alike: (a.sizes, a.axis) == (b.sizes, b.axis)")


@group_rule(
    where=ALIKE,
    exactness=Exactness.EXACT,
    source=FUNCTIONS,
    forms=[
        form(f"({_CUT}[0] - {_OTHER}[0]) * ({_CUT}[1] - {_OTHER}[1])"),
        form(f"Concat({_CUT}[0] + {_OTHER}[0], {_OTHER}[1] + {_CUT}[1], axis=c)"),
        form(f"SwiGLU({_CUT}[0], {_OTHER}[0], **m) * SwiGLU({_CUT}[1], {_OTHER}[1], **n)"),
        form(
            "(Split(x, k, outputs=2)[0] - Split(y, k, outputs=2)[0]) * (Split(x, k, outputs=2)[1] - Split(y, k, outputs=2)[1])"
        ),
    ],
)
def merge_pairs_of_two_splits(view: GroupView) -> Iterator[Merge]:
    """``(f(p1, q1), f(p2, q2), ...) == Split(f(v, u))`` where ``(p1, ...) == Split(v)`` and ``(q1, ...) == Split(u)``.

    Both values have the same shape and are cut alike, so no part is broadcast.
    """
    beginning = by_class((cut.parts[0], cut) for cut in cuts(view))
    for cut in (c for found in beginning.values() for c in found):
        for op, first, inputs in view.users(cut.parts[0]):
            if traits_of(op).operands < 2 or len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
                continue
            for other in beginning.get(inputs[1].handle, ()) if inputs[0].handle == cut.parts[0].handle else ():
                if not view.meets(ALIKE, a=cut, b=other):
                    continue
                pairs = zip(cut.parts, other.parts, strict=True)
                found = [_reader(view, op, first.attributes, p, q) for p, q in pairs]
                readers = [reader for reader in found if reader is not None]
                if len(readers) == len(found):
                    whole = Apply(op, (cut.value, other.value), first.attributes)
                    yield from cut.parts_of(view, whole, readers)


def _reader(view: GroupView, op: str, attributes: Attributes, left: Ref, right: Ref) -> Ref | None:
    """The oldest ``op`` of two parts with these attributes, the parts in this order unless it does not matter."""
    definition = operator(op)
    commutes = definition is not None and definition.commutative
    for name, user, inputs in view.users(left):
        handles = [i.handle for i in inputs if i is not None]
        alike = name == op and user.attributes == attributes
        if alike and handles in ([left.handle, right.handle], [right.handle, left.handle][: 2 * commutes]):
            return user
    return None
