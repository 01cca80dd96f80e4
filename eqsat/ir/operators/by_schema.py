"""What is said of the operators that fall back on their ONNX schema: how they move data, their traits."""

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind
from eqsat.ir.traits import Rows, Traits, moving

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
