"""What random models are made of (`benchmarks.random_models`): operators, conformance cases, arrays, and runs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.onnx_backend_cases import cases
from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.ir.operator import OPSET, defined_operators
from eqsat.ir.operators.by_schema import RANDOM
from eqsat.ir.schema_operator import to_type_proto
from eqsat.ir.types import DType, type_of_array
from eqsat.samples import Sampler

IR_VERSION = 10
_BODIES = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(frozen=True)
class Theme:
    """What the models of a kind have in common: element types, opsets, ranks of inputs, and how often there are extreme
    constants, bodies, extents that are symbols, shapes that are computed, instances of left sides of rules, and oddities of
    files; and in how many steps they grow."""

    dtypes: Sequence[str] = ("float32",)
    opsets: tuple[int, int] = (13, OPSET)
    ranks: tuple[int, int] = (1, 4)
    wanted: Callable[[str], bool] = lambda op: True
    extreme: float = 0.02
    bodies: float = 0.0
    symbols: float = 0.2
    shapes: float = 0.0
    planted: float = 0.3
    oddities: float = 0.1
    steps: tuple[int, int] = (2, 16)


class Refused(Exception):
    """ONNX Runtime does not run what was drawn."""


def extreme(d: Sampler, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """Elements from the ends of the range of a type, zeros, denormals and what is no number."""
    if dtype is DType.BOOL:
        return np.full(shape, d.chance(), np.bool_)
    info: Any = ml_dtypes.finfo(dtype.numpy) if dtype.is_float else ml_dtypes.iinfo(dtype.numpy)
    ends = [0, 1, info.max, info.min]
    ends += [-0.0, np.inf, -np.inf, np.nan, info.smallest_subnormal, info.tiny] if dtype.is_float else []
    picked = d.subset(ends, 0.3) or [d.choose(ends)]
    with np.errstate(all="ignore"):
        return np.array(picked, dtype.numpy)[d.rng.integers(len(picked), size=tuple(shape))]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
    opset: int,
) -> onnx.ModelProto:
    declared = [helper.make_value_info(v, to_type_proto(type_of_array(a))) for v, a in inputs.items()]
    results = [helper.make_value_info(v, onnx.TypeProto()) for v in outputs]
    graph = helper.make_graph(nodes, "drawn", declared, results, [tensor(v, a) for v, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def ran(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, level: str = "disable", arena: bool = True
) -> dict[str, Any]:
    """What ONNX Runtime makes of it, as it is or rewritten. Raises `Refused`."""
    try:
        return Session(model, level, threads=1, arena=arena).run(feeds)
    except ModelError as error:
        raise Refused(str(error)) from None


def captured(node: onnx.NodeProto) -> set[str]:
    """What the bodies of a node read of the values around it."""
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.HasField("g"):
            body = attribute.g
            own = {v.name for v in (*body.input, *body.initializer)} | {o for n in body.node for o in n.output}
            reads = {v for n in body.node for v in (*n.input, *captured(n)) if v} | {o.name for o in body.output}
            found |= reads - own
    return found


def variadic(schema: onnx.defs.OpSchema, outputs: bool = False) -> bool:
    declared = schema.outputs if outputs else schema.inputs
    return bool(declared) and declared[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic


@cache
def dtypes() -> dict[str, np.dtype[Any]]:
    """The plain element types by the names that schemas use."""
    names = "float double float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"
    return {f"tensor({n})": DType[n.upper()].numpy for n in names.split()}


@cache
def operators(opset: int, defined: bool) -> tuple[str, ...]:
    """Those of the default domain at an opset, or those of them that have a definition of their own."""
    of_file = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain and s.since_version <= opset}
    current = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    known = of_file & current - RANDOM - set(_BODIES)
    return tuple(sorted(known & set(defined_operators()) if defined else known))


@cache
def examples(op: str) -> tuple[tuple[onnx.NodeProto, list[np.ndarray | None], int], ...]:
    """Conformance cases of one node of an operator: the node, its inputs and the opset."""
    return tuple(load_examples().get(op, ()))


@cache
def load_examples() -> dict[str, list[tuple[onnx.NodeProto, list[np.ndarray | None], int]]]:
    found: dict[str, list[tuple[onnx.NodeProto, list[np.ndarray | None], int]]] = {}
    for case in cases(("node",)):
        if len(case.model.graph.node) != 1 or not all(
            isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in case.inputs
        ):
            continue
        node, opset = case.model.graph.node[0], {e.domain: e.version for e in case.model.opset_import}.get("", 0)
        arrays = dict(zip((i.name for i in case.model.graph.input), case.inputs, strict=True))
        if opset and set(filter(None, node.input)) <= arrays.keys():
            found.setdefault(node.op_type, []).append((node, [arrays[v] if v else None for v in node.input], opset))
    return found
