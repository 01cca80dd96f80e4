"""Group normalisation in the forms that exporters give it becomes one operator.

ONNX had no GroupNormalization for long: groups become channels by a Reshape, are normalised as such by InstanceNormalization or
by a normalisation of the last axis, and a second Reshape goes back; scale and bias per channel follow.

Positions of which nobody knows how many there are, as in a voice of any length, cannot have a gain each: their norm is one of the
channels, which are counted.
"""

from eqsat.conditions import another_value, constant, finite, kernels, number, same_type, single_or_half, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.linear.alignment import lined_up, ordinary_summands, reshaped
from eqsat.rules.recognise.norms import EPSILON, UNDERFLOW, first_axis, full, known, outlives_underflow, reduces_last
from eqsat.rules.terms import int64s, reshape


def cuts_into(groups: Dim, channels: Dim) -> bool:
    """Whether so many channels are known to fall into so many groups of whole ones."""
    return isinstance(groups, int) and isinstance(channels, int) and groups > 0 and channels % groups == 0


def repeated(value: Ref, groups: int, channels: int) -> Term:
    """A vector with an element for each group, repeated for the channels of the group."""
    if groups == channels:
        return value
    each = apply("Expand", reshaped(value, (groups, 1)), int64s((groups, channels // groups)))
    return reshape(each, (channels,))


def lies_along_channels(w: Ref, x: Ref) -> bool:
    """Whether a value beside ``x`` is one number, or one for each channel."""
    shape = (1,) * (x.rank - w.rank) + tuple(w.shape)
    return w.rank <= x.rank and shape[1] in (1, x.shape[1]) and all(d == 1 for d in (shape[0], *shape[2:]))


GROUPED_DRAWN = (
    """E = d.integer(1, 3); x: [N, C * E, W] | [N, C * E]; n.num_groups = C; l.axis = -1 | 2 | 1; s: [C * E]; b: [C * E]
       g: [C]; h: [C]; w: [C * E, 1] | [1, C * E, 1] | [] | [1] | [W] | [2, N, C * E, W]; t = [0, C, -1]; one: [E * W]
       u = [0, C * E, W] | [0, C * E] | [N, W, C * E]""",
    "x: [N, C * E, H, W]; u = [0, C * E, H, W]; w: [C * E, 1, 1]; one: [E * W * H]",
    "t = [1, C, -1]; u = [N, C * E, W]; one: [N * E * W]",
    "l.axis = 1",
    "t = [N, C * W, -1]; g: [C * W]; h: [C * W]; one: [E]; u = [N, C * E, W]; l.axis = -1 | 1",
    """x = d.floats([N, C * E, W]) * 0; s = d.floats([C * E]) * 1e30; b: float32[C * E]
       w = fixed(1e30, "float32")""",
    """x: float32[N, C * E, W]; s = d.floats([C * E]) * 0 + 3e19; b = d.floats([C * E]) * 0 + 4e19
       w = fixed(1e19, "float32")""",
)
equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="ONNX GroupNormalization; Wu and He 2018",
    drawn=GROUPED_DRAWN,
    functions=named(full, lined_up),
)
GROUPED = (
    same_type("x"),
    single_or_half("x"),
    "channels and positions: x.rank >= 3",
    "each image by itself: y.shape[0] == x.shape[0]",
    "groups of whole channels: cuts_into(y.shape[1], x.shape[1])",
)
equation(
    "recognise_group_normalization",
    """Reshape(InstanceNormalization(Reshape(x, t, **y), g, h, epsilon=e, **i), u, **z)
       == GroupNormalization(x, repeated(g, y.shape[1], x.shape[1]), repeated(h, y.shape[1], x.shape[1]),
                             num_groups=y.shape[1], epsilon=e)""",
    *GROUPED,
)


equation(
    "recognise_group_normalization_of_rows",
    """Reshape(LayerNormalization(Reshape(x, t, **y), one, axis=a, epsilon=e, **l), u, **z)
       == GroupNormalization(x, full(x.shape[1], 1, x), full(x.shape[1], 0, x), num_groups=y.shape[1], epsilon=e)""",
    number("one", 1),
    *GROUPED,
    "rows of one axis: y.rank == 3 and a % 3 == 2",
)


# --- of single channels


equation(
    "recognise_instance_normalization_of_positions",
    """LayerNormalization(x, one, axis=a, epsilon=e, **l)
       == InstanceNormalization(x, full(x.shape[1], 1, x), full(x.shape[1], 0, x), epsilon=e)""",
    number("one", 1),
    kernels("x", DType.FLOAT),
    "all positions of a channel: first_axis(a, x) == 2 - x.rank < 0",
    "channels are counted: known(x.shape[1:2])",
    worthwhile("positions along several axes: x.rank > 3"),
    drawn=(
        "x: [N, C, H, W]; one: [H, W]; l.axis = 2 | -2",
        "x: [N, C, H, W]; one: [W]; l.axis = -1",
        "x: [N, C, W]; one: [W]; l.axis = 2",
        "x: [N, C, H, W]; one: [C, H, W]; l.axis = 1",
        "x: [N, C]; one: [C]; l.axis = 1",
        "SYMBOLS = [C]",
    ),
    source="ONNX InstanceNormalization; Ulyanov, Vedaldi and Lempitsky 2016",
    functions=named(first_axis, full, known),
)

DISTANCES = "(x - ReduceMean(x, *a, keepdims=1, **r))"
equation(
    "recognise_instance_normalization",
    f"""{DISTANCES} / Sqrt(ReduceMean({DISTANCES} * {DISTANCES}, *c, keepdims=1, **q) + eps)
       == InstanceNormalization(x, full(x.shape[1], 1, x), full(x.shape[1], 0, x), epsilon=eps.low)""",
    constant("a", "c"),
    *EPSILON,
    UNDERFLOW,
    single_or_half("x"),
    "the means are taken over the positions: reduces_last(r, a, x) == reduces_last(q, c, x) == x.rank - 2 > 0",
    "channels are counted: known(x.shape[1:2])",
    worthwhile("positions are not: not known(x.shape[2:])"),
    drawn=(
        """x: float32[N, C, W]; a = [2]; c = [2]; eps = fixed(0.01 | 0.5, "float32"); SYMBOLS = [W] | [C, W]""",
        "x: float32[3, 1, 3, 5]; a = [2, -1]; c = [2, -1]; SYMBOLS = [5]",
        "x: float32[N, C, H, W]; a = [2, 3] | [3]; c = [-2, -1] | [3]",
        "x: float32[N, C, W]; eps = d.positive([C, 1])",
        "a: None; c: None; r.noop_with_empty_axes = 0 | 1; q.noop_with_empty_axes = 0 | 1",
        'x = d.floats([N, C, W], "float16") * 1e-5; eps = fixed(0.0 | 1e-6, "float16")',
    ),
    source="ONNX InstanceNormalization; Ulyanov, Vedaldi and Lempitsky 2016",
    functions=named(full, known, lined_up, outlives_underflow, reduces_last),
)


equation(
    "normalise_single_channels",
    "GroupNormalization(x, s, b, num_groups=g, epsilon=e, **n) == InstanceNormalization(x, s, b, epsilon=e)",
    kernels("x", DType.FLOAT),
    "a group for each channel: x.shape[1] == g",
    drawn="x: [N, C, W] | [N, C, H, W]; s: [C]; b: [C]; n.num_groups = C | 1",
)

# --- scale and shift

ALONG = (another_value("n"), "w lies along the channels: lies_along_channels(w, x)")
SINGLE_DRAWN = (
    "x: [N, C, W]; s: [C]; b: [C]; w: [C, 1] | [1, C, 1] | [] | [1] | [W] | [2, N, C, W]",
    "x: [N, C, H, W]; w: [C, 1, 1]",
    'x = d.floats([N, C, W]) * 0; s = d.floats([C]) * 1e30; b: float32[C]; w = fixed(1e30, "float32")',
    """x: float32[N, C, W]; s = d.floats([C]) * 0 + 3e19; b = d.floats([C]) * 0 + 4e19
       w = fixed(1e19, "float32")""",
)
for kind, drawn in (("Group", GROUPED_DRAWN), ("Instance", SINGLE_DRAWN)):
    equation(
        f"scale_{kind.lower()}_normalization",
        f"{kind}Normalization(x, s, b, **n) * w == {kind}Normalization(x, s * lined_up(w), b * lined_up(w), **n)",
        constant("s", "b", "w"),
        finite("s", "w"),
        finite("b", "w"),
        *ALONG,
        drawn=drawn,
    )
    equation(
        f"shift_{kind.lower()}_normalization",
        f"{kind}Normalization(x, s, b, **n) + w == {kind}Normalization(x, s, b + lined_up(w), **n)",
        constant("b", "w"),
        ordinary_summands("w"),
        *ALONG,
        drawn=drawn,
    )
