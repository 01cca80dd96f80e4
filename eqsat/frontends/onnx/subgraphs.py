"""Names in the bodies of control flow (``GraphProto`` messages): what they define, what they capture, renaming."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eqsat.ir.graph import fresh_name

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType


def graphs_of(attribute: Any) -> Sequence[Any]:
    """The bodies in an ``AttributeProto``."""
    if attribute.type == _GRAPH:
        return [attribute.g]
    return attribute.graphs if attribute.type == _GRAPHS else ()


def copy_of(message: Any) -> Any:
    copy = type(message)()
    copy.ParseFromString(message.SerializeToString())
    return copy


def locals_of(graph: Any) -> set[str]:
    """Names that a ``GraphProto`` defines itself, bodies of its nodes aside."""
    names = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    names.update(t.values.name for t in graph.sparse_initializer)
    names.update(o for n in graph.node for o in n.output if o)
    return names


def captures_of(graph: Any) -> list[str]:
    """Names a body reads from the graphs around it, in order of first use."""
    own: set[str] = locals_of(graph)
    found: dict[str, None] = {}
    for node in graph.node:
        for name in node.input:
            if name and name not in own:
                found[name] = None
        for attribute in node.attribute:
            for body in graphs_of(attribute):
                found.update((c, None) for c in captures_of(body) if c not in own)
    found.update((o.name, None) for o in graph.output if o.name not in own)
    return list(found)


def bodies_in(graph: Any) -> Iterator[Any]:
    """Every body inside a ``GraphProto``, innermost included."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in graphs_of(attribute):
                yield body
                yield from bodies_in(body)


def nodes_in(graph: Any) -> Iterator[Any]:
    """Every node of a ``GraphProto`` or ``FunctionProto``, those in bodies included."""
    for part in (graph, *bodies_in(graph)):
        yield from part.node


def rename_captures(body: Any, renamed: Mapping[str, str], taken: set[str]) -> None:
    """Renames what ``body`` captures, in place, and whatever it defines itself under a name in ``taken``."""
    own = locals_of(body)
    changes = {old: new for old, new in renamed.items() if old != new and old not in own}
    used = own | taken | set(renamed.values())
    changes |= {name: fresh_name(name, used) for name in sorted(own & taken)}
    if changes:
        rename(body, changes)


def rename(body: Any, changes: Mapping[str, str]) -> None:
    """Renames values in a ``GraphProto`` and in the bodies inside it, in place."""
    for value in (*body.input, *body.output, *body.value_info, *body.initializer):
        value.name = changes.get(value.name, value.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = changes.get(sparse.values.name, sparse.values.name)
    for annotation in body.quantization_annotation:
        annotation.tensor_name = changes.get(annotation.tensor_name, annotation.tensor_name)
    for node in body.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name in changes:
                    names[i] = changes[name]
        for attribute in node.attribute:
            for inner in graphs_of(attribute):
                own = locals_of(inner)
                visible = {old: new for old, new in changes.items() if old not in own}
                rename_captures(inner, visible, set(visible.values()))
