"""A graph at given extents of its inputs: the types of its values, whether the extents fit, and the memory a run takes.

Nothing runs. The operators' own shape rules say it, with the small tensors worked out from which shapes are computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ShapeError
from eqsat.ir.composite import largest_within
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.operator import Application, definition_of, operator, traits_of
from eqsat.ir.outlines import outlined
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import UNKNOWN, TensorType, Type, compatible, is_sequence, meet

FATAL_WHEN_EMPTY = frozenset({"LSTM", "GRU", "RNN", "ConvTranspose", "STFT", "Einsum", "InstanceNormalization"})
"""Operators whose kernels in ONNX Runtime may end the process where an extent is 0 (of all in the conformance cases of ONNX,
each of whose extents was made 0; that of InstanceNormalization does where its operand is asked for, too)."""

_SMALL = 1024
"""Elements of larger tensors are not worked out."""

UNKNOWN_BYTES = 1 << 20
"""What a value counts whose size is not known even when the inputs' are."""


_HEAD = 64

_WITH_SCORES = 4
"""The outputs that Attention may have, of which the last one is its scores."""


@dataclass(frozen=True)
class Sized:
    """``types``: of the values computed before node ``misfit`` (an index; ``None`` if all nodes take their inputs), whose
    inputs contradict its definition as ``problem`` says. ``numbers``: whole numbers among the small tensors known.
    ``wanted``: an extent that contradicts it, and what it has to be, where the definition says so."""

    graph: Graph
    types: Mapping[str, Type]
    numbers: Mapping[str, np.ndarray]
    misfit: int | None = None
    problem: str = ""
    wanted: tuple[int, int] | None = None

    def bytes_of(self, value: str) -> int:
        """Bytes of a value; `UNKNOWN_BYTES` if that is not known."""
        known = self.type_of(value).bytes
        return UNKNOWN_BYTES if known is None else known

    def type_of(self, value: str) -> Type:
        return _type(self.graph, self.types, value)

    def peak_bytes(self) -> int:
        """Most bytes of values alive at once when the nodes run in their order, constants aside, with what attention needs."""
        graph, inside = self.graph, cache(_inside)
        last = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
        last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
        alive = sum(map(self.bytes_of, graph.inputs))
        peak = alive
        for i, node in enumerate(graph.nodes):
            made = [v for v in node.outputs if v]
            alive += sum(map(self.bytes_of, made))
            operands = tuple(self.type_of(v) if v else None for v in node.inputs)
            within = _guessed(operands) if node.opaque else inside(node.key, node.attributes, operands)
            peak = max(peak, alive + within)
            gone = {v for v in (*node.inputs, *made) if v and v not in graph.constants and last.get(v, i) == i}
            alive -= sum(map(self.bytes_of, gone))
        return peak


def _inside(key: str, attributes: Attributes, operands: tuple[Type | None, ...]) -> int:
    """Bytes of the scores that an operator of attention computes, which are no value of the graph; 0 for any other."""
    definition = operator(key)
    if definition is None or definition.traits.structure != "attention":
        return 0
    app = Application(key, attributes, operands, outputs=_WITH_SCORES)
    try:
        if definition.expand is not None:
            return largest_within(definition, app)
        return max(found.bytes or 0 for found in definition.infer(app)[_WITH_SCORES - 1 :])
    except EqsatError:  # of lists that it needs the elements of
        return _guessed(operands)


def _guessed(operands: Sequence[Type | None]) -> int:
    """What an operator may take of which nothing is known: as much as attention over rows of an operand, in heads of 64."""
    shaped = (t for t in operands if isinstance(t, TensorType) and (t.rank or 0) > 2)
    return max((t.bytes * int(t.shape[-2]) // _HEAD for t in shaped if t.bytes and t.shape), default=0)


def sized(graph: Graph, shapes: Mapping[str, Sequence[int]], stop: int | None = None) -> Sized:
    """``graph`` with inputs of these ``shapes``, by name; no farther than node ``stop``."""
    types: dict[str, Type] = {}
    symbols: dict[str, int] = {}
    for name in graph.inputs:
        declared = graph.type_of(name)
        shape = tuple(map(int, shapes[name])) if name in shapes else None
        if isinstance(declared, TensorType) and shape is not None:
            symbols.update((d, n) for d, n in zip(declared.shape or (), shape, strict=False) if isinstance(d, str))
            declared = TensorType(declared.dtype, shape)
        types[name] = declared
    values: dict[str, np.ndarray] = {}
    for i, node in enumerate(graph.nodes[:stop]):
        operands = [_type(graph, types, v) if v else None for v in node.inputs]
        known = [_value(graph, values, v) for v in node.inputs]
        try:
            inferred = _infer(node, operands, known, values)
        except EqsatError as error:
            wanted = error.extents if isinstance(error, ShapeError) else None
            return Sized(graph, types, values, i, str(error), wanted)
        for k, name in enumerate(node.outputs):
            if name:
                own = inferred[k] if k < len(inferred) else UNKNOWN
                declared = _bound(graph.type_of(name), symbols)
                types[name] = meet(own, declared) if compatible(own, declared) else own
    return Sized(graph, types, values)


def shapes_of(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors among inputs."""
    return {name: np.shape(value) for name, value in feeds.items() if not is_sequence(value)}


def _infer(
    node: Node, types: Sequence[Type | None], known: Sequence[np.ndarray | None], values: dict[str, np.ndarray]
) -> Sequence[Type]:
    """Types of the outputs of ``node``; their elements go into ``values`` where they are known and few."""
    definition = definition_of(node)
    app = Application(node.key, node.attributes, types, known, len(node.outputs))
    if may_end_process(node) and any(t is not None and t.size == 0 for t in types):
        raise app.fail("an empty tensor, at which ONNX Runtime may end the process")
    if definition is None:
        return outlined(node, types, known)
    divisors = (known[i] for i in traits_of(node.key).divisors)
    if any(by is not None and by.dtype.kind in "iu" and not by.all() for by in divisors):
        raise app.fail("division by zero")  # extents of 0 get here; it would end the process
    try:
        found = definition.infer(app)
        if any(t.size is not None and t.size > _SMALL for t in found):
            return found
        listed = shape_value(definition, node.attributes, types, known)
        results = None if listed is None or listed.dtype == object else (listed,)
        complete = all(v is not None or not name for v, name in zip(known, node.inputs, strict=True))
        small = all(t.size is not None and t.size <= _SMALL for t in found)
        if results is None and complete and small and definition.deterministic:
            with np.errstate(all="ignore"):
                results = tuple(np.asarray(r) for r in definition.evaluate(node.attributes, known))
    except EqsatError:
        raise
    except Exception:  # numpy's, for values that a definition does not expect: a run will say what is wrong
        return ()
    values.update((name, r) for name, r in zip(node.outputs, results or (), strict=False) if name)
    return found


def may_end_process(node: Node) -> bool:
    """Whether the kernel may, on an empty tensor. That of Scan does where it is to put the axis that it walks along first."""
    return node.key in FATAL_WHEN_EMPTY or (node.key == "Scan" and "scan_input_axes" in node.attributes)


def _type(graph: Graph, types: Mapping[str, Type], value: str) -> Type:
    constant = graph.constants.get(value)
    return constant.type if constant is not None else types.get(value, UNKNOWN)


def _value(graph: Graph, values: Mapping[str, np.ndarray], value: str) -> np.ndarray | None:
    constant = graph.constants.get(value)
    if constant is not None:
        return constant.numpy() if constant.size <= _SMALL else None
    return values.get(value)


def _bound(found: Type, symbols: Mapping[str, int]) -> Type:
    """A declared type with the extents of the inputs' symbols put in; other symbols stay."""
    if not isinstance(found, TensorType) or found.shape is None:
        return found
    return TensorType(found.dtype, tuple(symbols.get(d, d) if isinstance(d, str) else d for d in found.shape))
