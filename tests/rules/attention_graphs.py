"""Graphs of attention that tests spell in several ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

B, N, S, T, H, W = 2, 3, 5, 7, 4, 6
LOWEST = float(np.finfo(np.float32).min)
Steps = Callable[[GraphBuilder, Any], Any]


def number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.float32(value))


def ints(b: GraphBuilder, *values: int) -> str:
    return b.constant(list(values), "int64")


def core(
    steps: Steps = lambda b, s: s,
    *,
    lead: tuple[Any, ...] = (B, N),
    on_query: Steps = lambda b, q: q,
    on_key: Steps = lambda b, k: k,
    after: Steps = lambda b, p: p,
    queries: int = S,
    keys: int = T,
    axis: int = -1,
    keep: bool = False,
    dtype: str = "float32",
) -> Graph:
    """Attention of Q (..., queries, H), K (..., keys, H) and V (..., keys, W), with steps on its edges."""
    b = GraphBuilder()
    q, k, v = (
        b.input(n, dtype, (*lead, *shape)) for n, shape in (("q", (queries, H)), ("k", (keys, H)), ("v", (keys, W)))
    )
    perm = (*range(len(lead)), len(lead) + 1, len(lead))
    k = on_key(b, b.op("Transpose", k, perm=perm))
    chances = after(b, b.op("Softmax", steps(b, b.op("MatMul", on_query(b, q), k)), axis=axis))
    y = b.op("MatMul", chances, v)
    return b.finish({"y": y, "p": chances} if keep else {"y": y})


def scaled(op: str, value: float) -> Steps:
    return lambda b, x: b.op(op, x, number(b, value))


def plus(mask: np.ndarray) -> Steps:
    return lambda b, s: b.op("Add", b.constant(mask.astype(np.float32)), s)
