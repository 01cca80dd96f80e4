"""Reductions in one form: the reduced axes kept, a mean as a mean; of single elements and of few values none."""

import math
from collections.abc import Iterable, Iterator

import ml_dtypes

from eqsat.conditions import constant, every_element, floating, same_type, single_or_half, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.exactness import Exactness
from eqsat.ir.extents import at_least
from eqsat.ir.operator import Operator, having, operators_with, traits_of
from eqsat.ir.types import Dim
from eqsat.rewrite import GroupView, Match, Ref, Term, apply, for_each_operator
from eqsat.rules.recognise.norms import axes_of
from eqsat.rules.terms import by_class, int64s
from eqsat.rules.views.extents import repeated
from eqsat.rules.views.parts import concats


def kept_shape(node: Ref, axes: Ref | None, x: Ref) -> tuple[Dim, ...]:
    """The shape of a reduction that keeps its axes with the extent 1."""
    reduced = axes_of(node, axes, x)
    return tuple(1 if i - x.rank in reduced else d for i, d in enumerate(x.shape))


def count(node: Ref, axes: Ref | None, x: Ref) -> float:
    """The number of elements that are reduced to one; NaN if it is not known."""
    extents = [x.shape[a] for a in axes_of(node, axes, x)]
    return math.prod(d if isinstance(d, int) else math.nan for d in extents)


def keeps_some(x: Ref, many: Ref, axes: Iterable[int]) -> bool:
    """Whether nothing of ``x`` is left out where it is repeated along ``axes``."""
    return all(many.shape[i] == x.shape[i] or at_least(many.shape[i], 1) for i in axes)


def without(x: Ref, axes: Iterable[int], node: Ref) -> Term:
    """``x`` in the shape that a reduction ``node`` of axes with the extent 1 leaves."""
    return x if node.attr("keepdims", 1) else apply("Squeeze", x, int64s(axes))


def is_reciprocal(c: Ref, number: float) -> bool:
    """Whether each element is the reciprocal of a number, rounded to its type once or twice."""
    tolerance = 1.5 * float(ml_dtypes.finfo(c.dtype.numpy).eps)
    return all(abs(bound * number - 1) <= tolerance for bound in c.interval)


equation = Equations(__name__, functions=named(axes_of, int64s, repeated))
reductions = [(op.lower(), op, "") for op in operators_with(having("reduces"))]
for name, op, _ in reductions:  # what reduces the same axes twice is one operator, however an exporter counts them
    equation(
        f"count_axes_of_{name}_from_the_end",
        f"{op}(x, a, **r) == {op}(x, int64s(axes_of(r, a, x)), **r)",
        constant("a"),
        worthwhile("some are counted from the front: a.type.size > 0 and a.high >= 0"),
        source="ONNX reductions",
    )
for name, op, clamp in (*reductions, ("clamped_mean", "ReduceMean", "Relu")):
    equation(
        f"keep_axes_of_{name}",
        f"Reshape({clamp}({op}(x, *a, **r)), s, **view) == {clamp}({op}(x, a, keepdims=1, **r))",
        worthwhile("the reduced axes are dropped: not r.attr('keepdims', 1)"),
        "the shape has 1 for the reduced axes: root.shape == kept_shape(r, a, x)",
        source="ONNX reductions",
        drawn=(
            "x: [A, B, C]; a = [1] | [-2]; s = [A, 1, C] | [A, C, 1] | [1, A, C]; r.keepdims = 0",
            "a = [0, -1]; s = [1, B, 1] | [B, 1, 1]",
            "x: [1, B, 1]; a = [0]; s = [B, 1] | [1, B, 1]",
        ),
    )


def picks(op: Operator) -> bool:
    """Whether a reduction is one of the elements: the largest, the least."""
    return op.traits.reduces and bool(op.traits.sources)


@for_each_operator(picks)
def _of_repeated(op: str) -> None:
    """Which queries may see any key, of a mask that is the same for all queries."""
    equation(
        f"{op.lower()}_before_expand",
        f"{op}((n := Expand(x, s)), *a, **r) == repeated({op}(x, a, keepdims=1, **r), kept_shape(r, a, x), root.shape, root)",
        worthwhile("the reduced axes are kept: r.attr('keepdims', 1)"),
        "elements are repeated: x.rank == n.rank",
        "along the reduced axes once or more: keeps_some(x, n, axes_of(r, a, n))",
        source="the largest of equal elements is each of them",
        drawn="x: [A, 1, C]; s = [A, 3, C] | [A, 0, C] | [2, A, 3, C]; a = [1] | [1, -1]; r.keepdims = 1 | 0",
    )


_low, _high = "ReduceMin(x, *a, **low)", "(high := ReduceMax(x, *a, keepdims=q))"
_not_empty = "none of them is empty: count(high, a, x) >= 1"
for name, left, where in (
    ("opposite_extremes", f"Max(Neg({_low}), {_high})", ()),
    ("extremes_around_zero", f"Max(Neg(Min({_low}, y)), Relu({_high}))", (every_element("y", 0), _not_empty)),
    ("absolute_extremes", f"Max(Abs({_low}), Abs({_high}))", (_not_empty,)),
):  # as quantisers look for the scale of a row
    equation(
        f"take_largest_magnitude_instead_of_{name}",
        f"{left} == ReduceMax(Abs(x), a, keepdims=q)",
        *where,
        floating("x"),
        same_type("high"),
        source="max(max x, -min x) = max |x|",
    )
for name, op, right, spelled_by in (
    ("square_before_summing", "ReduceSumSquare", "ReduceSum(x * x, *a, **r)", "JAX takes variances so"),
    ("square_and_take_root_around_sum", "ReduceL2", "Sqrt(ReduceSum(x * x, *a, **r))", "PyTorch normalises vectors so"),
    ("take_magnitudes_before_summing", "ReduceL1", "ReduceSum(Abs(x), *a, **r)", "PyTorch normalises vectors so"),
):
    equation(
        name,
        f"{op}(x, *a, **r) == {right}",
        constant("a"),
        single_or_half("x"),
        exactness=Exactness.ROUNDING,
        source=f"ONNX reductions; {spelled_by}",
    )
equation(
    "take_mean_instead_of_sum",
    "ReduceSum(x, *a, **r) * c == ReduceMean(x, a, keepdims=r.attr('keepdims', 1), **r)",
    constant("a", "c"),
    same_type("r"),
    single_or_half("x"),
    "c is one over the number of summands: is_reciprocal(c, count(r, a, x))",
    exactness=Exactness.ROUNDING,
    source="the mean is the sum divided by the number of elements",
)
equation(
    "take_mean_over_the_last_axis_instead_of_pooling",  # as exporters of TensorFlow write a mean over the last of three axes
    "GlobalAveragePool(x) == ReduceMean(x, int64s([-1]), keepdims=1)",
    "one axis behind batch and channels: x.rank == 3",
    single_or_half("x"),
    exactness=Exactness.ROUNDING,
    source="ONNX operator specification",
)


@for_each_operator(having("repeats"))
def _of_single_elements(op: str) -> None:
    equation(
        f"drop_{op.lower()}_of_single_elements",
        f"{op}(x, *a, **r) == without(x, axes_of(r, a, x), r)",
        "the reduced axes have the extent 1: count(r, a, x) == 1",
        source="ONNX reductions",
    )


def _of_joined(view: GroupView) -> Iterator[Match]:
    """Each reduction of values that are joined along one axis."""
    joints = by_class(concats(view))
    for op in operators_with(having("repeats")):
        for r, (x, *a) in view.nodes(op):
            for axis, parts in joints.get(x.handle, ()) if x is not None else ():
                yield Match({"op": op, "r": r, "a": a[0] if a else None, "x": x, "axis": axis, "parts": parts}, r)


@equation.over_groups(
    find=_of_joined,
    where=[
        single_or_half("x"),
        "along the axis that is reduced, and no other: axes_of(r, a, x) == (axis - x.rank,)",
        "all have one shape, with the extent 1 there: all(p.shape == parts[0].shape and p.shape[axis] == 1 for p in parts)",
    ],
    forms=[form(f"{op}(Concat(x, y, axis=i), a, **r)", constant("a")) for op in operators_with(having("repeats"))],
    exactness=Exactness.ROUNDING,
    source="ONNX reductions",
)
def combine_values_instead_of_reducing(m: Match) -> Term:
    """``ReduceSum(Concat(x, y, ...)) == Sum(x, y, ...)`` along an axis of which each of the values has one element."""
    return apply(traits_of(m.op).repeats, *(without(part, (m.axis - m.x.rank,), m.r) for part in m.parts))
