"""Random loops over sequences, of which an iteration is a step of a recurrent operator, or nearly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Subgraph
from eqsat.ir.types import tensor_type
from eqsat.samples import Drawing, Instance, Sampler, fixed

Step = Callable[["_Iteration"], Sequence[str]]


class _Iteration:
    """A body under construction: ``x`` is the row that it reads, ``states`` are those before."""

    def __init__(self, d: Sampler, rows: int, hidden: int, x: str, states: Sequence[str], b: GraphBuilder) -> None:
        self.d, self.rows, self.hidden, self.x, self.states, self.b = d, rows, hidden, x, states, b

    def op(self, op: str, *inputs: Any, **attributes: Any) -> Any:
        given = [v if isinstance(v, str) else self.b.constant(v) for v in inputs]
        return self.b.op(op, *given, **attributes)

    def product(self, value: str, inner: int, columns: int) -> str:
        """A product by constants, with a bias now and then."""
        w, c = (self.d.floats(shape) for shape in ((inner, columns), (columns,)))
        if self.d.chance(0.3):
            return self.op("Gemm", value, w.T if (turned := self.d.chance()) else w, c, transB=int(turned))
        found = self.op("MatMul", value, w)
        return self.op("Add", found, c) if self.d.chance() else found

    def parts(self, value: str, count: int) -> Sequence[str]:
        """As many columns each as there are in a state."""
        n = self.hidden
        if self.d.chance():
            return self.op("Split", value, np.array([n] * count), axis=self.d.choose((1, -1)), outputs=count)
        bounds = [(np.array([0, i * n]), np.array([2**31 - 1, (i + 1) * n])) for i in range(count)]
        return [self.op("Slice", value, *b, np.array([0, 1])) for b in bounds]

    def gates(self, count: int) -> Sequence[str]:
        """Sums of a product of the row and one of the state, for each gate, cut behind the sum or before."""
        a, b = (
            self.product(v, n, count * self.hidden) for v, n in ((self.x, self.rows), (self.states[0], self.hidden))
        )
        if self.d.chance():
            return self.parts(self.op("Add", a, b), count)
        return [self.op("Add", *pair) for pair in zip(self.parts(a, count), self.parts(b, count), strict=True)]


def _rnn(i: _Iteration) -> Sequence[str]:
    a, b = i.product(i.x, i.rows, i.hidden), i.product(i.states[0], i.hidden, i.hidden)
    return [i.op(i.d.choose(("Tanh", "Tanh", "Tanh", "Relu")), i.op("Add", a, b))]


def _gru(i: _Iteration) -> Sequence[str]:
    (h,) = i.states
    if i.d.chance():
        z, r = (i.op("Sigmoid", g) for g in i.gates(2))
    else:
        z, r = i.parts(i.op("Sigmoid", i.op("Concat", *i.gates(2), axis=1)), 2)
    reset = i.op("Mul", r, i.product(h, i.hidden, i.hidden)) if i.d.chance() else None
    reset = reset or i.product(i.op("Mul", r, h), i.hidden, i.hidden)
    n = i.op("Tanh", i.op("Add", i.product(i.x, i.rows, i.hidden), reset))
    first, second = (h, n) if i.d.chance() else (n, h)
    if i.d.chance(0.3):
        return [i.op("Add", second, i.op("Mul", z, i.op("Sub", first, second)))]
    rest = i.op("Sub", np.float32(i.d.choose((1, 1, 1, 1, 2))), z)
    return [i.op("Add", i.op("Mul", z, first), i.op("Mul", rest, second))]


def _lstm(i: _Iteration) -> Sequence[str]:
    c = i.states[1]
    put, forget, out, new = i.gates(4)
    put, forget, out = (i.op("Sigmoid", g) for g in (put, forget, out))
    c = i.op("Add", i.op("Mul", forget, c), i.op("Mul", put, i.op("Tanh", new)))
    return [i.op("Mul", out, i.op(i.d.choose(("Tanh", "Tanh", "Tanh", "Identity")), c)), c]


def draw_loop(d: Sampler) -> Instance:
    """One that ends early, reads another row, or is over a sequence of another length, now and then."""
    step, states = d.choose(((_rnn, 1), (_gru, 1), (_gru, 1), (_lstm, 2)))
    times, batch, width, hidden = d.extents(4)
    batch = 1 if step is _rnn and d.chance(0.8) else batch
    defect = d.choose((*("",) * 8, "ends early", "other rows", "longer", "the same row"))
    drawing = Drawing()
    shape = (times + (defect == "longer"), batch, width)
    x = drawing.value(d.floats(shape))
    starts = [drawing.value(d.floats((batch, hidden))) for _ in range(states)]
    b = GraphBuilder("body")
    number, before = b.input("number", "int64", ()), b.input("goes_on", "bool", ())
    count = b.input("count", "int64", ())
    names = [b.input(f"h{i}", "float32", (batch, hidden)) for i in range(states)]
    whole = b.input("whole", "float32", shape)
    at = b.constant(np.int64(0)) if defect == "the same row" else d.choose((number, count))
    row = b.op("Gather", whole, at, axis=0)
    after = b.op("Add", count, b.constant(np.int64(1)))
    if defect == "ends early" or d.chance(0.4):
        last = times - (defect == "ends early")
        goes_on = b.op("Less", b.op("Cast", after, to=1), b.constant(np.float32(last)))
    else:
        goes_on = b.op("Identity", before)
    results = step(_Iteration(d, width, hidden, row, names, b))
    made = {"c": goes_on, "n": after, **{f"s{i}": v for i, v in enumerate(results)}}
    body = b.finish({**made, "y": b.op("Identity", results[0])})
    graph = Subgraph(str(body).encode(), ("whole",), 0, body)
    types = [body.type_of(v) for v in body.outputs[1:-1]] + [tensor_type("float32", ("rows", batch, hidden))]
    first = drawing.value(fixed(int(defect == "other rows" and times > 1), "int64"))
    found = drawing.builder.opaque(
        "Loop", *(drawing.value(fixed(v)) for v in (np.int64(times), np.True_)), first, *starts, x,
        types=types, domain="", reason="a body", body=graph,
    )  # fmt: skip
    wanted = d.choose(range(1, 1 + states)) if d.chance() else -1
    return drawing.finish(found[wanted], *([found[-1]] if d.chance() else []))
