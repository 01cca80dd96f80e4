"""Bodies of control flow as graphs: what is known of the values they are given, whatever the file says about them.

ONNX Runtime runs a Loop whose state changes its shape even where the file declares one shape for its body. So the types of a
state are those of its initial value, as far as the body hands on the same. A Scan it does not load where it finds out no rank
of a result, so what nothing else says of the rank of a value the file goes on declaring. And where a body never runs, its rows
have the extents that the file declares, so those are kept as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eqsat.errors import ModelError
from eqsat.frontends.onnx.nodes import RawNode
from eqsat.frontends.onnx.subgraphs import bodies_in, copy_of
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.schema_operator import to_type_proto
from eqsat.ir.types import UNKNOWN, Dim, TensorType, Type

Known = Mapping[str, Constant | Type]
ReadGraph = Callable[[Any, Known], Graph]
"""Reads the message of a body, given its captured constants and the types of its inputs and other captures."""


def read_body(raw: RawNode, proto: Any, opset: int, types: Sequence[Type], captured: Known, read: ReadGraph) -> Graph:
    """The graph of a body of ``raw``, whose own inputs have ``types``. Raises `ModelError` for one that is not covered."""
    if raw.op == "If" and not raw.domain:
        return read(proto, captured)
    if raw.domain or raw.op not in ("Loop", "Scan") or opset < 9:
        raise ModelError(f"bodies of {raw.op} at opset {opset} are not read")
    given, returned, slices = 2, 1, 0
    attributes = {a.name: a for a in raw.proto.attribute}
    if raw.op == "Scan":
        slices = attributes["num_scan_inputs"].i
        given, returned = 0, 0
    inputs, initial = [i.name for i in proto.input][given:], types[given:]
    if len(inputs) != len(initial) or not 0 <= slices <= len(inputs):
        raise ModelError(f"{raw.label}: its body has {len(proto.input)} inputs for {len(types)} of the node")
    states = len(inputs) - slices
    plain = copy_of(proto)
    for body in (plain, *bodies_in(plain)):
        del body.value_info[:]
        for output in body.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    axes = attributes["scan_input_axes"].ints if "scan_input_axes" in attributes else (0,) * slices
    if len(axes) != slices:
        raise ModelError(f"{raw.label}: scan_input_axes has {len(axes)} axes for {slices} inputs")
    sliced = {name: _slice(t, axis) for name, t, axis in zip(inputs[states:], initial[states:], axes, strict=True)}
    held: dict[str, Type] = dict(zip(inputs[:states], initial[:states], strict=True))
    open_dims: set[str] = set()
    while True:
        graph = read(plain, {**captured, **sliced, **held})
        results = [graph.type_of(name) for name in graph.outputs[returned : returned + states]]
        weaker = {name: _held(held[name], result, open_dims) for name, result in zip(held, results, strict=True)}
        if weaker == held:
            declared = {i.name: i.SerializeToString() for i in proto.input if _is_open(graph, i.name)}
            stacked = {o.name: o.SerializeToString() for o in proto.output[returned + states :]}
            envelope = replace(graph.envelope, inputs=declared, outputs=stacked)  # states: as they are, not as declared
            return replace(graph, envelope=envelope)
        held = weaker


def _is_open(graph: Graph, name: str) -> bool:
    """Whether not even the rank of a value is known."""
    found = graph.type_of(name)
    return isinstance(found, TensorType) and found.shape is None


def body_as_model(body: Any, known: Known, model: Any) -> Any:
    """A body as a model, whose last inputs are the values it captures that are no constants."""
    if model.ir_version < 4:
        raise ModelError("bodies of models before IR version 4 are not read")
    found = type(model)(ir_version=model.ir_version)
    found.opset_import.extend(model.opset_import)
    found.graph.CopyFrom(body)
    own = {i.name: i for i in found.graph.input}
    if own.keys() & {t.name for t in body.initializer}:
        raise ModelError("an input of the body has a default")
    for name, type_ in known.items():
        if isinstance(type_, Constant):
            continue
        info = own[name] if name in own else found.graph.input.add(name=name)
        if type_ != UNKNOWN or name not in own:
            info.type.CopyFrom(to_type_proto(type_))
    return found


def _slice(whole: Type, axis: int) -> Type:
    """What one iteration is given of a value that is scanned along an axis."""
    if not isinstance(whole, TensorType):
        return whole
    dims = list(whole.shape or ())
    if not -len(dims) <= axis < len(dims):
        return replace(whole, shape=None)
    del dims[axis]
    return replace(whole, shape=tuple(dims))


def _held(before: Type, after: Type, open_dims: set[str]) -> Type:
    """What holds of a state before an iteration as well as after it; ``open_dims``: extents known to be nothing."""
    if not isinstance(before, TensorType) or before.shape is None:
        return before
    if after.shape is None or len(after.shape) != len(before.shape):
        return replace(before, shape=None)
    dims: list[Dim] = []
    for a, b in zip(before.shape, after.shape, strict=True):
        if a != b and a not in open_dims:
            a = fresh_symbol()
            open_dims.add(a)
        dims.append(a)
    return replace(before, shape=tuple(dims))
