"""Models with many copies of a kernel, which find their operands where kernels of a network find theirs.

- Weights: every copy has its own, all different (the runtime keeps one of equal weights once it has rearranged them).
- Activations: copies take turns with as many buffers as fill the inner caches several times, for in a network other kernels
  run, and weights pass, between the one that writes a value and the one that reads it.
- A result of the type of the first operand is the first operand of the next copy with these buffers: a kernel that can write over
  what it reads does so. Any other result is read, by a node that looks at its shape only, a turn later, and then freed: its
  memory is that of the next result, as in a network. (Memory of a result that nobody reads is not used again.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from eqsat.backends.onnx_weights import external_tensor
from eqsat.calibrate.case import Case, Operand
from eqsat.ir.constants import Constant
from eqsat.ir.operator import domain_in_files, split_key
from eqsat.ir.types import DType, TensorType, is_sequence

_TURN_BYTES = 8e6
"""Activations of all buffers together: several times what the cores' own caches hold, and less than the last cache does."""
LONGEST_CHAIN = 8
"""Copies that work on one buffer: what is computed again and again ends in numbers that take longer."""
_MOST_BUFFERS = 64
"""Inputs of the model for each operand: a run spends a tenth of a microsecond on each."""
_LEAST_RELEASED = 1 << 13
"""Bytes of results below which all copies' fit a cache anyway."""


def turns_of(case: Case) -> int:
    """How many buffers there should be."""
    each = sum(o.type.bytes or 0 for o in case.operands if o is not None and o.changes)
    return min(math.ceil(_TURN_BYTES / max(each, 1)), _MOST_BUFFERS)


def weight_bytes(case: Case) -> int:
    """Bytes that every copy reads from weights of its own."""
    return sum(o.type.bytes or 0 for o in case.operands if o is not None and o.weight)


def is_chain(case: Case, results: Sequence[TensorType]) -> bool:
    """Whether the result of a copy is the first operand of another."""
    first = case.operands[0] if case.operands else None
    return (
        len(results) == 1 and first is not None and first.changes and first.limit is None and first.type == results[0]
    )


@dataclass(frozen=True)
class Model:
    """A model, the values of its inputs, arrays of its weights, and how many nodes it has that only look at a shape."""

    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    releases: int


def build(case: Case, copies: int, results: Sequence[TensorType] = ()) -> Model:
    """A model of ``copies`` kernels. ``results``: types of a kernel's outputs; without them every copy stands by itself."""
    domain, op = split_key(case.key)
    domain = domain_in_files(op, domain)
    chain = is_chain(case, results)
    buffers = math.ceil(copies / LONGEST_CHAIN) if chain else min(copies, turns_of(case))
    released = [j for j, result in enumerate(results) if (result.bytes or 0) >= _LEAST_RELEASED]
    given = _Given()
    operands = [given.names(i, operand, copies, buffers) for i, operand in enumerate(case.operands)]
    attributes: dict[str, Any] = {k: list(v) if is_sequence(v) else v for k, v in case.attributes.items()}
    nodes: list[onnx.NodeProto] = []
    releases = 0
    for k in range(copies):
        read = [names[k] for names in operands]
        if chain and k >= buffers:
            read[0] = f"y0_{k - buffers}"
        written = [f"y{j}_{k}" for j in range(case.outputs)]
        nodes.append(helper.make_node(op, read, written, f"copy{k}", domain=domain, **attributes))
        done = k - (0 if chain else buffers)
        if 0 <= done < copies - 1 and not (chain and k < copies - buffers):
            nodes += [helper.make_node("Shape", [f"y{j}_{done}"], [f"s{j}_{done}"]) for j in released]
            releases += len(released)
    outputs = [onnx.ValueInfoProto(name=f"y{j}_{copies - 1}") for j in range(case.outputs)]
    graph = helper.make_graph(nodes, "timing", given.inputs, outputs, given.constants)
    imports = [helper.make_opsetid("", case.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return Model(proto, given.feeds, given.weights, releases)


@dataclass
class _Given:
    """What is given to the copies: inputs with their values, constants, and arrays of weights."""

    inputs: list[onnx.ValueInfoProto] = field(default_factory=list[onnx.ValueInfoProto])
    constants: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])
    feeds: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    weights: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def names(self, index: int, operand: Operand | None, copies: int, buffers: int) -> list[str]:
        """Makes operand ``index``, and says what it is called in each copy."""
        if operand is None:
            return [""] * copies
        if operand.value is not None:
            array = np.asarray(operand.value, operand.type.dtype.numpy)
            self.constants.append(numpy_helper.from_array(array, f"c{index}"))
            return [f"c{index}"] * copies
        array = _draw(operand, np.random.default_rng(index))
        if operand.weight:
            names = [f"w{index}_{k}" for k in range(copies)]
            for k, name in enumerate(names):
                self.weights[name] = _numbered(array, k)
                self.constants.append(external_tensor(name, Constant.of(self.weights[name]), "lent", 0))
            return names
        for k in range(buffers):
            self.feeds[f"x{index}_{k}"] = array.copy()
            type = helper.make_tensor_value_info(f"x{index}_{k}", int(operand.type.dtype), operand.type.shape)
            self.inputs.append(type)
        return [f"x{index}_{k % buffers}" for k in range(copies)]


def _numbered(array: np.ndarray, number: int) -> np.ndarray:
    """A copy that no other number has, as far as there are elements."""
    copy = array.copy()
    digits = np.asarray([number % 100, number // 100]).astype(array.dtype)
    copy.reshape(-1)[:2] = digits[: min(copy.size, 2)]
    return copy


def _draw(operand: Operand, random: np.random.Generator) -> np.ndarray:
    type = operand.type
    dtype = type.dtype
    shape = tuple(d for d in type.shape or () if isinstance(d, int))
    if dtype is DType.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return (0.5 * random.standard_normal(shape, np.float32)).astype(dtype.numpy)
    information = np.iinfo(dtype.numpy)
    top = operand.limit if operand.limit is not None else min(information.max, 127) + 1
    low = 0 if operand.limit is not None else max(information.min, -128)
    return random.integers(low, top, shape).astype(dtype.numpy)
