"""What follows every part of a Split alike moves before the Split: biases, scales, functions of single elements."""

from collections.abc import Iterator

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


# --- constants beside each part

LAST = stated("cut", "cut along the last axis: cut.axis == cut.value.rank - 1")
BESIDE = (
    worthwhile(constant("c")),
    *stated("c part", "c lies along the last axis: lies_along(c, part, -1)", functions={"lies_along": lies_along}),
)


def _of_constants(name: str, op: str, sign: str) -> None:
    """What adds a constant to every part, or multiplies it with one, does so to the whole."""

    def merge(view: GroupView) -> Iterator[Merge]:
        yield from _merge_constants(view, op)

    merge.__name__, merge.__module__ = name, __name__
    parts, cs = f"(p1 {sign} c1, p2 {sign} c2, ...)", "Concat(c1, c2, ...)"
    merge.__doc__ = f"""``{parts} == Split(v {sign} {cs})`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``c`` is constant and lies along that axis; a single number is repeated for every column of its part."""
    group_rule(
        where=[*LAST, *BESIDE],
        exactness=Exactness.EXACT,
        source=FUNCTIONS,
        forms=[
            form(f"{both}({op}({_CUT}[0], c), {op}({_CUT}[1], e){axis})", constant("c", "e"))
            for both, axis in (("Sub", ""), ("Concat", ", axis=b"))
        ],
    )(merge)


_of_constants("merge_biases_of_one_split", "Add", "+")
_of_constants("merge_scales_of_one_split", "Mul", "*")


def _merge_constants(view: GroupView, op: str) -> Iterator[Merge]:
    for cut in cuts(view):
        pairs = [_with_constant(view, op, part) for part in cut.parts] if view.meets(LAST, cut=cut) else []
        found = [pair for pair in pairs if pair is not None]
        if pairs and len(found) == len(pairs):
            vectors = (spread(c, size) for (_, c), size in zip(found, cut.sizes, strict=True))
            whole = apply(op, cut.value, apply("Concat", *vectors, axis=0))
            yield from cut.parts_of(view, whole, [reader for reader, _ in found])


def _with_constant(view: GroupView, op: str, part: Ref) -> tuple[Ref, Ref] | None:
    """The oldest ``op`` of ``part`` and a constant along its last axis, with that constant; a neutral one last of all."""
    neutral: tuple[Ref, Ref] | None = None
    for name, user, inputs in view.users(part):
        for own, c in (inputs, inputs[::-1]) if name == op else ():
            if own is not None and c is not None and own.handle == part.handle and view.meets(BESIDE, c=c, part=part):
                if user.handle != part.handle:
                    return user, c
                neutral = neutral or (user, c)
    return neutral


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
