"""Rules broken on purpose: one alteration of what a rule builds, made from the term and not from its source.

An alteration names a place in the right side (the way down from its root) and what is changed there. It is applied wherever
the right side has that place; elsewhere the mutant builds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eqsat.egraph.egraph import EGraph
from eqsat.ir.operator import operator
from eqsat.ir.types import DType, TensorType
from eqsat.rewrite import (
    PROJECTION,
    AnyRule,
    Apply,
    GroupRule,
    GroupView,
    Literal,
    Match,
    Merge,
    Ref,
    Rule,
    Term,
    Unmet,
    Variable,
    literal,
)

KINDS = ("operands", "attribute", "constant", "variable", "operator", "omission", "sign")
"""Operands swapped, an attribute or a constant changed, another variable, another operator, none at all, a wrong sign."""

_PAIRS = (
    ("Add", "Sub"),
    ("Mul", "Div"),
    ("Max", "Min"),
    ("Relu", "Abs"),
    ("ReduceSum", "ReduceMean"),
    ("ReduceMax", "ReduceMin"),
    ("And", "Or"),
    ("Less", "LessOrEqual"),
    ("Greater", "GreaterOrEqual"),
    ("Floor", "Ceil"),
    ("Sigmoid", "Tanh"),
    ("Softmax", "LogSoftmax"),
    ("com.microsoft::Gelu", "com.microsoft::FastGelu"),
    ("MaxPool", "AveragePool"),
)
_SIMILAR = dict(_PAIRS) | {b: a for a, b in _PAIRS}
_SIMILAR |= {"Neg": "Abs", "Round": "Floor", "Sqrt": "Abs", "Exp": "Abs", "Erf": "Tanh", "Reciprocal": "Neg"}
_TYPE_PAIRS = (
    (DType.FLOAT, DType.DOUBLE),
    (DType.INT8, DType.UINT8),
    (DType.INT16, DType.UINT16),
    (DType.INT32, DType.INT64),
)
_TYPES = dict(_TYPE_PAIRS) | {b: a for a, b in _TYPE_PAIRS} | {DType.FLOAT16: DType.FLOAT}
_STRINGS = {"none": "tanh", "tanh": "none", "DCR": "CRD", "CRD": "DCR", "constant": "edge"}
_OF_TYPES = ("Shape", "Size")
"""Operators that read no elements: another operand of the type gives the same."""

Path = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Alteration:
    """``what`` is changed ``how`` at ``path``, the numbers of the operands on the way down from the root."""

    kind: str
    path: Path
    what: str
    how: str

    def __str__(self) -> str:
        at = ".".join(map(str, self.path)) or "root"
        return f"{self.kind}: {self.what} {self.how} at {at}"


@dataclass
class Mutant:
    """A rule with an alteration. ``altered``: how often it has built something else than the rule does."""

    rule: AnyRule
    alteration: Alteration
    altered: int = field(default=0)

    def broken(self) -> AnyRule:
        """The altered rule under its old name, with the old conditions and sample; it fires where it is altered."""
        return replace(self.rule, build=self._group if _yields_merges(self.rule) else self._single)

    def _single(self, match: Match) -> Term | None:
        term = self.rule.build(match)
        return None if term is None else self._change(term, _values_of(self.rule, match))

    def _group(self, view: GroupView) -> Iterator[Merge]:
        build: Any = self.rule.build
        for ref, term in build(view):
            changed = self._change(term, {"root": ref})
            if changed is not None:
                yield ref, changed

    def _change(self, term: Term, others: Mapping[str, Ref]) -> Term | None:
        for found, changed in _places(term, term, (), _named(term, others)):
            if found == self.alteration:
                self.altered += 1
                return changed
        return None


class Recorder:
    """Collects the alterations that what a rule builds has places for, in the order met."""

    def __init__(self, rule: AnyRule) -> None:
        self._rule = rule
        self.found: dict[Alteration, None] = {}

    def recording(self) -> AnyRule:
        """The rule, unchanged but for the recording."""
        return replace(self._rule, build=self._group if _yields_merges(self._rule) else self._single)

    def _single(self, match: Match) -> Term | None:
        term = self._rule.build(match)
        if term is not None:
            self._record(term, _values_of(self._rule, match))
        return term

    def _group(self, view: GroupView) -> Iterator[Merge]:
        build: Any = self._rule.build
        for ref, term in build(view):
            self._record(term, {"root": ref})
            yield ref, term

    def _record(self, term: Term, others: Mapping[str, Ref]) -> None:
        self.found |= {found: None for found, _ in _places(term, term, (), _named(term, others))}


def _yields_merges(rule: AnyRule) -> bool:
    """Whether ``build`` makes all merges of an e-graph, and not the right side of one match."""
    return isinstance(rule, GroupRule) and rule.find is None


def _values_of(rule: AnyRule, match: Match) -> dict[str, Ref]:
    """What the variables of the pattern matched; the root is there so that it is not taken for another operand."""
    found = match.refs()
    names = sorted(_variables(rule.pattern) if isinstance(rule, Rule) else found)
    return {"root": match.root} | {name: found[name] for name in names if name in found and _is_tensor(found[name])}


def _variables(pattern: Term) -> set[str]:
    if isinstance(pattern, Apply):
        return {name for arg in pattern.args for name in _variables(arg)}
    return {pattern.name} if isinstance(pattern, Variable) else set()


def _named(term: Term, others: Mapping[str, Ref]) -> dict[str, Ref]:
    """What an operand may be mistaken for: matched values by name, the other operands of the term by number."""
    named, root = dict(others), _class(others["root"])
    known = {_class(ref) for ref in named.values()}
    for ref in _refs(term):
        if _class(ref) not in known:
            known.add(_class(ref))
            named[f"operand {len(named)}"] = ref
    return {name: ref for name, ref in named.items() if _class(ref) != root}


def _is_tensor(ref: Ref) -> bool:
    """Whether the value is one: an operator with several outputs is a tuple."""
    assert isinstance(ref.values, EGraph)
    return isinstance(ref.values.full_type_of(ref.handle), TensorType)


def _class(ref: Ref) -> int:
    assert isinstance(ref.values, EGraph)
    return ref.values.find(ref.handle)


def _refs(term: Term) -> Iterator[Ref]:
    if isinstance(term, Ref):
        yield term
    elif isinstance(term, Apply):
        for arg in term.args:
            yield from _refs(arg)


def _places(root: Term, term: Term, path: Path, named: Mapping[str, Ref]) -> Iterator[tuple[Alteration, Term]]:
    """Each alteration of ``term``, which is at ``path`` in ``root``, with the root altered by it."""
    for kind, what, how, changed in _changes(term, named):
        if changed != term:
            yield Alteration(kind, path, what, how), _with(root, path, changed)
    if isinstance(term, Apply):
        for number, arg in enumerate(term.args):
            if arg is not None and not (term.op in _OF_TYPES and isinstance(arg, Ref)):
                yield from _places(root, arg, (*path, number), named)


def _with(term: Term, path: Path, changed: Term) -> Term:
    if not path:
        return changed
    assert isinstance(term, Apply)
    args = list(term.args)
    args[path[0]] = _with(args[path[0]], path[1:], changed)
    return replace(term, args=tuple(args))


Change = tuple[str, str, str, Term]
"""Kind, what, how, the altered term."""


def _changes(term: Term, named: Mapping[str, Ref]) -> Iterator[Change]:
    if isinstance(term, Ref):
        yield from _changes_of_operand(term, named)
    elif isinstance(term, Literal):
        yield from _changes_of_constant(term)
    elif isinstance(term, Apply) and term.op != PROJECTION:
        yield from _changes_of_operator(term)


def _changes_of_operand(ref: Ref, named: Mapping[str, Ref]) -> Iterator[Change]:
    try:
        type = ref.type
        if type.dtype.is_float:
            yield "sign", "operand", "negated", Apply("Neg", (ref,))
        for name, other in named.items():
            if _class(other) != _class(ref) and other.type == type:
                yield "variable", "operand", f"replaced by {name}", other
    except Unmet:
        return


def _changes_of_constant(term: Literal) -> Iterator[Change]:
    array = term.constant.numpy()
    what = f"{array.dtype} constant"
    for how, changed in _changed_arrays(array):
        if not np.array_equal(changed, array, equal_nan=array.dtype.kind in "fV"):
            yield "constant", what, how, literal(changed.astype(array.dtype), term.constant.dtype)


def _changed_arrays(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if not array.size:
        return
    if array.dtype.kind == "b":
        yield "inverted", ~array
    elif array.dtype.kind in "iu":
        first = array.copy()
        first.reshape(-1)[:1] += array.dtype.type(1)
        yield "plus one in its first element", first
        if array.size > 1:
            yield "reversed", array.reshape(-1)[::-1].reshape(array.shape)
    elif array.dtype.kind in "fV":
        with np.errstate(all="ignore"):
            yield "negated", -array
            yield "doubled", array * array.dtype.type(2)
            yield "plus one", array + array.dtype.type(1)


def _changes_of_operator(term: Apply) -> Iterator[Change]:
    definition = operator(term.op)
    args = term.args
    if len(args) > 1 and not (definition is not None and definition.commutative) and args[1] is not None:
        yield (
            "operands",
            term.op,
            "with its first two operands swapped",
            replace(term, args=(args[1], args[0], *args[2:])),
        )
    for name, value in term.attributes.items():
        for how, changed in _changed_values(name, value):
            with np.errstate(over="ignore"):
                attributes = term.attributes.updated(**{name: changed})
            yield "attribute", f"{term.op}.{name}", how, replace(term, attributes=attributes)
    if term.op in _SIMILAR:
        yield "operator", term.op, f"replaced by {_SIMILAR[term.op]}", replace(term, op=_SIMILAR[term.op])
    if args and args[0] is not None and term.outputs == 1:
        yield "omission", term.op, "left out", args[0]


def _changed_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, float):
        if value:
            yield "doubled", value * 2
            yield "negated", -value
    elif isinstance(value, int):
        if name in ("to", "output_dtype"):
            if DType(value) in _TYPES:
                yield "another", int(_TYPES[DType(value)])
        elif name == "axis":
            yield "another", value - 1 if value else 1
        else:
            yield "changed by one", 1 - value if value in (0, 1) else value + 1
    elif isinstance(value, str) and value in _STRINGS:
        yield "another", _STRINGS[value]
    elif isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        numbers: list[int] = list(value)
        yield "reversed", tuple(reversed(numbers))
        if len(numbers) > 1:
            yield "with its last two elements swapped", (*numbers[:-2], numbers[-1], numbers[-2])
        if name != "perm":
            yield "plus one in its first element", (numbers[0] + 1, *numbers[1:])


def choose(found: Iterable[Alteration], count: int, rng: np.random.Generator) -> list[Alteration]:
    """``count`` of the alterations, the kinds in turn, drawn at random within each."""
    by_kind: dict[str, list[Alteration]] = {kind: [] for kind in KINDS}
    for alteration in found:
        by_kind[alteration.kind].append(alteration)
    for alterations in by_kind.values():
        rng.shuffle(alterations)  # type: ignore[arg-type]
    chosen: list[Alteration] = []
    while len(chosen) < count and any(by_kind.values()):
        for kind in [k for k in KINDS if by_kind[k]]:
            chosen.append(by_kind[kind].pop())
    return chosen[:count]
