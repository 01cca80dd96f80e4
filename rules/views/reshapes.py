"""Views: Reshape, Squeeze, Unsqueeze and Flatten have one normal form, a Reshape to a constant target.

Equal views of a value become one e-node, a chain of views one view, and the arithmetic that computed a dynamic target is dead
as soon as the types determine it. Symbolic extents stay: 0 copies the extent of the same axis, one other extent may be -1.
Both only where the program has a -1, too: ONNX cannot tell what that is where a copied extent turns out to be 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Ref, Term, Unmet, apply, literal, rule, variables
from eqsat.rules.terms import condition, constant, int64s, is_known, permutation_of, same_type
from eqsat.rules.views.extents import viewed
from eqsat.samples import SYMBOLIC, Sampler, fixed

EXACT = Exactness.EXACT
SPEC = "ONNX operator specification"
x, s, t = variables("x s t")
a, b = variables("a? b?")


def view_as(x: Ref, result: Ref, written: Ref | None = None) -> Term:
    """``x`` under the shape of ``result``, which holds the same elements in the same order; ``written``: the target that the
    program has for it, if it has.

    Raises `Unmet` if that shape cannot be written as a constant target, or only as one that fails for empty tensors where
    the program has no -1.
    """
    if not is_known(result) or not is_known(x):
        raise Unmet("the shape is unknown")
    if result.type == x.type:
        return x
    if 0 in result.shape or 0 in x.shape:
        raise Unmet("an extent is 0")
    if written is None or written.interval[0] >= 0:
        return viewed(x, x.shape, result.shape, x)
    target: list[int] = []
    for i, d in enumerate(result.shape):
        if isinstance(d, int):
            target.append(d)
        else:
            target.append(0 if i < x.rank and x.shape[i] == d else -1)
    return viewed(x, x.shape, result.shape, x) if target.count(-1) > 1 else apply("Reshape", x, int64s(target))


# --- normal form ---------------------------------------------------------------------------------------------------------


def _split_product(d: Sampler, size: int) -> list[int]:
    """Extents whose product is ``size``."""
    factors: list[int] = []
    while size > 1 and len(factors) < 3:
        divisors = [n for n in range(2, size + 1) if size % n == 0]
        factors.append(d.choose(divisors))
        size //= factors[-1]
    return [*factors, *([size] if size > 1 else []), *([1] if d.chance(0.3) else [])]


def _target(d: Sampler, shape: tuple[int, ...]) -> list[int]:
    """A target of Reshape for a tensor of ``shape``: explicit extents, copied ones (0), one -1."""
    target = _split_product(d, int(np.prod(shape)))
    for i in range(min(len(target), len(shape))):
        if target[i] == shape[i] and d.chance():
            target[i] = 0
    if target and d.chance():
        target[d.integer(0, len(target) - 1)] = -1
    return target


def _reshape(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    target = _target(d, shape)
    return {"x": d.array(shape), "s": fixed(target, "int64"), "n": {"allowzero": 0} if d.chance() else {}}


@rule(apply("Reshape", x, s).named("n"), exactness=EXACT, source=SPEC, sample=_reshape)
def normalise_reshape(m: Match) -> Term:
    """``Reshape(x, s) == Reshape(x, target)`` for the target that the types determine."""
    return view_as(m.x, m.root, m.s)


@rule(
    apply("Flatten", x).named("n"),
    exactness=EXACT,
    source=SPEC,
    sample=lambda d: {"x": d.array(d.shape(3, 4)), "n": {"axis": d.integer(-3, 3)}},
)
def normalise_flatten(m: Match) -> Term:
    """``Flatten(x, axis) == Reshape(x, target)``."""
    return view_as(m.x, m.root)


def _with_ones(d: Sampler) -> tuple[list[int], list[int]]:
    """A shape and the axes of it that are 1 for sure."""
    shape: list[int] = []
    axes: list[int] = []
    for extent in d.extents(d.integer(1, 3)):
        if d.chance(0.4):
            axes.append(len(shape))
            shape.append(1)
        shape.append(extent)
    return (shape, axes) if axes else ([1, *shape], [0])


def _squeeze(d: Sampler) -> dict[str, Any]:
    shape, axes = _with_ones(d)
    found: dict[str, Any] = {"x": d.array(shape)}
    if d.chance(0.8):
        found["a"] = fixed([i - len(shape) if d.chance(0.3) else i for i in axes], "int64")
    return found


@rule(apply("Squeeze", x, a), exactness=EXACT, source=SPEC, sample=_squeeze)
def normalise_squeeze(m: Match) -> Term:
    """``Squeeze(x, a) == Reshape(x, target)``."""
    return view_as(m.x, m.root)


@rule(
    apply("Unsqueeze", x, s),
    exactness=EXACT,
    source=SPEC,
    sample=lambda d: {"x": d.array(d.shape(1, 3)), "s": fixed(d.choose(([0], [1], [-1], [0, 2], [1, 2])), "int64")},
)
def normalise_unsqueeze(m: Match) -> Term:
    """``Unsqueeze(x, s) == Reshape(x, target)``."""
    return view_as(m.x, m.root)


# --- chains --------------------------------------------------------------------------------------------------------------


def _reshape_twice(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    middle = _split_product(d, int(np.prod(shape)))
    last = list(shape) if d.chance(0.3) else _target(d, tuple(middle))
    return {"x": d.array(shape), "s": fixed(middle, "int64"), "t": fixed(last, "int64")}


@rule(apply("Reshape", apply("Reshape", x, s), t), exactness=EXACT, source=SPEC, sample=_reshape_twice)
def compose_reshapes(m: Match) -> Term:
    """``Reshape(Reshape(x, s), t) == Reshape(x, target)``."""
    return view_as(m.x, m.root, m.t)


def _unsqueeze_then_squeeze(d: Sampler) -> dict[str, Any]:
    axes = d.choose(([0], [1], [-1], [0, 2]))
    removed = axes if d.chance(0.8) else [0]
    shape = (1, *d.shape(1, 3)) if removed == [0] else d.shape(2, 3)
    return {"x": d.array(shape), "s": fixed(axes, "int64"), "a": fixed(removed, "int64")}


@rule(
    apply("Squeeze", apply("Unsqueeze", x, s), a),
    where=[same_type("x")],
    exactness=EXACT,
    source=SPEC,
    sample=_unsqueeze_then_squeeze,
)
def cancel_squeeze_of_unsqueeze(m: Match) -> Term:
    """``Squeeze(Unsqueeze(x, s), a) == x`` where the shapes agree."""
    return m.x


def _squeeze_then_unsqueeze(d: Sampler) -> dict[str, Any]:
    shape, axes = _with_ones(d)
    added = axes if d.chance(0.8) else [len(shape) - 1 - i for i in range(len(axes))]
    return {"x": d.array(shape), "a": fixed(axes, "int64"), "s": fixed(added, "int64")}


@rule(
    apply("Unsqueeze", apply("Squeeze", x, a), s),
    where=[same_type("x")],
    exactness=EXACT,
    source=SPEC,
    sample=_squeeze_then_unsqueeze,
)
def cancel_unsqueeze_of_squeeze(m: Match) -> Term:
    """``Unsqueeze(Squeeze(x, a), s) == x`` where the shapes agree."""
    return m.x


@condition("only axes of extent 1 move")
def _only_ones_move(m: Match) -> bool:
    moving = [p for p in permutation_of(m.n) if m.x.shape[p] != 1]
    return moving == sorted(moving)


def _transpose_ones(d: Sampler) -> dict[str, Any]:
    shape, _ = _with_ones(d)
    perm = list(range(len(shape)))
    if d.chance(0.2):
        perm = list(d.permutation(len(shape)))
    else:
        one = shape.index(1)
        perm.remove(one)
        perm.insert(d.integer(0, len(perm)), one)
    return {"x": d.array(shape), "n": {"perm": tuple(perm)}}


@rule(
    apply("Transpose", x).named("n"),
    where=[_only_ones_move],
    exactness=EXACT,
    source=SPEC,
    sample=_transpose_ones,
)
def replace_transpose_by_reshape(m: Match) -> Term:
    """``Transpose(x, perm) == Reshape(x, target)`` where every axis that moves past another has extent 1."""
    return view_as(m.x, m.root)


# --- parts of shapes -----------------------------------------------------------------------------------------------------


def _extents(shape: Ref, of: Ref) -> np.ndarray:
    """What ``Shape(of)`` holds: integers, and the names of symbolic extents."""
    start, end = shape.attr("start", 0), shape.attr("end")
    return np.array(of.shape[slice(start, end)], object)


def _integers(found: Any, result: Ref) -> Term:
    """The literal of the part of a shape, if it contains no symbolic extent."""
    part = np.asarray(found, object)
    if not all(isinstance(d, int) for d in part.flat):
        raise Unmet("an extent is unknown")
    return literal(part.astype(np.int64), result.dtype)


def _gather_of_shape(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4)
    at = d.choose((0, -1, 1, [0], [1, 0]))
    symbolic = d.subset(shape) or [shape[-1]]
    node = {} if d.chance(0.6) else {"start": -2}
    return {"x": d.floats(shape), "s": fixed(at, "int64"), "n": node, SYMBOLIC: symbolic}


@rule(
    apply("Gather", apply("Shape", x).named("n"), s),
    where=[constant("s")],
    exactness=EXACT,
    source=SPEC,
    sample=_gather_of_shape,
)
def fold_extent(m: Match) -> Term:
    """``Gather(Shape(x), s) == extents`` where the extents at ``s`` are known, whatever the others."""
    return _integers(_extents(m.n, m.x)[m.s.value], m.root)


def _slice_of_shape(d: Sampler) -> dict[str, Any]:
    shape = d.shape(3, 4)
    found: dict[str, Any] = {"x": d.floats(shape), "n": {} if d.chance(0.6) else {"start": 1}}
    found[SYMBOLIC] = [d.choose((shape[0], shape[-1]))]
    found["s"] = fixed([d.choose((0, 1, -2))], "int64")
    found["t"] = fixed([d.choose((2, -1, 2**63 - 1))], "int64")
    if d.chance():
        found["a"] = fixed([0], "int64")
        if d.chance():
            found["b"] = fixed([d.choose((1, 2))], "int64")
    return found


@rule(
    apply("Slice", apply("Shape", x).named("n"), s, t, a, b),
    where=[constant("s", "t", "a", "b")],
    exactness=EXACT,
    source=SPEC,
    sample=_slice_of_shape,
)
def fold_extents(m: Match) -> Term:
    """``Slice(Shape(x), s, t) == extents`` where the extents from ``s`` to ``t`` are known, whatever the others."""
    step = 1 if m.b is None else int(m.b.value[0])
    m.require(step > 0, "the slice runs backward")
    return _integers(_extents(m.n, m.x)[int(m.s.value[0]) : int(m.t.value[0]) : step], m.root)
