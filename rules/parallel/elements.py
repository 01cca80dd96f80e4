"""What is computed alike of every element of a value is computed of the value: steps of loops that exporters unroll.

An element is what a Gather by a number, or a part of one without its axis, takes of a value (`eqsat.rules.views.elements`).
"""

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operator import traits_of
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.views.elements import Element, elements
from eqsat.samples import Drawing, Instance, Sampler, fixed


def _users(view: GroupView, ref: Ref, *, products: bool) -> Iterator[tuple[Ref, str, int, tuple[Ref | None, ...]]]:
    """Products of an element, or other functions of it and of constants: result, operator, which operand it is, operands."""
    for op, user, inputs in view.users(ref):
        count = 1 if products else traits_of(op).operands
        places = [i for i, x in enumerate(inputs[:count]) if x is not None and x.handle == ref.handle]
        others = [x for i, x in enumerate(inputs) if x is not None and i not in places]
        if len(places) == 1 and (op == "MatMul") == products and all(x.is_constant for x in others):
            yield user, op, places[0], inputs


def _of_each_element(view: GroupView, *, products: bool) -> Iterator[Match]:
    """What is computed alike of each element of a value, of all of them."""
    found: dict[Hashable, dict[int, tuple[Ref, Element, int, tuple[Ref | None, ...]]]] = {}
    for ref, element in elements(view):
        for user, op, place, inputs in _users(view, ref, products=products):
            others = tuple(None if x is None or i == place else x.handle for i, x in enumerate(inputs))
            key = (op, user.attributes, place, others, element.whole.handle, element.axis)
            found.setdefault(key, {}).setdefault(element.index, (user, element, place, inputs))
    for (op, *_), users in found.items():  # type: ignore[misc]
        for index, (user, element, place, inputs) in sorted(users.items()):
            names: dict[str, Any] = {
                "whole": element.whole,
                "axis": element.axis,
                "found": tuple(users),
                "place": place,
            }
            yield Match({**names, "op": op, "index": index, "inputs": inputs, "user": user}, user)


def _draw(d: Sampler, *, products: bool) -> Instance:
    """A function of the elements of a value along an axis, mostly of all of them, mostly by the same constant."""
    drawing = Drawing()
    shape = d.extents(d.integer(2, 4))
    axis = d.integer(0, len(shape) - 1)
    x = drawing.value(d.floats(shape), d.subset(shape[:axis] + shape[axis + 1 :], 0.3))
    rest = (*shape[:axis], *shape[axis + 1 :])
    matrix = (2, rest[-1], 3) if len(rest) == 2 and d.chance(0.3) else (rest[-1], 3)
    wide = matrix if products else rest[-d.choose((0, 1, 1, len(rest))) :] if d.chance(0.8) else (1,) * len(rest)
    constants = [fixed(d.floats(wide)) for _ in "ab"]
    found: list[str] = []
    for i in range(shape[axis] - (shape[axis] > 1 and d.chance(0.1))):
        element = drawing.op("Gather", x, i, axis=axis)
        c = drawing.value(constants[d.chance(0.1)])
        found.append(drawing.op("MatMul", element, c) if products else drawing.op("Sub", element, c))
    return drawing.finish(*found)


ALL = worthwhile("every element is used, of several: len(found) == whole.shape[axis] and len(found) > 1")


def _of_all(m: Match) -> Term:
    operands = tuple(m.whole if i == m.place else x for i, x in enumerate(m.inputs))
    return apply("Gather", Apply(m.op, operands, m.user.attributes), literal(np.int64(m.index)), axis=m.axis)


@group_rule(
    find=partial(_of_each_element, products=True),
    where=[ALL, "rows by a matrix: inputs[1].rank == 2", "an axis before the columns: axis < whole.rank - 1"],
    exactness=Exactness.ROUNDING,
    source="each row is multiplied by itself",
    sample=partial(_draw, products=True),
)
def multiply_elements_at_once(m: Match) -> Term:
    """``(x[0] @ w, x[1] @ w, ...) == ((x @ w)[0], (x @ w)[1], ...)`` for a constant matrix, along an axis other than the last."""
    return _of_all(m)


def lies_behind(axis: int, whole: Ref, place: int, inputs: tuple[Ref | None, ...]) -> bool:
    """Whether constants beside an element broadcast along axes behind the one that it has not."""
    others = (x for i, x in enumerate(inputs) if x is not None and i != place)
    return all(x.rank < whole.rank - axis for x in others)


@group_rule(
    find=partial(_of_each_element, products=False),
    where=[ALL, "constants along later axes: lies_behind(axis, whole, place, inputs)"],
    source="a function of single elements does not see its neighbours",
    sample=partial(_draw, products=False),
)
def compute_elements_at_once(m: Match) -> Term:
    """``(f(x[0], c), f(x[1], c), ...) == (f(x, c)[0], f(x, c)[1], ...)`` for an elementwise function of constants ``c``."""
    return _of_all(m)
