"""Random values of the variables of a pattern: of one element type mostly, with what conditions ask for, or large ones."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Hint, Rule, Term, Variable
from eqsat.rule_check import movement_operands, quantised_operands  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers their plans
from eqsat.rule_check.drawn import Drawn
from eqsat.rule_check.operand_shapes import Operand, Shape
from eqsat.rule_check.registration import Choices
from eqsat.samples import Applied, Drawing, Fixed, Sampler, Value, fixed

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


def _operators(term: Term) -> set[str]:
    return {term.op, *(op for a in term.args for op in _operators(a))} if isinstance(term, Apply) else set()


def are_integers(dtypes: frozenset[DType]) -> bool:
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


class Values:
    """Values of one instance. ``hints``: what the conditions ask for; ``stated``: whether they say all that they ask for."""

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
        asked = [h.dtypes for h in self._hints if h.dtypes and not (beside and are_integers(h.dtypes))]
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
        self._stated = Drawn(rule.drawn, sampler, rule.attributes)
        self._infinite = rule.exactness is Exactness.EXACT
        weighs = not self._infinite and not quantises and any(map(_weighs, _operators(rule.pattern)))
        self._normalises = any(traits_of(op).rows for op in _operators(rule.pattern))
        self._large = sampler.choose(_SIZES) if weighs and sampler.chance(_LARGE) else ""
        self._magnitudes = sampler.choose(((1e20, 1e25), (3e37,)))
        names = sorted(v for v in constants if v in _required(rule.pattern))
        self._huge = set(sampler.rng.permutation(names)[: sampler.choose((1, 2, 2))].tolist())
        self._symbolic = frozenset(sampler.subset(range(1, 8), 0.4) if sampler.chance(0.2) else ())
        if self._stated.symbols is not None:
            self._symbolic = frozenset(self._stated.symbols)

    def draw(self, name: str, operand: Operand) -> Value:
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
                    self.draw(name, operand) if all(self._dtype in found for found in types) else d.array(operand.shape)
                )
            finally:
                self._dtype = theme
        if any(hint.whole for hint in asked) and operand.kind == "data" and name not in self._stated.operands:
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

    def enlarged(self, term: Variable, operand: Operand, value: Value) -> Value:
        """Constants so large that they overflow among themselves: their products, their sums, or their sums of products."""
        if isinstance(value, Applied):
            return value
        is_constant = isinstance(value, Fixed)
        drawn = value.array if is_constant else value
        if drawn.dtype != np.float32:
            return value
        array = np.clip(drawn, -9, 9)
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
