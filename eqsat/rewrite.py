"""Rewrite rules as data: patterns, conditions, rules, and the registry they live in.

A rule is an equation. Its left side is a *pattern*, a term over operators and variables; the decorated function gets the
`Match` and returns the right side, a term over the matched references. What must hold for the equation to be true is a list
of named `Condition`s: a rule whose conditions cannot be established does not fire, and the first one that failed says why.

rules/README.md has examples. This module knows the IR only; `eqsat.egraph` compiles and runs rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np

from eqsat.errors import OptionError, RuleError, nearest
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.operator import operator
from eqsat.ir.types import DType, Shape, TensorType

PROJECTION = "Proj"
"""Pseudo-operator: output ``index`` of an operator with several outputs."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Stands for any value. ``optional``: for an absent optional input, too (it is then ``None`` in the match)."""

    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to terms. In a pattern ``name`` makes the node available in the match, attributes included."""

    op: str
    args: tuple[Term, ...]
    attributes: Attributes = NO_ATTRIBUTES
    name: str = ""
    outputs: int = 1

    def named(self, name: str) -> Apply:
        return Apply(self.op, self.args, self.attributes, name, self.outputs)

    def output(self, index: int) -> Apply:
        """Output ``index`` of an operator with several outputs."""
        return Apply(PROJECTION, (self,), Attributes({"index": index}))


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant on the right side of a rule."""

    constant: Constant


class Values(Protocol):
    """What a match may ask about the value of an e-class."""

    def full_type_of(self, handle: int) -> object: ...
    def value_of(self, handle: int) -> np.ndarray | None: ...
    def literal_of(self, handle: int) -> np.ndarray | None: ...
    def is_constant(self, handle: int) -> bool: ...
    def interval_of(self, handle: int) -> tuple[float, float]: ...


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that would triple the time to make one, and there are many
class Ref:
    """A matched value: an e-class with its type and what is known about its elements. Never changed once made.

    ``enode``: where a group rule looked at one e-node of the class, that e-node.
    """

    handle: int
    values: Values = field(compare=False, repr=False)
    attributes: Attributes = NO_ATTRIBUTES
    enode: int = field(default=-1, compare=False, repr=False)

    @property
    def type(self) -> TensorType:
        """Type of the value. Raises `Unmet` when it is no tensor, but, say, all outputs of an operator with several."""
        found = self.values.full_type_of(self.handle)
        if not isinstance(found, TensorType):
            raise Unmet("the value is no tensor")
        return found

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Extents; raises `Unmet` when the rank is unknown."""
        shape = self.type.shape
        if shape is None:
            raise Unmet("the rank is unknown")
        return shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """Extents; raises `Unmet` unless all are known."""
        shape = self.shape
        if not all(isinstance(d, int) for d in shape):
            raise Unmet(f"an extent is unknown: {shape}")
        return shape  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def value(self) -> np.ndarray:
        """Elements, if constant and few; raises `Unmet` otherwise."""
        value = self.values.value_of(self.handle)
        if value is None:
            raise Unmet("the elements are not known at compile time")
        return value

    @property
    def elements(self) -> np.ndarray:
        """Elements of a literal constant of any size; raises `Unmet` for any other value."""
        value = self.values.literal_of(self.handle)
        if value is None:
            raise Unmet("the value is no literal constant")
        return value

    @property
    def is_constant(self) -> bool:
        return self.values.is_constant(self.handle)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on the elements; (-inf, inf) if nothing is known, NaN bounds if an element may be NaN."""
        return self.values.interval_of(self.handle)

    @property
    def low(self) -> float:
        """Lower bound on the elements."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Upper bound on the elements."""
        return self.interval[1]

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute of a named node of the pattern."""
        return self.attributes.get(name, default)


Term = Variable | Apply | Literal | Ref


class Unmet(Exception):
    """Raised while a condition or a right side is evaluated: the rule does not apply here, and why."""


@dataclass(frozen=True, slots=True)
class AttributeOf:
    """Attribute ``name`` of the node called ``node``; ``default`` gives what it is where the node has none."""

    node: str
    name: str
    default: Callable[[Ref], Any]

    def of(self, node: Ref) -> Any:
        return node.attributes[self.name] if self.name in node.attributes else self.default(node)


class Match:
    """What the names of a pattern matched.

    ``m.x`` is a `Ref` for a variable or a node, ``None`` for an absent input, and the value of a named attribute. ``root`` is
    the value of the whole.
    """

    def __init__(
        self,
        bindings: Mapping[str, Ref | None],
        root: Ref,
        attributes: Mapping[str, AttributeOf] = MappingProxyType({}),
    ) -> None:
        self._bindings = bindings
        self._attributes = attributes
        self.root = root

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Any:
        if name in self._bindings:
            return self._bindings[name]
        if name == "root":
            return self.root
        found = self._attributes[name]
        return found.of(self[found.node])

    def require(self, holds: object, reason: str) -> None:
        """Raises `Unmet` with ``reason`` unless ``holds``."""
        if not holds:
            raise Unmet(reason)


@dataclass(frozen=True, slots=True)
class Hint:
    """What a condition asks of the value bound to ``name``: what a random instance draws for it, most of the time.

    A constant; elements that are all ``value``; elements known to be from ``low`` to ``high``; one of some element types; for
    a node the value of an attribute. ``whole``: the value has the shape of the result; ``ranks``:
    numbers of axes that it may have.
    """

    name: str
    constant: bool = False
    value: float | None = None
    low: float = -np.inf
    high: float = np.inf
    dtypes: frozenset[DType] = frozenset()
    attribute: tuple[str, Any] | None = None
    whole: bool = False
    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Condition:
    """A named side condition.

    ``fact``: variables that must be constant, which the e-graph checks while matching. ``worthwhile``: without the condition the
    equation is as true, but leads nowhere, or to ever more e-nodes.
    """

    name: str
    holds: Callable[[Match], bool]
    fact: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()
    worthwhile: bool = False


Sample = Callable[[Any], Any]
RightSide = Callable[[Match], Term | None]


@dataclass(frozen=True, eq=False)
class Rule:
    """An equation between a pattern and what ``build`` makes of a match.

    ``name`` is unique; ``equation`` is the first line of the docstring. ``quanta``: for class LSB, how many quanta an integer
    result may move. ``sample`` draws a random instance of the left side for the soundness test: given a sampler it returns
    an array for each variable and the attributes of each named node, see ``rules/README.md``. ``domain``: of the operators
    that the right side introduces; the rule only runs where programs may use them. ``legalizes``: the operator that the rule
    spells out; it only runs where the target has no kernel for that. ``outside``: a domain with operators that do better; the
    rule only runs where programs may not use them. ``unverified``: registered without the check by random instantiation;
    reports say so. ``attributes``: those of matched nodes that have names of their own in a match.
    """

    name: str
    pattern: Apply
    build: RightSide
    conditions: tuple[Condition, ...]
    exactness: Exactness
    family: str
    source: str
    equation: str
    doc: str
    quanta: int = 0
    sample: Sample | None = None
    domain: str = ""
    legalizes: str = ""
    outside: str = ""
    unverified: bool = False
    attributes: Mapping[str, AttributeOf] = field(default_factory=dict[str, AttributeOf])


class GroupView(Protocol):
    """What a group rule sees of the e-graph."""

    def nodes(self, op: str) -> Iterator[tuple[Ref, tuple[Ref | None, ...]]]:
        """Every e-node of ``op``: its class (with the node's attributes) and its inputs, oldest first."""
        ...

    def spellings(self, ref: Ref) -> Iterator[tuple[str, tuple[Ref | None, ...]]]:
        """Every e-node in the class of ``ref``: operator, inputs."""
        ...

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, tuple[Ref | None, ...]]]:
        """Every e-node that reads ``ref``: operator, class, inputs."""
        ...


Merge = tuple[Ref, Term]
GroupSide = Callable[[GroupView], Iterable[Merge]]


@dataclass(frozen=True, eq=False)
class GroupRule:
    """An equation over any number of nodes at once: yields pairs (existing value, term that equals it)."""

    name: str
    build: GroupSide
    exactness: Exactness
    family: str
    source: str
    equation: str
    doc: str
    conditions: tuple[Condition, ...] = ()
    sample: Sample | None = None
    domain: str = ""
    legalizes: str = ""
    outside: str = ""
    unverified: bool = False


AnyRule = Rule | GroupRule
R = TypeVar("R", Rule, GroupRule)
_REGISTRY: dict[str, AnyRule] = {}


def rule(
    pattern: Apply,
    *,
    where: Sequence[Condition] = (),
    exactness: Exactness,
    source: str,
    family: str = "",
    quanta: int = 0,
    sample: Sample | None = None,
    domain: str = "",
    legalizes: str = "",
    outside: str = "",
) -> Callable[[RightSide], Rule]:
    """Registers the decorated function as the right side of a rule. See the module's docstring.

    Raises `RuleError`: no equation in the docstring, a second rule of that name, an unknown operator in the pattern.
    """

    def decorate(build: RightSide) -> Rule:
        name, equation, doc = _describe(build)
        _check_pattern(pattern, name)
        stated = (
            exactness,
            family or family_of(build.__module__),
            source,
            equation,
            doc,
            quanta,
            sample,
            domain,
            legalizes,
            outside,
        )
        return register(Rule(name, pattern, build, tuple(where), *stated))

    return decorate


def group_rule(
    *, exactness: Exactness, source: str, family: str = "", sample: Sample | None = None, domain: str = ""
) -> Callable[[GroupSide], GroupRule]:
    """Registers the decorated generator as a rule over groups of nodes (N-way merging).

    ``sample`` draws a random graph with such a group.
    """

    def decorate(build: GroupSide) -> GroupRule:
        name, equation, doc = _describe(build)
        return register(
            GroupRule(
                name,
                build,
                exactness,
                family or family_of(build.__module__),
                source,
                equation,
                doc,
                sample=sample,
                domain=domain,
            )
        )

    return decorate


def family_of(module: str) -> str:
    """The family of the rules of a module: its place among the shipped rules, ``user`` elsewhere."""
    return module.removeprefix("eqsat.rules.") if module.startswith("eqsat.rules.") else "user"


def _describe(function: Callable[..., Any]) -> tuple[str, str, str]:
    name = function.__name__
    doc = (function.__doc__ or "").strip()
    equation = re.search(r"``(.+?)``", doc, re.DOTALL)
    if equation is None or "==" not in equation.group(1):
        raise RuleError(f"rule {name!r}: the docstring must state the equation as ``left == right``")
    return name, " ".join(equation.group(1).split()), doc


def _check_pattern(pattern: Term, name: str) -> None:
    if isinstance(pattern, Apply):
        if pattern.op != PROJECTION and operator(pattern.op) is None:
            raise RuleError(f"rule {name!r}: the pattern names {pattern.op!r}, which is no operator")
        if pattern.op != PROJECTION and pattern.attributes:
            raise RuleError(f"rule {name!r}: name the node and test its attributes in a condition; a pattern cannot")
        for arg in pattern.args:
            _check_pattern(arg, name)
    elif not isinstance(pattern, Variable):
        raise RuleError(
            f"rule {name!r}: a pattern holds no {pattern!r}; name a variable, state its value in a condition"
        )


def register(made: R) -> R:
    """Adds a rule to the registry. Raises `RuleError` for a second rule of that name."""
    if made.name in _REGISTRY:
        raise RuleError(f"rule {made.name!r} is registered twice")
    _REGISTRY[made.name] = made
    return made


def registered_rules() -> tuple[AnyRule, ...]:
    """Every registered rule in the order of registration. Importing `eqsat.rules` registers the shipped ones."""
    return tuple(_REGISTRY.values())


def find_rule(name: str) -> AnyRule:
    """The registered rule called ``name``. Raises `OptionError` for one that does not exist, with the name most like it."""
    if name not in _REGISTRY:
        known = f"{nearest(name, _REGISTRY)}`eqsat rules` lists the {len(_REGISTRY)} there are"
        raise OptionError(f"rule {name!r} does not exist; {known}")
    return _REGISTRY[name]


def unregister(name: str) -> None:
    """Forgets a rule (for tests, and for a notebook cell that is run again)."""
    _REGISTRY.pop(name, None)


def select_rules(
    numerics: Exactness,
    *,
    only: Sequence[str] | None = None,
    disabled: Sequence[str] = (),
    domains: Collection[str] = (),
    unsupported: Collection[str] = (),
) -> tuple[AnyRule, ...]:
    """Rules of class ``numerics`` or stronger that introduce operators of the default domain or of ``domains`` only.

    ``unsupported``: operators to be spelled out. Raises `OptionError` for a name that no rule has.
    """
    for name in (*(only or ()), *disabled):
        find_rule(name)
    return tuple(
        r
        for r in registered_rules()
        if r.exactness <= numerics
        and r.name not in disabled
        and (only is None or r.name in only)
        and (not r.domain or r.domain in domains)
        and (not r.legalizes or r.legalizes in unsupported)
        and (not r.outside or r.outside not in domains)
    )


def variables(names: str) -> tuple[Any, ...]:
    """Variables by name, separated by spaces; a trailing ``?`` makes one optional: ``x, b = variables("x b?")``."""
    return tuple(Variable(n.rstrip("?"), n.endswith("?")) for n in names.split())


def apply(op: str, *args: Term | None, outputs: int = 1, **attributes: Any) -> Apply:
    """A term: the operator with key ``op`` applied to ``args``. ``None`` is an absent optional input."""
    return Apply(op, present(*args), Attributes(attributes) if attributes else NO_ATTRIBUTES, "", outputs)


def present(*args: Term | None) -> tuple[Any, ...]:
    """The operands of an operator, without absent optional ones at the end."""
    kept = list(args)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def literal(value: Any, dtype: DType | str | None = None) -> Literal:
    """A constant term."""
    return Literal(value if isinstance(value, Constant) else Constant.of(value, dtype))
