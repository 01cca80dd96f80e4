"""Writing a graph as an ONNX model: in memory, or to a file that appears whole or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BufferedWriter
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from eqsat.backends.onnx_form import Form, choose_form, in_form, written
from eqsat.backends.onnx_kernels import KERNEL_DOMAIN, Calls, Kernel, call_kernels
from eqsat.backends.onnx_nodes import declare, describe_graph, write_node, write_tensor
from eqsat.backends.onnx_weights import external_tensor, lay_out, write_weights
from eqsat.errors import OutputError, as_path
from eqsat.frontends.onnx.envelope import Envelope, envelope_of
from eqsat.ir.constants import Constant, File, rewritten_files
from eqsat.ir.graph import Graph, nodes_within
from eqsat.ir.operators.devices import METADATA_KEY, device_of, spread_to_parts
from eqsat.ir.types import DType
from eqsat.output import check_place, write_files

EMBED_LIMIT_BYTES = 8 << 20
"""Models whose constants take no more than this are written as one file."""

_MESSAGE_LIMIT_BYTES = (2 << 30) - (1 << 20)  # protobuf messages end at 2 GiB
_DOMAIN_VERSIONS = {"ai.onnx.ml": 3}
_IR_OF_CONSTANTS = 4  # before it, constants had to be listed as inputs
_IR_OF_FUNCTIONS = 10  # before it, functions did not say the types of their values
_IR_OF_METADATA = 10  # before it, nodes had no metadata
_IR_OF_DTYPE = {
    DType.UINT4: 10,
    DType.INT4: 10,
    DType.FLOAT4E2M1: 11,
    DType.FLOAT8E8M0: 12,
    DType.UINT2: 13,
    DType.INT2: 13,
}


def to_model(graph: Graph, *, form: str = "onnxruntime", kernels: Sequence[Kernel] = ()) -> onnx.ModelProto:
    """``graph`` as one message, weights included; ``form`` and ``kernels`` as for `save_onnx`.

    Raises `OutputError` above 2 GiB: `save_onnx` has no such limit.
    """
    total = sum({id(c): c.bytes for c in graph.constants.values()}.values())
    if total > _MESSAGE_LIMIT_BYTES:
        raise OutputError(f"model: {total} bytes of constants do not fit into one message of 2 GiB; save it to a file")
    formed, chosen, calls = _formed(graph, form, kernels)
    return _model(formed, write_tensor, chosen, calls)


def to_model_and_weights(
    graph: Graph, threshold_bytes: int = 1024, names: Mapping[File, str] = MappingProxyType({})
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """``graph`` as a message that refers to its large constants: to where they lie in files that have ``names``, or else to the
    arrays returned with it, for `onnxruntime.SessionOptions.add_external_initializers`.
    """
    weights: dict[str, np.ndarray] = {}

    def write(name: str, constant: Constant) -> onnx.TensorProto:
        source = constant.source
        if constant.bytes < threshold_bytes:
            return write_tensor(name, constant)
        if source is not None and source.file in names:
            return external_tensor(name, constant, names[source.file], source.offset)
        if constant.dtype is DType.STRING or constant.dtype.bits < 8:
            return write_tensor(name, constant)
        weights[name] = constant.numpy()
        return external_tensor(name, constant, "lent", 0)

    return _model(in_form(graph, "onnxruntime"), write), weights


def save_onnx(
    graph: Graph,
    path: str | Path,
    *,
    form: str = "flat",
    kernels: Sequence[Kernel] = (),
    external_threshold_bytes: int = 1024,
    embed_limit_bytes: int = EMBED_LIMIT_BYTES,
    spared: Collection[Path] = (),
) -> None:
    """Writes ``graph`` to ``path``, at the opset it came with or another that it needs: see `choose_form`.

    ``form``: one of `eqsat.backends.onnx_form.FORMS`; ``kernels``: of the program whose graph this is, for the form
    ``functions``.

    If all constants together take more than ``embed_limit_bytes``, those of at least ``external_threshold_bytes`` go to
    a second file ``<name>.data`` next to it. Both files are replaced after they are complete, so that a model may be
    written over the one it was read from. Written elsewhere it leaves the files alone that its weights were read from, and
    those ``spared``: then the second file is called ``<name>.1.data``. Equal graphs give equal bytes. Raises `OutputError` if
    the graph cannot be written there.
    """
    path = as_path(path, OutputError, "path")
    check_place(path)
    graph, chosen, calls = _formed(graph, form, kernels)
    envelope = envelope_of(graph)
    constants = [c for _, c in sorted(chosen.constants.items())] + list(envelope.defaults.values())
    total = sum({id(c): c.bytes for c in constants}.values())
    layout = lay_out(constants if total > embed_limit_bytes else (), external_threshold_bytes)
    spared = {*spared, *(c.source.path for c in constants if c.source is not None)}
    if rewritten := rewritten_files(constants):
        raise OutputError(
            f"{path}: {rewritten[0]} was written to since the model was read from it; load the model again"
        )
    location = _name_of_weights(path, spared, envelope.path)

    def write(name: str, constant: Constant) -> onnx.TensorProto:
        if constant in layout:
            return external_tensor(name, constant, location, layout.offsets[id(constant)])
        return write_tensor(name, constant)

    model = _model(graph, write, chosen, calls)
    try:
        message = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf has no error of its own for messages above 2 GiB
        raise OutputError(f"{path}: the model does not fit into a message: {' '.join(str(error).split())}") from None
    files: dict[Path, Callable[[BufferedWriter], object]] = {}
    if layout.constants:
        files[path.with_name(location)] = lambda file: write_weights(file, layout)
    files[path] = lambda file: file.write(message)
    try:
        write_files(files)
    except OSError as error:
        raise OutputError(f"{path}: cannot write the model: {error.strerror or error}") from None


def _name_of_weights(path: Path, spared: Collection[Path], source: Path | None) -> str:
    """What to call the weights of the model at ``path``. Raises `OutputError` if that is a file that others need."""
    if any(map(partial(_is_same_file, path), spared)):
        raise OutputError(f"{path}: holds weights of the model that was read; name another file")
    replaced = source is not None and _is_same_file(path, source)
    name, count = f"{path.name}.data", 0
    while not replaced and any(_is_same_file(path.with_name(name), file) for file in spared):
        count += 1
        name = f"{path.name}.{count}.data"
    return name


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _formed(program: Graph, form: str, kernels: Sequence[Kernel]) -> tuple[Graph, Form, Calls | None]:
    """The graph in a form, how its nodes are written, and the calls of its kernels if the form has any."""
    graph, chosen = written(program, form)
    if form != "functions":
        return graph, chosen, None
    calls = call_kernels(program, kernels, graph, chosen, _imports(chosen, envelope_of(graph)))
    return graph, replace(chosen, constants=calls.constants), calls


def _model(
    graph: Graph,
    write: Callable[[str, Constant], onnx.TensorProto],
    form: Form | None = None,
    calls: Calls | None = None,
) -> onnx.ModelProto:
    form = form or choose_form(graph)
    envelope = envelope_of(graph)
    proto = onnx.GraphProto()
    taken = {*form.constants, *graph.inputs, *(o for n in form.nodes for o in n.outputs if o)}
    if calls is None:
        proto.node.extend(write_node(n, form.opset, taken) for n in form.nodes)
        proto.value_info.extend(declare(graph))
    else:
        proto.node.extend(calls.nodes)
        proto.value_info.extend(calls.values)
        taken = {*form.constants, *graph.inputs, *(o for n in calls.nodes for o in n.output)}
    describe_graph(proto, graph, graph.inputs, taken)
    proto.initializer.extend(write(k, c) for k, c in sorted(form.constants.items()))
    proto.initializer.extend(write(k, c) for k, c in envelope.defaults.items() if k in graph.inputs)
    if graph.devices:
        devices = spread_to_parts(form.nodes, graph.devices, {v for n in graph.nodes for v in n.outputs})
        if calls is None:
            _name_devices_of_nodes(proto, form, devices)
        _name_devices_of_inputs(proto, devices)
    _set_properties(proto, envelope.graph_metadata)
    least = _IR_OF_METADATA if graph.devices else _IR_OF_FUNCTIONS if calls else _IR_OF_CONSTANTS
    model = onnx.ModelProto(ir_version=_ir_version(form, envelope, least), graph=proto)
    model.producer_name, model.producer_version = envelope.producer
    model.domain, model.model_version, model.doc_string = envelope.domain, envelope.model_version, envelope.doc
    _set_properties(model, envelope.metadata)
    model.functions.extend(map(onnx.FunctionProto.FromString, envelope.functions))
    model.opset_import.add(domain="", version=form.opset)
    for domain, version in _imports(form, envelope).items():
        model.opset_import.add(domain=domain, version=version)
    if calls is not None:
        model.functions.extend(calls.functions)
        model.opset_import.add(domain=KERNEL_DOMAIN, version=1)
    return model


def _imports(form: Form, envelope: Envelope) -> dict[str, int]:
    """Version of every domain but the default one and that of kernels."""
    imports = {domain: version for domain, version in envelope.imports.items() if domain != KERNEL_DOMAIN}
    for domain in (node.domain for node in nodes_within(form.nodes) if node.domain):
        imports.setdefault(domain, _DOMAIN_VERSIONS.get(domain, 1))
    return imports


def _ir_version(form: Form, envelope: Envelope, least: int) -> int:
    """That of the source, or an older one if the file may not be as new; at least ``least`` and what the element types need."""
    dtypes = {c.dtype for c in form.constants.values()}
    return max(min(envelope.ir_version, envelope.most_ir_version), least, *(_IR_OF_DTYPE.get(d, 0) for d in dtypes))


def _name_devices_of_nodes(proto: onnx.GraphProto, form: Form, devices: Mapping[str, str]) -> None:
    for message, node in zip(proto.node, form.nodes, strict=True):
        device = device_of(node, devices)
        if device:
            message.metadata_props.add(key=METADATA_KEY, value=device)


def _name_devices_of_inputs(proto: onnx.GraphProto, devices: Mapping[str, str]) -> None:
    for info in proto.input:
        kept = [p for p in info.metadata_props if p.key != METADATA_KEY]
        if info.name in devices or len(kept) != len(info.metadata_props):
            del info.metadata_props[:]
            info.metadata_props.extend(kept)
        if info.name in devices:
            info.metadata_props.add(key=METADATA_KEY, value=devices[info.name])


def _set_properties(message: onnx.ModelProto | onnx.GraphProto, properties: tuple[tuple[str, str], ...]) -> None:
    for key, value in properties:
        message.metadata_props.add(key=key, value=value)
