"""Reductions in one form: the reduced axes kept, a mean as a mean."""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, same_type, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref
from eqsat.rules.recognise.norms import axes_of
from eqsat.samples import Sampler, fixed


def reduces(op: Operator) -> bool:
    return op.traits.reduces


def kept_shape(node: Ref, axes: Ref | None, x: Ref) -> tuple[Dim, ...]:
    """The shape of a reduction that keeps its axes with the extent 1."""
    reduced = axes_of(node, axes, x)
    return tuple(1 if i - x.rank in reduced else d for i, d in enumerate(x.shape))


def count(node: Ref, axes: Ref | None, x: Ref) -> float:
    """The number of elements that are reduced to one; NaN if it is not known."""
    extents = [x.shape[a] for a in axes_of(node, axes, x)]
    return math.prod(d if isinstance(d, int) else math.nan for d in extents)


def _kept(d: Sampler) -> dict[str, Any]:
    """A reduction that drops its axes, and a view that has them again, or others."""
    x = d.floats(d.shape(1, 4, ones=0.05))
    chosen = _axes(d, x.ndim)
    shape = [1 if i in chosen or i - x.ndim in chosen else n for i, n in enumerate(x.shape)]
    if d.chance(0.2):
        d.rng.shuffle(shape)
    return {"x": x, "a": fixed(chosen, "int64"), "s": fixed(shape, "int64"), "r": {"keepdims": 0}}


def _averaged(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05), d.choose(("float32", "float32", "float32", "float16")))
    chosen = _axes(d, x.ndim)
    number = math.prod(x.shape[a] for a in chosen) + (1 if d.chance(0.15) else 0)
    factor = np.full(d.choose(((), (1,), (1,) * (x.ndim + 1))), 1 / number, x.dtype)
    return {"x": x, "c": fixed(factor), "a": fixed(chosen, "int64"), "r": {"keepdims": d.integer(0, 1)}}


def _axes(d: Sampler, rank: int) -> list[int]:
    chosen = [i - rank if d.chance() else i for i in range(rank) if d.chance(0.4)]
    return chosen or [d.integer(-rank, rank - 1)]


equation = Equations(__name__, functions={f.__name__: f for f in (axes_of, kept_shape, count)})
reductions = [(op.lower(), op, "") for op in operators_with(reduces)]
for name, op, clamp in (*reductions, ("clamped_mean", "ReduceMean", "Relu")):
    equation(
        f"keep_axes_of_{name}",
        f"Reshape({clamp}({op}(x, *a, **r)), s, **view) == {clamp}({op}(x, a, keepdims=1, **r))",
        worthwhile("the reduced axes are dropped: not r.attr('keepdims', 1)"),
        "the shape has 1 for the reduced axes: root.shape == kept_shape(r, a, x)",
        source="ONNX reductions",
        sample=_kept,
    )
equation(
    "take_mean_instead_of_sum",
    "ReduceSum(x, *a, **r) * c == ReduceMean(x, a, keepdims=r.attr('keepdims', 1), **r)",
    constant("a", "c"),
    same_type("r"),
    kernels("x", DType.FLOAT),
    "c is one over the number of summands: all(abs(b * count(r, a, x) - 1) <= 2.4e-7 for b in (c.low, c.high))",
    exactness=Exactness.ROUNDING,
    sample=_averaged,
    source="the mean is the sum divided by the number of elements",
)
