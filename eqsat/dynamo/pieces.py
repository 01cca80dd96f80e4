"""A captured graph cut at operators that have to run in PyTorch: what lies between them is graphs of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module

from eqsat.dynamo.views import is_computed, name_of, places_of, viewed_by

LEAST_OPERATORS = 4
"""Operators that compute something in a piece that is worth a program: a call of one takes as long as a few of PyTorch's."""

_OF_STATE = (
    "enter_autocast",
    "exit_autocast",
    "nesting",
    "grad_enabled",
    "inference_mode",
    "wrap_for_grad",
    "batch_dim",
)
"""In names of functions that change what those after them do, or that come in pairs: a graph with them is not cut."""


def cut(module: fx.GraphModule, name: str) -> tuple[fx.GraphModule, list[str]] | None:
    """The graph with a module for each of its pieces, and the names of those without the node ``name`` and others of its kind
    that are worth a program. ``None`` where there are none, or where it cannot be cut."""
    nodes = {n.name: n for n in module.graph.nodes}
    if name not in nodes or any(_changes_state(n) for n in nodes.values()):
        return None
    kind = _kind(nodes[name])
    places: dict[fx.Node, tuple[int, bool]] = {}
    last = 0, False
    for node in (n for n in nodes.values() if n.op.startswith("call")):
        if name_of(node) == "getitem" and not is_computed(node.args[0]) and node.args[0] in places:
            places[node] = places[node.args[0]]  # of several results: with them
            continue
        apart = _kind(node) == kind
        last = places[node] = last if last[1] == apart else (last[0] + 1, apart)

    def piece_of(node: fx.Node) -> int:
        return places[node][0]

    try:
        pieces = split_module(module, module, piece_of, keep_original_order=True, tuple_return=True)
    except RuntimeError:  # it finds circles where an extent depends on values (2.14)
        return None
    apart = {f"submod_{number}" for number, away in places.values() if away}
    worth: list[str] = [n for n, piece in pieces.named_children() if n not in apart and _size(piece) >= LEAST_OPERATORS]
    return (pieces, worth) if worth else None


def count_apart(module: fx.GraphModule, name: str) -> int:
    """How many nodes are of the kind of one."""
    (node,) = (n for n in module.graph.nodes if n.name == name)
    return sum(_kind(n) == _kind(node) for n in module.graph.nodes)


class Pieces(fx.Interpreter):
    """Runs a graph that was cut, once, and replaces each of its pieces that is in ``worth`` by what ``compiled`` makes of it and
    its inputs."""

    def __init__(self, pieces: fx.GraphModule, worth: Sequence[str], compiled: Any) -> None:
        super().__init__(pieces)  # pyright: ignore[reportUnknownMemberType]
        self._worth = worth
        self._compiled = compiled
        self._found: dict[str, Any] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in self._worth:
            self._found[target] = self._compiled(self.fetch_attr(target), args)
        return super().call_module(target, args, kwargs)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    def replaced(self, inputs: Sequence[Any]) -> fx.GraphModule:
        """The graph whose pieces are programs, made for ``inputs``, which it writes to."""
        with torch.no_grad():
            self.run(*inputs)
        for name, run in self._found.items():
            setattr(self.module, name, _Called(run))
        return self.module  # type: ignore[return-value]


class _Called(torch.nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.forward = run


def _kind(node: fx.Node) -> Any:
    """What nodes are of one kind by: what they call, on tensors of which types."""
    types = [v.dtype for n in node.all_input_nodes if isinstance(v := n.meta.get("example_value"), Tensor)]
    return node.op, node.target, tuple(types)


def _changes_state(node: fx.Node) -> bool:
    return node.op.startswith("call") and any(part in name_of(node) for part in _OF_STATE)


def _size(piece: Any) -> int:
    return sum(n.op.startswith("call") and bool(places_of(n)) and viewed_by(n) is None for n in piece.graph.nodes)
