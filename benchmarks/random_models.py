"""Random models of ONNX: any operator at any opset, with bodies of control flow, functions, symbols and extreme constants.

Nothing here says what an operator takes. A node is drawn by its schema and by what the operator table says of its operands
(`eqsat.rule_check.operand_shapes`), or taken from a conformance case of the ONNX package; it stays if ONNX Runtime runs it on the
values at hand, which every value of a model under construction has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import eqsat.rule_check.operand_values
import eqsat.rules  # noqa: F401  # registers the shipped rules, and the line above plans of operands
from benchmarks.model_parts import (
    Refused,
    Theme,
    captured,
    dtypes,
    examples,
    extreme,
    model_of,
    operators,
    ran,
    variadic,
)
from benchmarks.rule_trials import instance_of
from eqsat.backends.consumer import limit_file
from eqsat.backends.onnx_file import to_model
from eqsat.errors import EqsatError
from eqsat.ir.graph import fresh_name
from eqsat.ir.operator import OPSET, is_finite
from eqsat.ir.types import DType
from eqsat.rewrite import registered_rules
from eqsat.rule_check.automatic import another_attribute, draw_attributes
from eqsat.rule_check.operand_shapes import plan_operands
from eqsat.samples import Sampler
from eqsat.samples.products import Operand

_LIMIT = 1500  # elements of a value
_TRIALS = 12  # nodes that may be refused before one is given up


@dataclass
class Growing:
    """A graph under construction: its nodes, and the arrays of its values, constants and inputs by name. ``outer``: those of the
    graphs around it, which it may capture."""

    d: Sampler
    theme: Theme
    opset: int
    names: set[str]
    outer: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    arrays: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    inputs: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def visible(self) -> dict[str, np.ndarray]:
        """What a node may read, newest last."""
        return {**self.outer, **self.constants, **self.inputs, **self.arrays}

    def input(self, array: np.ndarray) -> str:
        """Of no NaN, which may be quantised as any number."""
        found = np.where(np.isnan(array), array.dtype.type(1), array) if DType.of(array.dtype).is_float else array
        self.inputs[name := fresh_name("x", self.names)] = found
        return name

    def constant(self, array: np.ndarray) -> str:
        self.constants[name := fresh_name("c", self.names)] = array
        return name

    def leaf(self, array: np.ndarray, constant: float = 0.7) -> str:
        """An array as a constant, or as an input of the model, which bodies have not."""
        return self.constant(array) if self.outer or self.d.chance(constant) else self.input(array)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any], positive: bool = False) -> np.ndarray:
        d, found = self.d, DType.of(dtype)
        if d.chance(self.theme.extreme):
            return extreme(d, shape, found)
        if found.is_float:
            return d.positive(shape, found) if positive else d.floats(shape, found)
        return d.integers(shape, found, *(() if d.chance(0.2) or found is DType.BOOL else (0, 5)))

    def recent(self) -> str:
        """A value to go on from."""
        made = list(self.visible) if self.d.chance(0.3) else [*(self.arrays or self.inputs or self.visible)][-3:]
        return self.d.choose(made)

    def add(self, *nodes: onnx.NodeProto) -> tuple[str, ...]:
        """Appends nodes and returns those of their outputs that are tensors. Raises `Refused` if ONNX Runtime does not run them,
        or for what is too large."""
        outputs = [o for node in nodes for o in node.output if o]
        read = {v for node in nodes for v in (*node.input, *captured(node)) if v} - set(outputs)
        visible = self.visible
        if not read <= visible.keys() or any(n.op_type == "Clip" and not is_finite(visible[n.input[0]]) for n in nodes):
            raise Refused  # of infinity ONNX Runtime makes the largest number where there is no bound
        if any(a.name == "training_mode" and a.i for n in nodes for a in n.attribute):
            raise Refused  # it writes new averages over the old ones, constants too
        fixed = {v: a for v, a in visible.items() if v in read and v in self.constants}
        feeds = {v: visible[v] for v in read - fixed.keys()}
        made = ran(model_of(nodes, feeds, outputs, fixed, self.opset), feeds)
        found = {name: array for name, array in made.items() if isinstance(array, np.ndarray)}
        if any(array.size > _LIMIT or array.ndim > 6 for array in found.values()):
            raise Refused
        self.nodes += nodes
        self.arrays |= found
        return tuple(found)

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> tuple[str, ...]:
        names = [fresh_name(op.lower(), self.names) for _ in range(outputs)]
        return self.add(helper.make_node(op, inputs, names, name=names[0], **attributes))

    def grow(self, count: int) -> None:
        """Adds so many nodes, fewer where too many are refused."""
        for _ in range(count):
            for _ in range(_TRIALS):
                kept = list(self.nodes), *map(dict, (self.arrays, self.inputs, self.constants))
                try:
                    self._grow_one()
                except (Refused, EqsatError, ValueError, IndexError, TypeError, ZeroDivisionError, AssertionError):
                    self.nodes, self.arrays, self.inputs, self.constants = kept
                else:
                    break

    def _grow_one(self) -> None:
        if self.d.chance(self.theme.bodies):
            from benchmarks.random_bodies import add_body

            add_body(self)
        elif self.d.chance(0.04):
            from benchmarks.random_bodies import add_sequence

            add_sequence(self)
        elif self.d.chance(self.theme.shapes):
            from benchmarks.random_shapes import add_shapes

            add_shapes(self)
        elif self.d.chance(0.15):
            self._transplant()
        elif self.d.chance(self.theme.planted):
            self._plant()
        else:
            self._draw(self.d.choose(operators(self.opset, self.d.chance(0.75))))

    def _draw(self, op: str) -> None:
        """An operator on a recent value and what its schema and the operator table want beside it."""
        d = self.d
        if not self.theme.wanted(op) and d.chance(0.7):
            raise Refused
        schema = onnx.defs.get_schema(op, OPSET)
        x = self.recent()
        array = self.visible[x]
        count = min(d.integer(max(schema.min_input, 1), min(schema.max_input, 8)), 3 if variadic(schema) else 8)
        attributes = draw_attributes(op, d) | self._further(op, schema)
        known: list[tuple[int, ...] | None] = [array.shape, *[None] * (count - 1)]
        operands = plan_operands(op, d, array.shape, count, attributes, known)
        at = min(i for i, o in enumerate(operands) if o.shape == array.shape and o.value is None)
        chosen = [x if i == at else self._operand(schema, i, o, array) for i, o in enumerate(operands)]
        outputs = d.integer(schema.min_output, min(schema.max_output, 4)) if not variadic(schema, True) else 2
        inputs, attributes = self._at_opset(op, schema, chosen, attributes)
        self.op(op, *inputs, outputs=outputs, **attributes)

    def _operand(self, schema: onnx.defs.OpSchema, i: int, operand: Operand, first: np.ndarray) -> str:
        d, declared = self.d, schema.inputs[min(i, len(schema.inputs) - 1)]
        if declared.option == onnx.defs.OpSchema.FormalParameterOption.Optional and d.chance(0.2):
            return ""
        if operand.value is not None:
            return self.leaf(operand.value, 0.9)
        dtype = (
            first.dtype
            if i == 0 or declared.type_str == schema.inputs[0].type_str
            else self._type(schema, declared, first)
        )
        alike = [v for v, a in self.visible.items() if a.shape == operand.shape and a.dtype == dtype]
        if alike and d.chance(0.5):
            return d.choose(alike)
        return self.leaf(self.array(operand.shape, dtype, operand.kind == "positive"))

    def _type(self, schema: onnx.defs.OpSchema, declared: Any, first: np.ndarray) -> np.dtype[Any]:
        stated = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        allowed = [t for t in stated.get(declared.type_str, [declared.type_str]) if t.startswith("tensor(")]
        known = [dtypes()[t] for t in allowed if t in dtypes()]
        return first.dtype if first.dtype in known or not known else self.d.choose(known)

    def _further(self, op: str, schema: onnx.defs.OpSchema) -> dict[str, Any]:
        """Attributes as a conformance case of the operator has them, or with another value than the default."""
        d, found = self.d, dict[str, Any]()
        if examples(op) and d.chance(0.3):
            node = d.choose(examples(op))[0]
            found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for name, attribute in schema.attributes.items():
            if name == "to":
                found[name] = int(DType.of(d.choose((*self.theme.dtypes, "float32", "int64", "bool"))))
            elif d.chance(0.1) and attribute.default_value.name:
                found |= another_attribute(name, helper.get_attribute_value(attribute.default_value), d)
        return found

    def _at_opset(
        self, op: str, newest: onnx.defs.OpSchema, inputs: list[str], attributes: dict[str, Any]
    ) -> tuple[list[str], dict[str, Any]]:
        """Operands that an older opset has as attributes become that; attributes that it has not are left out."""
        schema = onnx.defs.get_schema(op, self.opset)
        moved: dict[str, Any] = {}
        if not variadic(schema):
            for declared, value in list(zip(newest.inputs, inputs, strict=False))[schema.max_input :]:
                if value in self.constants and declared.name in schema.attributes:
                    moved[declared.name] = self.constants[value].tolist()
            inputs = inputs[: schema.max_input]
        return inputs, {k: v for k, v in (attributes | moved).items() if k in schema.attributes}

    def _transplant(self) -> None:
        """The node of a conformance case, on values of the same types where there are some."""
        d = self.d
        op = d.choose(operators(self.opset, d.chance()))
        if not examples(op) or not self.theme.wanted(op):
            raise Refused
        node, arrays, opset = d.choose(examples(op))
        if onnx.defs.get_schema(op, self.opset).since_version != onnx.defs.get_schema(op, opset).since_version:
            raise Refused
        chosen: list[str] = []
        for array in arrays:
            alike = [
                v
                for v, a in self.visible.items()
                if array is not None and (a.shape, a.dtype) == (array.shape, array.dtype)
            ]
            chosen.append("" if array is None else d.choose(alike) if alike and d.chance() else self.leaf(array, 0.5))
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.op(op, *chosen, outputs=len(node.output), **attributes)

    def _plant(self) -> None:
        """An instance of the left side of a rule, its variables values of the same types where there are some."""
        d = self.d
        instance = instance_of(d.choose(registered_rules()), d)
        try:
            part = to_model(limit_file(instance.graph, self.opset, None), form="flat")
        except EqsatError:
            raise Refused from None
        arrays = {t.name: numpy_helper.to_array(t) for t in part.graph.initializer}
        names = {v: self.constant(a) for v, a in arrays.items()}
        for value, array in instance.feeds.items():
            alike = [v for v, a in self.visible.items() if (a.shape, a.dtype) == (array.shape, array.dtype)]
            names[value] = d.choose(alike) if alike and d.chance() else self.leaf(array, 0.2)
        if any(node.domain for node in part.graph.node):
            raise Refused
        for node in part.graph.node:
            for value in filter(None, (*node.input, *node.output)):
                if value not in names:
                    names[value] = fresh_name(value, self.names)
            inputs, outputs = ([names.get(v, "") for v in side] for side in (node.input, node.output))
            made = onnx.NodeProto(op_type=node.op_type, name=outputs[0], input=inputs, output=outputs)
            made.attribute.extend(node.attribute)
            self.add(made)
