"""A function of one integer that stays the same beyond two numbers is a table of what it is between them.

Buckets of relative positions are such a function: near positions have one each, far ones share them by a logarithm, and what is
farther than the last falls into it. That nothing changes beyond a number follows from bounds: each operator that never turns
around in any of its operands lies between what it makes of their ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import having, operators_with, traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, Unmet, apply, literal
from eqsat.rules.terms import Functions, complete_nodes
from eqsat.samples import Drawing, Instance, Sampler, fixed

_FARTHEST = 1 << 12
_MOST_ELEMENTS = 1 << 20
_LARGEST = 2.0**53
"""Integers up to here are floats, too: sums and products are compared with it before they overflow."""

Ends = tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class Step:
    """An operator on functions of ``source`` and on single numbers."""

    op: str
    attributes: Attributes
    operands: Sequence[Step | Ref | np.ndarray | None]
    source: Ref
    steps: int

    def at(self, x: np.ndarray) -> np.ndarray:
        """What it makes of numbers. An integer that is undefined on the way is as good as any other."""
        with np.errstate(all="ignore"):
            return self._at(x, {})

    def _at(self, x: np.ndarray, memo: dict[int, np.ndarray]) -> np.ndarray:
        if id(self) not in memo:
            given = [o._at(x, memo) if isinstance(o, Step) else x if isinstance(o, Ref) else o for o in self.operands]
            memo[id(self)] = evaluate_operator(self.op, self.attributes, given)[0]
        return memo[id(self)]

    def over(self, low: int, high: int) -> Ends | None:
        """Bounds of what it makes of all integers from ``low`` to ``high``, ``None`` where there is no telling."""
        dtype = self.source.dtype.numpy
        with np.errstate(all="ignore"):
            return self._over((dtype.type(low), dtype.type(high)), {})

    def _over(self, ends: Ends, memo: dict[int, Ends | None]) -> Ends | None:
        if id(self) not in memo:
            bounds = [
                o._over(ends, memo) if isinstance(o, Step) else ends if isinstance(o, Ref) else (o, o)
                for o in self.operands
            ]
            memo[id(self)] = _between(self.op, self.attributes, bounds)
        return memo[id(self)]

    @cached_property
    def ends(self) -> tuple[int, int, bool]:
        """Two numbers, not far away, and whether nothing changes beyond them."""
        limits = np.iinfo(self.source.dtype.numpy)
        low, high = int(max(self.source.low, limits.min)), int(min(self.source.high, limits.max))
        least = most = far = 1
        settled = False
        while far < _FARTHEST and not settled:
            far *= 2
            least, most = min(max(-far, low), far), max(min(far, high), -far)
            settled = self._settles(low, least) and self._settles(most, high)
        return least, most, settled

    def _settles(self, low: int, high: int) -> bool:
        found = (0, 0) if low >= high else self.over(low, high)
        return found is not None and bool(found[0] == found[1])


def _turns(op: str, attributes: Attributes, index: int, ends: Ends) -> bool:
    """Whether an operator may rise and fall in an operand between these ends, the others fixed."""
    low, high = ends
    if low is high or low.dtype == np.bool_ or low == high:  # an absent operand is ``None`` at both
        return False
    facts = traits_of(op, attributes)
    chosen = index in facts.sources and (facts.clamps or bool(facts.truths))
    if facts.orders or facts.converts or chosen or index in facts.affine or (index == 0 and facts.rising):
        return False
    return not (facts.homogeneous and facts.operands == 1 and (low >= 0 or high <= 0))


def _between(op: str, attributes: Attributes, bounds: Sequence[Ends | None]) -> Ends | None:
    """Bounds of an operator between bounds of its operands: the least and the greatest of what it makes of their ends."""
    known = [ends for ends in bounds if ends is not None]
    if len(known) < len(bounds) or any(_turns(op, attributes, i, ends) for i, ends in enumerate(known)):
        return None
    found = [_defined(op, attributes, corner) for corner in itertools.product(*known)]
    return None if None in found else (min(found), max(found))  # type: ignore[type-var]


def _defined(op: str, attributes: Attributes, operands: Sequence[Any]) -> Any:
    """The result for single numbers, ``None`` for one that is not defined: no number, or beyond the range of its type."""
    result = np.asarray(evaluate_operator(op, attributes, operands)[0]).reshape(())[()]
    largest = max((abs(float(o)) for o in (*operands, result) if o is not None), default=0.0)
    if math.isnan(largest):
        return None
    facts = traits_of(op, attributes)
    if result.dtype.kind in "iu" and not facts.quantises:  # what is quantised is cut off at the ends of its range
        if facts.converts:
            return result if abs(float(operands[0])) < min(_LARGEST, float(np.iinfo(result.dtype).max)) else None
        wide = evaluate_operator(op, attributes, [o if o is None else np.asarray(o, np.float64) for o in operands])[0]
        return result if abs(float(wide)) < min(_LARGEST, float(np.iinfo(result.dtype).max)) else None
    return result


class _Functions(Functions["Step | Ref"]):
    """Which values are functions of one integer."""

    def __init__(self, view: GroupView) -> None:
        super().__init__(view, operators_with(having("operands")))
        for spellings in self._nodes.values():
            # The one that was there first: others may round to the other side of a step.
            spellings.sort(key=lambda found: found[1].enode)

    def _identity(self, value: Ref) -> Ref | None:
        return value if value.type.dtype.is_integer else None

    def _applied(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> Step | None:
        """The operator on what its operands are functions of. Raises `Unmet`."""
        operands = [None if x is None else _number(x, node) if _is_number(x) else self.of(x) for x in inputs]
        if any(o is None and x is not None for o, x in zip(operands, inputs, strict=True)):
            return None
        sources = [o.source if isinstance(o, Step) else o for o in operands if isinstance(o, (Step, Ref))]
        if not sources or len({s.handle for s in sources}) > 1 or sources[0].shape != node.shape:
            return None
        steps = 1 + max((o.steps for o in operands if isinstance(o, Step)), default=0)
        return Step(op, node.attributes, operands, sources[0], steps)


def _is_number(x: Ref) -> bool:
    """Whether all elements are one known number."""
    return (x.is_constant and x.type.size == 1) or x.low == x.high


def _number(x: Ref, node: Ref) -> np.ndarray:
    value = x.value.reshape(()) if x.is_constant and x.type.size == 1 else np.asarray(x.low, x.dtype.numpy)
    if len(x.shape) > len(node.shape):
        raise Unmet("more axes than the rest")
    return value


def _draw(d: Sampler) -> Instance:
    """A look-up by buckets of positions, now and then by what has no end."""
    drawing = Drawing()
    rows, columns, size = d.extents(3)
    wide = d.array((rows, columns), "int32")
    given = wide if d.chance(0.3) else d.rng.integers(-40, 40, wide.shape, np.int32)
    x = drawing.op("Cast", drawing.value(given if d.chance(0.8) else given.astype(np.int8)), to=7)
    near, last = d.integer(1, 6), d.integer(8, 12)
    distance = drawing.op(d.choose(("Abs", "Abs", "Abs", "Neg")), x)
    logarithm = drawing.op("Log", drawing.op("Cast", distance, to=1))
    far = drawing.op("Cast", drawing.op("Mul", logarithm, fixed(np.float32(d.choose((1.5, 3.25))))), to=7)
    if d.chance(0.85):
        far = drawing.op("Min", far, last)
    bucket = drawing.op("Where", drawing.op("Less", distance, near), near, far)
    if d.chance():
        side = drawing.op("Cast", drawing.op("Greater", x, 0), to=7)
        bucket = drawing.op("Add", bucket, drawing.op("Mul", side, last + 1))
    return drawing.finish(drawing.op("Gather", fixed(d.floats((90, size))), bucket, axis=0))


def _looked_up(view: GroupView) -> Iterator[Match]:
    tables = [(n, data, i) for n, (data, i) in complete_nodes(view, "Gather") if data.is_constant and not i.is_constant]
    computed = operators_with(having("operands"))
    tables = [found for found in tables if any(op in computed for op, _ in view.spellings(found[2]))]
    functions = _Functions(view) if tables else None
    for node, data, index in tables:
        found = functions.of(index) if functions is not None else None
        if isinstance(found, Step):
            yield Match({"data": data, "f": found, "index": index}, node)


def _extent(data: Ref, look_up: Ref) -> int:
    axis: int = look_up.attr("axis", 0)
    return data.static_shape[axis]


def size(data: Ref, look_up: Ref, f: Step) -> float:
    """Elements of the table that takes the place of ``data``."""
    low, high, _ = f.ends
    return math.prod(data.static_shape) / max(_extent(data, look_up), 1) * (max(high, 0) - min(low, 0) + 1)


@group_rule(
    find=_looked_up,
    where=[
        worthwhile("several steps: f.steps >= 2"),
        "nothing changes beyond two numbers: f.ends[2]",
        worthwhile(f"a table of moderate size: size(data, root, f) <= {_MOST_ELEMENTS}"),
    ],
    exactness=Exactness.ROUNDING,
    source="there are as many cases as numbers between the two",
    sample=_draw,
)
def tabulate_function_of_integers(m: Match) -> Term:
    """``Gather(t, f(x)) == Gather(Gather(t, f([0, ..., b, a, ..., -1])), Clip(x, a, b))`` for elementwise ``f`` that stays the
    same below ``a`` and above ``b``."""
    ends: tuple[int, int, bool] = m.f.ends
    axis, (low, high, _) = m.root.attr("axis", 0), ends
    dtype = m.f.source.dtype.numpy
    numbers = np.roll(np.arange(min(low, 0), max(high, 0) + 1), min(low, 0))
    places: np.ndarray = m.f.at(np.clip(numbers, low, high).astype(dtype))
    places = np.where(places < 0, places + _extent(m.data, m.root), places)
    table = np.take(m.data.elements, places, axis=axis, mode="clip")  # what is no place is an error of the original
    bounds = (literal(np.asarray(end, dtype)) for end in (low, high))
    place = apply("Clip", m.f.source, *bounds)
    if m.f.source.dtype not in (DType.INT32, DType.INT64):
        place = apply("Cast", place, to=int(DType.INT64))
    return apply("Gather", literal(table), place, axis=axis)
