"""Small versions of the model families, spelled as their exporters spell them: a layer or two each, with random weights.

`benchmarks.soundness` evaluates every e-node of theirs, which it cannot do for the real ones in reasonable time. What makes
a family is kept: the order and spelling of operators, shared values, where constants stand. Extents are a few elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.samples import Drawing, Instance, Sampler, fixed


class Net:
    """A model under construction. ``quantised``: how operands of products are quantised, ``qdq``, ``lowered`` or not."""

    def __init__(self, seed: int, quantised: str = "") -> None:
        self.d = Sampler(seed)
        self.drawing = Drawing()
        self.op: Callable[..., Any] = self.drawing.op
        self.quantised = quantised

    def input(self, *shape: int) -> str:
        return self.drawing.value(self.d.rng.normal(size=shape).astype(np.float32))

    def weight(self, *shape: int, mean: float = 0.0) -> str:
        return self.drawing.value(fixed(self.d.rng.normal(mean, 0.3, shape), "float32"))

    def positive(self, *shape: int) -> str:
        return self.drawing.value(fixed(self.d.rng.uniform(0.5, 2, shape), "float32"))

    def number(self, value: float) -> str:
        return self.drawing.value(fixed(value, "float32"))

    def ints(self, *values: int) -> str:
        return self.drawing.value(fixed(values, "int64"))

    def moved(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def shaped(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    # ---- quantisation

    def rounded(self, x: str, scale: float = 2**-4) -> str:
        """``x`` through 8 bits, where the model is a quantised one."""
        if self.quantised == "qdq":
            parameters = self.number(scale), self.drawing.value(fixed(0, "int8"))
            return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *parameters), *parameters)
        if self.quantised == "lowered":
            steps = self.op("Round", self.op("Mul", x, self.number(1 / scale)))
            integers = self.op("Cast", self.op("Clip", steps, self.number(-127), self.number(127)), to=3)
            return self.op("Mul", self.op("Cast", integers, to=1), self.number(scale))
        return x

    def stored(self, *shape: int, axis: int = 1) -> str:
        """Weights, as integers where the model is a quantised one."""
        if not self.quantised:
            return self.weight(*shape)
        integers = self.drawing.value(fixed(self.d.integers(shape, "int8", -127, 127), "int8"))
        if self.quantised == "lowered":
            return self.op("Mul", self.op("Cast", integers, to=1), self.number(2**-7))
        return self.op("DequantizeLinear", integers, self.positive(shape[axis]), axis=axis)

    # ---- layers

    def linear(self, x: str, rows: int, columns: int, *, bias: bool = True) -> str:
        y = self.op("MatMul", self.rounded(x), self.stored(rows, columns))
        return self.op("Add", self.weight(columns), y) if bias else y

    def layer_norm(self, x: str, width: int) -> str:
        """As exported before ONNX had the operator."""
        last = self.ints(-1)
        d = self.op("Sub", x, self.op("ReduceMean", x, last))
        v = self.op("ReduceMean", self.op("Pow", d, self.number(2)), last)
        d = self.op("Div", d, self.op("Sqrt", self.op("Add", v, self.number(1e-5))))
        return self.op("Add", self.op("Mul", d, self.weight(width, mean=1)), self.weight(width))

    def gelu(self, x: str) -> str:
        e = self.op("Add", self.op("Erf", self.op("Div", x, self.number(2**0.5))), self.number(1))
        return self.op("Mul", self.op("Mul", x, e), self.number(0.5))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def attention(self, x: str, context: str, sizes: tuple[int, int, int, int], mask: str | None = None) -> str:
        """``sizes``: batch, heads, size of a head, width of the context. Division of the scores, then the mask."""
        batch, heads, size, other = sizes
        width = heads * size
        q, k, v = (
            self.shaped(self.linear(a, n, width), batch, -1, heads, size)
            for a, n in ((x, width), (context, other), (context, other))
        )
        q, k, v = self.moved(q, 0, 2, 1, 3), self.moved(k, 0, 2, 3, 1), self.moved(v, 0, 2, 1, 3)
        scores = self.op("Div", self.op("MatMul", self.rounded(q), self.rounded(k)), self.number(size**0.5))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        y = self.op("MatMul", self.rounded(self.op("Softmax", scores, axis=-1), 2**-7), self.rounded(v))
        return self.linear(self.shaped(self.moved(y, 0, 2, 1, 3), batch, -1, width), width, width)

    def conv(self, x: str, inputs: int, outputs: int, k: int = 1, *, group: int = 1, bias: bool = False) -> str:
        weights = self.stored(outputs, inputs // group, k, k, axis=0)
        rest = [self.weight(outputs)] if bias else []
        return self.op("Conv", self.rounded(x), weights, *rest, pads=(k // 2,) * 4, group=group)

    def batch_norm(self, x: str, channels: int) -> str:
        parts = (self.weight(channels, mean=1), self.weight(channels), self.weight(channels))
        return self.op("BatchNormalization", x, *parts, self.positive(channels))

    def conv_norm(self, x: str, inputs: int, outputs: int, k: int = 1, group: int = 1) -> str:
        return self.batch_norm(self.conv(x, inputs, outputs, k, group=group), outputs)

    def finish(self, *outputs: str) -> Instance:
        return self.drawing.finish(*outputs)


Family = Callable[[Net], Instance]
FAMILIES: dict[str, tuple[Family, str]] = {}
"""Family -> what builds it, and how it is quantised."""


def family(name: str, *, quantised: tuple[str, ...] = ()) -> Callable[[Family], Family]:
    """Registers a family, and versions of it on 8 bits."""

    def register(build: Family) -> Family:
        FAMILIES[name] = (build, "")
        FAMILIES.update({f"{name} {kind}": (build, kind) for kind in quantised})
        return build

    return register


def small_model(name: str, seed: int = 0) -> Instance:
    """A small version of a family, with weights and inputs drawn from ``seed``."""
    from benchmarks import small_convolutional_models, small_transformers  # noqa: F401  # they register themselves

    build, quantised = FAMILIES[name]
    return build(Net(seed, quantised))


def names() -> list[str]:
    """Every family."""
    from benchmarks import small_convolutional_models, small_transformers  # noqa: F401  # they register themselves

    return list(FAMILIES)
