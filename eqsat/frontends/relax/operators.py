"""How operators of Relax are read: element by element, where elements go, quantisation."""

from typing import Any

from eqsat.frontends.relax.site import READINGS, Reading, Site, integers, reads

_CALLED_ALIKE = """Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater IsNaN Less Log Round Sigmoid
Sin Sinh Sqrt Tan Tanh Where"""

_SAME = {
    **{op.lower(): op for op in _CALLED_ALIKE.split()},
    "divide": "Div",
    "greater_equal": "GreaterOrEqual",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "nn.gelu": "Gelu",
    "nn.relu": "Relu",
    "power": "Pow",
    "subtract": "Sub",
}


_SHORT: dict[str, Reading] = {
    "broadcast_to": lambda site: site.op("Expand", site.operands[0], site.integers(site.shape)),
    "gather_nd": lambda site: site.op("GatherND", *site.operands, batch_dims=int(site.attributes.batch_dims)),
    "nn.gelu_tanh": lambda site: site.op("Gelu", site.operands[0], approximate="tanh"),
    "nn.leakyrelu": lambda site: site.op("LeakyRelu", site.operands[0], alpha=float(site.attributes.alpha)),
    "nn.log_softmax": lambda site: site.op("LogSoftmax", site.operands[0], axis=int(site.attributes.axis)),
    "nn.silu": lambda site: site.op("Mul", site.operands[0], site.op("Sigmoid", site.operands[0])),
    "nn.softmax": lambda site: site.op("Softmax", site.operands[0], axis=int(site.attributes.axis)),
    "not_equal": lambda site: site.op("Not", site.op("Equal", *site.operands)),
    "rsqrt": lambda site: site.op("Reciprocal", site.op("Sqrt", site.operands[0])),
    "square": lambda site: site.op("Mul", site.operands[0], site.operands[0]),
}


def _same(op: str) -> Reading:
    return lambda site: site.op(op, *site.operands)


READINGS.update((name, _same(op)) for name, op in _SAME.items())
READINGS.update(_SHORT)


# ---- elementwise


@reads("clip")
def _clip(site: Site) -> Any:
    low, high = (getattr(v, "value", None) for v in site.operands[1:])
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return site.op("Clip", site.operands[0], site.like(low), site.like(high))


@reads("astype")
def _astype(site: Site) -> Any:
    from eqsat.ir.types import DType

    return site.op("Cast", site.operands[0], to=int(DType.of(site.dtype)))


# ---- where elements go


@reads("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")
def _reshape(site: Site) -> Any:
    if 0 in site.shape:
        return None
    return site.op("Reshape", site.operands[0], site.integers(site.shape))


@reads("permute_dims")
def _permute_dims(site: Site) -> Any:
    axes = site.attributes.axes
    perm = range(site.rank)[::-1] if axes is None else [a % site.rank for a in integers(axes)]
    return site.op("Transpose", site.operands[0], perm=tuple(perm))


@reads("concat")
def _concat(site: Site) -> Any:
    parts: tuple[str, ...] | str = site.operands[0]
    if not isinstance(parts, tuple):
        return None
    axis = site.attributes.axis
    return None if axis is None else site.op("Concat", *parts, axis=int(axis))


@reads("split")
def _split(site: Site) -> Any:
    axis = int(site.attributes.axis)
    extent = site.extents(site.operands[0])[axis]
    parts = site.attributes.indices_or_sections
    if hasattr(parts, "value"):
        ends = [min(extent, site.shape[axis] * (i + 1)) for i in range(int(parts))]
    else:
        ends = [*integers(parts), extent]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(sizes) <= 0 or len(sizes) != site.results:
        return None
    return site.builder.op("Split", site.operands[0], site.integers(sizes), outputs=len(sizes), axis=axis)


@reads("strided_slice")
def _strided_slice(site: Site) -> Any:
    try:
        axes, starts, ends, *steps = (integers(v) for v in site.operands[1:])
    except (TypeError, ValueError):
        return None
    lists = [starts, ends, axes, *(steps or [[1] * len(axes)])]
    if any(step <= 0 for step in lists[3]):
        return None
    return site.op("Slice", site.operands[0], *(site.integers(v) for v in lists))


@reads("take")
def _take(site: Site) -> Any:
    if site.attributes.axis is None and site.rank != 1:
        return None
    axis = 0 if site.attributes.axis is None else int(site.attributes.axis)
    if site.attributes.mode != "fast":  # what is out of range is clipped or wraps around; "fast" leaves it undefined
        known = site.builder.constant_of(site.operands[1])
        extent = site.extents(site.operands[0])[axis]
        if known is None or not ((known.numpy() >= 0) & (known.numpy() < extent)).all():
            return None
    return site.op("Gather", site.operands[0], site.operands[1], axis=axis)


@reads("nn.pad")
def _pad(site: Site) -> Any:
    widths = integers(site.attributes.pad_width)
    if site.attributes.pad_mode != "constant" or min(widths, default=0) < 0:
        return None
    pads = site.integers([*widths[::2], *widths[1::2]])
    return site.op("Pad", site.operands[0], pads, site.like(float(site.attributes.pad_value)))


# ---- quantisation


def _parameters(site: Site) -> tuple[str, str] | None:
    """Scale and zero point; one element, of any rank, is a scalar."""
    made: list[str] = []
    for value in site.operands[1:]:
        shape = site.extents(value)
        known = site.builder.constant_of(value)
        if set(shape) <= {1} and known is not None:
            made.append(site.builder.constant(known.numpy().reshape(())))
        elif len(shape) == 1 or not shape:
            made.append(value)
    return (made[0], made[1]) if len(made) == 2 else None


def _quantisation(op: str) -> Reading:
    def reading(site: Site) -> Any:
        parameters = _parameters(site)
        return parameters and site.op(op, site.operands[0], *parameters, axis=int(site.attributes.axis))

    return reading


READINGS["quantize"] = _quantisation("QuantizeLinear")
READINGS["dequantize"] = _quantisation("DequantizeLinear")
