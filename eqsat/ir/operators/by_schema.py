"""What is said of the operators that fall back on their ONNX schema: how they move data, their work, their traits."""

from collections.abc import Sequence

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Flops, Kind, elementwise_flops
from eqsat.ir.traits import EVERY, Rows, Traits, moving
from eqsat.ir.types import TensorType, Type


def _extents(type: Type | None) -> list[int]:
    """Extents of a tensor, an unknown one counted as 1."""
    if not isinstance(type, TensorType) or type.shape is None:
        return []
    return [d if isinstance(d, int) else 1 for d in type.shape]


def _einsum(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each combination of the indices that the equation names."""
    terms = str(app.attr("equation", "")).replace(" ", "").split("->")[0].split(",")
    extents: dict[str, int] = {}
    for term, type in zip(terms, app.types, strict=False):
        if "." in term or len(term) != len(_extents(type)):
            return elementwise_flops(app, outputs)
        for index, d in zip(term, _extents(type), strict=True):
            extents[index] = max(d, extents.get(index, 1))
    number = 2.0
    for d in extents.values():
        number *= d
    return number


WORK: dict[str, Flops] = {"Einsum": _einsum}
"""Where it is more than one operation an element."""

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
    **dict.fromkeys(("Einsum", "DeformConv", "GRU", "LSTM", "RNN"), Kind.ANCHOR),
    **dict.fromkeys(("CenterCropPad", "ReverseSequence", "Trilu"), Kind.INJECTIVE),
    **dict.fromkeys(("CumProd", "CumSum", "GlobalLpPool", "Hardmax"), Kind.REDUCTION),
    **dict.fromkeys(("LpNormalization", "LpPool", "LRN", "MeanVarianceNormalization"), Kind.REDUCTION),
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
    "Einsum": Traits(affine=EVERY),
    "EyeLike": Traits(whole=True),
    "Hardmax": Traits(rows=Rows.ALONG, whole=True, bounds=(0.0, 1.0)),
    "LpNormalization": Traits(rows=Rows.ALONG),
    "OneHot": Traits(sources=(2,), counts=(1,)),
    "Resize": moving(counts=(3,), holds=_picks),
    "ReverseSequence": moving(counts=(1,), permutes=True),
    "ScatterElements": moving(0, 2, indices=(1,), holds=_replaces),
    "ScatterND": moving(0, 2, indices=(1,), holds=_replaces),
    "TopK": Traits(sources=(0,), counts=(1,)),
    "Trilu": moving(or_zero=True, counts=(1,)),
}
