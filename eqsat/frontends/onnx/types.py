"""Types in an ONNX file: dimensions, symbols, the values the caller fixes them to; values whose nodes we do not read."""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np

from eqsat.errors import ModelError, OptionError
from eqsat.frontends.onnx.subgraphs import bodies_in
from eqsat.ir.extents import add, floor_divide, maximum, minimum, multiply, product, remainder, substitute, subtract
from eqsat.ir.infer import VALUE_SIZE_LIMIT, fresh_symbol
from eqsat.ir.normal_form import symbol
from eqsat.ir.schema_operator import from_type_proto, to_type_proto
from eqsat.ir.types import Dim, DType, Type

_CODES = {int(d) for d in DType}


@dataclass(frozen=True)
class Symbols:
    """``names``: those of the extents of a model's inputs; ``fixed``: numbers or other names that the caller gives some.
    ``ours``: extents are written as we write them, with symbols that stand for the same elsewhere. ``invented``: symbols for
    names that are not the model's."""

    names: frozenset[str] = frozenset()
    fixed: Mapping[str, Dim] = field(default_factory=dict[str, Dim])
    ours: bool = False
    invented: Mapping[str, str] = field(default_factory=dict[str, str])

    def read(self, text: str) -> Dim:
        """What a file calls an extent: a symbol, or an expression over those of the inputs."""
        if text in self.invented:
            return self.invented[text]
        if self.ours:
            return self.fixed.get(text, text)
        known = {symbol(s): symbol(n) if isinstance(n, str) else n for s, n in self.fixed.items()}
        return substitute(symbol(text) if text in self.fixed else from_expression(text, self.names), known)


def read_type(proto: Any, symbols: Symbols, where: str) -> Type:
    """The type a ``TypeProto`` of a file describes. Raises `ModelError` for an element type that does not exist."""
    if proto.tensor_type.elem_type not in _CODES:
        raise ModelError(f"{where}: unknown element type {proto.tensor_type.elem_type}")
    return from_type_proto(proto, symbols.read)


def symbols_of(infos: Iterable[Any]) -> list[str]:
    """Symbolic dimensions of ``ValueInfoProto`` messages, in order of appearance."""
    return list(dict.fromkeys(dim.dim_param for info in infos for dim in _dims(info) if dim.dim_param))


def _dims(info: Any) -> Sequence[Any]:
    """The extents that a ``ValueInfoProto`` states."""
    return info.type.tensor_type.shape.dim if info.type.WhichOneof("value") == "tensor_type" else ()


def name_dims(model: Any) -> None:
    """Names the extents of inputs that have neither number nor name, in place: ``mask.1`` is the one of axis 1 of ``mask``.

    PyTorch writes the number as a name where its export found that an extent which was to be free is one, as the heads of stored
    keys: these become numbers.
    """
    graph = model.graph
    if model.producer_name == "pytorch":
        for dim in (d for info in graph.input for d in _dims(info) if d.dim_param.isdecimal() and int(d.dim_param)):
            dim.dim_value = int(dim.dim_param)
    taken = set(symbols_of([*graph.input, *graph.output, *graph.value_info]))
    for info in graph.input:
        for axis, dim in enumerate(_dims(info)):
            unnamed = not dim.dim_param if dim.WhichOneof("value") != "dim_value" else dim.dim_value < 0
            if unnamed:
                name = f"{info.name}.{axis}"
                while name in taken:
                    name += "_"
                taken.add(name)
                dim.dim_param = name


def check_dims(dims: Mapping[str, Dim], graph: Any) -> None:
    """Raises `OptionError` unless ``dims`` gives symbols that ``graph`` has extents of at least 1, or another name."""
    if not dims:
        return
    if not isinstance(dims, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's
        raise OptionError(f"dims is {dims!r}; expected a mapping by name")
    known = symbols_of([*graph.input, *graph.output, *graph.value_info])
    shown = symbols_of(graph.input) or known
    for name, extent in dims.items():
        if name not in known:
            raise OptionError(
                f"dims: the model has no symbolic dimension {name!r}; it has {', '.join(shown) or 'none'}"
            )
        if isinstance(extent, str):
            if not extent.isidentifier() or extent in dims:
                raise OptionError(f"dims: {name} = {extent!r}: another name is a word, and not itself among dims")
        elif isinstance(extent, bool) or not isinstance(extent, Integral) or not 0 < extent < 2**63:
            raise OptionError(
                f"dims: {name} = {extent!r}: an extent is an integer from 1 to 2**63 - 1, or another name"
            )


def fix_dims(info: Any, dims: Mapping[str, Dim]) -> None:
    """Replaces symbols in a ``ValueInfoProto``, in place."""
    for dim in _dims(info):
        if dim.dim_param in dims:
            found = dims[dim.dim_param]
            if isinstance(found, str):
                dim.dim_param = found
            else:
                dim.dim_value = found


# --- values whose nodes are not read ---------------------------------------------------------------------------------


def infer_at_opset(
    proto: Any, opset: int, types: Mapping[str, Type], values: Mapping[str, np.ndarray]
) -> dict[str, Type]:
    """Types of a node's outputs by its schema at ``opset``, as far as the ONNX package can tell."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
        found = shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: to_type_proto(type) for name, type in types.items()},
            {name: numpy_helper.from_array(value, name) for name, value in values.items() if value.dtype != object},
            opset_imports=[helper.make_opsetid("", opset)],
        )
    except Exception:  # it raises many kinds, and an unknown type is a fair answer
        return {}
    return {name: read_type(type, Symbols(ours=True), f"value {name!r}") for name, type in found.items()}


def fill_stored_types(model: Any, stored: dict[str, Type], wanted: Sequence[str], symbols: Symbols) -> None:
    """Adds types of ``wanted`` values that the ONNX package can infer, bodies of control flow included.

    It makes up names of extents, and counts them from 0 in every call: what is called so elsewhere is another extent.
    """
    from onnx import shape_inference

    light = _without_weights(model)
    try:
        inferred = shape_inference.infer_shapes(light)
    except Exception:  # partial models of old opsets make it raise; what is unknown stays unknown
        return
    names = set(wanted)
    infos = [i for i in (*inferred.graph.value_info, *inferred.graph.output) if i.name in names]
    ours = {s for g in (light.graph, *bodies_in(light.graph)) for s in symbols_of([*g.input, *g.output, *g.value_info])}
    symbols = replace(symbols, invented={name: fresh_symbol() for name in symbols_of(infos) if name not in ours})
    for info in infos:
        stored.setdefault(info.name, read_type(info.type, symbols, f"value {info.name!r}"))


def _without_weights(model: Any) -> Any:
    """A copy in which large initializers are inputs."""
    import onnx
    from onnx import helper

    graph = onnx.GraphProto(name=model.graph.name or "graph")
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    listed = {i.name for i in graph.input}
    for tensor in model.graph.initializer:
        if not tensor.data_location and np.prod(tensor.dims, dtype=np.int64) <= VALUE_SIZE_LIMIT:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return onnx.ModelProto(
        ir_version=max(model.ir_version, 4), opset_import=model.opset_import, functions=model.functions, graph=graph
    )


_WRITTEN: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: add,
    ast.Sub: subtract,
    ast.Mult: multiply,
    ast.FloorDiv: floor_divide,
}


def from_expression(text: str, names: frozenset[str]) -> Dim:
    """What the name of an extent says: exporters write expressions over the symbols ``names`` of a model's inputs.

    Any other name is a symbol of its own, and so is an expression with one. ``batch-size`` is a name if an input has it.
    Digits are a name, too: an extent that is known is a number in the file (but see `name_dims`).
    """
    if text in names and not set(text) & set("+*/( "):
        return symbol(text)
    try:
        tree = ast.parse(text, mode="eval")
        if not any(isinstance(part, ast.Name) for part in ast.walk(tree)):
            return symbol(text)
        return _expression(tree.body, names - {text})
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return symbol(text)


def _expression(e: ast.expr, names: frozenset[str]) -> Dim:
    match e:
        case ast.Constant(int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(name) if name in names:
            return symbol(name)
        case ast.UnaryOp(ast.USub(), x):
            return subtract(0, _expression(x, names))
        case ast.BinOp(x, ast.Pow(), ast.Constant(int(power))) if 0 <= power <= 4:
            return product([_expression(x, names)] * power)
        case ast.BinOp(x, op, y) if type(op) in _WRITTEN:
            return _WRITTEN[type(op)](_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("Mod" | "PythonMod"), [x, ast.Constant(int(number))]) if number > 0:
            return remainder(_expression(x, names), number)
        case ast.Call(ast.Name("floor"), [ast.BinOp(x, ast.Div(), y)]):
            return floor_divide(_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("Max" | "max"), [x, y]):
            return maximum(_expression(x, names), _expression(y, names))
        case ast.Call(ast.Name("Min" | "min"), [x, y]):
            return minimum(_expression(x, names), _expression(y, names))
        case _:
            raise ValueError(ast.dump(e))
