"""What TVM's test of SimplifyInference (Relay, v0.19) asserts, on our graphs: normalisation is a product and a sum."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rank", "steps"), [(2, 1), (4, 1), (4, 3)])
def test_simplify_batchnorm(rank: int, steps: int, dtype: str) -> None:
    """``steps`` times ``x + 1``, normalised, with a dropout behind: with constant statistics two operators in all.

    In half precision the statistics are computed in float32, and each step keeps two operators of its own.
    """
    b = GraphBuilder()
    y = b.input("x", dtype, (10,) * rank)
    gamma, beta, mean, var = (RNG.uniform(0.5, 1.5, 10).astype(dtype) for _ in range(4))
    for _ in range(steps):
        y = b.op("Add", y, b.constant(np.ones((), dtype)))
        y = b.op("BatchNormalization", y, *map(b.constant, (gamma, beta, mean, var)), epsilon=0.01)
        y = b.op("Dropout", y)
    found = counts(optimized(b.finish({"y": y}), tolerance=2e-5 if dtype == "float32" else 5e-3))
    assert "Dropout" not in found
    assert sum(found.values()) <= 2 * steps  # TVM leaves an Add, a Mul and an Add of each step
