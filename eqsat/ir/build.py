"""Building graphs in Python, without a file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from eqsat.errors import ModelError, ShapeError, choices, nearest
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.infer import infer_types
from eqsat.ir.operator import defined_operators, definition_of, operator
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import Dim, DType, Type, tensor_type


class GraphBuilder:
    """Collects nodes in order and infers their types.

    >>> b = GraphBuilder()
    >>> x = b.input("x", "float32", ("n", 4))
    >>> w = b.constant([[1.0], [2.0], [3.0], [4.0]], "float32")
    >>> graph = b.finish({"y": b.op("MatMul", x, w)})
    >>> str(graph.type_of("y"))
    'float32[n, 1]'
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._nodes: list[Node] = []
        self._inputs: list[str] = []
        self._types: dict[str, Type] = {}
        self._constants: dict[str, Constant] = {}
        self._lists: dict[str, np.ndarray | None] = {}
        self._fresh = 0

    def input(self, name: str, dtype: DType | str, shape: Sequence[Dim] | None) -> str:
        """Declares an input of the graph and returns its name.

        Extents are whole numbers that are not negative, or names. Raises `ModelError` for others, for an element type that does
        not exist, and for a name that is taken.
        """
        self._check_free(name)
        try:
            found = DType.of(dtype)
        except (TypeError, KeyError):
            known = [d.numpy.name for d in DType if d not in (DType.UNDEFINED, DType.STRING)]
            raise ModelError(
                f"input {name!r}: element type {dtype!r} does not exist; {choices(dtype, known)}"
            ) from None
        extents = None if shape is None else tuple(_extent(name, dim) for dim in shape)
        self._inputs.append(name)
        self._types[name] = tensor_type(found, extents)
        return name

    def constant(self, value: Any, dtype: DType | str | None = None, name: str | None = None) -> str:
        """Adds a constant (anything `numpy.asarray` takes, or a `Constant`) and returns its name.

        Raises `ModelError` for a name that is taken.
        """
        name = name or self._name("c")
        self._check_free(name)
        self._constants[name] = value if isinstance(value, Constant) else Constant.of(value, dtype)
        return name

    def op(self, op: str, *inputs: str | None, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Applies an operator. Returns the name of its output, or a tuple of names when ``outputs`` is not 1. Operands that are
        ``None`` at the end are left out: an empty name there is an operand that may be absent, which not all readers take.

        Raises `ModelError` for an operator or an attribute that ONNX does not have and for an input that is no value of the
        graph, `ShapeError` for operands that the operator does not take.
        """
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        if domain == "" and "::" not in op:
            _check_use(op, len(inputs), attributes)
        names = tuple(self._name(op.lower()) for _ in range(outputs))
        node = Node(op, tuple(i or "" for i in inputs), names, Attributes(attributes), domain)
        types = [self.type_of(i) if i else None for i in node.inputs]
        values = [self._constants[i].numpy() if i in self._constants else None for i in node.inputs]
        lists = [self._lists.get(i) for i in node.inputs]
        for name, found in zip(names, infer_types(node, types, values, lists), strict=True):
            self._types[name] = found
        definition = definition_of(node)
        if definition is not None:
            for i, name in enumerate(names):
                self._lists[name] = shape_value(definition, node.attributes, types, values, lists, i)
        self._nodes.append(node)
        return names[0] if outputs == 1 else names

    def type_of(self, value: str) -> Type:
        """The type of a value. Raises `ModelError` for what is none of the graph."""
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a number, say, or an array
            raise ModelError(f"{value!r} is no value of the graph; make it one with constant()")
        constant = self._constants.get(value)
        if constant is None and value not in self._types:
            raise ModelError(
                f"{value!r} is no value of the graph: neither an input nor the output of an operator so far"
            )
        return constant.type if constant is not None else self._types[value]

    def constant_of(self, value: str) -> Constant | None:
        """The constant of that name, if the value is one."""
        return self._constants.get(value)

    def opaque(
        self, op: str, *inputs: str, types: Sequence[Type], domain: str, reason: str, **attributes: Any
    ) -> list[str]:
        """Applies an operator of which only the types of its outputs are known. Returns their names.

        ``reason``: why its meaning is not.
        """
        names = tuple(self._name(op.lower()) for _ in types)
        self._types.update(zip(names, types, strict=True))
        self._nodes.append(Node(op, inputs, names, Attributes(attributes), domain, "", reason))
        return list(names)

    def finish(self, outputs: Mapping[str, str] | Sequence[str]) -> Graph:
        """The graph with these outputs: a sequence of values, or new names mapped to values.

        Raises `ModelError` for an output that is no value of the graph.
        """
        renamed: dict[str, str] = {}
        aliases: list[Node] = []
        names = list(outputs)
        if isinstance(outputs, Mapping):
            for name, value in outputs.items():
                if name == value:
                    continue
                self._types[name] = self.type_of(value)
                if value in renamed or value in self._inputs or value in self._constants or value in outputs:
                    aliases.append(Node("Identity", (renamed.get(value, value),), (name,)))
                else:
                    renamed[value] = name
        nodes = [
            replace(
                n,
                inputs=tuple(renamed.get(i, i) for i in n.inputs),
                outputs=tuple(renamed.get(o, o) for o in n.outputs),
            )
            for n in self._nodes
        ] + aliases
        types = {k: t for k, t in self._types.items() if k not in renamed}
        graph = Graph(
            tuple(nodes),
            tuple(self._inputs),
            tuple(names),
            types,
            dict(self._constants),
            self.name,
        )
        graph.check()
        return graph

    def _check_free(self, name: str) -> None:
        if name in self._types or name in self._constants:
            raise ModelError(f"value {name!r} is declared twice")

    def _name(self, stem: str) -> str:
        while True:
            self._fresh += 1
            name = f"{stem}_{self._fresh}"
            if name not in self._types and name not in self._constants:
                return name


def _extent(name: str, dim: Any) -> Dim:
    """An extent of input ``name``. Raises `ModelError` for what is none."""
    if isinstance(dim, str):
        return dim
    try:
        found = index(dim)
    except TypeError:
        found = -1
    if found < 0:
        raise ModelError(f"input {name!r}: extent {dim!r} is neither a whole number of at least 0 nor a name")
    return found


def _check_use(op: str, operands: int, attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operator of the default domain that does not exist, or an attribute that it does not have,
    `ShapeError` for operands in a number that it does not take."""
    from eqsat.ir.schema_operator import is_in_schema, refused_number, unknown_attribute

    if operator(op) is None and not is_in_schema(op):
        hint = nearest(op, defined_operators())
        raise ModelError(f"{op!r} is no operator of ONNX; {hint}opaque() adds one of which only the types are known")
    wrong = unknown_attribute(op, attributes)
    if wrong:
        raise ModelError(wrong)
    refused = refused_number(op, operands)
    if refused:
        raise ShapeError(refused)
