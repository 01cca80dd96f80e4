"""Which operators the installed ONNX Runtime has CPU kernels for: the library is asked, nothing is assumed.

Of other execution providers than the CPU's, `providers/*.json` holds what a release with them answered.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from eqsat.ir.graph import Graph
from eqsat.ir.operator import domain_in_files, split_key
from eqsat.ir.schemas import type_string
from eqsat.ir.types import DType, TensorType, Type

DOMAIN = "com.microsoft"
"""Domain of the fused operators of ONNX Runtime."""

CPU = "cpu"
"""The execution provider that every ONNX Runtime has, and that the others leave to what they have no kernels for."""

TABLES = Path(__file__).parent / "providers"
"""Kernels of the other execution providers, a file for each."""
_OPEN = 2**31 - 1
"""Last version of a kernel that has none. It is taken for its first one only: what later ones mean it cannot know."""

_NARROW = frozenset(type_string(d) for d in DType if d not in (DType.UNDEFINED, DType.BOOL) and d.bits <= 8)


@dataclass(frozen=True, slots=True)
class _Signature:
    """Type parameter of each input of an operator, whether the last one repeats, and the types the schema allows."""

    parameters: tuple[str, ...]
    repeats: bool
    allowed: tuple[frozenset[str], ...]

    def at(self, index: int) -> tuple[str, frozenset[str]] | None:
        if index >= len(self.parameters) and self.repeats:
            index = len(self.parameters) - 1
        return (self.parameters[index], self.allowed[index]) if index < len(self.parameters) else None


def has_kernel(op: str, types: Sequence[Type | None]) -> bool:
    """Whether there is a CPU kernel of ``com.microsoft::op`` for inputs of these types (``None``: absent).

    ``False`` where ONNX Runtime cannot say, and for inputs of unknown element types.
    """
    return _runs_on(CPU, (domain_in_files(op, DOMAIN), op), _type_strings(types), 0)


def takes_narrow(op: str, types: Sequence[Type | None]) -> bool:
    """Whether an operator of the standard may have inputs of these types, as far as numbers of 8 bits and less are concerned.

    ``True`` where there are none among them, and where ONNX Runtime cannot say.
    """
    dtypes = _type_strings(types)
    return _NARROW.isdisjoint(dtypes) or not _kernels() or _runs_on(CPU, ("", op), dtypes, 0)


def may_run(key: str, types: Sequence[Type | None], *, computed_ahead: bool = False) -> bool:
    """Whether an operator, named by its key, may have inputs of these types by its schema and, unless its value is
    ``computed_ahead``, by some CPU kernel.

    ``True`` where ONNX Runtime does not know the operator; one without kernels is judged by its schema, for it is spelled out.
    """
    domain, op = split_key(key)
    operator = domain_in_files(op, domain), op
    signature = _signatures().get(operator)
    if signature is None:
        return True
    if computed_ahead or operator not in _kernels():
        return _fits(signature, [{}], _type_strings(types))
    return _runs_on(CPU, operator, _type_strings(types), 0)


def without_kernels(graph: Graph) -> list[str]:
    """What of a graph no CPU kernel computes, each once, as ``Erf of double``.

    What constants alone tell is left out, and so is half precision, for which ONNX Runtime converts types itself."""
    known = set(graph.constants)
    found: dict[str, None] = {}
    for node in graph.nodes:
        if known.issuperset(v for v in node.inputs if v):
            known.update(node.outputs)
            continue
        types = graph.operand_types(node)
        half = any(isinstance(t, TensorType) and t.dtype.name == "FLOAT16" for t in types)
        if not half and not may_run(node.key, types):
            names = dict.fromkeys(t.dtype.name.lower() for t in types if isinstance(t, TensorType))
            found[f"{node.key} of {', '.join(names)}"] = None
    return list(found)


@cache
def is_spelled_out(op: str, version: int, provider: str = CPU) -> bool:
    """Whether an operator of the standard has kernels of a provider, but none for ``version`` of its definition.

    ONNX Runtime then runs the function of the schema, operator by operator, or nothing at all: so it does with Attention-25.
    Of another provider than the CPU's the operator is left to the CPU. ``False`` where it cannot say.
    """
    kernels = _kernels(provider).get(("", op), ())
    return bool(kernels) and not any(_is_for(kernel.versions, version) for kernel in kernels)


def runs_on(provider: str, key: str, types: Sequence[Type | None], version: int = 0) -> bool:
    """Whether an execution provider has a kernel, for a ``version`` of an operator or for any, for inputs of these types
    (``None``: absent).

    ``False`` where ONNX Runtime does not list its schemas, and for inputs of unknown element types.
    """
    domain, op = split_key(key)
    return _runs_on(provider, (domain_in_files(op, domain), op), _type_strings(types), version)


@cache
def _runs_on(provider: str, operator: tuple[str, str], dtypes: tuple[str | None, ...], version: int) -> bool:
    known = _history().get(operator, {})
    versions = sorted(known)
    for kernel in _kernels(provider).get(operator, ()):
        index = (
            bisect_right(versions, kernel.versions[0]) - 1
        )  # later versions of the same kernel have the same parameters
        may = index >= 0 and (not version or _is_for(kernel.versions, version))
        if may and _fits(known[versions[index]], [kernel.constraints], dtypes):
            return True
    return False


def _is_for(versions: tuple[int, int], version: int) -> bool:
    """Whether a kernel for these versions, first and last, is one for ``version``."""
    first, last = versions
    return first == version or first <= version <= last != _OPEN


@cache
def left_to_cpu(provider: str) -> frozenset[str]:
    """Operators, by their keys, that an execution provider has no kernel for, whatever the types, and the CPU has one. Those
    that neither has ONNX Runtime spells out, if it can."""
    return frozenset(f"{domain}::{op}" if domain else op for domain, op in _kernels()) - _table(provider).keys()


def provider_names() -> tuple[str, ...]:
    """Names of the execution providers, beside the CPU's, whose kernels are known."""
    return tuple(sorted(path.stem for path in TABLES.glob("*.json")))


def _fits(
    signature: _Signature, kernels: Sequence[Mapping[str, frozenset[str]]], dtypes: tuple[str | None, ...]
) -> bool:
    """Whether one of ``kernels``, by their constraints, takes inputs of these types."""
    formal = [(signature.at(index), dtype) for index, dtype in enumerate(dtypes) if dtype is not None]
    return any(
        all(known is not None and dtype in constraints.get(*known) for known, dtype in formal)
        for constraints in kernels
    )


def _type_strings(types: Sequence[Type | None]) -> tuple[str | None, ...]:
    return tuple(None if t is None else type_string(t.dtype) if isinstance(t, TensorType) else "" for t in types)


def _state() -> Any:
    """The module of ONNX Runtime that lists schemas and kernels; ``None`` where a build of it does not."""
    import onnxruntime.capi.onnxruntime_pybind11_state as state

    return state if hasattr(state, "get_all_opkernel_def") and hasattr(state, "get_all_operator_schema") else None


class _Kernel(NamedTuple):
    """The types that a kernel takes, by type parameter, and the versions of its operator that it is for, first and last."""

    constraints: dict[str, frozenset[str]]
    versions: tuple[int, int]


@cache
def _kernels(provider: str = CPU) -> dict[tuple[str, str], list[_Kernel]]:
    """Domain and operator -> its kernels, of all versions."""
    found: dict[tuple[str, str], list[_Kernel]] = {}
    if provider != CPU:
        for key, kernels in _table(provider).items():
            found[split_key(key)] = [_of_table(*kernel) for kernel in kernels]
        return found
    for kernel in _state().get_all_opkernel_def() if _state() is not None else ():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain in ("", DOMAIN):
            constraints = {name: frozenset(map(str, types)) for name, types in kernel.type_constraints.items()}
            made = _Kernel(constraints, tuple(kernel.version_range))
            found.setdefault((kernel.domain, kernel.op_name), []).append(made)
    return found


@cache
def _table(provider: str) -> dict[str, list[Any]]:
    """Operator by key -> its kernels, as the file of an execution provider lists them."""
    return json.loads((TABLES / f"{provider}.json").read_text("utf-8"))["kernels"]


def _of_table(first: int, last: int | None, types: Mapping[str, str]) -> _Kernel:
    constraints = {name: frozenset(f"tensor({t})" for t in listed.split()) for name, listed in types.items()}
    return _Kernel(constraints, (first, _OPEN if last is None else last))


@cache
def _signatures() -> dict[tuple[str, str], _Signature]:
    """Of each operator the signature of its newest version."""
    return {operator: known[max(known)] for operator, known in _history().items()}


@cache
def _history() -> dict[tuple[str, str], dict[int, _Signature]]:
    """Of each operator the signature of each of its versions."""
    found: dict[tuple[str, str], dict[int, _Signature]] = {}
    schemas: Any = _state().get_all_operator_schema() if _state() is not None else ()
    for schema in schemas:
        if schema.domain in ("", DOMAIN):
            inputs: list[Any] = list(schema.inputs)
            repeats = bool(inputs) and str(inputs[-1].option).endswith("Variadic")
            allowed = tuple(frozenset(map(str, i.types)) for i in inputs)
            made = _Signature(tuple(i.typeStr for i in inputs), repeats, allowed)
            found.setdefault((schema.domain, schema.name), {})[schema.since_version] = made
    return found
