"""Weights behind a DequantizeLinear, where they are constants of floats.

OpenVINO and TensorRT compute a product on integers only where both operands come out of DequantizeLinear. Folding makes a
constant of floats of a weight of up to 8 KiB, and with it products of floats of the first layers of a network and of those by
channel. Other weights come as floats that rules found to be whole multiples of a step (`quantised.byte_weights`): in OpenVINO the
products take 1.2 to 1.7 times as long with them, and the file four times the bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from eqsat.egraph.encode import Encoding
from eqsat.egraph.explain import Explainer
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType, TensorType
from eqsat.lower.program import Kernel, Program

_DEQUANTIZE = "DequantizeLinear"


@dataclass(frozen=True)
class _Pair:
    """What dequantises a weight, by what name it has, from what constants, and by which rules that is the weight."""

    attributes: Attributes
    operands: tuple[tuple[str, Constant | None], ...]
    name: str = ""
    rules: tuple[str, ...] = ()


def with_weights_paired(
    program: Program, encoding: Encoding, snapshot: Snapshot, exactness: Mapping[str, Exactness]
) -> Program:
    """The program with weights dequantised where the original dequantises them to the very same floats, or where rules say that
    they are so, without a zero point."""
    graph = program.graph
    wanted = _weights(graph)
    types = {c.type for c in wanted.values()}
    makers = {_contents(value): pair for pair, value in _found(snapshot, types)}
    makers |= {_contents(value): pair for pair, value in _dequantised(encoding.graph, types)}
    found = {name: makers[key] for name, constant in wanted.items() if (key := _contents(constant.numpy())) in makers}
    if not found:
        return program
    constants = {v: c for v, c in graph.constants.items() if v not in found}
    names = {constant: v for v, constant in constants.items()}
    taken = graph.names()
    nodes: list[Node] = []
    for value, pair in found.items():
        operands: list[str] = []
        for stem, constant in pair.operands:
            if constant is not None and constant not in names:
                names[constant] = fresh_name(stem or f"{value}_{len(operands)}", taken)
                constants[names[constant]] = constant
            operands.append("" if constant is None else names[constant])
        nodes.append(Node(_DEQUANTIZE, tuple(operands), (value,), pair.attributes, name=pair.name))
    before = tuple(
        Kernel(n.name or n.outputs[0], "view", (i,), tuple(v for v in n.inputs if v), n.outputs)
        for i, n in enumerate(nodes)
    )
    kernels = [*before, *(replace(k, nodes=tuple(i + len(nodes) for i in k.nodes)) for k in program.kernels)]
    for i, kernel in enumerate(kernels):
        values = (*kernel.inputs, *kernel.outputs)
        rules = {*kernel.rules}.union(*(found[v].rules for v in values if v in found))
        worst = max((exactness[r] for r in rules - {*kernel.rules}), default=kernel.exactness)
        kernels[i] = replace(kernel, rules=tuple(sorted(rules)), exactness=max(worst, kernel.exactness))
    made = {name: wanted[name].type for name in found}
    written = replace(graph, nodes=(*nodes, *graph.nodes), constants=constants, types={**graph.types, **made})
    return replace(program, graph=written, kernels=tuple(kernels))


def _weights(graph: Graph) -> Mapping[str, Constant]:
    """The constants of floats that products read."""
    products = (n for n in graph.nodes if not n.domain and traits_of(n.key).product is not None)
    read = {v: graph.constants[v] for n in products for v in n.inputs[:2] if v in graph.constants}
    return {v: c for v, c in read.items() if c.dtype is DType.FLOAT and len(c.shape) > 1}


def _dequantised(graph: Graph, types: set[TensorType]) -> Iterator[tuple[_Pair, np.ndarray]]:
    """Dequantised constants of some types in the original, and their values."""
    for node in graph.nodes:
        if node.key == _DEQUANTIZE and graph.type_of(node.outputs[0]) in types:
            operands = [graph.constants.get(v) for v in node.inputs if v]
            if None not in operands:
                named = tuple((v, graph.constants[v] if v else None) for v in node.inputs)
                arrays = [c and c.numpy() for _, c in named]
                yield _Pair(node.attributes, named, node.name), evaluate_operator(node.key, node.attributes, arrays)[0]


def _found(snapshot: Snapshot, types: set[TensorType]) -> Iterator[tuple[_Pair, np.ndarray]]:
    """The same that rules found of constants."""
    egraph, explainer = snapshot.egraph, Explainer(snapshot.egraph)
    for handle, node in enumerate(egraph.nodes):
        if node.key != _DEQUANTIZE or not node.rule or len(node.children) != 2 or egraph.type_of(handle) not in types:
            continue
        value, *operands = (egraph.literal_of(h) for h in (handle, *node.children))
        if value is not None and all(x is not None for x in operands):
            constants = tuple(("", egraph.pool.intern(Constant.of(x))) for x in operands if x is not None)
            yield _Pair(node.attributes, constants, rules=tuple(sorted(explainer.rules_of(handle)))), value


def _contents(array: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return array.shape, np.ascontiguousarray(array).tobytes()
