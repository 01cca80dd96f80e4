"""Choosing the opset of the result, and bringing its nodes to the form they have there."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from eqsat.backends.consumer import at_any_opset, most_opset, newest_opset, settled_opset
from eqsat.backends.onnxruntime_form import for_onnxruntime
from eqsat.backends.onnxruntime_kernels import CPU, is_spelled_out
from eqsat.backends.openvino_form import for_openvino
from eqsat.errors import OutputError
from eqsat.frontends.onnx.envelope import Envelope, envelope_of
from eqsat.frontends.onnx.subgraphs import bodies_in
from eqsat.frontends.onnx.versions.steps import (
    OLDEST,
    Refusal,
    downgrade,
    first_version,
    has_function,
    means_the_same,
    since_version,
)
from eqsat.ir.composite import expanded
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, Subgraph, fresh_name, nodes_within, with_bodies
from eqsat.ir.operator import DEFAULT_DOMAIN, OPSET
from eqsat.ir.operators.devices import spread_to_parts
from eqsat.ir.schemas import refused_types
from eqsat.ir.types import DType, Type

FORMS = {
    "flat": ("operators of ONNX only, and what the original used", frozenset[str]()),
    "functions": ("the same, a function per kernel, which the main graph calls", frozenset[str]()),
    "onnxruntime": ("fused operators of ONNX Runtime, too", frozenset({"com.microsoft"})),
    "openvino": (
        "operators that OpenVINO reads, integers between pairs of quantisation",
        frozenset({"com.microsoft::MatMulNBits"}),
    ),
    "tensorrt": ("the same for TensorRT", frozenset[str]()),
}
"""Form of a written model -> what that is, and the domains beside the default one that it may use, or single operators of one."""

FOREIGN = ("openvino", "tensorrt")
"""Forms of those who do not read operators of ONNX Runtime, whoever used them before, and read quantisation as pairs."""


@dataclass(frozen=True)
class Form:
    """Nodes as they are written at ``opset``, and the constants they read."""

    opset: int
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]


def in_form(graph: Graph, form: str) -> Graph:
    """``graph`` with operators of domains that ``form`` may not use spelled out; domains that the source used stay."""
    found = expanded(graph, lambda node: may_name(node, graph, form))
    found = for_openvino(found) if form == "openvino" else found if form in FOREIGN else for_onnxruntime(found)
    if any(node.attributes.bodies for node in found.nodes):
        found = found.with_nodes(
            [with_bodies(n, lambda body, names: (_body_in_form(body, form), names)) for n in found.nodes]
        )
    if not graph.devices or found is graph:
        return found
    known = {v for node in graph.nodes for v in node.outputs}
    return replace(found, devices=spread_to_parts(found.nodes, graph.devices, known))


def written(graph: Graph, form: str) -> tuple[Graph, Form]:
    """The graph in a form, and how its nodes are written there; worked out once. Raises `OutputError` as `choose_form` does."""
    found: tuple[Graph | None, Form] | None = graph.notes.get((written, form))
    if found is None:
        formed = in_form(graph, form)
        # a graph that held itself would be given back when the collector runs, with all its weights
        found = graph.notes[written, form] = None if formed is graph else formed, choose_form(formed)
    return found[0] or graph, found[1]


def may_name(node: Node, graph: Graph, form: str) -> bool:
    """Whether a file of that form names the operator of a node: one of a domain of its own, or of one that the source uses."""
    imports = frozenset(envelope_of(graph).imports)
    allowed = FORMS[form][1] | (imports - {"com.microsoft"} if form in FOREIGN else imports)
    return node.domain in allowed or node.key in allowed


def _body_in_form(body: Subgraph, form: str) -> Subgraph:
    changed = body.graph and in_form(body.graph, form)
    return body if changed is body.graph or changed is None else replace(body, opset=0, graph=changed)


class _Values:
    """What steps between versions ask of the graph. Implements `eqsat.frontends.onnx.versions.Values`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.added: dict[str, Constant] = {}
        self._same: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._names = {*graph.constants, *graph.inputs, *(o for n in graph.nodes for o in n.outputs)}

    def type_of(self, value: str) -> Type:
        return self.added[value].type if value in self.added else self.graph.type_of(value)

    def constant(self, value: str) -> np.ndarray | None:
        found = self.added.get(value) or self.graph.constants.get(value)
        return None if found is None else found.numpy()

    def add_constant(self, array: np.ndarray, stem: str) -> str:
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._same:
            self._same[key] = name = self.fresh_name(stem)
            self.added[name] = Constant.of(array)
        return self._same[key]

    def fresh_name(self, stem: str) -> str:
        return fresh_name(stem, self._names)

    def is_read(self, value: str) -> bool:
        return value in self._read

    @cached_property
    def _read(self) -> Counter[str]:
        return self.graph.reads()


def choose_form(graph: Graph) -> Form:
    """The graph at its source's opset, or at the first newer one that can express it and its bodies; at an older one if it can
    be, where ONNX Runtime would spell an operator out that it has a kernel for there, or leave to the CPU one that its execution
    provider has a kernel for, and where the file may not be as new as its source. Where no opset has all kernels of both, those
    of the CPU count alone.

    Raises `OutputError` if no opset can that the file may have and the installed ONNX Runtime loads.
    """
    form = _first_form(graph)
    if form.opset < _source(graph):
        return form
    for provider in dict.fromkeys((envelope_of(graph).provider, CPU)):
        opset = min((_with_kernel(op, form.opset, provider) for op in _operators(form.nodes)), default=form.opset)
        found = form if opset == form.opset else _lowered(graph, opset)
        if found is not None:
            return found
    return form


def _first_form(graph: Graph) -> Form:
    source, most = _source(graph), most_opset(graph)
    opset = min(source, most)
    if opset < source and envelope_of(graph).functions:
        raise OutputError(f"the model has functions, written for its opset {source}; it cannot be written at {opset}")
    while True:
        form, refused = _form_at(graph, opset, source)
        if not refused:
            return form
        for node, refusal in refused:
            if not refusal.needs:
                raise OutputError(f"{node.key} {node.name!r}: cannot be written at opset {opset}: {refusal.reason}")
        node, refusal = max(refused, key=lambda found: found[1].needs)
        if refusal.needs > most:
            raise OutputError(
                f"{node.key} {node.name!r}: {refusal.reason}, only from opset {refusal.needs} on, and the file may have "
                f"opset {most} at most"
            )
        if refusal.needs > source and not _loads(refusal.needs):
            raise OutputError(
                f"{node.key} {node.name!r}: {refusal.reason}, and the installed ONNX Runtime loads no opset above "
                f"{newest_opset()}; update it"
            )
        opset = refusal.needs


def _source(graph: Graph) -> int:
    """The opset that the graph came with; of one that came with none, the newest."""
    return graph.envelope.opset if isinstance(graph.envelope, Envelope) else newest_opset()


def _lowered(graph: Graph, opset: int) -> Form | None:
    """The graph at an older opset than it came with, if it has a form there.

    Functions, which are not read, forbid it, and so do operators of the source that ONNX Runtime spells out: what these compute
    may differ from their kernel on what is at the edge, like masks of the lowest number. Rules make nothing of that kind. What
    has no function to be spelled out by does not run as it is, like QuantizeLinear-28 in 1.32.
    """
    envelope, own = envelope_of(graph), _source(graph)
    if envelope.functions or any(_with_kernel(op, own) < own and has_function(op, own) for op in envelope.operators):
        return None
    form, refused = _form_at(graph, opset, own)
    return None if refused else form


@cache
def _with_kernel(op: str, opset: int, provider: str = CPU) -> int:
    """The newest opset up to ``opset`` at which ONNX Runtime has a kernel for an operator, and so has an execution provider if it
    has one at all; ``opset`` if there is none."""
    found = opset
    while found >= OLDEST and since_version(op, found):
        if not any(is_spelled_out(op, since_version(op, found), p) for p in {CPU, provider}):
            return found
        found = since_version(op, found) - 1
    return opset


def _operators(nodes: Iterable[Node]) -> set[str]:
    """Operators of the standard in nodes and in the bodies that are understood."""
    return {node.op for node in nodes_within(nodes) if not node.domain}


def form_of_body(graph: Graph, opset: int) -> Form:
    """The graph of a body at the opset of the graph around it."""
    form, refused = _form_at(graph, opset, envelope_of(graph, opset).opset)
    for node, refusal in refused:
        raise OutputError(f"{node.key} {node.name!r}: cannot be written at opset {opset}: {refusal.reason}")
    return form


def _form_at(graph: Graph, opset: int, source: int) -> tuple[Form, list[tuple[Node, Refusal]]]:
    """The graph at an opset, and the nodes that have no form there."""
    values = _Values(graph)
    nodes: list[Node] = []
    refused: list[tuple[Node, Refusal]] = []
    for node in graph.nodes:
        found = _at(node, opset, source, values)
        if isinstance(found, Refusal):
            refused.append((node, found))
        else:
            nodes.extend(found)
    used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
    constants = {k: c for k, c in graph.constants.items() if k in used}
    constants.update((k, c) for k, c in values.added.items() if k in used)
    return Form(opset, tuple(nodes), constants), refused


def may_hold(graph: Graph, op: str) -> bool:
    """Whether the graph may be written with an operator: at a newer opset that has it, if need be, which the installed ONNX
    Runtime must load, or at an older one for which that has the kernel. Opaque nodes and bodies that cannot be read, which stay
    as they are, must still mean the same there, and no operator may lose its kernel, as RoiAlign does at opset 22."""
    source, provider = envelope_of(graph).opset, envelope_of(graph).provider
    first = first_version(op)
    if first > most_opset(graph):
        return False
    if first <= source:
        opset = _with_kernel(op, source)
        return opset == source or _lowered(graph, opset) is not None
    held = [node for node in graph.nodes if node.opaque or node.domain]
    inner = (body.graph for node in held for body in node.attributes.bodies if body.graph is not None)
    return (
        _loads(first)
        and not any(_loses_its_kernel(o, source, first, provider) for o in _operators(graph.nodes))
        and not any(_only_valid_at_source(n, source, first) for n in held)
        and all(may_hold(g, op) for g in inner)
    )


def as_new_as_bodies(graph: Graph) -> Graph | None:
    """The graph, whose file may have the opset that its bodies need; ``None`` where the rest may not be of that."""
    if not isinstance(graph.envelope, Envelope):
        return graph
    try:
        opset = max(most_opset(graph), choose_form(at_any_opset(graph)).opset)
    except OutputError:
        return None
    own, provider = graph.envelope.opset, graph.envelope.provider
    if any(_loses_its_kernel(op, own, opset, provider) for op in _operators(graph.nodes)):
        return None
    return replace(graph, envelope=replace(graph.envelope, most_opset=opset))


def _loses_its_kernel(op: str, source: int, opset: int, provider: str) -> bool:
    """Whether ONNX Runtime, or its provider, has a kernel for an operator of the opset ``source``, and none for ``opset``."""
    return _with_kernel(op, source, provider) == source and _with_kernel(op, opset, provider) != opset


def _loads(opset: int) -> bool:
    """Whether the installed ONNX Runtime loads ``opset``; it is asked only about those that not every release loads."""
    return opset <= settled_opset() or opset <= newest_opset()


def _at(node: Node, opset: int, source: int, values: _Values) -> list[Node] | Refusal:
    if node.opaque or node.domain:
        clash = None if opset == source else _only_valid_at_source(node, source, opset)
        if clash:
            return Refusal(f"{clash} is only valid at the opset {source} of the model")
        for body in node.attributes.bodies:
            if body.graph is not None and body.opset != opset:
                for _, refusal in _form_at(body.graph, opset, source)[1]:
                    return refusal
        return [node]
    found = downgrade(node, opset, values)
    if isinstance(found, Refusal):
        return found
    for part in found:
        if not _allows(part, opset, values):
            first = next((o for o in range(opset + 1, OPSET + 1) if _allows(part, o, values)), 0)
            if first:
                return Refusal(f"{part.op} does not take these element types at opset {opset}", first)
    return found


def _only_valid_at_source(node: Node, source: int, opset: int) -> str:
    """Operator in an opaque node that means something else, or may, at ``opset``."""
    operators = [node.op] if not node.domain else []
    for body in node.attributes.bodies:
        if body.graph is None:
            operators.extend(_operators_in(body.proto))
    return next((op for op in operators if not means_the_same(op, source, opset)), "")


def _operators_in(proto: bytes) -> Iterable[str]:
    import onnx

    graph = onnx.GraphProto.FromString(proto)
    for body in (graph, *bodies_in(graph)):
        yield from (n.op_type for n in body.node if n.domain in DEFAULT_DOMAIN)


def _allows(node: Node, opset: int, values: _Values) -> bool:
    def dtypes(names: Iterable[str]) -> tuple[DType, ...]:
        return tuple(values.type_of(n).dtype if n else DType.UNDEFINED for n in names)

    return bool(since_version(node.op, opset)) and not refused_types(
        node.op, opset, dtypes(node.inputs), dtypes(node.outputs)
    )
