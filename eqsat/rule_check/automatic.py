"""Random instances of a pattern for which nobody wrote a ``sample=``: shapes, element types and values drawn from its form.

Shapes go down from the root: each operator says which operands would give the shape that is wanted (`operand_shapes`).
Ranks 0 to 4, broadcasting, extents of 1, several element types, and values that tell: zeros, ones, infinities, ties. What the
conditions ask for (`Hint`) is drawn mostly, and left out at times: then the rule must not fire, or still be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operator import traits_of
from eqsat.ir.schema_operator import takes_types
from eqsat.ir.types import DType, TensorType
from eqsat.rewrite import PROJECTION, Apply, Hint, Rule, Term, Variable, present
from eqsat.rule_check import movement_operands, quantised_operands  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers their plans
from eqsat.rule_check.operand_shapes import Operand, Shape, another_attribute, draw_attributes, plan_operands
from eqsat.rule_check.registration import Choices
from eqsat.samples import Applied, Drawing, Fixed, Instance, Sampler, Value, fixed

_THEMES = ("float32",) * 7 + ("float16", "float64", "int64", "int32", "int8", "uint8", "bool")
_FILLS = (0.0, 1.0, 1.0, -1.0, 2.0, 0.5)
_NUMBERS = (0.0, 1.0, -1.0, 2.0, 6.0, 0.5, 100.0, -2.5, 7.0)
_SPECIAL = (math.nan, math.inf, -math.inf)
_BOUNDED = (
    ("Abs", 0, math.inf),
    ("Relu", 0, math.inf),
    ("Exp", 0, math.inf),
    ("Sigmoid", 0, 1),
    ("Tanh", -1, 1),
    ("Erf", -1, 1),
)
"""Operators whose results are within bounds."""

_LARGE = 0.4
"""Part of the instances of products whose constants overflow among themselves, though the result need not."""

_SIZES = ("products", "products", "sums", "sums of products", "infinite")
"""Of what they overflow."""

_HINT_DROPPED = 0.2
"""Part of the instances in which one thing that the conditions ask for is not drawn."""


def automatic_instance(rule: Rule, sampler: Sampler) -> Instance:
    """A random instance of the left side of ``rule``. Raises `ValueError` when its operators reject a thousand draws."""
    drawn = automatic_instances(rule, {}, int(sampler.rng.integers(2**40)))
    for _ in range(1000):
        found = next(drawn)
        if found is not None:
            return found
    raise ValueError(f"the operators of {rule.equation!r} take nothing that is drawn: give sample=")


def automatic_instances(rule: Rule, choices: Choices, seed: int = 0) -> Iterator[Instance | None]:
    """Endless random instances of the left side of ``rule``; ``None`` for a draw that its operators rejected."""
    hints = [hint for condition in rule.conditions for hint in condition.hints]
    constants = frozenset(name for condition in rule.conditions for name in condition.fact)
    stated = all(condition.hints for condition in rule.conditions)  # then values need not be guessed
    while True:
        sampler = Sampler(seed)
        seed += 1
        try:
            instance = _Instantiation(rule, sampler, constants, hints, choices, stated).instance(rule.pattern)
            _check_types(instance.graph)
            run(instance.graph, instance.feeds)
        except (EqsatError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError):
            yield None  # the operators do not accept what was drawn: another draw
        else:
            yield instance


def _operators(term: Term) -> set[str]:
    """The operators of a pattern."""
    return {term.op, *(op for a in term.args for op in _operators(a))} if isinstance(term, Apply) else set()


def _are_integers(dtypes: frozenset[DType]) -> bool:
    """Whether there are some, all integers."""
    return bool(dtypes) and all(t.is_integer for t in dtypes)


def _weighs(op: str) -> bool:
    """Whether an operator is a product, a normalisation or a mean of windows."""
    traits = traits_of(op)
    return bool(traits.product or traits.rows or (traits.spatial and traits.affine))


def _required(term: Term) -> set[str]:
    """The variables of a pattern that are not optional."""
    if isinstance(term, Apply):
        return {name for a in term.args for name in _required(a)}
    return {term.name} if isinstance(term, Variable) and not term.optional else set()


def _check_types(graph: Graph) -> None:
    """Raises `ValueError` where an operator is applied to element types that its schema does not take."""
    for node in graph.nodes:
        if not takes_types(node.key, [graph.type_of(v) if v else None for v in node.inputs]):
            raise ValueError(f"{node.key} does not take these element types")


class _Instantiation:
    def __init__(
        self,
        rule: Rule,
        sampler: Sampler,
        constants: frozenset[str],
        hints: Sequence[Hint],
        choices: Choices,
        stated: bool,
    ) -> None:
        self._d = sampler
        self._constants = constants
        self._choices = choices
        opposite = [hint for hint in hints if hint.opposite]
        dropped = sampler.choose(hints) if hints and sampler.chance(_HINT_DROPPED) else None
        if opposite:
            dropped = sampler.choose([h for h in opposite if h.attribute or h.single or h.dtypes] or opposite)
        self._dropped = dropped
        self._hints = [hint for hint in hints if hint is not dropped and not (hint.opposite and dropped in opposite)]
        quantises = any(traits_of(op).quantises for op in _operators(rule.pattern))  # bytes bound what is summed up
        beside = quantises or "DequantizeLinear" in _operators(rule.pattern)  # integers that are drawn beside floats
        asked = [h.dtypes for h in self._hints if h.dtypes and not (beside and _are_integers(h.dtypes))]
        known = (*_THEMES, "bfloat16") if asked else _THEMES
        themes = [t for t in known if all(DType.of(t) in dtypes for dtypes in asked)]
        self._dtype = DType.of(sampler.choose(themes or _THEMES))
        self._special = sampler.chance(
            0.1 if stated else 0.3
        )  # mostly constants of equal elements: what conditions ask for
        self._drawing = Drawing()
        self._variables: dict[str, str | None] = {}
        self._nodes: dict[Apply, tuple[str, ...]] = {}
        self._extents: Shape = ()
        self._infinite = rule.exactness is Exactness.EXACT
        weighs = not self._infinite and not quantises and any(map(_weighs, _operators(rule.pattern)))
        self._normalises = any(traits_of(op).rows for op in _operators(rule.pattern))
        self._large = sampler.choose(_SIZES) if weighs and sampler.chance(_LARGE) else ""
        self._magnitudes = sampler.choose(((1e20, 1e25), (3e37,)))
        names = sorted(v for v in constants if v in _required(rule.pattern))
        self._huge = set(sampler.rng.permutation(names)[: sampler.choose((1, 2, 2))].tolist())
        self._symbolic = frozenset(sampler.subset(range(1, 8), 0.4) if sampler.chance(0.2) else ())

    def instance(self, pattern: Apply) -> Instance:
        d = self._d
        asked = [hint.ranks for hint in self._hints if hint.ranks]
        ranks = [r for r in (0, 1, 2, 2, 3, 3, 4) if all(r in ranks for ranks in asked)]
        extents = (
            d.extents(d.choose(ranks or [2]), 0.15) if d.chance(0.8) or asked else (d.integer(2, 3),) * d.integer(1, 3)
        )
        self._extents = extents
        root = self._values(pattern, extents)
        inner = [value for values in self._nodes.values() for value in values if value not in root]
        return self._drawing.finish(*root, *d.subset(inner, 0.1))

    def _values(self, term: Apply, wanted: Shape) -> tuple[str, ...]:
        if term.op == PROJECTION:
            of = term.args[0]
            assert isinstance(of, Apply)
            return (self._values(of, wanted)[int(term.attributes["index"])],)
        found = self._nodes.get(term)
        if found is not None:
            return found
        d = self._d
        attributes = draw_attributes(term.op, d)
        if term.op == "Cast" and d.chance(0.3):
            attributes["to"] = int(self._dtype)
        for name, options in self._choices.get(term.name, {}).items():
            attributes[name] = d.choose(list(options))
        attributes |= dict(h.attribute for h in self._hints if h.attribute and h.name == term.name)
        if self._dropped and self._dropped.attribute and self._dropped.name == term.name:
            name, value = self._dropped.attribute
            if attributes.get(name, value) == value:
                attributes |= another_attribute(name, value, d)
        if term.op == "Split":
            attributes.setdefault("num_outputs", term.outputs)
        terms = list(present(*(None if self._is_absent(a) else a for a in term.args)))
        operands = self._plan(term.op, wanted, attributes, terms)
        if term.op == "Split" and len(terms) > 1:
            attributes.pop("num_outputs", None)
        inputs: list[str | None] = []
        for a, operand in zip(terms, operands, strict=True):
            inputs.append(None if a is None else self._input(a, self._aligned(a, operand, inputs)))
        made = self._drawing.op(term.op, *inputs, outputs=term.outputs, **attributes)
        self._nodes[term] = (made,) if term.outputs == 1 else made
        return self._nodes[term]

    def _plan(self, op: str, wanted: Shape, attributes: dict[str, Any], terms: Sequence[Term | None]) -> list[Operand]:
        """Operands of an operator, drawn again where they are not what the conditions ask for. A value that is quantised is there
        first: scales fit it."""
        value = terms[0] if terms and traits_of(op).quantises else None
        there = self._evaluated(value, wanted) if isinstance(value, Apply) and len(terms) > 1 else None
        known = [self._known(a) if i or there is None else there.shape for i, a in enumerate(terms)]
        given = dict(attributes)
        names = [a.name for a in terms if isinstance(a, Variable)]
        asked = [h.dtypes for h in self._hints if h.name in names and _are_integers(h.dtypes)]
        self._d.asked_types = sorted(t.name.lower() for t in frozenset[DType].intersection(*asked)) if asked else ()
        found: list[Operand] = []
        for _ in range(8):
            attributes.clear()
            attributes |= given
            found = plan_operands(op, self._d, wanted, len(terms), attributes, known)
            if all(self._is_asked_for(a, operand.value) for a, operand in zip(terms, found, strict=True)):
                break
        scale = found[1].value if there is not None and self._d.chance(0.8) else None
        if there is not None and scale is not None:
            finite = np.abs(there[np.isfinite(there)])
            with np.errstate(over="ignore"):
                found[1] = replace(found[1], value=(scale * (finite.max(initial=0.0) or 1.0) / 64).astype(scale.dtype))
        return found

    def _is_asked_for(self, term: Term | None, drawn: np.ndarray | None) -> bool:
        if not isinstance(term, Variable) or drawn is None or not drawn.size:
            return True
        asked = [h for h in self._hints if h.name == term.name]
        if drawn.size != 1 and any(h.single for h in asked):
            return False
        dropped = self._dropped if self._dropped and self._dropped.name == term.name else None
        if dropped and ((dropped.single and drawn.size == 1) or DType.of(drawn.dtype) in dropped.dtypes):
            return False
        low, high = float(drawn.min()), float(drawn.max())
        return all(
            (not h.dtypes or DType.of(drawn.dtype) in h.dtypes) and h.low <= low and high <= h.high for h in asked
        )

    def _evaluated(self, term: Apply, wanted: Shape) -> np.ndarray:
        """What a term is, of operands that are drawn for it now."""
        instance = self._drawing.finish(self._values(term, wanted)[0])
        return np.asarray(run(instance.graph, instance.feeds)[instance.root], np.float64)

    def _is_absent(self, term: Term | None) -> bool:
        if isinstance(term, Variable) and term.optional and term.name not in self._variables and self._d.chance(0.25):
            self._variables[term.name] = None
        return term is None or (isinstance(term, Variable) and self._variables.get(term.name, "") is None)

    def _known(self, term: Term | None) -> Shape | None:
        """The shape of a variable that is drawn already."""
        name = self._variables.get(term.name) if isinstance(term, Variable) else None
        return None if name is None else self._shape_of(name)

    def _shape_of(self, name: str) -> Shape | None:
        type = self._drawing.builder.type_of(name)
        if not isinstance(type, TensorType) or type.shape is None:
            return None
        return tuple(d if isinstance(d, int) else int(d[1:]) for d in type.shape)  # a symbol is named by its extent

    def _aligned(self, term: Term, operand: Operand, drawn: Sequence[str | None]) -> Operand:
        """The operand, as a vector along some axis of what is drawn already if a condition asks for one."""
        d = self._d
        beside = self._shape_of(drawn[0]) if drawn and drawn[0] else None
        if not isinstance(term, Variable) or not beside:
            return operand
        if not any(hint.vector for hint in self._hints if hint.name == term.name):
            return operand
        axis = d.integer(0, len(beside) - 1)
        full = tuple(n if i == axis else 1 for i, n in enumerate(beside))
        return Operand(d.choose(((), (1,), (1,) * len(beside))) if d.chance(0.2) else full[d.integer(0, axis) :])

    def _input(self, term: Term, operand: Operand) -> str | None:
        if isinstance(term, Apply):
            return self._values(term, operand.shape)[0]
        assert isinstance(term, Variable)
        if term.name not in self._variables:
            drawn = self._draw(term.name, operand)
            if self._large and operand.kind == "data":
                drawn = self._enlarged(term, operand, drawn)
            self._variables[term.name] = self._drawing.value(drawn, self._symbolic)
        return self._variables[term.name]

    def _draw(self, name: str, operand: Operand) -> Value:
        d = self._d
        if operand.value is not None:
            known = operand.kind == "fixed" or name in self._constants or d.chance(0.1)
            return fixed(operand.value) if known else operand.value
        asked = [hint for hint in self._hints if hint.name == name]
        types = [hint.dtypes for hint in asked if hint.dtypes]
        if types and any(self._dtype not in found for found in types):  # other operands are of the instance's type
            theme, self._dtype = self._dtype, d.choose(sorted(frozenset[DType].intersection(*types)) or [self._dtype])
            try:
                return (
                    self._draw(name, operand)
                    if all(self._dtype in found for found in types)
                    else d.array(operand.shape)
                )
            finally:
                self._dtype = theme
        if any(hint.whole for hint in asked) and operand.kind == "data":
            operand = replace(operand, shape=self._extents)
        array = self._array(name, operand)
        for hint in asked:
            if hint.value is not None:
                with np.errstate(invalid="ignore"):
                    array = np.full(self._form_of_number(operand.shape), hint.value).astype(self._dtype.numpy)
        if name in self._constants or any(hint.constant for hint in asked):
            low, high = max([h.low for h in asked], default=-math.inf), min([h.high for h in asked], default=math.inf)
            if self._dtype.is_float:
                with np.errstate(over="ignore"):
                    array = np.clip(array.astype(np.float64), low, high).astype(array.dtype)
            return fixed(array)
        if self._large:
            return array
        within = [o for o, low, high in _BOUNDED if all(h.low <= low and high <= h.high for h in asked)]
        bounded = any(h.low > -math.inf or h.high < math.inf for h in asked) or (
            operand.kind == "data" and d.chance(0.15)
        )
        if bounded and within and self._dtype.is_float:
            return Applied(d.choose(within), array)
        return d.either(array, 0.8 if self._special else 0.15)

    def _enlarged(self, term: Variable, operand: Operand, value: Value) -> Value:
        """Constants so large that they overflow among themselves: their products, their sums, or their sums of products."""
        if isinstance(value, Applied) or self._dtype is not DType.FLOAT:
            return value
        array = np.clip(value.array if isinstance(value, Fixed) else value, -9, 9)
        is_constant = isinstance(value, Fixed)
        match self._large:
            case "products" if term.name in self._huge:
                size = self._d.choose(self._magnitudes if len(self._huge) > 1 else (3e37,))
                signs = self._d.rng.choice([-1, 1], array.shape)
                array = (signs * self._d.rng.uniform(5, 9, array.shape) * size).astype(np.float32)
            case "products":
                array = array * np.float32(1e-3 if term.name in self._constants else 1e-30)
            case "sums" if is_constant:
                array = np.full_like(array, 2.5e38)
            case "sums" if all(name is None for name in self._variables.values()):
                array = np.clip(array, -2, 2) * np.float32(4e37)
            case "sums" if self._normalises:  # so that they are taken back
                array = np.full_like(array, -2e38)
            case "sums of products":
                size = 5e18 / operand.terms if operand.terms else 1e20 if is_constant else -5e19
                array = np.full_like(array, size)
            case "infinite" if is_constant:
                array = np.full_like(array, np.inf)
            case _:
                pass
        return fixed(array) if is_constant else array

    def _form_of_number(self, shape: Shape) -> Shape:
        """The shape of a constant of equal elements: mostly one element, at times enough of them to enlarge the result."""
        d = self._d
        larger = d.choose(((1,) * (len(shape) + 1), (2,) + (1,) * len(shape)))
        return larger if d.chance(0.1) else d.choose(((), (1,), (1,) * len(shape), shape))

    def _array(self, name: str, operand: Operand) -> np.ndarray:
        d, shape = self._d, operand.shape
        compared = any(h.low > -math.inf or h.high < math.inf for h in self._hints if h.name == name)
        uniform = operand.kind == "data" and not operand.whole
        if name in self._constants and uniform and d.chance(0.9 if compared else 0.5):
            special = self._infinite and self._dtype.is_float and d.chance(0.2)
            found = d.choose(_SPECIAL if special else _NUMBERS)
            return np.full(self._form_of_number(shape), found).astype(self._dtype.numpy)
        if operand.kind == "large" and self._dtype is DType.FLOAT and d.chance(0.8):
            return d.floats(shape) * np.float32(10.0 ** d.integer(1, 6))
        if operand.kind == "bool":
            return d.booleans(shape)
        if operand.kind == "other":
            return d.array(shape, d.choose(("float32", "float16", "float64", "int32")))
        if operand.kind == "positive":
            return d.positive(shape, self._dtype if self._dtype.is_float else "float32")
        if d.chance(0.6 if self._special else 0.1):
            return np.full(shape, d.choose(_FILLS)).astype(self._dtype.numpy)
        if not self._dtype.is_float:
            return d.integers(shape, self._dtype)
        kind = d.integer(0, 5)
        if kind == 0:
            return d.positive(shape, self._dtype)
        return d.floats(
            shape, self._dtype, wild=kind == 1 and self._dtype is DType.FLOAT, infinite=kind == 2 and self._infinite
        )
