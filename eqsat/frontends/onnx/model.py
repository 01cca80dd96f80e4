"""Reading an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.errors import ModelError
from eqsat.frontends.onnx.bodies import body_as_model
from eqsat.frontends.onnx.counts import Counts, Least, least_extents
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.frontends.onnx.functions import inline_functions
from eqsat.frontends.onnx.nodes import RawNode, in_order, live, raw_nodes
from eqsat.frontends.onnx.reader import Reader, StaleTypes
from eqsat.frontends.onnx.source import default_opset, read_source, text
from eqsat.frontends.onnx.subgraphs import bodies_in, copy_of, locals_of, nodes_in
from eqsat.frontends.onnx.tensors import ExternalFiles, embed, embed_attributes, read_sparse, read_tensor
from eqsat.frontends.onnx.types import (
    Symbols,
    check_dims,
    fill_stored_types,
    fix_dims,
    name_dims,
    read_type,
    symbols_of,
)
from eqsat.ir.constants import Constant, ConstantPool
from eqsat.ir.graph import Graph
from eqsat.ir.operator import DEFAULT_DOMAIN, operator
from eqsat.ir.operators.devices import METADATA_KEY, spread_to_parts
from eqsat.ir.types import UNKNOWN, Dim, Type

if TYPE_CHECKING:
    import onnx
    import onnx_ir


def load_onnx(
    source: str | Path | onnx.ModelProto | onnx_ir.Model,
    *,
    dims: Mapping[str, Dim] | None = None,
    no_overrides: bool = False,
) -> Graph:
    """The graph of an ONNX model, at the operators' newest form, with the types of all its values.

    Weights stay where they are: those in external files are mapped. Nodes and weights that no output needs are dropped,
    equal constants become one, functions are inlined. What the optimizer cannot read (other domains, control flow,
    opsets below 7) stays in the graph as opaque nodes.

    ``dims`` gives extents to symbolic dimensions by name, or another name, by which two become one. Extents of inputs without
    a name get one, ``input.axis``. ``no_overrides``: initializers are constants, listed among the inputs or not. Raises
    `ModelError` for a model that cannot be read or is inconsistent, `ShapeError` where shapes contradict each other,
    `OptionError` for ``dims`` the model does not have.
    """
    model, folders, label = read_source(source)
    if no_overrides:
        values = {tensor.name for tensor in model.graph.initializer}
        taken = [copy_of(info) for info in model.graph.input if info.name not in values]
        del model.graph.input[:]
        model.graph.input.extend(taken)
    name_dims(model)
    check_dims(dims or {}, model.graph)
    dims = {name: extent if isinstance(extent, str) else int(extent) for name, extent in (dims or {}).items()}
    try:
        files = ExternalFiles(folders)
        _embed_what_is_kept(model, files)
        graph = _graph_of(inline_functions(model), files, dims)
    except ModelError as error:
        message = str(error).replace("\n", "\\n")  # names in a file may hold anything
        raise type(error)(f"{label}: {message}") from None
    if isinstance(source, str | Path) and isinstance(graph.envelope, Envelope):
        return replace(graph, envelope=replace(graph.envelope, path=Path(source).absolute()))
    return graph


def _embed_what_is_kept(model: Any, files: ExternalFiles) -> None:
    """Bodies and functions are kept as the messages that they are, and may be written elsewhere: where there is no such file."""
    for body in bodies_in(model.graph):
        embed_attributes(body.node, files)
    for function in model.functions:
        embed_attributes(nodes_in(function), files)
        for body in bodies_in(function):
            for tensor in body.initializer:
                embed(tensor, files)


def _graph_of(
    model: Any, files: ExternalFiles, dims: dict[str, Dim], outer: Mapping[str, Constant | Type] | None = None
) -> Graph:
    """The graph of a model; ``outer``: what is known of values that it captures, as the body of a control-flow operator."""
    proto, opset = model.graph, default_opset(model)
    inputs, constants, defaults = _inputs_and_initializers(model, files)
    constants.update((name, found) for name, found in (outer or {}).items() if isinstance(found, Constant))
    bodies = list(bodies_in(proto))
    for body in bodies:
        _move_external_weights_out(body, constants, inputs, files)
    raw = raw_nodes(proto, constants, inputs, files)
    ordered = in_order(raw, {*constants, *inputs})
    outputs = tuple(o.name for o in proto.output)
    _check_outputs(outputs, {*constants, *inputs, *(o for n in raw for o in n.outputs)})
    nodes, needed = live(ordered, outputs)
    pool = ConstantPool()
    constants = {name: pool.intern(c) for name, c in constants.items() if name in needed}
    symbols = Symbols(frozenset(symbols_of(inputs.values())), dims, ours=outer is not None)
    types = {i: read_type(info.type, symbols, f"input {i!r}") for i, info in inputs.items()}
    for name, default in defaults.items():
        types[name] = default.type if types[name] == UNKNOWN else types[name]
    declared = {o.name: read_type(o.type, symbols, f"output {o.name!r}") for o in proto.output}
    stored: dict[str, Type] = {i.name: read_type(i.type, symbols, f"value {i.name!r}") for i in proto.value_info}
    untyped = [o for n in nodes if n.has_body for o in n.outputs if o and o not in stored and o not in declared]
    if untyped:
        fill_stored_types(model, stored, untyped, symbols)
    names = {*constants, *inputs, *(o for n in raw for o in n.outputs)}
    for body in bodies:
        names |= locals_of(body)
    told = {**declared, **stored}
    reader = _read(
        nodes,
        told,
        lambda known_types, counts: Reader(
            opset,
            types,
            known_types,
            constants,
            pool,
            files,
            set(names),
            set(needed),
            lambda body, known: _graph_of(body_as_model(body, known, model), files, dims, known),
            counts,
        ),
    )
    envelope = _envelope(model, opset, dims, defaults, reader)
    graph = Graph(
        tuple(reader.nodes),
        tuple(inputs),
        outputs,
        reader.types,
        reader.constants,
        text(proto.name) or "graph",
        envelope,
        spread_to_parts(reader.nodes, _devices(proto, reader), {o for n in raw for o in n.outputs}),
    )
    return graph.pruned()  # of sequences that tensors have taken the place of


def _read(nodes: Sequence[RawNode], told: dict[str, Type], made: Callable[[dict[str, Type], Counts], Reader]) -> Reader:
    """A reader, made with as many of the types that the file tells as contradict nothing, after all ``nodes``."""
    for known in (told, _of_opaque(nodes, told), _of_opaque(nodes, told, defined=False), dict[str, Type]()):
        try:
            return _read_counting(nodes, lambda counts, known=known: made(known, counts))
        except StaleTypes:
            continue
    raise ModelError("the types of values that the file tells contradict one another")


def _read_counting(nodes: Sequence[RawNode], made: Callable[[Counts], Reader]) -> Reader:
    """A reader after all ``nodes``, which it reads again as long as these say more of the least extents, and that matters."""
    least: Least = {}
    while True:
        reader = made(Counts(least))
        for node in nodes:
            reader.read(node)
        found = least_extents(reader.nodes, reader.types) if reader.counts.undecided else least
        if found == least:
            return reader
        least = found


def _devices(proto: Any, reader: Reader) -> dict[str, str]:
    """Devices that the metadata of nodes and inputs name, by value."""
    named = [((info.name,), info.metadata_props) for info in proto.input]
    named += [(tuple(node.output), node.metadata_props) for node in proto.node]
    found = {v: text(p.value) for values, props in named for p in props if p.key == METADATA_KEY for v in values if v}
    if not found:
        return found
    left = {*(i.name for i in proto.input), *(v for n in reader.nodes for v in n.outputs)}
    return {v: device for v, device in found.items() if v in left}


def _of_opaque(nodes: Sequence[RawNode], stored: dict[str, Type], *, defined: bool = True) -> dict[str, Type]:
    """Stored types of values that nothing else tells the type of; ``defined``: those of operators of other domains, too, that are
    defined, but perhaps not as a node uses them."""
    foreign = [n for n in nodes if n.domain and (defined or operator(n.op, n.domain) is None)]
    wanted = {o for n in (*foreign, *(n for n in nodes if n.has_body)) for o in n.outputs}
    return {name: type for name, type in stored.items() if name in wanted}


def _inputs_and_initializers(
    model: Any, files: ExternalFiles
) -> tuple[dict[str, Any], dict[str, Constant], dict[str, Constant]]:
    """Inputs by name, constants, and initializers that are defaults of inputs.

    Before IR version 4 every initializer is listed among the inputs and is a constant all the same.
    """
    proto = model.graph
    inputs: dict[str, Any] = {}
    for info in proto.input:
        if info.name in inputs:
            raise ModelError(f"input {info.name!r} is declared twice")
        inputs[info.name] = info
    constants: dict[str, Constant] = {}
    defaults: dict[str, Constant] = {}
    for tensor in proto.initializer:
        if tensor.name in constants or tensor.name in defaults:
            raise ModelError(f"initializer {tensor.name!r} is defined twice")
        (defaults if tensor.name in inputs and model.ir_version >= 4 else constants)[tensor.name] = read_tensor(
            tensor, files
        )
    for sparse in proto.sparse_initializer:
        if sparse.values.name in constants:
            raise ModelError(f"initializer {sparse.values.name!r} is defined twice")
        constants[sparse.values.name] = read_sparse(sparse, files)
    return {n: i for n, i in inputs.items() if n not in constants}, constants, defaults


def _move_external_weights_out(
    body: Any, constants: dict[str, Constant], inputs: Mapping[str, Any], files: ExternalFiles
) -> None:
    """Weights of a body that lie in a file become constants of the graph, which the body captures.

    Those that it returns it has to hold itself.
    """
    own = {v.name for v in (*body.input, *body.output)}
    kept: list[Any] = []
    for tensor in body.initializer:
        if not tensor.data_location:
            kept.append(tensor)
        elif tensor.name in own or tensor.name in constants or tensor.name in inputs:
            embed(tensor, files)
            kept.append(tensor)
        else:
            constants[tensor.name] = read_tensor(tensor, files)
    if len(kept) < len(body.initializer):
        copies = [copy_of(t) for t in kept]
        del body.initializer[:]
        body.initializer.extend(copies)


def _check_outputs(outputs: tuple[str, ...], defined: set[str]) -> None:
    if not outputs:
        raise ModelError("the graph has no outputs")
    for name in outputs:
        if name not in defined:
            raise ModelError(f"output {name!r} of the graph is not defined by any node")


def _imports(model: Any, used: set[str]) -> dict[str, int]:
    """Versions of the domains beside the default one. Of those that are used and not imported runtimes take the newest."""
    from onnx.defs import get_all_schemas

    imports = {text(i.domain): i.version for i in model.opset_import}
    for domain in sorted(used - set(imports)):
        imports[domain] = max((s.since_version for s in get_all_schemas() if s.domain == domain), default=1)
    return {domain: version for domain, version in imports.items() if domain not in DEFAULT_DOMAIN}


def _envelope(model: Any, opset: int, dims: dict[str, Dim], defaults: dict[str, Constant], reader: Reader) -> Envelope:
    proto = model.graph
    for info in (*proto.input, *proto.output):
        fix_dims(info, dims)
    nodes = [n for g in (proto, *bodies_in(proto)) for n in g.node]
    return Envelope(
        opset=opset,
        imports=_imports(model, {text(n.domain) for n in nodes}),
        operators=frozenset(n.op_type for n in nodes if n.domain in DEFAULT_DOMAIN),
        ir_version=model.ir_version,
        producer=(text(model.producer_name), text(model.producer_version)),
        domain=text(model.domain),
        model_version=model.model_version,
        doc=text(model.doc_string),
        graph_doc=text(proto.doc_string),
        metadata=tuple((text(p.key), text(p.value)) for p in model.metadata_props),
        graph_metadata=tuple((text(p.key), text(p.value)) for p in proto.metadata_props),
        inputs={i.name: i.SerializeToString(deterministic=True) for i in proto.input},
        outputs={o.name: o.SerializeToString(deterministic=True) for o in proto.output},
        quantization=tuple(a.SerializeToString(deterministic=True) for a in proto.quantization_annotation),
        functions=tuple(f.SerializeToString(deterministic=True) for f in model.functions),
        defaults=defaults,
        dims=dims,
        known=reader.known,
    )
