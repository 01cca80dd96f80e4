"""Reductions that torch exports in no form, or in a wrong one, in ONNX: of nothing, running along an axis, the k-th smallest."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportReturnType=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import BOOL, INT64
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core, nn, prims

from eqsat.frontends.torch_arithmetic import log_of_sum, number


def of_all_axes(form: Any) -> Callable[..., Any]:
    """A reduction whose axes are all unless stated. Torch exports it where they are stated (2.14)."""

    def reduced(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return form(x, op.Constant(value_ints=[*dim] or [*range(len(x.shape))]), keepdim=keepdim)

    return reduced


def empty_is_nan(form: Any) -> Callable[..., Any]:
    """A mean: that of no elements is NaN in torch, and zero in ONNX Runtime."""

    @functools.wraps(form)
    def mean(x: Any, *given: Any, **named: Any) -> Any:
        found = form(x, *given, **named)
        return op.Mul(found, op.CastLike(math.nan, found)) if 0 in x.shape else found

    return mean


def empty_is_false(form: Any) -> Callable[..., Any]:
    """Whether any is true: of no elements none, which torch exports as the largest of them (2.14). Their sum is zero."""

    def counted(x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        axes = [dim] if isinstance(dim, int) else [*(dim or range(len(x.shape)))]
        true = op.Cast(op.Cast(x, to=BOOL.dtype), to=INT64.dtype)
        return op.Cast(op.ReduceSum(true, op.Constant(value_ints=axes), keepdims=keepdim), to=BOOL.dtype)

    @functools.wraps(form)
    def found(x: Any, *given: Any, **named: Any) -> Any:
        return (counted if 0 in x.shape else form)(x, *given, **named)

    return found


def variance(x: Any, dims: Sequence[int] | None, correction: float = 1, **named: Any) -> Any:
    """That of at most ``correction`` elements is by zero in torch, which exports it as by less than that (2.14)."""
    axes = dims or range(len(x.shape))
    count = math.prod(x.shape[i] if isinstance(x.shape[i], int) else math.inf for i in axes)
    if count > correction:
        return prims.prims_var(x, dims, correction, **named)
    found = prims.prims_var(x, dims, 0, **named)
    return op.Div(op.Mul(found, op.CastLike(float(count), found)), op.CastLike(0.0, found))


def squared_error(x: Any, target: Any, reduction: int = 1) -> Any:
    """Its mean, unless told otherwise."""
    form = empty_is_nan(nn.aten_mse_loss) if reduction == 1 else nn.aten_mse_loss
    return form(x, target, reduction)


Values = Sequence[Any]


def _running(values: Values, axis: int, combine: Callable[[Values, Values], Values]) -> Values:
    """What each element comes to, combined with all before it, by doubling how many those are (no operator of ONNX). The terms of
    a sum or a product are added or multiplied in another order than in torch, pair by pair."""
    length = values[0].shape[axis]
    if not isinstance(length, int):
        raise NotImplementedError("a running reduction along an axis whose extent is not known")

    def part(x: Any, start: int, end: int) -> Any:
        return op.Slice(x, *(op.Constant(value_ints=[i]) for i in (start, end, axis)))

    step = 1
    while step < length:
        before = [part(x, 0, length - step) for x in values]
        behind = combine(before, [part(x, step, length) for x in values])
        values = [op.Concat(part(x, 0, step), y, axis=axis) for x, y in zip(values, behind, strict=True)]
        step *= 2
    return values


def running_product(x: Any, dim: int, *, dtype: int | None = None) -> Any:
    """No form in torch 2.14."""
    shape, whole = x.shape, not x.dtype.is_floating_point()
    if dtype not in (None, -1) or whole:
        x = op.Cast(x, to=INT64.dtype if dtype in (None, -1) else dtype)
        x.shape = shape
    if not shape:
        return op.Identity(x)
    return _running([x], dim % len(shape), lambda a, b: [op.Mul(a[0], b[0])])[0]


def running_log_of_sum(x: Any, dim: int) -> Any:
    """Torch exports the logarithm of a sum in which what is far below the largest element is zero (2.14)."""
    if not x.shape:
        return op.Identity(x)
    added = log_of_sum(math.e)
    return _running([x], dim % len(x.shape), lambda a, b: [added(a[0], b[0])])[0]


def running_extreme(is_worse: Any) -> Callable[..., Any]:
    """The largest or smallest element so far, and the last place where it is (no form in torch 2.14). NaN is both."""

    def found(x: Any, dim: int) -> Any:
        if not x.shape:
            return op.Identity(x), op.Constant(value_int=0)
        axis = dim % len(x.shape)
        places = [1] * len(x.shape)
        places[axis] = -1
        extent = op.Shape(x, start=axis, end=axis + 1)
        counted = op.Range(op.Constant(value_int=0), op.Squeeze(extent), op.Constant(value_int=1))
        index = op.Expand(op.Reshape(counted, op.Constant(value_ints=places)), op.Shape(x))

        def combine(before: Values, behind: Values) -> Values:
            stays = is_worse(behind[0], before[0])
            if x.dtype.is_floating_point():
                stays = op.Or(stays, op.And(op.IsNaN(before[0]), op.Not(op.IsNaN(behind[0]))))
            return [op.Where(stays, a, b) for a, b in zip(before, behind, strict=True)]

        values, index = _running([x, index], axis, combine)
        return values, index

    return found


def _smallest(x: Any, k: Any, needed: Any, axis: int, keepdim: bool) -> tuple[Any, Any]:
    """The ``k``-th smallest along an axis, and a place where it is. NaN are the largest, and what comes out where fewer than
    ``needed`` elements are numbers."""
    floats = x.dtype.is_floating_point()
    missing = op.IsNaN(x) if floats else None
    known = op.Where(missing, op.CastLike(math.inf, x), x) if floats else x
    last = op.Constant(value_ints=[-1]) if keepdim else op.Constant(value_int=-1)
    value, index = (op.Gather(y, last, axis=axis) for y in op.TopK(known, k, axis=axis, largest=0))
    if floats:
        count = op.ReduceSum(op.Cast(op.Not(missing), to=INT64.dtype), [axis], keepdims=keepdim)
        value = op.Where(op.Less(count, op.Squeeze(needed)), op.CastLike(math.nan, x), value)
    return value, index


def kth_smallest(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """No form in torch 2.14."""
    if not x.shape:
        return op.Identity(x), op.Constant(value_int=0)
    k = op.Reshape(k, op.Constant(value_ints=[1]))
    return _smallest(x, k, k, dim % len(x.shape), keepdim)


def _middle(x: Any, axis: int, keepdim: bool) -> tuple[Any, Any]:
    count = op.Shape(x, start=axis, end=axis + 1)
    k = op.Div(op.Add(count, op.Constant(value_ints=[1])), op.Constant(value_ints=[2]))
    return _smallest(x, k, count, axis, keepdim)


def median_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The smaller one of two in the middle, and NaN where there is one (no form in torch 2.14)."""
    if not x.shape:
        return op.Identity(x), op.Constant(value_int=0)
    return _middle(x, dim % len(x.shape), keepdim)


def median(x: Any) -> Any:
    """That of all elements (no form in torch 2.14)."""
    if 0 in x.shape:
        raise NotImplementedError("a median of nothing")
    flat = op.Reshape(x, op.Constant(value_ints=[-1]))
    flat.dtype = x.dtype
    return _middle(flat, 0, keepdim=False)[0]


def distances(a: Any, b: Any, p: float, compute_mode: int | None = None) -> Any:
    """Of each row of ``a`` from each of ``b``, by the sum of powers ``p`` (no form in torch 2.14)."""
    if p == 0 or (p == math.inf and 0 in a.shape):
        raise NotImplementedError("distances that count, or of nothing")
    apart = op.Abs(op.Sub(op.Unsqueeze(a, [-2]), op.Unsqueeze(b, [-3])))
    form = {1: op.ReduceSum, 2: op.ReduceL2, math.inf: op.ReduceMax}.get(p)
    if form is not None:
        return form(apart, [-1], keepdims=False)
    total = op.ReduceSum(op.Pow(apart, number(p, a)), [-1], keepdims=False)
    return op.Pow(total, number(1 / p, a))


def by_divisor(form: Any, axes: int) -> Callable[..., Any]:
    """Averages of windows, which torch exports without the number that is to be divided by (2.14): it is their extent, else."""
    signature = inspect.signature(form.func)

    @functools.wraps(form.func)
    def averages(*given: Any, **named: Any) -> Any:
        x, *_ = bound = signature.bind(*given, **named).arguments
        others = {name: value for name, value in bound.items() if name not in (x, "divisor_override")}
        divisor = bound.get("divisor_override")
        if divisor is None:
            return form(bound[x], **others)
        if bound.get("ceil_mode"):
            raise NotImplementedError("averages over windows that jut out, by a divisor of their own")
        found = form(bound[x], **{**others, "count_include_pad": True})
        extents = [*bound["kernel_size"]] * (axes if len(bound["kernel_size"]) == 1 else 1)
        return op.Mul(found, number(math.prod(extents) / divisor, found))

    return averages


def reduction_table() -> dict[Any, Any]:
    """Operator of torch -> its form."""
    aten = torch.ops.aten
    return {
        aten.amax.default: of_all_axes(core.aten_amax),
        aten.amin.default: of_all_axes(core.aten_amin),
        aten.any.default: empty_is_false(core.aten_any),
        aten.any.dim: empty_is_false(core.aten_any_dim),
        aten.any.dims: empty_is_false(core.aten_any_dims),
        aten.mean.default: empty_is_nan(core.aten_mean),
        aten.avg_pool2d.default: by_divisor(nn.aten_avg_pool2d, 2),
        aten.avg_pool3d.default: by_divisor(nn.aten_avg_pool3d, 3),
        aten.mse_loss.default: squared_error,
        torch.ops.prims.var.default: variance,
        aten.cumprod.default: running_product,
        aten.logcumsumexp.default: running_log_of_sum,
        aten.cummax.default: running_extreme(op.Less),
        aten.cummin.default: running_extreme(op.Greater),
        aten.kthvalue.default: kth_smallest,
        aten.median.default: median,
        aten.median.dim: median_along,
        aten._cdist_forward.default: distances,
    }
