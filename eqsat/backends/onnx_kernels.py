"""Kernels as functions of the model: one node of the main graph per launch, which calls the function that says what it does.

Kernels of one body (operators, attributes, types of what crosses the boundary) share a function. Weights stay with the
main graph and are passed; what tells shapes and axes, and scalars that all kernels of a function agree on, live inside it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import onnx

from eqsat.backends.onnx_form import Form
from eqsat.backends.onnx_nodes import tensor_bytes, write_node, write_tensor, write_type
from eqsat.errors import OutputError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operators.devices import METADATA_KEY, device_of, spread_to_parts
from eqsat.ir.order import dependency_order
from eqsat.ir.types import UNKNOWN, DType, Type

KERNEL_DOMAIN = "eqsat.kernel"
"""Domain of the functions."""

_LIST_LIMIT = 64  # elements of a list of integers that tells a shape, axes or indices


class Kernel(Protocol):
    """What is asked of a kernel of a program: its label, and which nodes of the graph it computes."""

    @property
    def name(self) -> str: ...

    @property
    def template(self) -> str: ...

    @property
    def nodes(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Calls:
    """``nodes`` of the main graph, in order, the ``functions`` they call, ``values`` that cross from kernel to kernel, and the
    ``constants`` that are passed."""

    nodes: tuple[onnx.NodeProto, ...]
    functions: tuple[onnx.FunctionProto, ...]
    values: tuple[onnx.ValueInfoProto, ...]
    constants: dict[str, Constant]


@dataclass(frozen=True)
class _Body:
    """A kernel under names of its own. ``inputs`` and ``outputs``: value of the graph -> name in the function; ``inside``:
    the same for constants that always live there, ``scalars``: for those that do where all kernels agree."""

    kernel: Kernel
    inputs: dict[str, str]
    outputs: dict[str, str]
    inside: dict[str, str]
    scalars: dict[str, str]
    nodes: tuple[onnx.NodeProto, ...]
    types: tuple[onnx.ValueInfoProto, ...]
    key: tuple[object, ...]
    doc: str
    device: str


def call_kernels(
    program: Graph, kernels: Sequence[Kernel], graph: Graph, form: Form, imports: Mapping[str, int]
) -> Calls:
    """The nodes of ``form``, those of ``graph`` as they are written, as calls of a function per kernel.

    ``kernels`` index the nodes of ``program``, of which ``graph`` is another form. ``imports``: version of each domain. Raises
    `OutputError` unless the kernels cover the program and can run one after the other.
    """
    groups = _nodes_by_kernel(program, kernels, form)
    owner = {v: i for i, nodes in groups.items() for n in nodes for v in n.outputs if v}
    crossing = {v for i, nodes in groups.items() for n in nodes for v in n.inputs if owner.get(v, i) != i}
    crossing.update(v for v in graph.outputs if v in owner)
    known = set(owner)
    devices = spread_to_parts(form.nodes, graph.devices, known)
    bodies = [_body(kernels[i], groups[i], program, graph, form, crossing, devices) for i in _in_order(groups, owner)]
    alike: dict[tuple[object, ...], list[_Body]] = {}
    for body in bodies:
        alike.setdefault(body.key, []).append(body)
    functions: dict[tuple[object, ...], onnx.FunctionProto] = {}
    passed: dict[tuple[object, ...], frozenset[str]] = {}
    counts: dict[str, int] = {}
    for key, same in alike.items():
        stem = re.sub(r"\W+", "_", same[0].kernel.template)
        counts[stem] = counts.get(stem, 0) + 1
        passed[key] = frozenset(_disagreed(same, form))
        functions[key] = _function(f"{stem}_{counts[stem]}", same, passed[key], form, imports)
    calls: list[onnx.NodeProto] = []
    constants = {v: c for v, c in form.constants.items() if v in graph.outputs}
    for body in bodies:
        call = onnx.NodeProto(domain=KERNEL_DOMAIN, op_type=functions[body.key].name, name=body.kernel.name)
        call.doc_string = body.doc
        call.input.extend((*body.inputs, *(v for v, own in body.scalars.items() if own in passed[body.key])))
        call.output.extend(body.outputs)
        if body.device:
            call.metadata_props.add(key=METADATA_KEY, value=body.device)
        calls.append(call)
        constants.update((v, form.constants[v]) for v in call.input if v in form.constants)
    values = [
        onnx.ValueInfoProto(name=v, type=write_type(graph.type_of(v)))
        for body in bodies
        for v in body.outputs
        if v not in graph.outputs and graph.type_of(v) != UNKNOWN
    ]
    return Calls(tuple(calls), tuple(functions.values()), tuple(values), constants)


def _nodes_by_kernel(program: Graph, kernels: Sequence[Kernel], form: Form) -> dict[int, list[Node]]:
    """Nodes as they are written by the kernel they belong to."""
    defined = {v: str(i) for i, k in enumerate(kernels) for n in k.nodes for v in program.nodes[n].outputs if v}
    for node in program.nodes:
        if not device_of(node, defined):
            raise OutputError(
                f"{node.key} {node.name!r}: is in no kernel; the form functions takes an optimised program"
            )
    # Nodes that came about in spelling out belong to what reads them, as with devices.
    owner = spread_to_parts(form.nodes, defined, set(defined))
    groups: dict[int, list[Node]] = {}
    for node in form.nodes:
        groups.setdefault(int(device_of(node, owner)), []).append(node)
    return groups


def _in_order(groups: Mapping[int, Sequence[Node]], owner: Mapping[str, int]) -> list[int]:
    """Kernels, each after those it reads from; otherwise as they come."""
    before = {i: {owner[v] for n in nodes for v in n.inputs if v in owner} - {i} for i, nodes in groups.items()}
    order = dependency_order(before)
    if len(order) != len(groups):
        raise OutputError("kernels of the program wait for each other; they cannot be called one after the other")
    return order


def _body(
    kernel: Kernel,
    nodes: Sequence[Node],
    program: Graph,
    graph: Graph,
    form: Form,
    crossing: set[str],
    devices: Mapping[str, str],
) -> _Body:
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    inside: dict[str, str] = {}
    scalars: dict[str, str] = {}
    names: dict[str, str] = {"": ""}
    for node in nodes:
        for value in node.inputs:
            if value in names:
                continue
            constant = form.constants.get(value)
            if constant is None:
                kind, stem = inputs, "x"
            elif constant.dtype is DType.INT64 and constant.size <= _LIST_LIMIT:
                kind, stem = inside, "k"
            elif constant.size == 1 and constant.dtype is not DType.STRING and constant.dtype.bits >= 8:
                kind, stem = scalars, "s"
            else:
                kind, stem = inputs, "w"
            names[value] = kind[value] = f"{stem}{len(kind)}"
        for value in node.outputs:
            if value in crossing:
                names[value] = outputs[value] = f"y{len(outputs)}"
            elif value:
                names[value] = f"v{len(names)}"
    taken = set(names.values())
    device = device_of(nodes[-1], devices)
    written: list[onnx.NodeProto] = []
    for node in nodes:
        own = (tuple(names[v] for v in values) for values in (node.inputs, node.outputs))
        proto = write_node(replace(node, inputs=next(own), outputs=next(own), name=""), form.opset, taken)
        if on := device_of(node, devices):
            proto.metadata_props.add(key=METADATA_KEY, value=on)
        written.append(proto)
    types = tuple(
        onnx.ValueInfoProto(name=own, type=write_type(found))
        for value, own in names.items()
        if value and value not in inside and (found := _type(form, graph, value)) != UNKNOWN
    )
    key = (
        kernel.template,
        tuple(n.SerializeToString(deterministic=True) for n in written),
        tuple(t.SerializeToString(deterministic=True) for t in types),
        tuple((own, *_bits(form.constants[v])) for v, own in inside.items()),
    )
    origin = ", ".join(program.nodes[n].name or program.nodes[n].op for n in kernel.nodes)
    return _Body(
        kernel, inputs, outputs, inside, scalars, tuple(written), types, key, f"{kernel.template}: {origin}", device
    )


def _type(form: Form, graph: Graph, value: str) -> Type:
    return form.constants[value].type if value in form.constants else graph.type_of(value)


def _bits(constant: Constant) -> tuple[int, tuple[int, ...], bytes]:
    return int(constant.dtype), constant.shape, bytes(tensor_bytes(constant))


def _disagreed(same: Sequence[_Body], form: Form) -> list[str]:
    """Scalars, by their names in the function, whose values the kernels that share it do not agree on."""
    rows = ([_bits(form.constants[v]) for v in body.scalars] for body in same)
    return [
        own for own, bits in zip(same[0].scalars.values(), zip(*rows, strict=True), strict=False) if len({*bits}) > 1
    ]


def _function(
    name: str, same: Sequence[_Body], passed: frozenset[str], form: Form, imports: Mapping[str, int]
) -> onnx.FunctionProto:
    first = same[0]
    proto = onnx.FunctionProto(name=name, domain=KERNEL_DOMAIN)
    lines = (f"{body.kernel.name}: {body.doc.split(': ', 1)[1]}" for body in same)
    proto.doc_string = "\n".join((f"template {first.kernel.template}", *lines))
    proto.input.extend((*first.inputs.values(), *(own for own in first.scalars.values() if own in passed)))
    proto.output.extend(first.outputs.values())
    for value, own in (*first.inside.items(), *first.scalars.items()):
        if own not in passed:
            node = proto.node.add(op_type="Constant", output=[own])
            node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(
                write_tensor(own, form.constants[value])
            )
    proto.node.extend(first.nodes)
    proto.value_info.extend(first.types)
    proto.opset_import.add(domain="", version=form.opset)
    for domain in sorted(_domains(first.nodes)):
        proto.opset_import.add(domain=domain, version=imports[domain])
    return proto


def _domains(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Domains, beside the default one, of nodes and of those in their bodies."""
    from eqsat.frontends.onnx.subgraphs import bodies_in

    graph = onnx.GraphProto()
    graph.node.extend(nodes)
    found = {n.domain for body in (graph, *bodies_in(graph)) for n in body.node}
    return found - {"", "ai.onnx"}
