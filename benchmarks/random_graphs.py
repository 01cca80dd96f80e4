"""Random small graphs in which many rules have something to do: layers as networks have them, in random order and spelling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.samples import Drawing, Instance, Sampler, fixed

Block = Callable[["_Graph", str], str]
_BLOCKS: list[Block] = []
_LIMIT = 1500  # elements of a value


def random_graph(seed: int, *, quantised: bool = False) -> Instance:
    """A graph of 3 to 12 blocks with the arrays to run it on; equal seeds give equal graphs. ``quantised``: as quantisers leave
    graphs, with pairs of QuantizeLinear and DequantizeLinear before most blocks, and weights of bytes."""
    return _Graph(Sampler(seed), quantised).finished()


def _block(build: Block) -> Block:
    _BLOCKS.append(build)
    return build


class _Graph:
    """A graph under construction: values with their shapes, newest last."""

    def __init__(self, d: Sampler, quantised: bool) -> None:
        self.d = d
        self.pairs = d.choose((0.5, 0.8, 1.0)) if quantised else 0.0
        """How often a block reads what went through 8 bits."""
        self.drawing = Drawing()
        self.shapes: dict[str, tuple[int, ...]] = {}
        rank = d.choose((2, 3, 4, 4))
        for _ in range(d.integer(1, 2)):
            self.value(self.drawing.value(d.floats(d.extents(rank))))

    def finished(self) -> Instance:
        for _ in range(self.d.integer(3, 12)):
            recent = list(self.shapes)[-4:]
            block, x = self.d.choose(_BLOCKS), self.d.choose(recent)
            block(self, self.paired(x) if self.pairs and self.d.chance(self.pairs) else x)
        outputs = list(self.shapes)[-1:] + self.d.subset(self.shapes, 0.1)
        return self.drawing.finish(*outputs)

    def value(self, name: str) -> str:
        """Notes a new float32 value by its inferred type."""
        found = self.drawing.builder.type_of(name)
        shape = tuple(n for n in found.shape or () if isinstance(n, int))  # type: ignore[union-attr]
        if 0 < math.prod(shape) <= _LIMIT and 1 <= len(shape) <= 5:
            self.shapes[name] = shape
        return name

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.value(self.drawing.op(op, *inputs, **attributes))

    def constant(self, array: object, dtype: str = "float32") -> str:
        return self.drawing.value(fixed(np.asarray(array), dtype))

    def paired(self, x: str) -> str:
        """A value through 8 bits."""
        d = self.d
        zero, dtype = d.choose(((0, "int8"), (3, "int8"), (0, "uint8"), (d.integer(100, 150), "uint8")))
        parameters = self.constant(d.choose((0.02, 0.05, 0.0625, 0.1, 0.5))), self.constant(zero, dtype)
        return self.op("DequantizeLinear", self.drawing.op("QuantizeLinear", x, *parameters), *parameters)

    def weights(self, shape: tuple[int, ...], axis: int) -> str:
        """Floats, or bytes with one scale or one for each output, which lie along an axis."""
        d = self.d
        if not self.pairs or d.chance(0.25):
            return self.constant(d.floats(shape))
        count = d.choose(((), (shape[axis],)))
        integers = self.constant(d.integers(shape, "int8", -127, 127), "int8")
        parameters = self.constant(d.positive(count) / 64), self.constant(np.zeros(count), "int8")
        return self.drawing.op("DequantizeLinear", integers, *parameters, axis=axis)

    def vector(self, shape: Sequence[int]) -> str:
        """Constants that broadcast to ``shape``: a number, along one axis, or of each element."""
        d = self.d
        kind = d.integer(0, 3)
        axis = d.integer(0, len(shape) - 1)
        along = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        chosen = ((), along[axis:], along, tuple(shape))[kind]
        return self.constant(d.floats(chosen) if d.chance() else d.scale(chosen))


@_block
def _unary(g: _Graph, x: str) -> str:
    ops = ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Erf", "Identity", "Softplus", "HardSigmoid", "Round")
    return g.op(g.d.choose(ops), x)


@_block
def _with_constant(g: _Graph, x: str) -> str:
    op = g.d.choose(("Add", "Mul", "Mul", "Sub", "Div", "Max", "Min"))
    operand = g.vector(g.shapes[x])
    if op == "Div":
        operand = g.constant(g.d.powers_of_two(()) if g.d.chance() else g.d.positive(()))
    return g.op(op, *((x, operand) if op == "Div" or g.d.chance(0.7) else (operand, x)))


@_block
def _of_two(g: _Graph, x: str) -> str:
    alike = [v for v, shape in g.shapes.items() if shape == g.shapes[x]]
    return g.op(g.d.choose(("Add", "Mul", "Sub", "Max")), x, g.d.choose(alike))


@_block
def _products(g: _Graph, x: str) -> str:
    """One to three products of one value, some with a bias, some scaled, some as a Gemm."""
    d, shape = g.d, g.shapes[x]
    made = x
    for _ in range(d.choose((1, 1, 2, 3))):
        columns = d.integer(1, 5)
        if len(shape) == 2 and d.chance(0.3):
            weight = g.weights((columns, shape[-1]), 0)
            made = g.op("Gemm", x, weight, g.constant(d.floats((columns,))), transB=1)
            continue
        made = g.op("MatMul", x, g.weights((shape[-1], columns), 1))
        if d.chance():
            made = g.op("Add", made, g.constant(d.floats((columns,))))
        if d.chance(0.3):
            made = g.op("Mul", made, g.constant(d.scale(d.choose(((), (columns,))))))
        if d.chance(0.3):
            made = g.op("Relu", made)
    return made


@_block
def _convolutions(g: _Graph, x: str) -> str:
    """One or two convolutions, some with what exporters leave behind them: batch norm, scale, activation, pad in front."""
    d, shape = g.d, g.shapes[x]
    if len(shape) != 4 or min(shape[2:]) < 2:
        return _movement(g, x)
    if d.chance(0.3):
        x = g.op("Pad", x, g.constant([0, 0, 1, 1, 0, 0, 1, 1], "int64"))
    made = x
    for _ in range(d.choose((1, 1, 2))):
        channels, k = d.integer(1, 4), d.choose((1, 1, 2, 3))
        weight = g.weights((channels, shape[1], k, k), 0)
        pads = (d.integer(k // 2, 1),) * 4 if k > 1 else (0,) * 4
        bias = [g.constant(d.floats((channels,)))] if d.chance() else []
        made = g.op("Conv", x, weight, *bias, pads=pads)
        if d.chance(0.3):
            parts = (d.floats((channels,)), d.floats((channels,)), d.floats((channels,)), d.positive((channels,)))
            made = g.op("BatchNormalization", made, *map(g.constant, parts))
        if d.chance(0.3):
            made = g.op("Mul", made, g.constant(d.scale((channels, 1, 1))))
        if d.chance(0.3):
            made = g.op("Relu", made)
    return made


@_block
def _pool(g: _Graph, x: str) -> str:
    shape = g.shapes[x]
    if len(shape) != 4 or min(shape[2:]) < 2:
        return _unary(g, x)
    op = g.d.choose(("MaxPool", "AveragePool", "GlobalAveragePool"))
    return g.op(op, x) if op == "GlobalAveragePool" else g.op(op, x, kernel_shape=(2, 2))


@_block
def _movement(g: _Graph, x: str) -> str:
    d, shape = g.d, g.shapes[x]
    kind = d.integer(0, 5)
    if kind == 0:
        return g.op("Transpose", x, perm=d.permutation(len(shape)))
    if kind == 1:
        return g.op("Reshape", x, g.constant([0, -1] if len(shape) > 1 else [-1, 1], "int64"))
    if kind == 2:
        return g.op("Unsqueeze", x, g.constant([d.integer(0, len(shape))], "int64"))
    if kind == 3:
        axis = d.integer(0, len(shape) - 1)
        ends = [g.constant([v], "int64") for v in (0, max(shape[axis] - 1, 1), axis)]
        return g.op("Slice", x, *ends)
    if kind == 4:
        axis = d.integer(0, len(shape) - 1)
        return g.op("Concat", x, x if d.chance() else g.constant(d.floats(shape)), axis=axis)
    return g.op("Flatten", x, axis=d.integer(0, len(shape)))


@_block
def _split(g: _Graph, x: str) -> str:
    """A Split, the same or another operator behind each part, at times joined again."""
    d, shape = g.d, g.shapes[x]
    axis = d.integer(0, len(shape) - 1)
    if shape[axis] < 2:
        return _unary(g, x)
    first = d.integer(1, shape[axis] - 1)
    sizes = g.constant([first, shape[axis] - first], "int64")
    parts = [g.value(p) for p in g.drawing.op("Split", x, sizes, outputs=2, axis=axis)]
    op = d.choose(("Relu", "Tanh", "Neg"))
    parts = [g.op(op if d.chance(0.8) else "Abs", p) for p in parts]
    return g.op("Concat", *parts, axis=axis) if d.chance() else parts[0]


@_block
def _normalised(g: _Graph, x: str) -> str:
    """A softmax or a norm over the last axis, as one operator or spelled out."""
    d, shape = g.d, g.shapes[x]
    kind, last = d.integer(0, 3), g.constant([-1], "int64")
    if kind == 0:
        return g.op("Softmax", x, axis=d.choose((-1, -1, 0)))
    if kind == 1:
        return g.op("LayerNormalization", x, g.constant(d.floats(shape[-1:])), axis=-1)
    if kind == 2:
        powers = g.op("Exp", g.op("Sub", x, g.op("ReduceMax", x, last, keepdims=1)))
        return g.op("Div", powers, g.op("ReduceSum", powers, last, keepdims=1))
    centred = g.op("Sub", x, g.op("ReduceMean", x, last, keepdims=1)) if d.chance() else x
    squares = g.op("Mul", centred, centred)
    variance = g.op("Add", g.op("ReduceMean", squares, last, keepdims=1), g.constant(1e-3))
    normal = g.op("Div", centred, g.op("Sqrt", variance))
    return g.op("Mul", normal, g.constant(d.floats(shape[-1:])))


@_block
def _gate(g: _Graph, x: str) -> str:
    """An activation as exporters spell it."""
    d = g.d
    kind = d.integer(0, 2)
    if kind == 0:
        error = g.op("Erf", g.op("Div", x, g.constant(math.sqrt(2))))
        return g.op("Mul", g.op("Mul", x, g.op("Add", error, g.constant(1.0))), g.constant(0.5))
    if kind == 1:
        return g.op("Mul", x, g.op("Sigmoid", x))
    clipped = g.op("Clip", g.op("Add", x, g.constant(3.0)), g.constant(0.0), g.constant(6.0))
    return g.op("Div", g.op("Mul", x, clipped), g.constant(6.0))


@_block
def _quantised(g: _Graph, x: str) -> str:
    """A value through 8 bits: as Q/DQ, or multiplied, rounded, clipped and cast; at times something on the integers."""
    d = g.d
    scale = g.constant(d.choose((0.5, 0.1, 0.03)))
    if d.chance(0.4):
        scaled = g.op("Round", g.op("Div", x, scale))
        clipped = g.op("Clip", scaled, g.constant(d.choose((-127.0, -128.0))), g.constant(127.0))
        integers = g.drawing.op("Cast", clipped, to=3)
        return g.op("Mul", g.op("Cast", integers, to=1), scale)
    dtype = d.choose(("int8", "uint8"))
    zero = g.constant(d.choose((0, 3)), dtype)
    integers = g.drawing.op("QuantizeLinear", x, scale, zero)
    shape = g.shapes[x]
    if d.chance(0.3):
        integers = g.drawing.op("Transpose", integers, perm=d.permutation(len(shape)))
    made = g.op("DequantizeLinear", integers, scale, zero)
    if d.chance(0.5):
        columns = d.integer(1, 4)
        found = g.shapes.get(made, shape)
        weight = g.constant(d.integers((found[-1], columns), "int8", -127, 127), "int8")
        factor = g.constant(d.positive((columns,)) / 64 if d.chance() else d.positive(()) / 64)
        made = g.op("MatMul", made, g.drawing.op("DequantizeLinear", weight, factor, axis=1))
    return made


@_block
def _reduction(g: _Graph, x: str) -> str:
    op = g.d.choose(("ReduceMean", "ReduceMax", "ReduceSum"))
    axis = g.d.integer(0, len(g.shapes[x]) - 1)
    return g.op(op, x, g.constant([axis], "int64"), keepdims=1)
