"""Between opsets: bringing a node to the form of `eqsat.ir.operator.OPSET`, and back to the form of an older opset.

A `Step` is one change of one operator's form or meaning at one version of the default domain. Changes that only extend
the list of element types are no steps. `attributes` lists the attributes that were added with a neutral default;
`forms`, `normalization` and `resampling` hold the changes that need work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from eqsat.ir.graph import Node
from eqsat.ir.operator import OPSET
from eqsat.ir.schemas import declaration
from eqsat.ir.types import Type

OLDEST = 7
"""Nodes of models with an older opset are passed through untouched."""


class Values(Protocol):
    """What a step may ask about the graph around a node, and the constants it may add to it."""

    def type_of(self, value: str) -> Type: ...

    def constant(self, value: str) -> np.ndarray | None:
        """The elements of ``value`` if it is a constant, else ``None``."""
        ...

    def add_constant(self, array: np.ndarray, stem: str) -> str:
        """Adds a constant and returns its name, which starts with ``stem``."""
        ...

    def fresh_name(self, stem: str) -> str: ...

    def is_read(self, value: str) -> bool:
        """Whether a node reads ``value``, or it is an output."""
        ...


Change = Callable[[Node, Values], Node | list[Node] | None]
"""Rewrites a node across one version; ``None`` if this node has no equivalent on the other side."""


@dataclass(frozen=True, slots=True)
class Step:
    """The change of operator ``op`` at ``version``.

    ``additive``: every node of the older form means the same in the newer one, so ``up`` leaves it alone.
    """

    op: str
    version: int
    up: Change
    down: Change
    additive: bool = False


_STEPS: dict[str, list[Step]] = {}


def add_step(op: str, version: int, up: Change, down: Change, *, additive: bool = False) -> None:
    """Registers the change of ``op`` at ``version``. Several changes at one version apply in order of registration."""
    steps = _STEPS.setdefault(op, [])
    steps.append(Step(op, version, up, down, additive))
    steps.sort(key=lambda s: s.version)


Completion = Callable[[Node, Values], Node]

_COMPLETIONS: dict[str, Completion] = {}


def add_completion(op: str, complete: Completion) -> None:
    """Registers what states in a node of `OPSET` what that asks for and older opsets, or runtimes, take as said."""
    _COMPLETIONS[op] = complete


def unchanged(node: Node, values: Values) -> Node:
    return node


def _completed(node: Node, values: Values) -> Node:
    return _COMPLETIONS.get(node.op, unchanged)(node, values)


def unless(attribute: str, *newer: str) -> Change:
    """Leaves a node as it is, unless its attribute has a value that older versions do not have."""
    return lambda node, values: None if node.attributes.get(attribute) in newer else node


def set_inputs(node: Node, inputs: Sequence[str]) -> Node:
    """``node`` with other inputs, absent trailing ones dropped."""
    kept = list(inputs)
    while kept and not kept[-1]:
        kept.pop()
    return replace(node, inputs=tuple(kept))


def get_input(node: Node, index: int) -> str:
    """Name of an input, empty if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else ""


def set_attributes(node: Node, **changes: Any) -> Node:
    """``node`` with attributes changed; ``None`` removes one."""
    return replace(node, attributes=node.attributes.updated(**changes))


def first_output_only(node: Node, values: Values) -> Node | None:
    """The node without its further outputs, unless one of them has a name."""
    return None if any(node.outputs[1:]) else replace(node, outputs=node.outputs[:1])


def steps_of(op: str) -> Sequence[Step]:
    """The changes of an operator of the default domain, oldest first."""
    return _STEPS.get(op, ())


_DEPRECATED_BUT_RUN = frozenset({"GroupNormalization"})
"""Operators that an opset calls deprecated and runtimes run all the same."""


@cache
def since_version(op: str, opset: int) -> int:
    """Version of the operator's definition that holds at ``opset``; 0 if it has none there or is deprecated."""
    schema = declaration(op, opset)
    if schema is None or (schema.deprecated and op not in _DEPRECATED_BUT_RUN):
        return 0
    return schema.since_version


@cache
def has_function(op: str, opset: int) -> bool:
    """Whether the definition of an operator that holds at ``opset`` says what it is built of."""
    schema = declaration(op, opset)
    return schema.has_function or schema.has_context_dependent_function


@cache
def first_version(op: str) -> int:
    """The first opset that defines the operator; 0 for an unknown operator."""
    import onnx

    found, opset = 0, onnx.defs.onnx_opset_version()
    while opset > 0 and (schema := declaration(op, opset)) is not None:
        found = schema.since_version
        opset = found - 1
    return found


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot take another opset's form. ``needs`` is the oldest opset that might do, 0 if none is known."""

    reason: str
    needs: int = 0


@cache
def _has_final_form(op: str, opset: int) -> bool:
    if not OLDEST <= opset <= OPSET or not since_version(op, opset):
        return False
    return all(s.additive for s in steps_of(op) if opset < s.version <= OPSET)


def upgrade(node: Node, opset: int, values: Values) -> list[Node] | Refusal:
    """Nodes at `OPSET` that mean what ``node`` means at ``opset``.

    The last of them defines the outputs of ``node``.
    """
    if _has_final_form(node.op, opset):
        return [_completed(node, values)]
    if opset < OLDEST:
        return Refusal(f"opset {opset} is older than {OLDEST}")
    since = since_version(node.op, opset)
    if not since:
        return Refusal(f"opset {opset} has no operator {node.op}")
    if opset > OPSET and since > OPSET:
        return Refusal(f"{node.op}-{since} is newer than opset {OPSET}")
    pending, done = [(node, opset)], list[Node]()
    while pending:
        current, version = pending.pop(0)
        step = next((s for s in steps_of(current.op) if s.version > version and s.version <= OPSET), None)
        if step is None:
            done.append(_completed(current, values))
            continue
        changed: Node | list[Node] | None = current
        for same in (s for s in steps_of(current.op) if s.version == step.version):
            if same.additive or not isinstance(changed, Node) or changed.op != current.op:
                continue
            changed = same.up(changed, values)
        if changed is None:
            return Refusal(f"{node.op}-{since} has no equivalent at opset {OPSET}")
        nodes = changed if isinstance(changed, list) else [changed]
        pending[:0] = [(n, step.version) for n in nodes]
    return done


def downgrade(node: Node, opset: int, values: Values) -> list[Node] | Refusal:
    """Nodes at ``opset`` that mean what ``node`` means at `OPSET`, or the opset it needs instead."""
    pending, done = [(node, OPSET)], list[Node]()
    while pending:
        current, version = pending.pop(0)
        step = next((s for s in reversed(steps_of(current.op)) if opset < s.version <= version), None)
        if step is None:
            if not since_version(current.op, opset):
                first = first_version(current.op)
                return Refusal(f"opset {opset} has no operator {current.op}", first if first > opset else 0)
            done.append(current)
            continue
        changed: Node | list[Node] | None = current
        for same in (s for s in reversed(steps_of(current.op)) if s.version == step.version):
            if isinstance(changed, Node) and changed.op == current.op:
                changed = same.down(changed, values)
        if changed is None:
            return Refusal(f"this {current.op} has no form before opset {step.version}", step.version)
        nodes = changed if isinstance(changed, list) else [changed]
        pending[:0] = [(n, step.version - 1) for n in nodes]
    return done


def means_the_same(op: str, opset: int, other: int) -> bool:
    """Whether a node of ``op`` as written at ``opset`` can stand unread at another opset."""
    if not since_version(op, opset) or not since_version(op, other):
        return opset == other
    if other < opset:
        return since_version(op, opset) == since_version(op, other)
    return all(s.additive for s in steps_of(op) if opset < s.version <= other)
