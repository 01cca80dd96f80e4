"""Random instances of a pattern for which nobody wrote a ``sample=``: shapes, element types and values drawn from its form.

Shapes go down from the root: each operator says which operands would give the shape that is wanted (`operand_shapes`).
Ranks 0 to 4, broadcasting, extents of 1, several element types, and values that tell: zeros, ones, infinities, ties.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.interpret import run
from eqsat.ir.types import DType, TensorType
from eqsat.rewrite import PROJECTION, Apply, Rule, Term, Variable
from eqsat.rule_check.operand_shapes import Operand, Shape, draw_attributes, plan_operands
from eqsat.rule_check.registration import Choices
from eqsat.rules.sampling import Drawing, Instance, Sampler, Value, fixed

_THEMES = ("float32",) * 5 + ("float16", "int64", "int32", "int8", "bool")
_FILLS = (0.0, 1.0, 1.0, -1.0, 2.0, 0.5)


def automatic_instances(rule: Rule, choices: Choices, seed: int = 0) -> Iterator[Instance | None]:
    """Endless random instances of the left side of ``rule``; ``None`` for a draw that its operators rejected."""
    constants = frozenset(name for condition in rule.conditions for name in condition.fact)
    while True:
        sampler = Sampler(seed)
        seed += 1
        try:
            instance = _Instantiation(sampler, constants, choices).instance(rule.pattern)
            run(instance.graph, instance.feeds)
        except (EqsatError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError):
            yield None  # the operators do not accept what was drawn: another draw
        else:
            yield instance


class _Instantiation:
    def __init__(self, sampler: Sampler, constants: frozenset[str], choices: Choices) -> None:
        self._d = sampler
        self._constants = constants
        self._choices = choices
        self._dtype = DType.of(sampler.choose(_THEMES))
        self._special = sampler.chance()  # mostly constants of equal elements: what conditions on values ask for
        self._drawing = Drawing()
        self._variables: dict[str, str | None] = {}
        self._nodes: dict[Apply, tuple[str, ...]] = {}
        self._symbolic = frozenset(sampler.subset(range(1, 8), 0.4) if sampler.chance(0.2) else ())

    def instance(self, pattern: Apply) -> Instance:
        d = self._d
        extents = d.extents(d.integer(0, 4), 0.15) if d.chance(0.8) else (d.integer(2, 3),) * d.integer(1, 3)
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
        for name, options in self._choices.get(term.name, {}).items():
            attributes[name] = d.choose(list(options))
        if term.op == "Split":
            attributes.setdefault("num_outputs", term.outputs)
        terms = [a for a in term.args if not self._is_absent(a)]
        operands = plan_operands(term.op, d, wanted, len(terms), attributes, [self._known(a) for a in terms])
        if term.op == "Split" and len(terms) > 1:
            attributes.pop("num_outputs", None)
        inputs = [self._input(a, operand) for a, operand in zip(terms, operands, strict=True)]
        made = self._drawing.op(term.op, *inputs, outputs=term.outputs, **attributes)
        self._nodes[term] = (made,) if term.outputs == 1 else made
        return self._nodes[term]

    def _is_absent(self, term: Term) -> bool:
        if isinstance(term, Variable) and term.optional and term.name not in self._variables and self._d.chance(0.4):
            self._variables[term.name] = None
        return isinstance(term, Variable) and self._variables.get(term.name, "") is None

    def _known(self, term: Term) -> Shape | None:
        """The shape of a variable that is drawn already."""
        name = self._variables.get(term.name) if isinstance(term, Variable) else None
        type = None if name is None else self._drawing.builder.type_of(name)
        if not isinstance(type, TensorType) or type.shape is None:
            return None
        return tuple(d if isinstance(d, int) else int(d[1:]) for d in type.shape)  # a symbol is named by its extent

    def _input(self, term: Term, operand: Operand) -> str | None:
        if isinstance(term, Apply):
            return self._values(term, operand.shape)[0]
        assert isinstance(term, Variable)
        if term.name not in self._variables:
            self._variables[term.name] = self._drawing.value(self._draw(term.name, operand), self._symbolic)
        return self._variables[term.name]

    def _draw(self, name: str, operand: Operand) -> Value:
        d = self._d
        if operand.value is not None:
            return fixed(operand.value)
        array = self._array(operand)
        return fixed(array) if name in self._constants else d.either(array, 0.8 if self._special else 0.25)

    def _array(self, operand: Operand) -> np.ndarray:
        d, shape = self._d, operand.shape
        if operand.kind == "bool":
            return d.booleans(shape)
        if operand.kind == "positive":
            return d.positive(shape, self._dtype if self._dtype.is_float else "float32")
        if d.chance(0.6 if self._special else 0.1):
            return np.full(shape, d.choose(_FILLS)).astype(self._dtype.numpy)
        if not self._dtype.is_float:
            return d.integers(shape, self._dtype)
        kind = d.integer(0, 5)
        if kind == 0:
            return d.positive(shape, self._dtype)
        return d.floats(shape, self._dtype, wild=kind == 1 and self._dtype is DType.FLOAT, infinite=kind == 2)
