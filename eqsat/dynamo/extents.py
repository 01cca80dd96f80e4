"""Extents of a captured graph that are symbols: what Dynamo knows of them, and what an export takes for granted."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor, fx
from torch.export import ExportedProgram
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy import interp, reference

from eqsat.errors import ModelError

Symbols = Sequence[Mapping[int, SymInt]]
"""For each tensor that comes in its symbolic extents by axis."""


def tensors_depend_on(number: fx.Node) -> bool:
    """Whether an integer is more than counted on: as the length of a cache that is no tensor."""
    for user in number.users:
        if user.op != "output":
            counted = isinstance(user.meta.get("example_value"), int | SymInt)
            if not counted or tensors_depend_on(user):
                return True
    return False


def with_counts_as_extents(module: fx.GraphModule, examples: Sequence[Any]) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """The graph with integers that tensors depend on, as the places that a cache has counted, as extents of tensors without
    elements (see `as_extent`), and the numbers of these inputs: one program serves all their values, as it does all sizes.

    Under ``dynamic=True`` all integers are symbols, and most of them the same at every call: as numbers they say more.
    """
    if not torch._dynamo.config.assume_static_by_default:
        return module, ()
    placeholders = module.graph.find_nodes(op="placeholder")
    tensors = [v for n in placeholders if isinstance(v := n.meta.get("example_value"), Tensor)]
    known = {e.node.expr for t in tensors for e in t.shape if isinstance(e, SymInt)}
    found = tuple(
        i
        for i, (node, example) in enumerate(zip(placeholders, examples, strict=True))
        if isinstance(example, SymInt) and tensors_depend_on(node) and _counts(node, known)
    )
    fake: Any = next((getattr(t, "fake_mode", None) for t in tensors), None)
    if not found or fake is None or any(t.device.type != "cpu" for t in tensors):
        return module, ()
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for i, node in enumerate(placeholders):
        copies[node] = graph.node_copy(node)
        if i in found:
            with fake:
                copies[node].meta["example_value"] = as_extent(node.meta["example_value"])
    for node in (placeholders[i] for i in found):
        copies[node] = graph.call_method("size", (copies[node], 0))
        copies[node].meta = dict(node.meta)
    graph.output(graph.graph_copy(module.graph, copies))
    return fx.GraphModule(module, graph), found


def _counts(placeholder: fx.Node, known: Container[Any]) -> bool:
    """Whether an integer is a symbol, no extent of a tensor that comes in, and large enough for one that may vary, which becomes
    one of Dynamo's guards: torch exports extents of 0 and 1 as numbers."""
    value: Any = placeholder.meta.get("example_value")
    if not isinstance(value, SymInt) or not value.node.expr.is_Symbol or value.node.expr in known:
        return False
    return value.node.hint > 1 and value.__gt__(1).__bool__()


def as_extent(count: Any) -> Tensor:
    """A tensor without elements that tells a number by its extent."""
    return torch.empty((count, 0))


def tell_of_extents(symbols: Symbols, tensors: Sequence[Tensor]) -> None:
    """Tells torch, which exports a graph for ``tensors``, what Dynamo knows of their extents: which are equal or follow from
    others, and between which bounds they lie."""
    known: dict[Any, Any] = {}
    given = [(e.node, x.shape[axis]) for x, found in zip(tensors, symbols, strict=True) for axis, e in found.items()]
    for node, extent in sorted(given, key=lambda pair: not pair[0].expr.is_Symbol):
        if node.expr.is_Symbol and node.expr not in known:
            known[node.expr] = extent
            bounds = node.shape_env.bound_sympy(node.expr)
            if bounds.lower.is_Integer:
                torch._check(extent >= int(bounds.lower))
            if bounds.upper.is_Integer:
                torch._check(extent <= int(bounds.upper))
        elif node.expr.free_symbols <= known.keys():
            torch._check(extent == _value(node.expr, known))


def require(symbols: Symbols, exported: ExportedProgram) -> None:
    """Adds to Dynamo's guards, as backends do, what torch took for granted of extents when it exported a graph and spelled out
    its operators. Raises `ModelError` where the guards are made already and do not imply it."""
    inputs = exported.graph_signature.user_inputs
    values = [n.meta["val"] for n in exported.graph.find_nodes(op="placeholder") if n.name in inputs]
    pairs = [(v.shape[axis], e) for v, found in zip(values, symbols, strict=True) for axis, e in found.items()]
    # Their symbols as they were before anything was found out of them.
    extents = {own.node._expr: extent for own, extent in pairs if isinstance(own, SymInt)}
    granted: list[Any] = [extent == own for own, extent in pairs if not isinstance(own, SymInt)]
    for guard in next((own.node.shape_env.guards for own, _ in pairs if isinstance(own, SymInt)), ()):
        if not guard.expr.free_symbols <= extents.keys():
            raise ModelError(f"its export takes for granted that {guard.expr}, which its inputs do not tell")
        granted.append(_value(guard.expr, extents))
    made = any(extent.node.shape_env.frozen for _, extent in pairs)
    for condition in granted:
        if not (symbolic_shapes.statically_known_true(condition) if made else bool(condition)):
            raise ModelError(f"its export takes for granted that {condition}")


def _value(expression: Any, symbols: Mapping[Any, Any]) -> Any:
    return interp.sympy_interp(reference.PythonReferenceAnalysis, dict(symbols), expression)
