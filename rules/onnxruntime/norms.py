"""Norms of ONNX Runtime: the simplified one, which is RMSNormalization; of a sum, SkipLayerNormalization and its simplified form,
which also give the sum; and the first layer of a language model, EmbedLayerNormalization, whose sum is of rows of tables.
"""

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.onnxruntime.parameters import lies_along


def row_numbers(table: Ref, ids: Ref) -> Term:
    """Ids that do not count from the end, as the kernel wants them: looked up where they may, which makes them int32, too."""
    if ids.low < 0:
        return apply("Gather", literal(np.arange(table.static_shape[0], dtype=np.int32)), ids, axis=0)
    return ids if ids.dtype is DType.INT32 else apply("Cast", ids, to=int(DType.INT32))


def positions(p: Ref) -> Term:
    """Vectors for each position, as a matrix."""
    return reshaped(p, p.static_shape[-2:])


def shift(b: Ref | None, g: Ref) -> Term:
    """What a norm adds, stated."""
    return literal(np.zeros(g.static_shape, np.float32)) if b is None else b


equation = Equations(
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime",
    functions=named(lies_along),
)


SUMS = (
    "x: [A, K]; y: [A, K]; c: [K] | [1] | [A, K]; g: [K]; b: [K]; i = -1 | 1",
    "x: [A, B, K] | [A, B, C, K]; y: [A, B, K] | [A, B, C, K]; i = -1 | 2",
    "x: [A, B, K]; y: [B, K] | [A, 1, K]; i = -1",
    "i = -2",
)
for op, given, fused, norm in (
    ("LayerNormalization", "g, *b", "SkipLayerNormalization", "g, b"),
    ("RMSNormalization", "g", "SkipSimplifiedLayerNormalization", "g"),
):
    shifts = "b" in given
    reader = f"{op}({{}}, {given}, axis=i, epsilon=e, **n)"
    norm_of_rows = ("over the last axis: i in (-1, y.rank - 1)", "in single precision: n.attr('stash_type', 1) == 1")
    for total, bias, name in (("x + y", "", "sum"), ("(x + c) + y", ", c", "biased_sum")):
        skip = f"com.microsoft.{fused}(x, y, {norm}{bias}, epsilon=e, outputs=4)"
        beside = [constant("c"), worthwhile("kernels for a bias along it: lies_along(c, y)")]
        where = [
            kernels("x", DType.FLOAT, DType.FLOAT16),
            varies("x", "y"),
            "summands of one type: x.type == y.type",
            "two or three axes: y.rank in (2, 3)",
            worthwhile(f"kernels for vectors along it: lies_along(g, y){' and lies_along(b, y)' * shifts}"),
            *(beside if bias else [worthwhile("in order: x.handle <= y.handle")]),
        ]
        kind = op.lower().removesuffix("normalization")
        equation(f"{kind}_norm_of_{name}", f"{reader.format(total)} == {skip}[0]", *norm_of_rows, *where, drawn=SUMS)
        equation(
            f"{name}_before_{kind}_norm",
            f"{total} == {skip}[3]",
            *map(worthwhile, norm_of_rows),
            *where,
            read_by=reader.format("root"),
            drawn=SUMS,
        )


equation(
    "use_simplified_layer_norm",
    "RMSNormalization(x, g, axis=i, **n) == com.microsoft.SimplifiedLayerNormalization(x, g, axis=i, **n)",
    kernels("x", DType.FLOAT, DType.FLOAT16),
    worthwhile("kernels in single precision: n.attr('stash_type', 1) == 1"),
    worthwhile("kernels for a gain of each element: g.dtype is x.dtype and g.shape == x.shape[i:]"),
)

# --- embeddings


WORDS, SEGMENTS = "(lw := Gather(w, i, axis=0))", "(lt := Gather(t, j, axis=0))"
for name, total, second in (
    ("words", f"{WORDS} + p", ("None", "None")),
    ("words_and_segments", f"({WORDS} + {SEGMENTS}) + p", ("row_numbers(t, j)", "t")),
    ("words_before_segments", f"({WORDS} + p) + {SEGMENTS}", ("row_numbers(t, j)", "t")),
):
    two = second[1] == "t"
    equation(
        f"normalise_embeddings_of_{name}",
        f"""LayerNormalization({total}, g, *b, axis=k, epsilon=e, **n) == com.microsoft.EmbedLayerNormalization(
            row_numbers(w, i), {second[0]}, w, positions(p), {second[1]}, g, shift(b, g), epsilon=e, outputs=2)[0]""",
        kernels("w", DType.FLOAT),
        constant("w", "p", *["t"] * two),
        worthwhile(
            f"kernels for ids of each position: i.rank == 2 and i.shape == root.shape[:-1]{' == j.shape' * two}"
        ),
        worthwhile("kernels for a vector for each position: p.shape in (root.shape[1:], (1, *root.shape[1:]))"),
        "over the last axis: k in (-1, root.rank - 1)",
        "in single precision: n.attr('stash_type', 1) == 1",
        worthwhile("kernels for vectors along it: lies_along(g, root) and lies_along(b, root)"),
        drawn=(
            """w: [R, K]; i = d.integers([B, L], "int64" | "int32", -R, R - 1); t: [T, K]; g: [K]; b: [K]; k = -1 | 2 | -2
               j = d.integers([B, L], "int64", 0, T - 1); p: [1, L, K] | [L, K] | [1, 1, K]""",
            """w: [3, R]; i = d.integers([3, 3], "int64", 0, R - 1); t: [3, T]; j = d.integers([3, 3], "int64", 0, T - 1)
               p: [3, 3]; g: [3]; b: [3]; lw.axis = 1 | 0; lt.axis = 1 | 0""",
            "g: [L, K]; b: [L, K]; k = -2",
            """w: [R]; i = d.integers([B], "int64", 0, R - 1); t: [T]; j = d.integers([B], "int64", 0, T - 1); p: [] | [1]; g: [B]
               b: [B]; k = -1""",
        ),
    )
