"""What an operator is: one definition with its shape rule, its meaning in numpy, its work and its kind.

An operator is named by its *key*: the plain name of an ONNX operator of the default domain, at the newest opset we define
(`OPSET`), or ``domain::name``. The definitions live in `eqsat.ir.operators`, one module per family, and register themselves
here. An operator of the default domain without a definition falls back on the `onnx` package: its schema infers shapes and
its reference evaluator gives the meaning.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from eqsat.errors import RuleError, ShapeError
from eqsat.ir.extent_arrays import dims_of
from eqsat.ir.graph import Attributes, Node, RawAttribute
from eqsat.ir.traits import NO_TRAITS, Traits, whatever
from eqsat.ir.types import Dim, Shape, TensorType, Type, type_of_array

OPSET = 28
"""The opset whose semantics the names of operators mean inside the program."""

DEFAULT_DOMAIN = ("", "ai.onnx")
"""How files spell the domain of ONNX's own operators."""


class Kind(Enum):
    """How an operator moves data: what decides which operators can share a kernel."""

    VIEW = "view"  # same elements in the same order: launches nothing
    ELEMENTWISE = "elementwise"  # each output element from the (broadcast) elements at its own index
    INJECTIVE = "injective"  # each output element is a copy of one input element
    REDUCTION = "reduction"  # sums, maxima, means, softmax, norms
    ANCHOR = "anchor"  # matrix products, convolutions, attention
    OPAQUE = "opaque"  # anything else


def is_finite(array: np.ndarray) -> bool:
    """Whether all elements are numbers; ``True`` for what is no float."""
    return array.dtype.kind not in "fV" or bool(np.isfinite(array.astype(np.float64)).all())


@dataclass(frozen=True, slots=True)
class Application:
    """An operator applied to inputs, as shape rules and work formulas see it.

    ``types[i]`` is ``None`` for an absent optional input. ``values[i]`` holds the elements of input ``i`` where they are
    known at compile time and few, else ``None``; ``lists[i]`` its elements where they are extents that are known, if only by
    symbols (`eqsat.ir.shape_values`). ``opaque``: it is none that we understand, whatever its key.
    """

    op: str
    attributes: Attributes
    types: Sequence[Type | None]
    values: Sequence[np.ndarray | None] = ()
    outputs: int = 1
    lists: Sequence[np.ndarray | None] = ()
    opaque: bool = False

    def tensor(self, index: int) -> TensorType:
        """Type of a required tensor input. Raises `ShapeError` if it is absent or no tensor."""
        found = self.types[index] if index < len(self.types) else None
        if not isinstance(found, TensorType):
            raise ShapeError(f"{self.op}: input {index} must be a tensor, got {found}")
        return found

    def shape(self, index: int) -> Shape | None:
        return self.tensor(index).shape

    def has(self, index: int) -> bool:
        """Whether optional input ``index`` is present."""
        return index < len(self.types) and self.types[index] is not None

    def value(self, index: int) -> np.ndarray | None:
        """Elements of input ``index`` if known at compile time, else ``None`` (also when absent)."""
        return self.values[index] if index < len(self.values) else None

    def dims(self, index: int) -> list[Dim] | None:
        """Elements of input ``index``, a list of extents: numbers, or texts for symbolic ones; ``None`` if not known.

        Raises `ShapeError` for a matrix.
        """
        value = self.value(index)
        if value is not None and value.ndim > 1:
            raise ShapeError(f"a list of extents, axes or positions must be a vector, got {type_of_array(value)}")
        if value is None and index < len(self.lists):
            value = self.lists[index]
        return None if value is None else dims_of(value)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def fail(self, message: str, extents: tuple[int, int] | None = None) -> ShapeError:
        """The error to raise when the inputs contradict the definition: what, then the types; ``extents`` as of the error."""
        return ShapeError(f"{self.op}: {message}; inputs {', '.join(str(t) for t in self.types)}", extents)


InferRule = Callable[[Application], tuple[Type, ...]]
Evaluate = Callable[[Attributes, Sequence[Any]], tuple[Any, ...]]
Flops = Callable[[Application, Sequence[Type]], float]
Expand = Callable[[Any, Attributes, Sequence[str | None]], Sequence[str]]
"""Builds an operator from others: ``(GraphBuilder, attributes, inputs) -> outputs``."""


def elementwise_flops(app: Application, outputs: Sequence[Type]) -> float:
    """One operation for each output element."""
    return float(outputs[0].size or 0) if outputs else 0.0


def no_flops(app: Application, outputs: Sequence[Type]) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    ``infer`` gives the output types. ``evaluate`` gives the outputs in numpy (an absent input is ``None``).
    ``flops`` counts floating or integer operations (a multiply-add is two). ``bit_exact``: every conforming
    implementation gives the same bits, so folding a constant through it changes nothing (data movement, integers,
    comparisons, single IEEE operations). ``deterministic``: same inputs, same outputs; otherwise two equal nodes are two
    values. ``commutative``: the first two inputs may be exchanged. ``expand``: builds the same value from operators of the
    default domain, for files that may not use this one (`eqsat.ir.composite`). ``defaults``: of attributes, those that
    no schema states: a value, or a function of the rank of the result. ``traits``: what else is true of it. ``counts_parts``:
    ``flops`` builds the parts, so it gets the types as they are: numbers in place of symbols may contradict one another
    inside. ``outline``: the types of results of uses that are not covered otherwise, and so opaque: other widths, other formats.
    ``written_in``: the domain that files have it in, where that is another one than its own. ``also_in``: domains that have the
    same operator, each with the opset whose form it has there. ``needed``: outputs that kernels work in, or refuse to do
    without, so that of a node that has them all are asked for, although nobody reads them; ``together``: outputs of which all
    are asked for, or none.
    ``disputed``: whether runtimes make something else of some operands than ``evaluate`` does.
    """

    name: str
    infer: InferRule
    evaluate: Evaluate
    kind: Kind
    flops: Flops = elementwise_flops
    bit_exact: bool = False
    commutative: bool = False
    deterministic: bool = True
    expand: Expand | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    traits: Traits = NO_TRAITS
    counts_parts: bool = False
    outline: InferRule | None = None
    written_in: str | None = None
    also_in: Mapping[str, int] = field(default_factory=dict[str, int])
    needed: Sequence[int] = ()
    together: Sequence[int] = ()
    disputed: Callable[[Attributes, Sequence[Any]], bool] | None = None

    def folds_exactly(self, attributes: Attributes, operands: Iterable[Type | None] = ()) -> bool:
        """Whether this use of the operator is bit-exact. Sums and products of integers are, in whatever order; a Scatter
        that adds up floats that fall on one element is not."""
        if self.bit_exact and attributes.get("reduction", "none") in ("none", "max", "min"):
            return True
        present = [t for t in operands if t is not None]
        integers = bool(present) and all(isinstance(t, TensorType) and t.dtype.is_integer for t in present)
        scaled = any(attributes.get(k, 1.0) != 1.0 for k in ("alpha", "beta"))
        return integers and not scaled and (self.bit_exact or self.traits.keeps_whole)

    def is_disputed(self, attributes: Attributes, operands: Sequence[Any]) -> bool:
        """Whether this use is left to the runtime although its operands are known: as ``disputed`` says, or where elements are
        compared or added up that are infinite or no numbers, in an order that is the runtime's own."""
        if self.disputed is not None and self.disputed(attributes, operands):
            return True
        return self.combines(attributes) and any(not is_finite(x) for x in operands if x is not None)

    def combines(self, attributes: Attributes) -> bool:
        """Whether elements of the result are made of several elements of one operand."""
        moves = self.traits.moves and self.traits.holds(attributes)
        return not moves and self.kind not in (Kind.VIEW, Kind.ELEMENTWISE, Kind.INJECTIVE)


_REGISTRY: dict[str, Operator] = {}
_BY_SCHEMA: dict[str, Operator | None] = {}
_loaded = False


def define(name: str, **facts: Any) -> Operator:
    """Registers an `Operator` with these facts by its key. Raises `RuleError` for a second definition of one key."""
    if name in _REGISTRY:
        raise RuleError(f"operator {name!r} is defined twice")
    made = _REGISTRY[name] = Operator(name, **facts)
    operators_with.cache_clear()
    return made


def domain_in_files(name: str, domain: str) -> str:
    """The domain in which files have an operator, by name and domain."""
    found = operator(name, domain) if domain else None
    return domain if found is None or found.written_in is None else found.written_in


def _written_elsewhere(op: Operator) -> bool:
    return op.written_in is not None


def domain_of_file(name: str, domain: str) -> str:
    """The domain of an operator that files have in ``domain``."""
    for key in operators_with(_written_elsewhere, domains=True):
        own, op = split_key(key)
        if op == name and domain_in_files(name, own) == domain:
            return own
    return domain


def opset_elsewhere(name: str, domain: str) -> int:
    """The opset of which ``name`` of another domain is the operator of the default one; 0 if it is none."""
    found = operator(name) if domain else None
    return 0 if found is None else found.also_in.get(domain, 0)


def undefine(name: str) -> None:
    """Takes an operator that was defined by name back; nothing happens if nobody defined it."""
    _REGISTRY.pop(name, None)
    operators_with.cache_clear()


def split_key(key: str) -> tuple[str, str]:
    """(domain, name) of an operator's key; the default domain is the empty string."""
    domain, _, name = key.rpartition("::")
    return domain, name


def operator(name: str, domain: str = "") -> Operator | None:
    """The definition of an operator, by key or by name and domain; ``None`` if neither we nor `onnx` have one."""
    global _loaded
    if not _loaded:
        _loaded = True
        import eqsat.ir.operators  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers the definitions
    if domain not in DEFAULT_DOMAIN:
        name = f"{domain}::{name}"
    found = _REGISTRY.get(name)
    if found is not None or "::" in name:
        return found
    if name not in _BY_SCHEMA:
        from eqsat.ir.schema_operator import operator_from_schema

        _BY_SCHEMA[name] = operator_from_schema(name)
    return _BY_SCHEMA[name]


def defined(name: str, domain: str = "") -> Operator:
    """The definition of an operator that has one."""
    found = operator(name, domain)
    assert found is not None, name
    return found


def definition_of(node: Node) -> Operator | None:
    """The definition of a node's operator; ``None`` for an opaque node and an operator that nobody defines."""
    return None if node.opaque else operator(node.op, node.domain)


def kind_of(node: Node) -> Kind:
    """How a node moves data; `Kind.OPAQUE` where that is unknown."""
    definition = definition_of(node)
    return Kind.OPAQUE if definition is None else definition.kind


def traits_of(key: str, attributes: Attributes | None = None) -> Traits:
    """What is true of an operator, of given attributes; nothing is if nobody defines it, or nobody reads what it depends on."""
    definition = operator(key)
    if definition is None:
        return NO_TRAITS
    holds = definition.traits.holds
    if attributes is None or holds is whatever:
        return definition.traits
    unread = any(isinstance(value, RawAttribute) for value in attributes.values())
    return NO_TRAITS if unread or not holds(attributes) else definition.traits


@cache
def operators_with(fact: Callable[[Operator], object], *, domains: bool = False) -> tuple[str, ...]:
    """The operators of the default domain of which ``fact`` is true, sorted: ``operators_with(lambda op: op.traits.moves)``.

    ``domains``: those of all other domains, too.
    """
    from eqsat.ir.operators.by_schema import TRAITS

    names = (*(key for key in defined_operators() if domains or "::" not in key), *TRAITS)
    found = [definition for definition in map(operator, names) if definition is not None and fact(definition)]
    return tuple(sorted(definition.name for definition in found))


@cache
def having(trait: str) -> Callable[[Operator], bool]:
    """The fact that an operator has a trait, whatever it says of it: ``operators_with(having("reduces"))``."""
    assert hasattr(NO_TRAITS, trait), trait
    return lambda op: bool(getattr(op.traits, trait))


@cache
def default_attribute(key: str, name: str) -> Callable[[Any], Any]:
    """What an attribute is where a node has none, as a function of the node's value; ``None`` where nothing is stated."""
    from eqsat.ir.schema_operator import default_of_schema

    definition = operator(key)
    own = None if definition is None else definition.defaults.get(name)
    if callable(own):
        return lambda node: own(node.rank)
    stated = default_of_schema(key, name) if own is None else own
    return lambda node: stated


def defined_operators() -> tuple[str, ...]:
    """Keys of the operators with a definition of our own, sorted."""
    operator("Add")
    return tuple(sorted(_REGISTRY))
