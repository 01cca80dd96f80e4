"""Shape rules on symbolic shapes, the messages of contradictions, and outputs that types determine."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from eqsat.errors import ShapeError
from eqsat.ir.constants import Constant
from eqsat.ir.extent_arrays import Extent, Undecided, as_array, dims_of
from eqsat.ir.extents import evaluate
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, operator
from eqsat.ir.operators.windows import Window
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import UNKNOWN, TensorType, Type, tensor_type

BIG = 2**63 - 1


def _apply(op: str, *operands: Any, outputs: int = 1, **attributes: Any) -> Application:
    """An operand is a shape (of float32), a type, an array, ``None``, or a list: the elements of an int64 vector, extents too."""
    types: list[Type | None] = []
    values: list[np.ndarray | None] = []
    lists: list[np.ndarray | None] = []
    for operand in operands:
        known = isinstance(operand, list) and all(isinstance(x, int) for x in operand)
        lists.append(as_array(operand) if isinstance(operand, list) and not known else None)
        if isinstance(operand, list):
            values.append(np.array(operand, np.int64) if known else None)
            types.append(tensor_type("int64", (len(operand),)))
            continue
        if isinstance(operand, np.ndarray):
            values.append(operand)
            types.append(tensor_type(operand.dtype.name, operand.shape))
            continue
        values.append(None)
        types.append(tensor_type("float32", operand) if isinstance(operand, tuple) else operand)
    return Application(op, Attributes(attributes), types, values, outputs, lists)


def _text(app: Application) -> str:
    definition = operator(app.op)
    assert definition is not None
    found = ", ".join(str(t) for t in definition.infer(app))
    return re.sub(r"\?\d+", "?", found)


INTS = tensor_type("int64", (3,))
SCALES = np.ones(4, np.float32)
MASK = tensor_type("bool", ("n", 1))
STEP, FRAME = np.array(160), np.array(400)

CUT = "max(0, min(9, past + seq) - min(9, past))"
"""How many rows there are from ``past`` to ``past + seq`` in a table of nine."""

SYMBOLIC: list[tuple[Application, str]] = [
    (_apply("Add", ("n", 4), ("n", 1)), "float32[n, 4]"),
    (_apply("Add", ("n", 4), (1, 4)), "float32[n, 4]"),
    (_apply("Add", ("n", 4), (3, 4)), "float32[3, 4]"),
    (_apply("Add", ("n", 4), ("m", 4)), "float32[broadcast(m, n), 4]"),
    (_apply("Add", ("n", 4), ()), "float32[n, 4]"),
    (_apply("Add", ("n", 4), UNKNOWN), "float32"),
    (_apply("Where", MASK, ("n", "m"), ()), "float32[n, m]"),
    (_apply("Equal", ("n", 4), (4,)), "bool[n, 4]"),
    (_apply("Sum", ("n", 1), (1, "m"), ("n", "m")), "float32[n, m]"),
    (_apply("Reshape", ("b", 128, 768), [0, -1, 12, 64]), "float32[b, 128, 12, 64]"),
    (_apply("Reshape", ("b", "s", 768), [0, 0, 12, 64]), "float32[b, s, 12, 64]"),
    (_apply("Reshape", ("b", "s", 768), [0, -1, 768]), "float32[b, s, 768]"),
    (_apply("Reshape", ("b", "s", 12, 64), [0, 0, -1]), "float32[b, s, 768]"),
    (_apply("Reshape", ("b", "s", 12, 64), [-1, 768]), "float32[b*s, 768]"),
    (_apply("Reshape", ("b", 4), [-1, 4]), "float32[b, 4]"),
    (_apply("Reshape", ("b", 4), [-1]), "float32[4*b]"),
    (_apply("Reshape", ("b", 4), [2, -1]), "float32[2, 2*b]"),
    (_apply("Reshape", ("b", 3), [2, -1]), "float32[2, b + floordiv(b, 2)]"),
    (_apply("Reshape", ("b", "s - 1", 4), ["b", "max(0, s) - 1", 2, 2]), "float32[b, s - 1, 2, 2]"),
    (_apply("Reshape", ("b", "s - 1", 4), [-1, "max(0, s) - 1", 4]), "float32[b, s - 1, 4]"),
    (_apply("Reshape", ("b", "m*n"), ["b", "max(0, n - 1) + 1", "max(0, m - 1) + 1"]), "float32[b, n, m]"),
    (_apply("Reshape", ("b", "m", "n"), ["b", "m*max(0, n - 1) + m"]), "float32[b, m*n]"),
    (_apply("Reshape", ("b", 4), INTS), "float32[?, ?, ?]"),
    (_apply("Reshape", ("b", 4), tensor_type("int64", ("k",))), "float32"),
    (_apply("Reshape", (0, 4), [0, 4], allowzero=1), "float32[0, 4]"),
    (_apply("Transpose", ("b", 2, "c"), perm=(2, 0, 1)), "float32[c, b, 2]"),
    (_apply("Squeeze", ("b", 1, "c"), [1]), "float32[b, c]"),
    (_apply("Squeeze", ("b", 1, 3)), "float32"),
    (_apply("Squeeze", (2, 1, 3)), "float32[2, 3]"),
    (_apply("Unsqueeze", ("b", "c"), [0, -1]), "float32[1, b, c, 1]"),
    (_apply("Flatten", ("b", 3, 4)), "float32[b, 12]"),
    (_apply("Flatten", ("b", "c", 4)), "float32[b, 4*c]"),
    (_apply("Flatten", ("b", "c", 1)), "float32[b, c]"),
    (_apply("Expand", ("n", 1), [1, 5]), "float32[n, 5]"),
    (_apply("Expand", ("n", 3), INTS), "float32[?, broadcast(?, n), 3]"),
    (_apply("Slice", ("n", 8), [1], [BIG], [1]), "float32[n, 7]"),
    (_apply("Slice", ("n", 8), [0], [BIG], [0]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), [0], [2**31 - 1], [0]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), [0], [10**9], [0]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), [-1], [-BIG], [0], [-1]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), [1], [BIG], [0]), "float32[max(0, n - 1), 8]"),
    (_apply("Slice", ("n", 8), ["-n"], [BIG], [0]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), [0], ["-n"], [0]), "float32[0, 8]"),
    (_apply("Slice", ("n", 8), ["-n - 1"], [BIG], [0]), "float32[n, 8]"),
    (_apply("Slice", ("n", 8), ["-m"], [BIG], [0]), "float32[?, 8]"),
    (_apply("Slice", ("2*n - 1", 8), [0], ["2*n - 1"], [0]), "float32[2*n - 1, 8]"),
    (_apply("Slice", ("2*n - 1", 8), ["n - 1"], [BIG], [0]), "float32[n, 8]"),
    (_apply("Slice", ("2*n - 1", 8), [0], ["n"], [0]), "float32[n, 8]"),
    (_apply("Slice", ("2*n - 1", 8), [0], ["n + 1"], [0]), "float32[min(2*n - 1, n + 1), 8]"),
    (_apply("Slice", ("2*n - 1", 8), ["n - 2"], [BIG], [0]), "float32[?, 8]"),
    (_apply("Pad", (1, "n", 8), [0, "m", 0, 0, 2, 0]), "float32[1, m + n + 2, 8]"),
    (_apply("Pad", (1, 9, 8), [0, "n - 5", 0, 0, "n - 5", 0]), "float32[1, 2*n - 1, 8]"),
    (_apply("Resize", ("n", 3, "h", 8), None, None, ["n", 3, "2*h", "w"]), "float32[n, 3, 2*h, w]"),
    (_apply("Resize", ("n", 3, "h", 8), None, None, ["k", 5], axes=(2, 3)), "float32[n, 3, k, 5]"),
    (_apply("Resize", ("n", 3, "h", 8), None, None, tensor_type("int64", ("k",))), "undefined"),
    (_apply("Resize", ("n", 3, "h", 8), None, SCALES * 2), "float32[2*n, 6, 2*h, 16]"),
    (_apply("Resize", ("n", 3, "h", 8), None, SCALES / 2), "float32[floordiv(n, 2), 1, floordiv(h, 2), 4]"),
    (_apply("Resize", ("n", 3, "h", 8), None, SCALES * 1.5), "float32[floordiv(n, 2) + n, 4, floordiv(h, 2) + h, 12]"),
    (_apply("Resize", ("n", 3, "h", 8), None, SCALES * np.float32(0.7)), "float32[?, 2, ?, 5]"),
    (_apply("STFT", ("b", "n"), STEP, (400,)), "float32[b, floordiv(n + 80, 160) - 2, 201, 2]"),
    (_apply("STFT", ("b", "160*n", 1), STEP, None, FRAME, onesided=0), "float32[b, n - 2, 400, 2]"),
    (_apply("STFT", ("b", 16000), STEP, (400,), FRAME), "float32[b, 98, 201, 2]"),
    (_apply("STFT", ("b", "n"), STEP, (256,), FRAME), "float32"),
    (_apply("STFT", ("b", "n"), tensor_type("int64", ()), (400,)), "float32"),
    (_apply("Slice", ("n", 8), [-1], [BIG], [0]), "float32[min(1, n), 8]"),
    (_apply("Slice", ("n", 8), [0], [-1], [0]), "float32[max(0, n - 1), 8]"),
    (_apply("Slice", ("n", 8), [0], [4], [0]), "float32[min(4, n), 8]"),
    (_apply("Slice", (4, 8), ["-n + 8"], [BIG], [1]), "float32[4, min(-8*min(1, max(0, n - 8)) + n, 8)]"),
    (_apply("Slice", (4, 8), ["m - n"], [BIG], [1]), "float32[4, ?]"),
    (_apply("Slice", (4, 8), [-9], [-9], [1], [-2]), "float32[4, 1]"),
    (_apply("Slice", ("n", 8), tensor_type("int64", (1,)), [4], [1]), "float32[n, ?]"),
    (_apply("Concat", ("n", 4), ("n", 3), axis=1), "float32[n, 7]"),
    (_apply("Concat", ("n", 4), ("m", 4), axis=0), "float32[m + n, 4]"),
    (_apply("Concat", ("n", 4), (0, 4), axis=0), "float32[n, 4]"),
    (_apply("Concat", ("n", 4), (2, "k"), axis=-1), "float32[2, k + 4]"),
    (_apply("Split", ("n", 7), outputs=2, axis=1, num_outputs=2), "float32[n, 4], float32[n, 3]"),
    (_apply("Split", ("n", 7), [2, 5], outputs=2, axis=0), "float32[2, 7], float32[5, 7]"),
    (_apply("Pad", ("n", 4), [0, 1, 0, 1]), "float32[n, 6]"),
    (_apply("Pad", ("n", 4), [1, 1], None, [0]), "float32[n + 2, 4]"),
    (_apply("Tile", ("n", 4), [1, 2]), "float32[n, 8]"),
    (_apply("Gather", ("n", 8), tensor_type("int64", ("b", "s"))), "float32[b, s, 8]"),
    (_apply("Gather", ("n", 8), tensor_type("int64", ()), axis=1), "float32[n]"),
    (_apply("Shape", ("n", 8)), "int64[2]"),
    (_apply("Shape", ("n", 8, 3), start=-2), "int64[2]"),
    (_apply("ConstantOfShape", [2, 3], value=Constant.of([1], "int8")), "int8[2, 3]"),
    (_apply("MatMul", ("b", "s", 768), (768, 64)), "float32[b, s, 64]"),
    (_apply("MatMul", ("b", 12, "s", 64), ("b", 12, 64, "t")), "float32[b, 12, s, t]"),
    (_apply("MatMul", ("k",), ("k", "n")), "float32[n]"),
    (_apply("MatMul", (1, "m", "k"), ("b", "k", "n")), "float32[b, m, n]"),
    (_apply("Gemm", ("k", "m"), ("n", "k"), ("n",), transA=1, transB=1), "float32[m, n]"),
    (_apply("Conv", ("n", 3, "h", 32), (8, 3, 3, 3), pads=(1, 1, 1, 1)), "float32[n, 8, h, 32]"),
    (
        _apply("Conv", ("n", 3, "h", 32), (8, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        "float32[n, 8, floordiv(h + 1, 2), 16]",
    ),
    (_apply("Conv", ("n", 3, "h", 32), (8, 3, 3, 3), auto_pad="SAME_UPPER", strides=(1, 2)), "float32[n, 8, h, 16]"),
    (_apply("Conv", (1, 3, "h"), (8, 3, 3), auto_pad="SAME_LOWER", strides=(2,)), "float32[1, 8, floordiv(h + 1, 2)]"),
    (_apply("Conv", (1, 3, "h"), (8, 3, 3), auto_pad="VALID", strides=(2,)), "float32[1, 8, floordiv(h + 1, 2) - 1]"),
    (_apply("ConvTranspose", (1, 3, "h"), (3, 2, 3), auto_pad="SAME_UPPER", strides=(2,)), "float32[1, 2, 2*h]"),
    (_apply("ConvTranspose", (1, 3, "h"), (3, 2, 1), auto_pad="SAME_UPPER", strides=(2,)), "float32[1, 2, ?]"),
    (_apply("ConvTranspose", (1, 3, "h"), (3, 2, 3), auto_pad="VALID", strides=(2,)), "float32[1, 2, 2*h + 1]"),
    (_apply("ConvTranspose", ("n", 3, 4), (3, 2, 2), strides=(2,)), "float32[n, 2, 8]"),
    (_apply("MaxPool", ("n", "c", 7), kernel_shape=(2,), strides=(2,), ceil_mode=1), "float32[n, c, 4]"),
    (
        _apply("AveragePool", ("n", "c", "h"), kernel_shape=(2,), strides=(2,), ceil_mode=1),
        "float32[n, c, floordiv(h + 1, 2)]",
    ),
    (
        _apply("MaxPool", ("n", "c", "h"), kernel_shape=(2,), strides=(3,), ceil_mode=1),
        "float32[n, c, min(floordiv(h + 2, 3), floordiv(h, 3) + 1)]",
    ),
    (_apply("GlobalAveragePool", ("n", "c", "h", "w")), "float32[n, c, 1, 1]"),
    (_apply("ReduceMean", ("b", "s", 768), [-1]), "float32[b, s, 1]"),
    (_apply("ReduceMean", ("b", "s", 768), [-1], keepdims=0), "float32[b, s]"),
    (_apply("ReduceMean", ("b", "s"), tensor_type("int64", (1,)), keepdims=0), "float32[?]"),
    (_apply("ReduceSum", ("b", "s"), noop_with_empty_axes=1), "float32[b, s]"),
    (_apply("ReduceSum", (), [-1]), "float32[]"),
    (_apply("ArgMax", ("b", "s"), axis=1, keepdims=0), "int64[b]"),
    (
        _apply("LayerNormalization", ("b", "s", 768), (768,), (768,), outputs=3),
        "float32[b, s, 768], float32[b, s, 1], float32[b, s, 1]",
    ),
    (_apply("QuantizeLinear", ("b", 4), (), tensor_type("int8", ())), "int8[b, 4]"),
    (_apply("QuantizeLinear", ("b", 4), ()), "uint8[b, 4]"),
    (_apply("DequantizeLinear", tensor_type("int8", ("b", 4)), (4,)), "float32[b, 4]"),
    (_apply("DynamicQuantizeLinear", ("b", 4), outputs=3), "uint8[b, 4], float32[], uint8[]"),
    (_apply("Einsum", ("b", "i", 3), ("b", 3, "j"), equation="bij,bjk->bik"), "float32[b, i, j]"),
    (_apply("Einsum", ("b", "h", "s", 4), ("b", "h", "t", 4), equation="...ij, ...kj"), "float32[b, h, s, t]"),
    (_apply("Einsum", ("n", 3), ("m", 1), equation="ij,ij->ji"), "float32[3, broadcast(m, n)]"),
    (_apply("Einsum", ("n", "n"), equation="ii->i"), "float32[n]"),
    (_apply("Einsum", UNKNOWN, equation="ij->ji"), "undefined[?, ?]"),
    (_apply("Einsum", UNKNOWN, equation="i...->...i"), "undefined"),
    # What the last axis says of "past + seq" goes for the one before:
    (_apply("Add", (CUT, "min(9, past + seq)"), ("seq", "past + seq")), "float32[seq, past + seq]"),
    (_apply("Add", ("b", 1, CUT, "past + seq"), ("seq", "min(9, past + seq)")), "float32[b, 1, seq, past + seq]"),
    (_apply("Add", (CUT, "n"), ("seq", "past + seq")), f"float32[broadcast({CUT}, seq), broadcast(n, past + seq)]"),
    (_apply("Add", (CUT, "min(1, past + seq)"), ("seq", "past + seq")), f"float32[broadcast({CUT}, seq), past + seq]"),
    (
        _apply("Add", (CUT, "min(9, past)"), ("seq", "past")),
        "float32[broadcast(max(0, min(9, past + seq) - past), seq), past]",
    ),
    # Without a definition of our own:
    (_apply("CumSum", ("n", 4), [0]), "float32[n, 4]"),
    (_apply("Trilu", ("n", 4)), "float32[n, 4]"),
    (_apply("NonZero", ("n", 4)), "int64[2, ?]"),
    (_apply("TopK", ("n", 9), [4], outputs=2), "float32[n, 4], int64[n, 4]"),
    (_apply("TopK", (9, "n"), [4], outputs=2), "float32[9, 4], int64[9, 4]"),
    (_apply("TopK", ("n", 9), ["k"], outputs=2, axis=0), "float32[k, 9], int64[k, 9]"),
    (_apply("SequenceConstruct", ("n", 4)), "opaque"),
]


@pytest.mark.parametrize(("app", "expected"), SYMBOLIC, ids=lambda v: v.op if isinstance(v, Application) else v)
def test_symbolic_shapes(app: Application, expected: str) -> None:
    assert _text(app) == expected


CONTRADICTIONS: list[tuple[Application, str]] = [
    (_apply("MatMul", (2, 3), (4, 5)), "MatMul: inner extents differ: (2, 3) @ (4, 5) (3 != 4)"),
    (_apply("MatMul", (2, 5, 3), (4, 3, 5)), "MatMul: shapes (2,) and (4,) do not broadcast (2 != 4)"),
    (_apply("Gemm", (2, 3), (4, 5), transB=1), "Gemm: inner extents differ: (2, 3) @ (5, 4) (3 != 5)"),
    (_apply("Gemm", (2, 3), (3, 5), (3, 1, 5)), "Gemm: C (3, 1, 5) must broadcast to (2, 5)"),
    (_apply("Add", (2, 3), (2, 4)), "Add: shapes (2, 3) and (2, 4) do not broadcast (3 != 4)"),
    (_apply("Add", (2,), tensor_type("float16", (2,))), "Add: element types differ: float32 and float16"),
    (_apply("Reshape", (2, 3), [4, 2]), "Reshape: cannot reshape (2, 3) to (4, 2) (6 != 8 elements)"),
    (_apply("Reshape", (2, 3), [4, -1]), "Reshape: (2, 3) has 6 elements, no multiple of target (4, -1)"),
    (_apply("Reshape", (2, 3), [-1, -1]), "Reshape: target (-1, -1) has more than one -1"),
    (_apply("Reshape", ("n", 3), [4, 2]), "Reshape: cannot reshape (n, 3) to (4, 2)"),
    (_apply("Transpose", (2, 3), perm=(0, 0)), "Transpose: perm (0, 0) does not permute the axes of (2, 3)"),
    (_apply("Squeeze", (2, 3), [1]), "Squeeze: axis 1 of (2, 3) is 3, not 1"),
    (_apply("Unsqueeze", (2, 3), [4]), "Unsqueeze: axis 4 is out of range for rank 3"),
    (_apply("Concat", (2, 3), (2, 4), axis=0), "Concat: extents of axis 1 differ: (2, 3) and (2, 4) (3 != 4)"),
    (_apply("Concat", (2, 3), (2,), axis=0), "Concat: ranks differ: (2, 3) and (2,)"),
    (_apply("Split", (2, 5), [2, 2], outputs=2, axis=1), "Split: parts (2, 2) do not sum to extent 5 of axis 1"),
    (_apply("Pad", (2, 3), [1, 1]), "Pad: pads (1, 1) must hold two numbers for each of 2 axes"),
    (_apply("Gather", (2, 3), [2]), "Gather: index out of range for extent 2 of axis 0"),
    (_apply("Softmax", (2, 3), axis=2), "Softmax: axis 2 is out of range for rank 2"),
    (
        _apply("Conv", (1, 3, 8, 8), (4, 2, 3, 3)),
        "Conv: channels differ: input (1, 3, 8, 8), weights (4, 2, 3, 3), group 1",
    ),
    (_apply("Conv", (1, 3, 2), (4, 3, 3)), "Conv: a window of 3 does not fit into extent 2 padded by 0 and 0"),
    (_apply("Conv", (1, 3, 8), (4, 3, 3), (3,)), "Conv: the bias (3,) must be a vector of 4 elements"),
    (
        _apply("LayerNormalization", (2, 8), (7,)),
        "LayerNormalization: shapes (2, 8) and (7,) do not broadcast (8 != 7)",
    ),
    (_apply("PRelu", (5, 1), (3,)), "PRelu: the slope (3,) must broadcast to (5, 1)"),
    (
        _apply("BatchNormalization", (2, 8, 4), (8,), (8,), (7,), (8,)),
        "BatchNormalization: the mean (7,) must be a vector of 8 elements",
    ),
    (_apply("GroupNormalization", (2, 8, 4), (8,), (8,), num_groups=3), "8 channels are no multiple of 3 groups"),
    (_apply("QuantizeLinear", (2, 4), (3,), tensor_type("int8", (3,))), "3 scales for an axis of extent 4"),
    (
        _apply("DequantizeLinear", tensor_type("int8", (2, 4)), (), tensor_type("uint8", ())),
        "DequantizeLinear: element types differ: int8 and uint8",
    ),
    (_apply("MatMul", (2, 3)), "MatMul: input 1 must be a tensor, got None"),
    (_apply("Einsum", (2, 3), equation="ijk->i"), "Einsum: an operand of 2 axes has 3 indices"),
    (_apply("Einsum", (2, 3), (3, 4), equation="ij->i"), "Einsum: the equation 'ij->i' is one of 1 operands"),
    (_apply("Einsum", (2, 3), (4, 5), equation="ij,jk->ik"), "Einsum: shapes (3,) and (4,) do not broadcast"),
    (_apply("Einsum", (2, 3), equation="ii->i"), "Einsum: extents 2 and 3 of one index must be equal"),
    (_apply("Einsum", (2, 3), equation="ij->ik"), "has an index that no operand has"),
    (_apply("Einsum", (2, 3), equation="ij->ii"), "has an index twice in its result"),
    (_apply("Einsum", (2, 3), equation="...j->j"), "has an ellipsis that is missing from its result"),
    (_apply("Einsum", (2, 3), equation="i.j->ij"), "'i.j' is no list of indices"),
    (_apply("TopK", (2, 3), [4], outputs=2), "TopK: [ShapeInferenceError]"),
]


@pytest.mark.parametrize(("app", "message"), CONTRADICTIONS, ids=lambda v: v.op if isinstance(v, Application) else "")
def test_contradictions_are_named(app: Application, message: str) -> None:
    definition = operator(app.op)
    assert definition is not None
    with pytest.raises(ShapeError) as caught:
        definition.infer(app)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def _listed(app: Application) -> list[int | str] | None:
    definition = operator(app.op)
    assert definition is not None
    return dims_of(shape_value(definition, app.attributes, app.types, app.values))


def test_outputs_that_types_determine() -> None:
    assert _listed(_apply("Shape", ("n", 3, 4), start=1)) == [3, 4]
    assert _listed(_apply("Shape", ("n", 3, 4))) == ["n", 3, 4]
    assert _listed(_apply("Size", (2, 3))) == [6]
    assert _listed(_apply("Size", ("n", 3))) == ["3*n"]
    assert _listed(_apply("Shape", UNKNOWN)) is None
    assert _listed(_apply("Relu", (2, 3))) is None


def _extents(app: Application) -> list[int | str] | None:
    definition = operator(app.op)
    assert definition is not None
    return dims_of(shape_value(definition, app.attributes, app.types, app.values, app.lists))


def test_lists_of_extents_are_followed_through_sums_and_products_of_them() -> None:
    """A product of batches and heads, as exporters of TensorFlow write Einsum."""
    assert _extents(_apply("ReduceProd", ["n", 4])) == ["4*n"]
    assert _extents(_apply("ReduceProd", ["n", "m"], keepdims=0)) == ["m*n"]
    assert _extents(_apply("ReduceSum", ["n", 4])) == ["n + 4"]
    assert _extents(_apply("Sum", ["n", 4], [1, 2])) == ["n + 1", 6]
    assert _extents(_apply("CumSum", ["n", 4], np.array(0))) == ["n", "n + 4"]
    assert _extents(_apply("ReduceMean", ["n", 4])) is None


def test_what_is_less_than_one_divisor_below_0_divides_to_0() -> None:
    """Integers divide towards zero: frames of sound as exporters count them. Of what may be below that nothing is said."""
    frames = Extent("n - 127") / 384
    for n in (0, 126, 127, 510, 511, 895):
        assert evaluate(frames.dim, {"n": n}.__getitem__) == int((n - 127) / 384)
    with pytest.raises(Undecided):
        _ = Extent("n - 384") / 384


def test_places_that_are_padded_to_a_multiple_are_followed() -> None:
    """Chunks of a sequence, as Mamba 2 counts them. A truth value takes back what dividing towards zero rounds up."""
    padded = Extent("n") + (8 - Extent("n") % 8) % 8
    chunks = padded / 8
    assert [(padded % 8).dim, (padded % chunks).dim, (padded / chunks).dim] == [0, 0, 8]
    for n in (0, 1, 7, 8, 9, 800):
        assert evaluate(chunks.dim, {"n": n}.__getitem__) == -(-n // 8)
    with pytest.raises(Undecided):
        _ = padded % Extent("m")
    for op, decides in (("And", False), ("Or", True)):
        definition = operator(op)
        assert definition is not None
        types = [tensor_type("bool", ())] * 2
        for known in (True, False):
            found = shape_value(definition, Attributes(), types, [None, np.array(known)])
            assert (found is not None and bool(found) == decides) == (known == decides)


def test_truth_values_become_numbers_before_they_are_counted() -> None:
    definition = operator("Cast")
    assert definition is not None
    app = _apply("Cast", (2,), to=7)
    found = shape_value(definition, app.attributes, app.types, [np.array([True, True])])
    assert found is not None
    assert found.dtype == np.int64
    for undefined in (np.nan, np.inf, 1e30):
        assert shape_value(definition, app.attributes, app.types, [np.array([undefined, 1.0])]) is None


def test_operators_without_a_definition() -> None:
    assert operator("NoSuchOperator") is None
    assert operator("Upsample") is None  # deprecated
    assert operator("Loop") is None  # its meaning needs the enclosing graph
    assert operator("Relu", "com.microsoft") is None
    for name in ("RandomNormalLike", "Bernoulli", "Dropout"):
        definition = operator(name)
        assert definition is not None
        assert not definition.deterministic


def test_an_operator_by_schema_computes() -> None:
    definition = operator("CumSum")
    assert definition is not None
    x = np.array([[1, 2, 3]], np.float32)
    (found,) = definition.evaluate(Attributes({"reverse": 1}), [x, np.array(1, np.int64)])
    np.testing.assert_array_equal(found, np.array([[6, 5, 3]], np.float32))
    top = operator("TopK")
    assert top is not None
    values, indices = top.evaluate(Attributes({}), [x, np.array([2], np.int64)])
    assert values.tolist() == [[3, 2]]
    assert indices.tolist() == [[2, 1]]


def test_each_unknown_extent_has_its_own_name() -> None:
    first, second = (operator("NonZero").infer(_apply("NonZero", (4,)))[0] for _ in range(2))  # type: ignore[union-attr]
    assert isinstance(first, TensorType)
    assert first != second


def test_work_of_contractions() -> None:
    heads = (2, 12, 16, 64)
    for app, expected in (
        (_apply("Attention", heads, (2, 12, 24, 64), (2, 12, 24, 32)), 2 * 2 * 12 * 16 * 24 * (64 + 32)),
        (
            _apply("Attention", (2, 16, 768), (2, 24, 768), (2, 24, 768), q_num_heads=12, kv_num_heads=12),
            4 * 2 * 16 * 24 * 768,
        ),
        (_apply("Einsum", (2, 3, 4), (2, 4, 5), equation="bij,bjk->bik"), 2 * 2 * 3 * 4 * 5),
        (_apply("Einsum", (2, 3), (3, 4), (4, 5), equation="ij,jk,kl->il"), 2 * (2 * 3 * 4 + 2 * 4 * 5)),
        (_apply("Einsum", (2, 3), equation="ij->i"), 2 * 3),
        (_apply("Einsum", (2, 3), equation="ij->ji"), 0),
        (_apply("MatMul", (2, 3, 4), (4, 5)), 2 * 2 * 3 * 4 * 5),
        (_apply("Gemm", (4, 3), (4, 5), (5,), transA=1), 3 * 5 * (2 * 4 + 1)),
        (_apply("Conv", (1, 4, 8), (6, 2, 3), group=2), 2 * 6 * 6 * 2 * 3),
        (_apply("ConvTranspose", (1, 4, 8), (4, 6, 3)), 2 * 4 * 8 * 6 * 3),
    ):
        definition = operator(app.op)
        assert definition is not None
        assert definition.flops(app, definition.infer(app)) == expected, app.op


@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (0, 1), (2, 0)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_windows_that_are_rounded_up_are_as_many_with_symbols(kernel: int, stride: int, pads: tuple[int, int]) -> None:
    window = Window((kernel,), (stride,), (1,), pads, "NOTSET", ceil=True)
    found = window.output(_apply("MaxPool"), 0, "h")
    extents = [h for h in range(1, 20) if window.windows(0, h) > 0]
    assert [evaluate(found, {"h": h}.__getitem__) for h in extents] == [window.windows(0, h) for h in extents]
