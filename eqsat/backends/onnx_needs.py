"""What a written model needs of those who read it, beyond what the model it came from needs."""

from __future__ import annotations

from typing import Any

from eqsat.backends.onnx_form import Form, choose_form, in_form
from eqsat.errors import OutputError
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.graph import Graph

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

_UNREAD = {"OpenVINO 2026.4": frozenset(("QLinearMatMul",))}
"""Operators that other engines refuse in models of ours (tried): they read their dequantised spelling."""


def needs_of(graph: Graph, original: Graph, form: str) -> dict[str, Any]:
    """What the file of ``graph`` needs that the file of ``original`` does not: see docs/report.md. Empty for nothing new, and
    where the graph cannot be written at all."""
    try:
        written = choose_form(in_form(graph, form))
    except OutputError:
        return {}
    envelope = original.envelope if isinstance(original.envelope, Envelope) else None
    found: dict[str, Any] = {}
    if envelope is not None and written.opset > envelope.opset:
        found["opset"], found["opset_before"] = written.opset, envelope.opset
        found["onnxruntime"] = _FIRST_RUNTIME.get(written.opset, "")
    known = {node.domain for node in original.nodes} | {""}
    domains = sorted({node.domain for node in written.nodes} - known)
    if domains:
        found["domains"] = domains
    refused = {engine: sorted(_new_operators(written, original) & names) for engine, names in _UNREAD.items()}
    if any(refused.values()):
        found["unread"] = {engine: names for engine, names in refused.items() if names}
    return found


def _new_operators(written: Form, original: Graph) -> set[str]:
    return {node.key for node in written.nodes} - {node.key for node in original.nodes}
