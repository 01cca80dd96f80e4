"""Logic and selection (E18): double negation, and choices that are made at compile time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, apply, group_rule, literal, rule, variables
from eqsat.rules.alignment import FLOATS
from eqsat.rules.quantisation import dequantize
from eqsat.rules.sampling import Drawing, Instance, Sampler, fixed
from eqsat.rules.terms import constant, every_element, finite, int64s, same_type

EXACT = Exactness.EXACT
SPEC = "ONNX operator specification"
x, y, c, integers = variables("x y c integers")


@rule(
    apply("Not", apply("Not", x)),
    exactness=EXACT,
    source="Boolean algebra",
    family="E18",
    sample=lambda d: {"x": d.booleans(d.shape(2, 3))},
)
def cancel_double_not(m: Match) -> Term:
    """``not not x == x``."""
    return m.x


def _choice(d: Sampler, value: bool | None = None) -> dict[str, Any]:
    shape = d.shape()
    dtype = d.choose(("float32", "int64"))
    chosen = d.booleans(d.broadcast_with(shape))
    if value is not None and d.chance(0.8):
        chosen = np.full(chosen.shape, value)
    return {
        "c": chosen if value is None else d.either(chosen, 0.9),
        "x": d.array(shape, dtype),
        "y": d.array(d.broadcast_of(shape) if d.chance(0.3) else shape, dtype),
    }


@rule(
    apply("Where", c, x, y),
    where=[constant("c"), every_element("c", 1), same_type("x")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=lambda d: _choice(d, True),
)
def choose_first(m: Match) -> Term:
    """``Where(true, x, y) == x``."""
    return m.x


@rule(
    apply("Where", c, x, y),
    where=[constant("c"), every_element("c", 0), same_type("y")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=lambda d: _choice(d, False),
)
def choose_second(m: Match) -> Term:
    """``Where(false, x, y) == y``."""
    return m.y


@rule(
    apply("Where", c, x, x),
    where=[same_type("x")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=_choice,
)
def choose_either(m: Match) -> Term:
    """``Where(c, x, x) == x``."""
    return m.x


def _guarded(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    scale = np.float32(d.choose((0.1, 0.5, -0.5, 3e36, np.inf, np.nan)))
    whole = d.broadcast_with(shape) if d.chance(0.2) else shape
    zero = {"z": fixed(d.choose((3, -3)), "int8")} if d.chance(0.8) else {}
    found = {"integers": d.integers(shape, "int8", -4, 4), "s": fixed(scale), **zero}
    return found | {"x": d.floats(d.broadcast_of(whole)), "y": d.floats(whole)}


@rule(
    apply("Where", apply("IsNaN", dequantize(integers)), x, y),
    where=[constant("s"), finite("s"), same_type("y")],
    exactness=EXACT,
    source="integers times a finite number",
    family="E18",
    sample=_guarded,
)
def choose_second_where_nothing_is_nan(m: Match) -> Term:
    """``Where(IsNaN(DQ(q, s, z)), x, y) == y`` for a finite scale: quantised probabilities need no guard against NaN."""
    m.require(m.integers.dtype.is_integer, "integers only: floats of 8 bits may be NaN")
    return m.y


@rule(apply("Where", apply("Not", c), x, y), exactness=EXACT, source=SPEC, family="E18", sample=_choice)
def exchange_choices(m: Match) -> Term:
    """``Where(not c, x, y) == Where(c, y, x)``."""
    return apply("Where", m.c, m.y, m.x)


def _computed_choice(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    dtype = d.choose((DType.FLOAT, DType.FLOAT, DType.FLOAT16, DType.INT32))

    def number() -> str:
        form = shape if d.chance(0.1) else d.choose(((), (), (1,)))
        found = np.full(form, d.choose((1, 1, -3, 2, 0)) if dtype is DType.INT32 else d.choose((1, 0.1, -1e4, np.inf)))
        return drawing.value(fixed(found.astype(dtype.numpy)))

    is_truth = d.chance(0.9)
    chosen = drawing.value(d.booleans(shape) if is_truth else d.integers(shape, "int8"))
    if d.chance(0.5) or not is_truth:
        value = drawing.op("Cast", chosen, to=int(dtype))
    else:
        value = drawing.op("Where", chosen, number(), number())
    several = [value]
    for _ in range(d.integer(1, 3)):
        operands = (several[-1], number()) if d.chance() else (number(), several[-1])
        several.append(drawing.op(d.choose(("Add", "Sub", "Mul", "Div")), *operands))
    return drawing.finish(several[-1], *d.subset(several[1:-1], 0.3))


@group_rule(
    exactness=EXACT,
    source="each element is computed from one number of two, alike before and behind the choice",
    family="E18",
    sample=_computed_choice,
)
def choose_between_results(view: GroupView) -> Iterator[Merge]:
    """``f(Where(c, p, q)) == Where(c, f(p), f(q))`` for numbers, where ``f`` adds, subtracts, multiplies or divides by one.

    Truth values as floats are the choice between 1 and 0.
    """
    choices: dict[int, tuple[Ref, Term, Term]] = {}
    for node, (c, p, q) in view.nodes("Where"):
        assert c is not None
        if _is_number(p) and _is_number(q):
            assert p is not None
            assert q is not None
            choices.setdefault(node.handle, (c, p, q))
    for node, (c,) in view.nodes("Cast"):
        if c is not None and c.dtype is DType.BOOL and node.dtype in FLOATS:
            choices.setdefault(node.handle, (c, literal(1, node.dtype), literal(0, node.dtype)))
    for op in ("Add", "Sub", "Mul", "Div"):
        for node, (a, b) in view.nodes(op):
            assert a is not None
            assert b is not None
            if node.dtype not in FLOATS or node.is_constant:
                continue
            if a.handle in choices and _is_number(b):
                c, p, q = choices[a.handle]
                results = apply(op, p, b), apply(op, q, b)
            elif b.handle in choices and _is_number(a):
                c, p, q = choices[b.handle]
                results = apply(op, a, p), apply(op, a, q)
            else:
                continue
            if c.type.shape is not None and c.type.shape == node.type.shape:
                yield node, apply("Where", c, *results)


def _is_number(value: Ref | None) -> bool:
    """Whether a value is one number known at compile time."""
    return value is not None and value.is_constant and value.type.size == 1


def _conjunction(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    known = d.broadcast_with(shape)
    truth = np.ones(known, bool) if d.chance(0.8) else d.booleans(known)
    return {"x": d.booleans(shape), "c": d.either(truth, 0.9)}


@rule(
    apply("And", x, c),
    where=[constant("c"), every_element("c", 1)],
    exactness=EXACT,
    source="Boolean algebra",
    family="E18",
    sample=_conjunction,
)
def drop_true_operand(m: Match) -> Term:
    """``x and true == Expand(x)``, to the shape that broadcasting gives."""
    extents = m.root.static_shape
    return m.x if m.x.shape == extents else apply("Expand", m.x, int64s(extents))


def _lookup(d: Sampler) -> dict[str, Any]:
    shape = d.extents(d.integer(1, 3))
    places = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape), axis=-1)
    if d.chance(0.2):
        places = places[::-1]
    lead = (1, *places.shape[:1]) if d.chance() else shape
    indices = places.reshape(*lead, len(shape))
    if d.chance(0.2) and len(shape) > 1:
        return {"x": d.floats(shape), "c": fixed(indices[..., :1]), "gather": {}}
    return {"x": d.floats(shape), "c": fixed(indices), "gather": {"batch_dims": 0} if d.chance() else {}}


@rule(
    apply("GatherND", x, c).named("gather"),
    where=[constant("c")],
    exactness=EXACT,
    source=SPEC,
    family="E18",
    sample=_lookup,
)
def gather_all_as_reshape(m: Match) -> Term:
    """``GatherND(x, all places in order) == Reshape(x)``."""
    indices, extents = m.c.value, m.x.static_shape
    m.require(m.gather.attr("batch_dims", 0) == 0 and indices.shape[-1] == len(extents) > 0, "batches, or slices")
    m.require(indices.size == math.prod(extents) * len(extents) > 0, "not as many places as elements")
    places = np.ravel_multi_index(tuple(np.moveaxis(indices % extents, -1, 0)), extents).reshape(-1)
    m.require(np.array_equal(places, np.arange(places.size)), "another order")
    return apply("Reshape", m.x, int64s(indices.shape[:-1]))
