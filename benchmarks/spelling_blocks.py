"""The blocks whose spellings are varied, in their plain spelling: attention, norm, activation, projections, convolution, Q/DQ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import spellings, spellings_of_structures  # noqa: F401  (they register themselves)
from benchmarks.respelling import respell
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import Dim, DType

BATCH, ROWS, HEADS, SIZE = 2, 6, 3, 4
WIDTH = HEADS * SIZE
OPSETS = {"float32": 17, "float16": 19, "bfloat16": 23}
"""Of the variants as files, by element type: one that the fusions of all the optimisers know, and the least that has all of their
operators on that type, QuantizeLinear among them."""


@dataclass(frozen=True)
class Types:
    """What the blocks are over: ``dtype`` of floats; batch and rows by ``symbols``, or as numbers."""

    dtype: str = "float32"
    symbols: bool = False

    @property
    def batch(self) -> Dim:
        return "batch" if self.symbols else BATCH

    @property
    def rows(self) -> Dim:
        return "rows" if self.symbols else ROWS

    @property
    def kept(self) -> tuple[int, int]:
        """Batch and rows as a Reshape keeps them."""
        return (0, 0) if self.symbols else (BATCH, ROWS)


class _Block:
    """A graph under construction, with random weights."""

    def __init__(self, name: str, seed: int, types: Types) -> None:
        self.b = GraphBuilder(name)
        self.rng = np.random.default_rng(seed)
        self.op: Callable[..., Any] = self.b.op
        self.dtype = np.dtype(types.dtype)

    def weight(self, *shape: int) -> str:
        return self.b.constant(self.rng.normal(size=shape).astype(self.dtype))

    def number(self, value: float) -> str:
        return self.b.constant(self.dtype.type(value))

    def integers(self, *values: int) -> str:
        return self.b.constant(np.asarray(values, np.int64))

    def projected(self, x: str, columns: int, rows: int = WIDTH) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def finish(self, *outputs: str) -> Graph:
        graph = self.b.finish({f"y{i}": v for i, v in enumerate(outputs)})
        return replace(graph, envelope=Envelope(opset=OPSETS[self.dtype.name]))


MASKS = ("none", "constant", "of an input", "of an input, as integers", "choice")


def attention(kind: int, types: Types, low: float = -1e4) -> Graph:
    """(batch, rows, width) -> projections, heads, scaled product, mask, softmax, product, output projection.

    ``low``: what is added to scores that do not count.
    """
    g = _Block("attention", 1, types)
    mask = MASKS[kind % len(MASKS)]
    rows = ROWS if mask == "constant" else types.rows
    x = g.b.input("x", types.dtype, (types.batch, rows, WIDTH))
    parts = g.op("Split", g.projected(x, 3 * WIDTH), outputs=3, num_outputs=3, axis=-1)
    q, k, v = (g.op("Reshape", p, g.integers(*types.kept, HEADS, SIZE)) for p in parts)
    q, v = (g.op("Transpose", p, perm=(0, 2, 1, 3)) for p in (q, v))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=(0, 2, 3, 1)))
    scores = g.op("Mul", scores, g.number(1 / math.sqrt(SIZE)))
    if mask == "constant":
        scores = g.op("Add", scores, g.b.constant(np.triu(np.full((ROWS, ROWS), low, g.dtype), 1)))
    elif mask == "choice":
        kept = g.op("Unsqueeze", g.b.input("mask", "bool", (types.batch, rows)), g.integers(1, 2))
        scores = g.op("Add", scores, g.op("Where", kept, g.number(0), g.number(low)))
    elif mask != "none":
        given = g.b.input("mask", types.dtype if mask == "of an input" else "int64", (types.batch, rows))
        kept = g.op("Unsqueeze", given, g.integers(1, 2))
        kept = kept if mask == "of an input" else g.op("Cast", kept, to=int(DType.of(types.dtype)))
        scores = g.op("Add", scores, g.op("Mul", g.op("Sub", g.number(1), kept), g.number(low)))
    found = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    found = g.op("Reshape", g.op("Transpose", found, perm=(0, 2, 1, 3)), g.integers(*types.kept, WIDTH))
    return g.finish(g.projected(found, WIDTH))


def norm(kind: int, types: Types) -> Graph:
    """Sum of two values, normalised: layer normalisation behind a residual connection, or alone."""
    g = _Block("norm", 2, types)
    x = g.b.input("x", types.dtype, (types.batch, types.rows, WIDTH))
    if kind % 2:
        x = g.op("Add", x, g.b.input("r", types.dtype, (types.batch, types.rows, WIDTH)))
    return g.finish(g.op("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH), axis=-1, epsilon=1e-5))


def activation(kind: int, types: Types) -> Graph:
    """A projection, then Gelu (of erf, of tanh) or SiLU."""
    g = _Block("activation", 3, types)
    x = g.projected(g.b.input("x", types.dtype, (types.batch, types.rows, WIDTH)), 2 * WIDTH)
    if kind % 3 == 2:
        return g.finish(g.op("Mul", x, g.op("Sigmoid", x)))
    return g.finish(g.op("Gelu", x, approximate=("none", "tanh")[kind % 3]))


def projections(kind: int, types: Types) -> Graph:
    """Queries, keys and values from one value, as heads; rows by batch, or as one matrix."""
    g = _Block("qkv", 4, types)
    x = g.b.input("x", types.dtype, (types.batch, types.rows, WIDTH) if kind % 2 else (types.rows, WIDTH))
    weight, bias = g.weight(WIDTH, 3 * WIDTH), g.weight(3 * WIDTH)
    packed = g.op("Add", g.op("MatMul", x, weight), bias) if kind % 2 else g.op("Gemm", x, weight, bias)
    parts = g.op("Split", packed, outputs=3, num_outputs=3, axis=-1)
    return g.finish(*(g.op(op, p) for op, p in zip(("Tanh", "Relu", "Abs"), parts, strict=True)))


def convolution(kind: int, types: Types) -> Graph:
    """Convolution (with a border; with a bias; in groups), batch normalisation, with or without Relu."""
    g = _Block("conv", 5, types)
    x = g.b.input("x", types.dtype, ("batch" if types.symbols else 1, 4, 7, 9))
    groups = 2 if kind % 4 > 1 else 1
    weights = (g.weight(6, 4 // groups, 3, 3), *((g.weight(6),) if kind % 4 in (1, 2) else ()))
    y = g.op("Conv", x, *weights, pads=(1, 1, 1, 1), group=groups)
    positive = g.b.constant(g.rng.uniform(0.5, 2, 6).astype(g.dtype))
    y = g.op("BatchNormalization", y, g.weight(6), g.weight(6), g.weight(6), positive)
    return g.finish(g.op("Relu", y) if kind % 2 else y)


def quantised(kind: int, types: Types) -> Graph:
    """A product on 8-bit integers between Q/DQ: signed or unsigned activations, with or without a quantised result."""
    g = _Block("qdq", 6, types)
    dtype = np.int8 if kind % 2 else np.uint8
    x = g.b.input("x", types.dtype, (types.batch, types.rows, WIDTH))
    x = _fake(g, x, dtype)
    stored = g.b.constant(g.rng.integers(-127, 128, (WIDTH, 8)).astype(np.int8))
    weight = g.op("DequantizeLinear", stored, g.number(2**-6), g.b.constant(np.int8(0)))
    y = g.op("Add", g.op("MatMul", x, weight), g.weight(8))
    return g.finish(_fake(g, y, dtype) if kind % 4 > 1 else y)


def _fake(g: _Block, x: str, dtype: Any) -> str:
    scale, zero = g.number(2**-4), g.b.constant(dtype(0 if dtype is np.int8 else 128))
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero)


BLOCKS: dict[str, tuple[Callable[[int, Types], Graph], int]] = {
    "attention": (attention, len(MASKS)),
    "norm": (norm, 2),
    "activation": (activation, 3),
    "QKV": (projections, 2),
    "conv-BN": (convolution, 4),
    "QDQ": (quantised, 4),
}
"""Block -> graph by kind, and the number of kinds."""


def variant(block: str, seed: int, types: Types = Types()) -> tuple[Graph, Graph]:
    """A block in its plain spelling, and the same in a random one: a dozen seeds of one round, then of two, of three."""
    build, kinds = BLOCKS[block]
    plain = build(seed % kinds, types)
    return plain, respell(plain, seed, rounds=1 + seed // 12 % 3)
