"""Which kernels take time by one law: same operator, element types, and those attributes that change how a kernel works."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.cost.model import Work
from eqsat.ir.operator import Kind, traits_of
from eqsat.ir.operators.movement import way_of
from eqsat.ir.operators.onnxruntime_products import POOLS, doubles, on_blocks, pools_blocks, resizes_blocks
from eqsat.ir.types import TensorType, Type

Family = tuple[str, ...]
"""Operator, element types, variant; a coarser family is a shorter tuple or one that starts with a kind."""

ANY = "any "
"""How the families of all operators of a kind start."""


def families_of(work: Work) -> tuple[Family, ...]:
    """The families a kernel of one operator belongs to, finest first."""
    key, kind = work.operators[0], work.kind.value
    variant = variant_of(work)
    types = element_types(work.types[: _TYPED if variant == _CAPPED else None])
    fine = (key, types, variant)
    return (fine, (key, types), (key,), (ANY + kind, work.dtype), (ANY + kind,))


def element_types(types: Sequence[Type | None]) -> str:
    """Element types of the operands, runs of equal ones written once."""
    names: list[str] = []
    for found in types:
        name = found.dtype.name.lower() if isinstance(found, TensorType) else "-"
        if not names or names[-1] != name:
            names.append(name)
    return ",".join(names)


def variant_of(work: Work) -> str:
    """The way a kernel works that its attributes and the shapes of its operands choose; empty where there is one way."""
    rule = _VARIANTS.get(work.operators[0])
    if rule is None and work.kind is Kind.ELEMENTWISE:
        rule = _broadcast
    if rule is None and traits_of(work.operators[0]).reduces:
        rule = _reduced
    return rule(work.attributes, [_shape(t) for t in work.types], [_shape(t) for t in work.results]) if rule else ""


def features(work: Work) -> tuple[float, float, float]:
    """Where a kernel lies within its family: logarithms of operations, bytes and the innermost extent it writes."""
    last = next((_shape(t) for t in work.results), ()) or (1,)
    return math.log(max(work.flops, 1.0)), math.log(max(work.bytes, 1.0)), math.log(max(last[-1], 1))


def _shape(type: Type | None) -> tuple[int, ...]:
    return () if type is None else tuple(d if isinstance(d, int) else 1 for d in type.shape or ())


Shapes = Sequence[tuple[int, ...]]
Variant = Callable[[Mapping[str, Any], Shapes, Shapes], str]


def _broadcast(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """How the smaller operand repeats: not at all, one element, along leading axes, or along others."""
    if len(inputs) < 2 or not outputs:
        return ""
    full, found = outputs[0], "same"
    for shape in inputs:
        stripped = shape[next((i for i, d in enumerate(shape) if d != 1), len(shape)) :]
        if stripped == full[len(full) - len(stripped) :] and math.prod(shape) == math.prod(full):
            continue
        if not stripped:
            found = "scalar" if found == "same" else found
        elif stripped == full[len(full) - len(stripped) :]:
            found = "row"
        else:
            return "inner"
    return found


def _broadcast_integers(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    return _broadcast(attributes, (inputs[0], inputs[3]), outputs)


_FEW_FILTERS = 8
"""Up to which a convolution takes about as long as with one: its windows are laid out all the same."""


_PICTURE = 4
"""Channels of a picture at most: convolutions of bytes compute at a fraction of the rate of others with so few."""


def _window(kernel: tuple[int, ...]) -> str:
    if min(kernel) == 1 < max(kernel):
        return "strip"
    return "x".join(map(str, kernel)) if set(kernel) <= {1, 3} else "large"


def _convolution(weight: int, *, quantised: bool = False) -> Variant:
    """Whether filters have channels of their own or share groups of them, and what the window is: along one axis; of volumes;
    of patches that do not overlap; a strip; of one element, three by three or larger, at every place or not. Or whether there
    are few filters or few channels."""

    def rule(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
        weights = inputs[weight] if len(inputs) > weight else ()
        kernel = weights[2:] or (1, 1)  # where the rank is not known
        group = int(attributes.get("group", 1))
        way = "depthwise" if group > 1 and weights[1:2] == (1,) else "grouped" if group > 1 else "dense"
        if (max(kernel, default=1) > 1 and sum(d > 1 for d in inputs[0][2:]) == 1) or len(kernel) == 1:
            return f"{way} along one axis"
        if len(kernel) > 2:
            return f"{'depthwise ' * (way == 'depthwise')}{'windows of ' * (max(kernel) > 1)}volumes"
        strides = tuple(attributes.get("strides", (1,) * len(kernel)))
        if group == 1 and max(kernel, default=1) > 1:
            if strides == kernel:
                return "patches"
            if max(weights[:1]) <= _FEW_FILTERS:
                return "few filters"
            if quantised and max(weights[1:2]) <= _PICTURE:
                return "picture"
        return f"{way} {_window(kernel)} stride {min(max(strides, default=1), 2)}"

    return rule


_any_convolution = _convolution(1)


def _convolution_of_floats(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """The way that any convolution has, and whether it is computed on blocks of channels."""
    way = _any_convolution(attributes, inputs, outputs)
    blocks = len(inputs) > 1 and on_blocks(int(attributes.get("group", 1)), *inputs[:2])
    return way + _ON_BLOCKS if blocks else way


_ON_BLOCKS = " on blocks"


def has_blocks(key: str) -> bool:
    """Whether an operator, by its key, is a convolution that may be computed on blocks of channels."""
    return _VARIANTS.get(key) is _convolution_of_floats


def is_on_blocks(work: Work) -> bool:
    """Whether a kernel is a convolution that is computed on blocks of channels."""
    return variant_of(work).endswith(_ON_BLOCKS)


def _permutation(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    return way_of(attributes.get("perm", ()), inputs[0] if inputs else ())


def _along(default: int) -> Variant:
    def rule(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
        rank = len(inputs[0]) if inputs else 0
        axis = int(attributes.get("axis", default))
        axis += rank if axis < 0 else 0
        inner = math.prod(inputs[0][axis + 1 :]) if inputs else 1
        return "last axis" if inner == 1 else "inner axis"

    return rule


def _normalised(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """Along which axis: ONNX Runtime exchanges another one than the last with that, which scatters elements unless they are
    neighbours."""
    where = _along(-1)(attributes, inputs, outputs)
    shape = inputs[0] if inputs else ()
    between = shape[int(attributes.get("axis", -1)) % len(shape) + 1 : -1] if shape else ()
    return "scattered" if where == "inner axis" and math.prod(between) > 1 else where


def _reduced(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """Over which axes. Over others than the last ONNX Runtime sums vectors where there are several matrices, else element by
    element."""
    shape, result = inputs[0] if inputs else (), outputs[0] if outputs else ()
    if not shape or not result or result[-1] != shape[-1] or (shape[-1] == 1 and len(result) == len(shape)):
        return "last axis"
    return "other axes" if result[0] == shape[0] > 1 else "other axes of one"


def _pooled(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """Of what: blocks of channels, a sequence, or an image or a volume whose channels are no whole blocks."""
    image = inputs[0] if inputs else ()
    return "blocks" if pools_blocks(image) else "sequence" if len(image) == 3 else "image"


def _resized(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """How, and of how many axes: images whose elements are repeated, counted from the corner, are doubled by a kernel of its own;
    others by whole factors, and linear interpolation, are computed on blocks of channels."""
    image, result = inputs[0] if inputs else (), outputs[0] if outputs else ()
    mode = attributes.get("mode", "nearest")
    if resizes_blocks(attributes, image, result):
        return "doubled" if doubles(attributes, image, result) else f"{mode} blocks"
    return f"{mode} {'image' if len(image) == 4 else 'volume'}"


def _sampled(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """How, what lies outside, and of how many axes: images that are interpolated between zeros have a kernel of their own."""
    rank = len(inputs[0]) if inputs else 0
    return f"{attributes.get('mode', 'linear')} {attributes.get('padding_mode', 'zeros')} {rank}"


def _per_axis(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    if len(inputs) < 2 or math.prod(inputs[1]) == 1:
        return "per tensor"
    return f"per axis, {_along(1)(attributes, inputs, outputs)}"


def _product(second: int) -> Variant:
    """Whether factor ``second`` is a matrix, usually of weights, or one for each of a batch; whether the first has one row."""

    def rule(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
        other = inputs[second] if len(inputs) > second else ()
        batch = "batched" if math.prod(other[:-2]) > 1 else "weights"
        transposed = "".join("t" if attributes.get(name, 0) else "n" for name in ("transA", "transB"))
        return f"{batch}{_one_row(outputs)} {transposed}"

    return rule


def _packed(attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes) -> str:
    """How many bits a weight has, whether rows are rounded to 8 bits as well, and whether there is one row."""
    rounded = " rounded" if attributes.get("accuracy_level", 0) == 4 else ""
    return f"{attributes.get('bits', 4)} bits{rounded}{_one_row(outputs)}"


def _one_row(outputs: Shapes) -> str:
    return " vector" if outputs and math.prod(outputs[0][:-1]) == 1 else ""


_CAPPED, _TYPED = "capped", 3
"""Attention that caps its scores, and how many of its operands have types that matter: a mask of truth values, which is the next,
takes as long as one of numbers."""

_VARIANTS: dict[str, Variant] = {
    "Conv": _convolution_of_floats,
    "com.microsoft::FusedConv": _convolution_of_floats,
    "ConvInteger": _any_convolution,
    "QLinearConv": _convolution(3, quantised=True),
    "MatMul": _product(1),
    "com.microsoft::FusedMatMul": _product(1),
    "MatMulInteger": _product(1),
    "QLinearMatMul": _product(3),
    "com.microsoft::MatMulIntegerToFloat": _product(1),
    "com.microsoft::DynamicQuantizeMatMul": _product(1),
    "Gemm": _product(1),
    "com.microsoft::FusedGemm": _product(1),
    "com.microsoft::QGemm": _product(3),
    "com.microsoft::MatMulNBits": _packed,
    **dict.fromkeys(POOLS, _pooled),
    "Resize": _resized,
    "GridSample": _sampled,
    "ArgMax": _along(0),
    "ArgMin": _along(0),
    "Transpose": _permutation,
    "Softmax": _normalised,
    "LogSoftmax": _normalised,
    "Gather": _along(0),
    "GatherElements": _along(0),
    "Concat": _along(0),
    "Split": _along(0),
    "QuantizeLinear": _per_axis,
    "DequantizeLinear": _per_axis,
    "Gelu": lambda attributes, inputs, outputs: attributes.get("approximate", "none"),
    "Attention": lambda attributes, inputs, outputs: _CAPPED if attributes.get("softcap", 0.0) else "",
    "com.microsoft::MultiHeadAttention": lambda attributes, inputs, outputs: "bias" if any(inputs[3:4]) else "",
    "com.microsoft::GroupQueryAttention": lambda attributes, inputs, outputs: (
        "turned" if attributes.get("do_rotary", 0) else ""
    ),
    "com.microsoft::QuickGelu": lambda attributes, inputs, outputs: "silu" if attributes.get("alpha") == 1.0 else "",
    "com.microsoft::QLinearAdd": _broadcast_integers,
    "com.microsoft::QLinearMul": _broadcast_integers,
}
"""By operator, not by trait: what kernels are told apart by is a fact about kernels, and timings are sorted by it."""


# --- their law -------------------------------------------------------------------------------------------------------


_SUPPORTS = ([0], [2], [1], [0, 2], [0, 1], [1, 2], [0, 1, 2])
"""Which coefficients of a law are not 0. Of laws that are as near, the first: bytes say as much as operations where a kernel
computes as often as it writes."""

_NEARER = 1e-12
"""By what part of the squares the squared error has to fall for a law to be nearer: less is rounding, which differs from
processor to processor."""

_ROUNDS = 12
_TOLERANCE = 0.02
_DIGITS = 9
"""Of a law. In the last ones of a float, libraries for linear algebra differ from processor to processor, and by where in memory
the columns lie."""

MINIMUM = 3
"""Fewest different kernels that a law is fitted to."""


@dataclass(frozen=True, slots=True)
class Law:
    """Non-negative coefficients, so that more work never costs less. ``error``: median relative error on what it was
    fitted to."""

    start_s: float
    s_per_operation: float
    s_per_byte: float
    error: float = 0.0

    def seconds(self, flops: float, bytes: float) -> float:
        return self.start_s + self.s_per_operation * flops + self.s_per_byte * bytes


def fit_law(flops: Sequence[float], bytes: Sequence[float], seconds: Sequence[float]) -> Law:
    """The law that minimises the sum of absolute relative errors, by iteratively reweighted non-negative least squares:
    a timing that was disturbed pulls no harder than one that is a little off."""
    time = np.asarray(seconds, float)
    columns = np.stack([np.ones(len(time)), np.asarray(flops, float), np.asarray(bytes, float)], axis=1)
    relative = columns / time[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    weight = np.ones(len(time))
    coefficients = np.zeros(3)
    for _ in range(_ROUNDS):
        coefficients = _least_squares(relative * weight[:, None], weight)
        error = np.abs(relative @ coefficients - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(error, _TOLERANCE))
    error = float(np.median(np.abs(relative @ coefficients - 1.0)))
    return Law(*(float(f"{x:.{_DIGITS}g}") for x in (*(coefficients / scale).tolist(), error)))


def _least_squares(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The coefficients of three columns, none negative, that come nearest to ``values``: the best of those that are for some of
    the columns."""
    squares = least = float(values @ values)
    best = np.zeros(columns.shape[1])
    for support in _SUPPORTS:
        found = np.linalg.lstsq(columns[:, support], values, rcond=None)[0]
        error = columns[:, support] @ found - values
        if found.min() >= 0 and float(error @ error) < least - _NEARER * squares:
            best, least = np.zeros(columns.shape[1]), float(error @ error)
            best[support] = found
    return best
