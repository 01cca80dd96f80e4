"""``start => goal``: what the rules together prove, and what they must not prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import eqsat
import eqsat.rules
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import encode
from eqsat.egraph.explain import Explainer
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import AnyRule, registered_rules

Build = Callable[..., Any]


def proves(rules: Iterable[AnyRule], start: Graph, goal: Graph, limits: Limits | None = None) -> bool:
    """Whether saturating ``start`` under ``rules`` yields each output of ``goal``, in order.

    Only ``start`` is rewritten: ``goal`` must be spelled as the rules spell it. Both read the same inputs by name.
    """
    encoding = encode(start)
    saturate(encoding.egraph, tuple(rules), limits)
    outputs = _place(encoding.egraph, goal)
    find = encoding.egraph.find
    return len(outputs) == len(start.outputs) and all(
        find(encoding.handles[name]) == find(handle) for name, handle in zip(start.outputs, outputs, strict=True)
    )


def _place(egraph: EGraph, graph: Graph) -> list[int]:
    """Handles of the outputs of a graph whose nodes are looked up in an e-graph, or added where they are missing."""
    handles = {"": ABSENT_INPUT}
    handles.update({name: egraph.add_input(name, graph.type_of(name)) for name in graph.inputs})
    handles.update({name: egraph.add_constant(constant) for name, constant in graph.constants.items()})
    for node in graph.nodes:
        children = [handles[value] for value in node.inputs]
        handle = egraph.add_node(node, children, [graph.type_of(v) for v in node.outputs])
        for index, value in enumerate(node.outputs):
            handles[value] = egraph.add_projection(handle, index)
    return [handles[name] for name in graph.outputs]


class Terms:
    """Applies operators by attribute: ``t.Add(x, 1.0)``. Numbers become float32 constants, lists int64 ones."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder

    def __getattr__(self, op: str) -> Callable[..., Any]:
        def apply(*inputs: Any, **attributes: Any) -> Any:
            return self._builder.op(op, *map(self._value, inputs), **attributes)

        return apply

    def _value(self, value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return value
        return self._builder.constant(np.asarray(value, np.int64 if isinstance(value, list) else np.float32))


def _graph(build: Build, shapes: tuple[tuple[Any, ...], ...]) -> Graph:
    b = GraphBuilder()
    names = [b.input(name, "float32", shape) for name, shape in zip("xyz", shapes, strict=False)]
    return b.finish([build(Terms(b), *names)])


EQUAL: dict[str, tuple[Build, Build, tuple[tuple[Any, ...], ...]]] = {
    "permutations compose": (
        lambda t, x: t.Transpose(t.Transpose(x, perm=(1, 2, 0)), perm=(1, 2, 0)),
        lambda t, x: t.Transpose(x, perm=(2, 0, 1)),
        ((2, 3, 4),),
    ),
    "permutations cancel": (
        lambda t, x: t.Transpose(t.Transpose(x, perm=(1, 2, 0)), perm=(2, 0, 1)),
        lambda t, x: x,
        ((2, 3, 4),),
    ),
    "permutations cancel across a region": (
        lambda t, x: t.Transpose(t.Relu(t.Add(t.Transpose(x, perm=(0, 2, 3, 1)), 2.0)), perm=(0, 3, 1, 2)),
        lambda t, x: t.Relu(t.Add(x, 2.0)),
        ((2, 3, 4, 5),),
    ),
    "views of views": (
        lambda t, x: t.Squeeze(t.Reshape(t.Flatten(t.Unsqueeze(x, [0])), [1, 4, 6]), [0]),
        lambda t, x: t.Reshape(x, [4, 6]),
        ((2, 3, 4),),
    ),
    "views back to the start": (
        lambda t, x: t.Reshape(t.Reshape(x, [0, -1]), [2, 3, 4]),
        lambda t, x: x,
        ((2, 3, 4),),
    ),
    "views of symbolic extents": (
        lambda t, x: t.Reshape(t.Reshape(x, [0, 0, 2, 6]), [0, 0, 12]),
        lambda t, x: x,
        (("n", "s", 12),),
    ),
    "a dynamic target that the types determine": (
        lambda t, x: t.Reshape(x, t.Concat(t.Gather(t.Shape(x), [1]), t.Gather(t.Shape(x), [0]), axis=0)),
        lambda t, x: t.Reshape(x, [3, 2]),
        ((2, 3),),
    ),
    "slices compose": (
        lambda t, x: t.Slice(t.Slice(x, [1], [9], [0], [2]), [1], [3], [0]),
        lambda t, x: t.Slice(x, [3], [6], [0], [2]),
        ((10, 2),),
    ),
    "a part of a whole": (
        lambda t, x, y: t.Slice(t.Concat(x, y, axis=1), [2], [5], [1]),
        lambda t, x, y: y,
        ((2, 2), (2, 3)),
    ),
    "parts join": (
        lambda t, x: t.Concat(t.Slice(x, [0], [2], [0]), t.Slice(x, [2], [2**31 - 1], [0]), axis=0),
        lambda t, x: x,
        ((5, 2),),
    ),
    "signs cancel": (lambda t, x, y: t.Sub(x, t.Neg(t.Neg(t.Neg(y)))), lambda t, x, y: t.Add(x, y), ((3,), (3,))),
    "constant factors": (
        lambda t, x: t.Mul(t.Mul(t.Mul(x, 2.0), 3.0), 0.5),
        lambda t, x: t.Mul(x, 3.0),
        ((3,),),
    ),
    "neutral elements": (lambda t, x: t.Sub(t.Div(t.Mul(x, 1.0), 1.0), 0.0), lambda t, x: x, ((3,),)),
    "clamps": (
        lambda t, x: t.Min(t.Max(t.Relu(t.Relu(x)), -1.0), 6.0),
        lambda t, x: t.Clip(x, 0.0, 6.0),
        ((3,),),
    ),
    "transpose into a product": (
        lambda t, x, y: t.MatMul(t.Transpose(x, perm=(1, 0)), y),
        lambda t, x, y: t.Gemm(x, y, transA=1),
        ((3, 2), (3, 4)),
    ),
    "broadcasting expands": (
        lambda t, x, y: t.Add(t.Expand(x, [2, 3]), y),
        lambda t, x, y: t.Add(x, y),
        ((3,), (2, 3)),
    ),
}

DIFFERENT: dict[str, tuple[Build, Build, tuple[tuple[Any, ...], ...]]] = {
    "a difference with itself": (lambda t, x: t.Sub(x, x), lambda t, x: t.Mul(x, 0.0), ((3,),)),
    "rounding by a large constant": (
        lambda t, x: t.Sub(t.Add(x, 12582912.0), 12582912.0),
        lambda t, x: x,
        ((3,),),
    ),
    "a mask of the least float, twice": (
        lambda t, x: t.Add(t.Add(x, -3.4e38), -3.4e38),
        lambda t, x: t.Add(x, -np.inf),
        ((3,),),
    ),
    "quotients by variables": (lambda t, x, y: t.Div(t.Mul(x, y), y), lambda t, x, y: x, ((3,), (3,))),
    "a square with its axes exchanged": (lambda t, x: t.Transpose(x, perm=(1, 0)), lambda t, x: x, ((3, 3),)),
    "a square reshaped from its transpose": (
        lambda t, x: t.Reshape(t.Transpose(x, perm=(1, 0)), [3, 3]),
        lambda t, x: x,
        ((3, 3),),
    ),
    "a slice backward": (lambda t, x: t.Slice(x, [-1], [-10], [0], [-1]), lambda t, x: x, ((3,),)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_rules_prove(name: str) -> None:
    start, goal, shapes = EQUAL[name]
    assert proves(registered_rules(), _graph(start, shapes), _graph(goal, shapes))


@pytest.mark.parametrize("name", DIFFERENT)
def test_rules_do_not_prove(name: str) -> None:
    start, goal, shapes = DIFFERENT[name]
    assert not proves(registered_rules(), _graph(start, shapes), _graph(goal, shapes))


def test_a_proof_does_not_rest_on_what_it_proves() -> None:
    """``x * 3 * (1/3)`` is ``x`` by two rules; once it is, ``x * 1`` is congruent to itself times 1, which proves nothing."""
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", (2, 3)))
    y = b.op("Mul", b.op("Mul", x, b.constant(np.float32(3))), b.constant(np.float32(1 / 3)))
    encoding = encode(b.finish({"y": y, "z": x}))
    saturate(encoding.egraph, [rule for rule in registered_rules() if rule.name != "cancel_factors"])
    left, right = encoding.handles["y"], encoding.handles["z"]
    assert encoding.egraph.find(left) == encoding.egraph.find(right)
    found = Explainer(encoding.egraph).rules_between(left, right)
    assert {"merge_constant_factors", "remove_neutral_operand_of_mul"} <= found


def test_classes_that_only_rules_made_have_proofs_too() -> None:
    """The multiplication by ``1/s`` becomes a division inside a value that the original does not have: not exact."""
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", (2, 3, 4)))
    scaled = b.op("Mul", b.op("Reshape", x, b.constant([6, 4])), b.constant(np.float32(1) / np.float32(0.0474)))
    clipped = b.op("Clip", b.op("Round", scaled), b.constant(np.float32(-127)), b.constant(np.float32(127)))
    result = eqsat.optimize(b.finish({"y": b.op("Cast", clipped, to=3)}), form="flat")
    rules = {name for kernel in result.program.kernels for name in kernel.rules}
    quantized = next(n for n in result.program.graph.nodes if n.op == "QuantizeLinear")
    scale = result.program.graph.constants[quantized.inputs[1]].numpy()
    assert ("divide_in_quantize_instead_of_multiplying" in rules) is bool(scale != 1)
