"""A quantised model and the same with narrower integers, spelled out: the same operators, but for a clip behind quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

ROWS, HEADS, SIZE = 6, 3, 4
WIDTH = HEADS * SIZE


class _Layer:
    """Self-attention with quantisation on each edge. ``narrow``: symmetric integers, spelled out by Round, Clip and Cast."""

    def __init__(self, *, narrow: bool) -> None:
        self.b = GraphBuilder()
        self.narrow = narrow
        self.rng = np.random.default_rng(0)

    def number(self, value: float) -> Any:
        return self.b.constant(np.float32(value))

    def rounded(self, x: Any, scale: float = 2**-4) -> Any:
        if self.narrow:
            steps = self.b.op("Round", self.b.op("Mul", x, self.number(1 / scale)))
            integers = self.b.op("Cast", self.b.op("Clip", steps, self.number(-127), self.number(127)), to=3)
            return self.b.op("Mul", self.b.op("Cast", integers, to=1), self.number(scale))
        parameters = self.number(scale), self.b.constant(np.int8(0))
        return self.b.op("DequantizeLinear", self.b.op("QuantizeLinear", x, *parameters), *parameters)

    def projected(self, x: Any) -> Any:
        """A product with weights on integers, its result, and that with a bias, quantised too."""
        stored = self.b.constant(self.rng.integers(-99, 99, (WIDTH, WIDTH)).astype(np.int8))
        scale = self.number(2**-7)
        if self.narrow:
            weight = self.b.op("Mul", self.b.op("Cast", stored, to=1), scale)
        else:
            weight = self.b.op("DequantizeLinear", stored, scale, self.b.constant(np.int8(0)))
        bias = self.b.constant(self.rng.normal(size=WIDTH).astype(np.float32))
        return self.rounded(self.b.op("Add", self.rounded(self.b.op("MatMul", x, weight)), bias), 2**-3)

    def heads(self, x: Any, perm: tuple[int, ...]) -> Any:
        return self.b.op("Transpose", self.shaped(x, 1, ROWS, HEADS, SIZE), perm=perm)

    def shaped(self, x: Any, *shape: int) -> Any:
        return self.b.op("Reshape", x, self.b.constant(list(shape), "int64"))

    def finish(self) -> Graph:
        x = self.rounded(self.b.input("x", "float32", (1, ROWS, WIDTH)))
        q, k, v = (self.projected(x) for _ in range(3))
        q, v = (self.heads(y, (0, 2, 1, 3)) for y in (q, v))
        scores = self.rounded(self.b.op("MatMul", q, self.heads(k, (0, 2, 3, 1))))
        p = self.rounded(self.b.op("Softmax", self.b.op("Mul", scores, self.number(0.5)), axis=-1), 2**-7)
        y = self.rounded(self.b.op("MatMul", p, v))
        y = self.shaped(self.b.op("Transpose", y, perm=(0, 2, 1, 3)), 1, ROWS, WIDTH)
        return self.b.finish([self.projected(y)])


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_twins_differ_in_clips_only(form: str) -> None:
    """But for biases as convolutions, behind which a Clip is left, where tables hold it: there both take as many kernels."""
    wide, narrow = (
        counts(
            eqsat.optimize(
                _Layer(narrow=narrow).finish(),
                verify=False,
                form=form,
                cost="kernels",
                disabled_rules=("convolve_biased_columns",),
            )
        )
        for narrow in (False, True)
    )
    clips = narrow.pop("Clip", 0)
    assert narrow == wide
    assert clips <= sum(n for op, n in wide.items() if op.startswith(("Q", "MatMul")))
