"""Operators that torch exports in no form, or in a wrong one, in ONNX. Imported once something is exported: needs onnxscript."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportReturnType=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from onnxscript import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT32, INT64, ir, script
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core, nn, special

from eqsat.frontends.torch_arithmetic import arithmetic_table, in_type, read_as
from eqsat.frontends.torch_quantised import quantised_table
from eqsat.frontends.torch_reductions import empty_is_nan, reduction_table

Floats = TypeVar("Floats", FLOAT, FLOAT16, BFLOAT16, DOUBLE)
Ends = TypeVar("Ends", INT32, INT64)


@script(default_opset=op)
def multiply_groups(x: Floats, weights: Floats, ends: Ends) -> Floats:
    """Rows of ``x`` up to each of ``ends``, by the matrix of their own in ``weights``, as experts do that tokens are sorted by.
    Rows behind the last end are zero. Only matrices that have rows are read."""
    stops = op.Cast(ends, to=INT64.dtype)
    starts = op.Concat(op.Constant(value_ints=[0]), op.Slice(stops, [0], [-1]), axis=0)
    used = op.Reshape(op.NonZero(stops - starts), [-1])
    found = op.MatMul(op.Slice(x, [0], [0]), op.Gather(weights, 0))
    for i in range(op.Size(used)):
        group = op.Gather(used, op.Reshape(i, [1]))
        rows = op.Slice(x, op.Gather(starts, group), op.Gather(stops, group), [0])
        found = op.Concat(found, op.MatMul(rows, op.Squeeze(op.Gather(weights, group), [0])), axis=0)
    missing = op.Shape(x, start=0, end=1) - op.Shape(found, start=0, end=1)
    rest = op.Expand(op.CastLike(0.0, x), op.Concat(missing, op.Shape(found, start=1, end=2), axis=0))
    return op.Concat(found, rest, axis=0)


def converting_first(form: Any) -> Callable[..., Any]:
    """An operator that converts its input to a type before it computes. What torch exports converts the result, as of a softmax
    in half precision that was to be one in float32 (2.14)."""
    signature = inspect.signature(form.func)

    @functools.wraps(form.func)
    def converted(*given: Any, **named: Any) -> Any:
        x, *_ = bound = signature.bind(*given, **named).arguments
        others = {name: value for name, value in bound.items() if name not in (x, "dtype")}
        source = bound[x]
        if bound.get("dtype") not in (None, -1):
            source = op.Cast(source, to=bound["dtype"])
            source.shape = bound[x].shape  # which forms read
        return form(source, **others)

    return converted


def stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Every sort is stable in ONNX (no form of this one in torch 2.14)."""
    return core.aten_sort(x, dim, descending)


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Elements of one. Torch exports the sum of each row, the others times zero, which is NaN of infinities (2.14)."""
    rank = len(x.shape)
    last = [dim1 % rank, dim2 % rank]
    x = op.Transpose(x, perm=[*(i for i in range(rank) if i not in last), *last])
    height, width = op.Shape(x, start=rank - 2, end=rank - 1), op.Shape(x, start=rank - 1)
    above, left = op.Constant(value_ints=[max(-offset, 0)]), op.Constant(value_ints=[max(offset, 0)])
    none = op.Constant(value_ints=[0])
    count = op.Max(op.Min(op.Sub(height, above), op.Sub(width, left)), none)
    steps = op.Range(op.Squeeze(none), op.Squeeze(count), op.Constant(value_int=1))
    places = op.Add(op.Mul(op.Add(steps, above), width), op.Add(steps, left))
    flat = op.Reshape(x, op.Concat(op.Shape(x, start=0, end=rank - 2), op.Mul(height, width), axis=0))
    return op.Gather(flat, places, axis=rank - 2)


def copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """What is written over all of a tensor. Torch exports it in the shape that it has before (2.14)."""
    found = op.CastLike(source, x)
    return found if source.shape == x.shape else op.Expand(found, op.Shape(x))


def in_single(form: Any) -> Callable[..., Any]:
    """An operator that adds in half precision to what it scatters to, which ONNX Runtime does in single precision alone."""
    signature = inspect.signature(getattr(form, "func", form))

    @functools.wraps(getattr(form, "func", form))
    def scattered(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named).arguments
        x, *others = bound.values()
        if x.dtype != FLOAT16.dtype or bound.get("accumulate") is False:
            return form(*given, **named)

        def wide(value: Any) -> Any:
            return in_type(value, FLOAT.dtype) if getattr(value, "dtype", None) == x.dtype else value

        return op.Cast(form(*map(wide, (x, *others))), to=FLOAT16.dtype)

    return scattered


def in_type_of_weights(form: Any) -> Callable[..., Any]:
    """A norm whose input may be narrower than its weights, in whose type torch computes it: in ONNX they have one."""
    signature = inspect.signature(form.func)

    @functools.wraps(form.func)
    def normed(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named).arguments
        x, weight = bound["input"], bound.get("weight")
        if weight is None or weight.dtype == x.dtype:
            return form(*given, **named)
        found = form(**{**bound, "input": in_type(x, weight.dtype)})
        return op.Cast(found, to=x.dtype)

    return normed


def of_bytes(form: Any) -> Callable[..., Any]:
    """What interpolates rounds bytes to the nearest in torch, and down as its exporter has it (2.14)."""

    @functools.wraps(form.func)
    def interpolated(self: Any, *given: Any, **named: Any) -> Any:
        if not self.dtype.is_integer():
            return form(self, *given, **named)
        found = op.Clip(op.Round(form(in_type(self, FLOAT.dtype), *given, **named)), 0.0, 255.0)
        return op.Cast(found, to=self.dtype)

    return interpolated


def antialiased(form: Any, **options: Any) -> Callable[..., Any]:
    """Averages of all that a place covers. Torch exports quotients of extents for given factors, and other corners (2.14)."""

    @functools.wraps(form.func)
    def resized(x: Any, size: Any, align_corners: bool, down: float | None = None, across: float | None = None) -> Any:
        if align_corners:
            raise NotImplementedError("antialiasing with aligned corners")
        if down is None or across is None:
            return form(x, size, align_corners)
        return op.Resize(x, None, [1.0, 1.0, down, across], antialias=1, exclude_outside=1, **options)

    return resized


_WORST = {"amax": -math.inf, "amin": math.inf}


def scattering(form: Any) -> Callable[..., Any]:
    """Torch exports the mean of what is scattered to a place as the last of it (2.14): it is the sum by the count. And the
    largest, or smallest, as not beyond the least or greatest number."""

    @functools.wraps(form.func)
    def scattered(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
        if reduce in _WORST and not include_self and self.shape and self.dtype.is_floating_point():
            worst = op.Expand(op.CastLike(_WORST[reduce], self), op.Shape(index))
            start = read_as(op.ScatterElements(self, index, worst, axis=dim), self, self.dtype)
            return form(start, dim, index, src, reduce, True)
        if reduce != "mean":
            return form(self, dim, index, src, reduce, include_self)
        if not self.dtype.is_floating_point():
            raise NotImplementedError("a mean of integers that are scattered")

        def ones(x: Any) -> Any:
            return read_as(op.Expand(op.CastLike(1.0, x), op.Shape(x)), x, x.dtype)

        total = form(self, dim, index, src, "sum", include_self)
        return op.Div(total, form(ones(self), dim, index, ones(src), "sum", include_self))

    return scattered


scatter_reduced = in_single(scattering(core.aten_scatter_reduce))


def reduced_by_index(self: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """A scattering of whole slices (no form in torch 2.14)."""
    if not self.shape:
        raise NotImplementedError("a number reduced by an index")
    axis = dim % len(self.shape)
    index = op.Unsqueeze(op.Reshape(index, [-1]), [i for i in range(len(self.shape)) if i != axis])
    return scatter_reduced(self, axis, op.Expand(index, op.Shape(source)), source, reduce, include_self)


def bags(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, ...]:
    """Rows of a table reduced from each of ``offsets`` to the next. Torch exports a loop over a sequence, of no type (2.14)."""
    starts = op.Cast(op.Slice(offsets, [0], [-1], [0]) if include_last_offset else offsets, to=INT64.dtype)
    count = op.Shape(starts)
    bag = op.Sub(places(starts, op.Range(0, op.Squeeze(op.Shape(indices)), 1), right=True), 1)
    found = op.Gather(weight, indices)
    if per_sample_weights is not None:
        found = op.Mul(found, op.Unsqueeze(per_sample_weights, [1]))
    if padding_idx not in (None, -1):  # into a bag of its own
        bag = op.Where(op.Equal(indices, op.CastLike(padding_idx, indices)), count, bag)
    found.dtype = weight.dtype  # which forms read
    nothing = op.Expand(op.CastLike(0.0, weight), op.Concat(op.Add(count, 1), op.Shape(weight, start=1), axis=0))
    nothing.shape, nothing.dtype = ir.Shape((None, weight.shape[1])), weight.dtype
    found = reduced_by_index(nothing, 0, bag, found, ("sum", "mean", "amax")[mode], include_self=False)
    return op.Slice(found, [0], [-1], [0]), *(op.Identity(offsets) for _ in range(3))  # the rest is for gradients


def places(
    bounds: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many of ``bounds``, which ascend along their last axis, lie before each value, or, ``right``, not behind it (no form in
    torch 2.14)."""
    if sorter is not None:
        bounds = op.GatherElements(bounds, sorter, axis=-1)
    if values.shape is None or len(values.shape):  # else a number
        values, bounds = op.Unsqueeze(values, [-1]), op.Unsqueeze(bounds, [-2])
    behind = op.Greater(bounds, values) if right or side == "right" else op.GreaterOrEqual(bounds, values)
    before = op.Cast(op.Not(behind), to=INT32.dtype if out_int32 else INT64.dtype)  # of NaN all
    return op.ReduceSum(before, [-1], keepdims=False)


def of_any_size(form: Any) -> Callable[..., Any]:
    """What torch's exporter takes no size of the result for, which follows from the operands (2.14)."""

    def found(*given: Any, output_size: Any = None, **named: Any) -> Any:
        return form(*given, **named)

    return found


def of_each(form: Any) -> Callable[..., Any]:
    """What is done to each of several tensors. Torch exports a loop over a sequence (2.14)."""

    def found(tensors: Sequence[Any]) -> Any:
        return [form(x) for x in tensors]

    return found


def translation_table() -> dict[Any, Any]:
    """Operator of torch -> its form. Those of transformers are there once it has registered them."""
    aten = torch.ops.aten
    found: dict[Any, Any] = {
        **arithmetic_table(),
        **reduction_table(),
        **quantised_table(),
        aten._is_all_true.default: core.aten_all,
        aten._is_any_true.default: core.aten_any,
        aten.copy.default: copied,
        aten.diagonal.default: diagonal,
        aten.diagonal_copy.default: diagonal,
        aten.atleast_1d.Sequence: of_each(core.aten_atleast_1d),
        aten.atleast_2d.Sequence: of_each(core.aten_atleast_2d),
        aten.atleast_3d.Sequence: of_each(core.aten_atleast_3d),
        aten.layer_norm.default: in_type_of_weights(core.aten_layer_norm),
        aten.group_norm.default: in_type_of_weights(nn.aten_group_norm),
        aten.instance_norm.default: in_type_of_weights(core.aten_instance_norm),
        aten.softmax.int: converting_first(core.aten_softmax),
        aten.log_softmax.int: converting_first(special.aten_special_log_softmax),
        aten.sum.default: converting_first(core.aten_sum),
        aten.sum.dim_IntList: converting_first(core.aten_sum_dim_IntList),
        aten.mean.dim: empty_is_nan(converting_first(core.aten_mean_dim)),
        aten.upsample_bilinear2d.vec: of_bytes(nn.aten_upsample_bilinear2d_vec),
        aten.upsample_bicubic2d.vec: of_bytes(nn.aten_upsample_bicubic2d_vec),
        aten._upsample_bilinear2d_aa.default: antialiased(nn.aten__upsample_bilinear2d_aa, mode="linear"),
        aten._upsample_bicubic2d_aa.default: antialiased(
            nn.aten__upsample_bicubic2d_aa, mode="cubic", cubic_coeff_a=-0.5
        ),
        aten.searchsorted.Tensor: places,
        aten.sort.stable: stable_sort,
        aten.repeat_interleave.Tensor: of_any_size(core.aten_repeat_interleave_Tensor),
        aten.repeat_interleave.self_Tensor: of_any_size(core.aten_repeat_interleave_Tensor),
        aten._embedding_bag.default: bags,
        aten._embedding_bag_forward_only.default: bags,
        aten.embedding_bag.padding_idx: bags,
        aten.index_put.default: in_single(core.aten_index_put),
        aten.scatter_add.default: in_single(core.aten_scatter_add),
        aten.index_reduce.default: reduced_by_index,
        aten.scatter_reduce.two: scatter_reduced,
    }
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = multiply_groups
    return found
