"""What a written model needs of those who read it, beyond what the model it came from needs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from eqsat.backends.consumer import Consumer, at_any_opset, find_consumer, most_opset, releases_of
from eqsat.backends.onnx_form import written
from eqsat.backends.onnxruntime_kernels import CPU, left_to_cpu, may_run, provider_names, runs_on
from eqsat.backends.tensorrt import check_explicit_quantisation
from eqsat.errors import OutputError
from eqsat.frontends.onnx.envelope import Envelope, envelope_of
from eqsat.frontends.onnx.versions.steps import first_version, since_version
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import TensorType, Type

Uses = Sequence[tuple[str, Sequence[Type | None]]]
"""Operators, each with the types of its operands."""

_FIRST_RUNTIME = {
    13: "1.7",
    14: "1.8",
    15: "1.9",
    16: "1.11",
    17: "1.12",
    18: "1.14",
    19: "1.14",
    20: "1.17",
    21: "1.18",
    22: "1.21",
    23: "1.23",
    24: "1.24",
}
"""First release of ONNX Runtime known to load an opset: the version matrix of its docs/Versioning.md; from 21 on, tried."""


def needs_of(graph: Graph, original: Graph, form: str) -> dict[str, Any]:
    """What the file of ``graph`` needs that the file of ``original`` does not: see docs/report.md. Empty for nothing new, and
    where the graph cannot be written at all."""
    try:
        formed, chosen = written(graph, form)
    except OutputError:
        return {}
    envelope = original.envelope if isinstance(original.envelope, Envelope) else None
    found: dict[str, Any] = {}
    if envelope is not None and chosen.opset > envelope.opset:
        found["opset"], found["opset_before"] = chosen.opset, envelope.opset
        found["onnxruntime"] = _FIRST_RUNTIME.get(chosen.opset, "")
    uses, before = _uses(formed), _uses(original)
    newer = _newer_operators(uses, before, chosen.opset)
    if newer:
        found["onnxruntime"], found["operators"] = newer
    known = {node.domain for node in original.nodes} | {""}
    domains = sorted({node.domain for node in chosen.nodes} - known)
    if domains:
        found["domains"] = domains
    new = {node.key for node in chosen.nodes} - {node.key for node in original.nodes}
    other = find_consumer("openvino")
    refused = sorted(key for key in new if not key.count("::") and not other.reads_operator(key))
    if refused:
        found["unread"] = {f"OpenVINO {other.version}": refused}
    without = find_consumer("onnxruntime-avx2")
    inexact = _lacked(without, uses) - _lacked(without, before) - _lacked(find_consumer("onnxruntime"), uses)
    if products := inexact - {"DequantizeLinear"}:
        found["vnni"] = sorted(products)
    provider = envelope_of(graph).provider
    if provider != CPU and (left := left_to_cpu_of(graph, form, provider)):
        found["left_to_cpu"] = left
        found["left_to_cpu_before"] = left_to_cpu_of(_as_it_came(original), form, provider)
    if provider == CPU and form == "onnxruntime":
        elsewhere = frozenset[str]().union(*map(left_to_cpu, provider_names()))
        if cpu := sorted(new & elsewhere):
            found["cpu_kernels"] = cpu
    return found


def _as_it_came(original: Graph) -> Graph:
    """The model at the opset that its file has, whatever is asked of that of the result."""
    if not isinstance(original.envelope, Envelope):
        return original
    return at_any_opset(replace(original, envelope=replace(original.envelope, provider=CPU)))


def left_to_cpu_of(graph: Graph, form: str, provider: str) -> dict[str, int]:
    """What of the file of ``graph`` an execution provider leaves to the CPU: operators by name, and how many there are.

    Operators that no kernel computes, which ONNX Runtime spells out, are not among them, nor are those that are not understood.
    """
    formed, chosen = written(graph, form)
    typed = formed.with_nodes(chosen.nodes, constants=chosen.constants)
    found: Counter[str] = Counter()
    for node in chosen.nodes:
        types = [t if isinstance(t, TensorType) and t.dtype else None for t in typed.operand_types(node)]
        version = since_version(node.op, chosen.opset) if not node.domain else 1
        if not node.opaque and may_run(node.key, types) and not runs_on(provider, node.key, types, version):
            found[node.op] += 1
    return dict(sorted(found.items()))


def _newer_operators(after: Uses, before: Uses, opset: int) -> tuple[str, list[str]] | None:
    """The first release of ONNX Runtime known to run what is written, where its operators, and not only its opset, need a newer
    one than those of the original do; and which operators that are."""
    releases = [r for r in releases_of("onnxruntime") if r.opset >= opset]
    lacking = [(r, _lacked(r, after)) for r in releases if not _lacked(r, before)]
    first = next((r for r, lacked in lacking if not lacked), None)
    if first is None or first is lacking[0][0]:
        return None
    return first.version, sorted({key for _, lacked in lacking for key in lacked})


def _uses(graph: Graph) -> Uses:
    """The operators of a graph with the types of their operands, once for all that have the same element types."""
    found: dict[tuple[object, ...], tuple[str, Sequence[Type | None]]] = {}
    for node in graph.nodes:
        if not node.opaque:
            types = graph.operand_types(node)
            found.setdefault((node.key, *(getattr(t, "dtype", None) for t in types)), (node.key, types))
    return list(found.values())


def _lacked(release: Consumer, uses: Uses) -> set[str]:
    """Operators that a release does not have, or not for their operands, or that it computes wrong."""
    return {key for key, types in uses if not release.is_right(key, types)}


def withheld_operators(graph: Graph, found: Iterable[str]) -> dict[str, int]:
    """Those of the operators ``found`` that are too new for the file, with the opset each needs."""
    return {op: first_version(op) for op in sorted(found) if first_version(op) > most_opset(graph)}


def check_readable(graph: Graph, form: str, reader: Consumer | None) -> None:
    """Raises `OutputError` where the file of ``graph`` needs a newer opset than it may have, holds an operator that the reader
    does not read or has no kernel for (the model has it, and no rule spells it out), or is quantised as the reader does not
    take it."""
    formed, chosen = written(graph, form)
    if form == "tensorrt":
        check_explicit_quantisation(formed)
    if reader is None:
        return
    for node in chosen.nodes:
        if not node.domain and not reader.reads_operator(node.op):
            raise _refused(node, f"{reader} does not read it ({reader.source})")
    for node in formed.nodes:
        types = formed.operand_types(node)
        if not node.opaque and node.key not in reader.refuses and not reader.has(node.key, types):
            listed = ", ".join("none" if t is None else str(t) for t in types)
            raise _refused(node, f"{reader} has no kernel for it on ({listed}) ({reader.source})")


def _refused(node: Node, why: str) -> OutputError:
    name = node.name or next(filter(None, node.outputs))
    return OutputError(f"{node.op} {name!r}: {why}, and no rule that may be used spells it out")
