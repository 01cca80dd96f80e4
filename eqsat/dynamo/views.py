"""Outputs of a captured graph that lie in the memory of other values."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import SymInt, Tensor, fx
from torch._guards import tracing
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from eqsat.errors import EqsatError


class UnsupportedError(EqsatError):
    """A graph that has to run in PyTorch as it is; the message says why."""


def name_of(node: fx.Node) -> str:
    """Of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


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
    """The value that a graph computes in whose memory another one lies, by views alone; itself if there is none."""
    place, found = _storage(node), node
    while (owner := viewed_by(node, place)) is not None:
        node = owner
        found = node if is_computed(node) else found
    return found


def _storage(node: fx.Node) -> int:
    return _place(node.meta["example_value"])


def _place(value: Tensor) -> int:
    """The storage of a tensor, or of what one of a function by `torch.vmap` is a slice of."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value.untyped_storage()._cdata


def views_among(values: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The values that share memory with one before them -> that one.

    As results of a program they would be copies, and whoever wrote to one would not change the other; so they are to be taken
    of the other. Raises `UnsupportedError` where one of the two is not a plain view of the other, or that does not lie in rows,
    as the results of programs do.
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
    places = [(_place(x), x.storage_offset(), x.shape, x.stride()) for x in (a, b)]
    return places[0] == places[1]


def _is_view(node: fx.Node, owner: fx.Node) -> bool:
    place = _storage(owner)
    while not is_same(node, owner):
        source = viewed_by(node, place)
        if source is None:
            return False
        node = source
    return True


def viewed_by(node: fx.Node, place: int | None = None) -> fx.Node | None:
    """The operand in whose memory what a node computes lies, or that at ``place``, if it writes to none."""
    places = places_of(node) if place is None else {place}
    found = next((n for n in node.all_input_nodes if not places.isdisjoint(places_of(n))), None)
    return None if found is None or _writes(node) else found


def places_of(node: fx.Node) -> set[int]:
    """The storages of a value, which may be several tensors."""
    return {_place(x) for x in tree_leaves(node.meta.get("example_value")) if isinstance(x, Tensor)}


def _writes(node: fx.Node) -> bool:
    """Whether a node writes to its operands: whether their versions change when it runs on tensors without data.

    A node that cannot run so is taken for one that does.
    """

    def given(operand: fx.Node) -> Any:
        return tree_map(empty, operand.meta["example_value"])

    with suppress(Exception), without_data():
        args, named = fx.node.map_arg((node.args, node.kwargs), given)
        if node.op == "call_method":
            getattr(args[0], str(node.target))(*args[1:], **named)
        elif callable(node.target):
            node.target(*args, **named)
        return any(isinstance(x, Tensor) and x._version for x in tree_leaves((args, named)))
    return True


@contextmanager
def without_data() -> Generator[None]:
    """Tensors have no data and count what is written to them; nothing of it is part of what Dynamo traces."""
    with tracing(None), torch.inference_mode(False), torch.no_grad(), FakeTensorMode():
        yield


def empty(value: Any) -> Any:
    """A value like another one, whose elements nobody knows."""
    if isinstance(value, Tensor):
        sizes, strides = map(_hints, (value.shape, value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return value.node.hint if isinstance(value, SymInt) else value


def _hints(extents: Sequence[Any]) -> list[int]:
    return [e.node.hint if isinstance(e, SymInt) else int(e) for e in extents]


def axes_in_memory(node: fx.Node) -> list[int]:
    """The axes of a value from the outermost to the innermost in memory, as they are where it lies in rows; so, too, where it
    leaves places out or several of its elements lie in one.

    A caller may view what a graph returns as it lies in PyTorch, and the code behind a graph break does. Raises
    `UnsupportedError` where nobody knows how large it is.
    """
    value: Tensor = node.meta["example_value"]
    sizes, strides = map(_hints, (value.shape, value.stride()))
    known: list[Any] = [*sizes, *strides]
    if None in known:
        raise UnsupportedError(f"its output {node.name} has an extent that depends on values")
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
