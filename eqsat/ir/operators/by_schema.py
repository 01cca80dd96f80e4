"""What is said of the operators that fall back on their ONNX schema: how they move data, their traits, extents of symbols."""

from collections.abc import Callable, Sequence
from typing import Any

from eqsat.ir.extents import add, floor_divide, multiply, subtract
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import axes_of
from eqsat.ir.traits import Rows, Traits, moving
from eqsat.ir.types import Dim

BIT_EXACT = frozenset(
    (
        "BitCast",
        "CenterCropPad",
        "Compress",
        "EyeLike",
        "NonZero",
        "OneHot",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
        "TensorScatter",
        "Trilu",
    )
)
"""Operators that move elements, or write down where they are."""

RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("DeformConv", "GRU", "LSTM", "RNN"), Kind.ANCHOR),
    **dict.fromkeys(("CenterCropPad", "ReverseSequence", "Trilu"), Kind.INJECTIVE),
    **dict.fromkeys(("CumProd", "CumSum", "GlobalLpPool", "Hardmax"), Kind.REDUCTION),
    **dict.fromkeys(("LpNormalization", "LpPool", "MeanVarianceNormalization"), Kind.REDUCTION),
}
"""Those that are not opaque."""


def _replaces(attributes: Attributes) -> bool:
    return attributes.get("reduction", "none") == "none"


def _picks(attributes: Attributes) -> bool:
    """A Resize that only picks elements of its input."""
    nearest = attributes.get("mode", "nearest") == "nearest"
    return nearest and attributes.get("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


TRAITS: dict[str, Traits] = {
    "CenterCropPad": moving(or_zero=True, counts=(1,)),
    "Compress": moving(truths=(1,)),
    "CumSum": Traits(affine=(0,), keeps_whole=True, counts=(1,)),
    "DeformConv": Traits(zero_if_absent=(3,)),
    "EyeLike": Traits(whole=True),
    "GRU": Traits(zero_if_absent=(3, 5)),
    "Hardmax": Traits(rows=Rows.ALONG, whole=True, bounds=(0.0, 1.0)),
    "LSTM": Traits(zero_if_absent=(3, 5, 6, 7)),
    "LpNormalization": Traits(rows=Rows.ALONG),
    "OneHot": Traits(sources=(2,), counts=(1,)),
    "RNN": Traits(zero_if_absent=(3, 5)),
    "Resize": moving(counts=(3,), holds=_picks),
    "ReverseSequence": moving(counts=(1,), permutes=True),
    "ScatterElements": moving(0, 2, indices=(1,), holds=_replaces),
    "ScatterND": moving(0, 2, indices=(1,), holds=_replaces),
    "TopK": Traits(sources=(0,), counts=(1,)),
    "Trilu": moving(or_zero=True, counts=(1,)),
}


def _resized(app: Application) -> tuple[Dim | None, ...]:
    """The extents that sizes, or whole scales and fractions of one, give for symbols, of the axes that are resized."""
    shape = app.shape(0)
    stretches = app.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    if shape is None or not stretches or app.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return ()
    axes = axes_of(app, app.attr("axes", tuple(range(len(shape)))), len(shape))
    sizes, scales = app.dims(3) if app.has(3) else None, app.value(2) if app.has(2) else None
    found: list[Dim | None] = list(shape)
    for n, axis in enumerate(axes):
        if sizes is not None:
            found[axis] = sizes[n]
        elif scales is not None and scales.size == len(axes):
            found[axis] = _scaled(shape[axis], float(scales[n]))
        else:
            found[axis] = None
    return tuple(found)


_FINEST = 64
"""The largest denominator of scales: products of extents with such are exact in single precision."""


def _scaled(extent: Dim, scale: float) -> Dim | None:
    """The product with a fraction that floats hold, rounded down, or with one over a whole number."""
    above, below = scale.as_integer_ratio()
    if above > 0 and below <= _FINEST:
        return floor_divide(multiply(extent, above), below)
    return floor_divide(extent, round(1 / scale)) if scale > 0 and (1 / scale).is_integer() else None


def _is_cropped(attributes: Attributes) -> bool:
    """ONNX Runtime leaves out axes that are not scaled, whatever region they are cropped to."""
    return attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"


def _is_float(operand: Any) -> bool:
    """Of integers ONNX Runtime makes means in numbers of fixed point."""
    return operand is None or operand.dtype.kind not in "iu"


DISPUTED: dict[str, Callable[[Attributes, Sequence[Any]], bool]] = {
    "LpNormalization": lambda attributes, _: attributes.get("p", 2) == 1,  # the reference sums up signed elements
    "Resize": lambda attributes, operands: (
        _is_cropped(attributes) or not (_picks(attributes) or _is_float(operands[0]))
    ),
    "TopK": lambda attributes, _: not attributes.get("sorted", 1),  # in any order
}
"""Uses of operators that runtimes compute in another way than the reference evaluator."""


def _spectra(app: Application) -> tuple[Dim | None, ...]:
    """Signals, frames, frequencies and the parts of a number, where the samples of a frame are counted."""
    signal, step, count = app.shape(0), app.value(1), app.value(3)
    lengths = {*(app.shape(2) or () if app.has(2) else ()), *(() if count is None else map(int, count.reshape(-1)))}
    length = min(lengths) if len(lengths) == 1 else None
    if signal is None or step is None or not isinstance(length, int):
        return ()
    frames = add(floor_divide(subtract(signal[1], length), step.item()), 1)
    return (signal[0], frames, length // 2 + 1 if app.attr("onesided", 1) else length, 2)


def _largest(app: Application) -> tuple[Dim | None, ...]:
    """As many elements as are asked for along one axis."""
    shape, count = app.shape(0), app.dims(1)
    if shape is None or count is None or len(count) != 1:
        return ()
    (axis,) = axes_of(app, (app.attr("axis", -1),), len(shape))
    return (*shape[:axis], count[0], *shape[axis + 1 :])


EXTENTS: dict[str, Callable[[Application], tuple[Dim | None, ...]]] = {
    "Resize": _resized,
    "STFT": _spectra,
    "TopK": _largest,
}
"""Extents of the result where the schema knows numbers only, or nothing; None: not known."""
