"""Norms of ONNX Runtime: the simplified one, which is RMSNormalization; of a sum, SkipLayerNormalization and its simplified form,
which also give the sum; and the first layer of a language model, EmbedLayerNormalization, whose sum is of rows of tables.
"""

from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.samples import SYMBOLIC, Sampler, fixed


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


def _norm(d: Sampler, shape: tuple[int, ...], *, shifts: bool) -> dict[str, Any]:
    """Gain, shift and attributes of a norm of values of a shape, over two axes at times."""
    axis = d.choose((-1, len(shape) - 1, -2))
    row = shape[-2:] if axis == -2 and d.chance(0.3) else shape[-1:]
    found: dict[str, Any] = {"g": d.floats(row), "n": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}
    return found | ({"b": d.floats(row)} if shifts and d.chance() else {})


def _sum(d: Sampler, *, shifts: bool) -> dict[str, Any]:
    shape = d.shape(2, 4, ones=0.05)
    x, y, c = (s if d.chance(0.9) else d.broadcast_of(s) for s in (shape, shape, shape[-1:]))
    found = {"x": d.floats(x), "y": d.floats(y), "c": d.either(d.floats(c), 0.9)}
    return found | _norm(d, np.broadcast_shapes(x, y, c), shifts=shifts)


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
        kind, sample = op.lower().removesuffix("normalization"), partial(_sum, shifts=shifts)
        equation(f"{kind}_norm_of_{name}", f"{reader.format(total)} == {skip}[0]", *norm_of_rows, *where, sample=sample)
        equation(
            f"{name}_before_{kind}_norm",
            f"{total} == {skip}[3]",
            *map(worthwhile, norm_of_rows),
            *where,
            read_by=reader.format("root"),
            sample=sample,
        )


equation(
    "use_simplified_layer_norm",
    "RMSNormalization(x, g, axis=i, **n) == com.microsoft.SimplifiedLayerNormalization(x, g, axis=i, **n)",
    kernels("x", DType.FLOAT, DType.FLOAT16),
    worthwhile("kernels in single precision: n.attr('stash_type', 1) == 1"),
    worthwhile("kernels for a gain of each element: g.dtype is x.dtype and g.shape == x.shape[i:]"),
)

# --- embeddings


def _embedded(d: Sampler) -> dict[str, Any]:
    """Rows of two tables, with ids from the end too, beside a vector for each position; columns of the first one at times."""
    square = d.chance(0.2)
    batch, length, width = (d.integer(2, 4),) * 3 if square else d.extents(3)
    shape = d.choose(((1, length, width), (1, length, width), (length, width), (1, 1, width)))
    found: dict[str, Any] = {"p": d.either(d.floats(shape), 0.95), **_norm(d, (batch, length, width), shifts=True)}
    if d.chance(0.2):
        found[SYMBOLIC] = (batch,)
    for table, ids in (("w", "i"), ("t", "j")):
        rows, columns = d.integer(2, 5), square and d.chance()
        numbers = d.integers((batch, length), d.choose(("int64", "int32")), -rows, rows - 1)
        if d.chance(0.3):
            numbers = abs(numbers) % rows
        found |= {
            table: fixed(d.floats((batch, rows) if columns else (rows, width))),
            f"l{table}": {"axis": int(columns)},
        }
        found[ids] = fixed(numbers) if d.chance(0.2) else numbers
    return found


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
            f"kernels for ids of each position: i.shape == root.shape[:2]{' and j.shape == root.shape[:2]' * two}"
        ),
        worthwhile("kernels for a vector for each position: p.shape in (root.shape[1:], (1, *root.shape[1:]))"),
        "over the last axis: k in (-1, root.rank - 1)",
        "in single precision: n.attr('stash_type', 1) == 1",
        worthwhile("kernels for vectors along it: lies_along(g, root) and lies_along(b, root)"),
        sample=_embedded,
    )
