"""Random instances of a pattern for which nobody wrote a ``sample=``: shapes, element types and values drawn from its form.

Shapes go down from the root: each operator says which operands would give the shape that is wanted (`operand_shapes`).
Ranks 0 to 4, broadcasting, extents of 1, several element types, and values that tell: zeros, ones, infinities, ties. What the
conditions ask for (`Hint`) is drawn mostly, and left out at times: then the rule must not fire, or still be right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operator import traits_of
from eqsat.ir.operators.onnxruntime_products import FUSED_CONV, FUSED_MATMUL
from eqsat.ir.schema_operator import attributes_of_schema, takes_types
from eqsat.ir.traits import Rows
from eqsat.ir.types import DType
from eqsat.rewrite import PROJECTION, Apply, Rule, Term, Variable, present, terms_of
from eqsat.rule_check import movement_operands, quantised_operands  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers their plans
from eqsat.rule_check.drawn import Typed
from eqsat.rule_check.operand_shapes import Operand, Shape, plan_operands
from eqsat.rule_check.operand_values import Values, are_integers
from eqsat.rule_check.registration import Choices
from eqsat.samples import Applied, Fixed, Instance, Sampler, fixed

_WORDS = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "reduction": ("none", "add", "max"),
    "mode": ("constant", "edge", "reflect", "linear", "nearest", "DCR", "CRD"),
}


def draw_attributes(op: str, d: Sampler) -> dict[str, Any]:
    """Attributes of an operator: mostly the defaults, at times others; required ones always."""
    if op == "Cast":
        return {"to": d.choose([1, 6, 7, 10, 11])}
    if op in ("Gemm", FUSED_MATMUL):
        factors = {"alpha": d.choose([1.0, 1.0, 0.5, 3.0])}
        factors |= {"beta": d.choose([1.0, 1.0, 0.5])} if op == "Gemm" else {}
        return factors | {name: 1 for name in ("transA", "transB") if d.chance(0.4)}
    if op == FUSED_CONV and d.chance(0.3):
        return {"activation": "Tanh"}
    if traits_of(op).reduces or traits_of(op).folds:
        return {"keepdims": d.choose((1, 1, 1, 0))}
    if traits_of(op).rows is Rows.ALONG:
        return {"axis": d.choose([-1, -1, 0])}
    if "group" in (attributes_of_schema(op) or {}) and d.chance(0.3):
        return {"group": 2}
    if op == "Pad":
        return {"mode": d.choose(("edge", "reflect"))} if d.chance(0.25) else {}
    if op == "BatchNormalization":
        return {"epsilon": d.choose((1e-5, 0.5)), "training_mode": int(d.chance(0.15))}
    if op == "Gather":
        return {"axis": d.choose([0, -1])}
    if op == "Gelu":
        return {"approximate": d.choose(("none", "tanh"))}
    stated = attributes_of_schema(op) or {}
    return {name: d.choose((0.25, 0.5, 1.5)) for name, v in stated.items() if isinstance(v, float) and d.chance(0.4)}


def another_attribute(name: str, value: Any, d: Sampler) -> dict[str, Any]:
    """An attribute with another value, for what conditions ask for when it is not to be met."""
    if isinstance(value, float):
        return {name: value + d.choose((-0.5, 0.5, 2.0))}
    if isinstance(value, int):
        options = (-2, -1, 0, 1, 2) if "axis" in name else (0, 1) if value in (0, 1) else (value + 1, 2 * value)
        return {name: d.choose([v for v in options if v != value])}
    others = [word for word in _WORDS.get(name, ()) if word != value]
    return {name: d.choose(others)} if others else {}


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


def _check_types(graph: Graph) -> None:
    """Raises `ValueError` where an operator is applied to element types that its schema does not take."""
    for node in graph.nodes:
        if not takes_types(node.key, graph.operand_types(node)):
            raise ValueError(f"{node.key} does not take these element types")


class _Instantiation(Values):
    """The pattern with values in place of its variables."""

    def instance(self, pattern: Apply) -> Instance:
        d = self._d
        asked = [hint.ranks for hint in self._hints if hint.ranks]
        ranks = [r for r in (0, 1, 2, 2, 3, 3, 4) if all(r in ranks for ranks in asked)]
        extents = (
            d.extents(d.choose(ranks or [2]), 0.15) if d.chance(0.8) or asked else (d.integer(2, 3),) * d.integer(1, 3)
        )
        self._extents = extents
        stated = self._stated.operands
        for term in terms_of(pattern):
            if isinstance(term, Variable) and term.name in stated and term.name not in self._variables:
                self._state(term, stated[term.name])
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
        stated = self._stated.attributes.get(term.name, {})
        attributes |= stated
        terms = list(present(*(None if self._is_absent(a) else a for a in term.args)))
        operands = self._plan(term.op, wanted, attributes, terms)
        attributes |= stated
        if term.op == "Split" and len(terms) > 1:
            attributes.pop("num_outputs", None)
        inputs: list[str | None] = []
        for a, operand in zip(terms, operands, strict=True):
            inputs.append(None if a is None else self._input(a, self._aligned(a, operand, inputs)))
        attributes = {name: value for name, value in attributes.items() if value is not None}
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
        asked = [h.dtypes for h in self._hints if h.name in names and are_integers(h.dtypes)]
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
        shape = self._drawing.builder.type_of(name).shape
        if shape is None:
            return None
        return tuple(d if isinstance(d, int) else int(d[1:]) for d in shape)  # a symbol is named by its extent

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
            self._declare(term, operand)
        return self._variables[term.name]

    def _declare(self, term: Variable, operand: Operand) -> None:
        drawn = self.draw(term.name, operand)
        if self._large and operand.kind == "data":
            drawn = self.enlarged(term, operand, drawn)
        self._variables[term.name] = self._drawing.value(drawn, self._symbolic)

    def _state(self, term: Variable, stated: Any) -> None:
        """A variable as the rule says: of a shape and an element type, a value, a number, or absent."""
        if self._is_absent(term) or stated is None:
            self._variables[term.name] = None
        elif isinstance(stated, Typed):
            theme, self._dtype = self._dtype, stated.dtype or self._dtype
            self._declare(term, Operand(stated.shape, whole=True))
            self._dtype = theme
        else:
            number = isinstance(stated, (int, float))
            with np.errstate(all="ignore"):  # of a type that has no such number it is another one
                array: Any = np.asarray(stated, float).astype(self._dtype.numpy) if number else stated
            known = number or (term.name in self._constants and not isinstance(stated, (Applied, Fixed)))
            self._variables[term.name] = self._drawing.value(fixed(array) if known else array, self._symbolic)
