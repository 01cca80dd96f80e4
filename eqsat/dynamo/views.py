"""Outputs of a captured graph that lie in the memory of other values."""

from collections.abc import Sequence
from typing import Any

from torch import SymInt, Tensor, fx

from eqsat.errors import EqsatError


class UnsupportedError(EqsatError):
    """A graph that has to run in PyTorch as it is; the message says why."""


def name_of(node: fx.Node) -> str:
    """Of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


VIEWS = (
    {"chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "getattr", "getitem", "movedim"}
    | {"narrow", "permute", "reshape", "select", "split", "squeeze", "swapaxes", "t", "to", "transpose", "unbind"}
    | {"unflatten", "unfold", "unsqueeze", "view", "view_as"}
    | {"mT", "mH", "matrix_H", "numpy_T"}  # attributes, from torch 2.14 on
)
"""Functions of torch that write nothing: what they return is a view of their first argument, or a tensor of its own."""


def is_computed(node: fx.Node) -> bool:
    return node.op != "placeholder" and isinstance(node.meta.get("example_value"), Tensor)


def viewed(outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """What several of the outputs are views of, as the parts that a product was split into, where it is no output itself."""
    sources: dict[fx.Node, list[fx.Node]] = {}
    for node in dict.fromkeys(outputs):
        if is_computed(node):
            sources.setdefault(_source(node), []).append(node)
    return [source for source, nodes in sources.items() if len(nodes) > 1 and source not in nodes]


def _source(node: fx.Node) -> fx.Node:
    """The value that a graph computes in whose memory another one lies, by `VIEWS` alone; itself if there is none."""
    place, found = _storage(node), node
    while (owner := _viewed_by(node)) is not None:
        node = owner
        found = node if is_computed(node) and _storage(node) == place else found
    return found


def _storage(node: fx.Node) -> int:
    return node.meta["example_value"].untyped_storage()._cdata


def views_among(values: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The values that share memory with one before them -> that one.

    As results of a program they would be copies, and whoever wrote to one would not change the other; so they are to be taken
    of the other. Raises `UnsupportedError` where they are not computed from it by `VIEWS` alone, or it does not lie in rows, as
    the results of programs do.
    """
    owners: dict[int, fx.Node] = {}
    views: dict[fx.Node, fx.Node] = {}
    for node in values:
        if not isinstance(node.meta.get("example_value"), Tensor):
            continue
        owner = owners.setdefault(_storage(node), node)
        if owner is node or node.op == "placeholder":
            continue
        rows = owner.op == "placeholder" or owner.meta["example_value"].is_contiguous()
        if not rows or not _is_view(node, owner):
            raise UnsupportedError(f"its output {node.name} shares memory with {owner.name}")
        views[node] = owner
    return views


def is_same(node: Any, owner: fx.Node) -> bool:
    """Whether an output is an input under another name, as what a function returns that writes to it."""
    a, b = (n.meta.get("example_value") if isinstance(n, fx.Node) else None for n in (node, owner))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype is not b.dtype:
        return False
    places = [(x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride()) for x in (a, b)]
    return places[0] == places[1]


def _is_view(node: fx.Node, owner: fx.Node) -> bool:
    while node is not owner:
        source = _viewed_by(node)
        if source is None:
            return False
        node = source
    return True


def _viewed_by(node: fx.Node) -> fx.Node | None:
    """The first argument of a node that calls one of `VIEWS`, if it is no keyword."""
    called = node.op.startswith("call") and name_of(node) in VIEWS and len(node.args) > 0
    source = node.args[0] if called else None
    return source if isinstance(source, fx.Node) else None


def axes_in_memory(node: fx.Node) -> list[int]:
    """The axes of a value from the outermost to the innermost in memory, as they are where it lies in rows; so, too, where it
    leaves places out or several of its elements lie in one.

    A caller may view what a graph returns as it lies in PyTorch, and the code behind a graph break does.
    """
    value: Tensor = node.meta["example_value"]
    sizes, strides = (
        [e.node.hint if isinstance(e, SymInt) else int(e) for e in x] for x in (value.shape, value.stride())
    )
    rows = list(range(value.ndim))
    found = sorted(rows, key=lambda i: -strides[i])
    return next((order for order in (rows, found) if _is_dense(order, sizes, strides)), rows)


def _is_dense(order: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for i in reversed(order):
        if sizes[i] != 1 and strides[i] != expected:
            return False
        expected *= sizes[i]
    return True
