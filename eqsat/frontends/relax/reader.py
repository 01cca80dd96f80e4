"""Module of Relax -> Graph: what ``main`` computes, with the calls that we do not understand kept as they are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsat.errors import ModelError
from eqsat.frontends.relax import operators, operators_reducing  # pyright: ignore[reportUnusedImport]  # noqa: F401  # register how operators are read
from eqsat.frontends.relax.library import relax, tvm
from eqsat.frontends.relax.site import READINGS, Site
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import DType, TensorType, is_sequence

OPAQUE_DOMAIN = "relax"
"""Domain of nodes that stand for a call of Relax which we do not understand."""


@dataclass(frozen=True)
class Reading:
    """``graph`` computes what ``main`` of ``module`` does; its nodes of the domain ``relax`` stand for ``calls``, by number."""

    module: Any
    graph: Graph
    calls: Sequence[Any]

    def call(self, node: Node, operands: Sequence[Any]) -> Any:
        """The call that a node stands for, of other operands."""
        original = self.calls[node.attributes["call"]]
        rest = iter(operands)
        args = [_replaced(arg, rest) for arg in original.args]
        return relax.Call(original.op, args, original.attrs, original.ty_args)

    @property
    def returns_tuple(self) -> bool:
        return isinstance(self.module["main"].ret_ty, relax.TupleType)


def from_module(module: Any) -> Reading:
    """Reads ``main`` of a module of Relax: pure, without branches, of tensors of known extents.

    Calls whose meaning our operators do not have (``call_tir``, packed functions, ...) become nodes that nobody looks into.
    Raises `ModelError` for anything else, naming it.
    """
    if not isinstance(module, tvm.IRModule) or not any(v.name_hint == "main" for v in module.get_global_vars()):
        raise ModelError("relax: expected a tvm.IRModule with a function main")
    main = module["main"]
    if not isinstance(main, relax.Function) or not main.is_pure or not isinstance(main.body, relax.SeqExpr):
        raise ModelError("relax: main is no pure function of Relax")
    return _Reader(module).read(main)


@dataclass
class _Reader:
    module: Any
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("main"))
    values: dict[Any, Any] = field(default_factory=dict[Any, Any])
    constants: dict[Any, str] = field(default_factory=dict[Any, str])
    calls: list[Any] = field(default_factory=list[Any])

    def read(self, main: Any) -> Reading:
        for i, parameter in enumerate(main.params):
            given = _tensor_type(parameter.ty, f"parameter {parameter.name!r}")
            self.values[parameter] = self.builder.input(f"x{i}", given.dtype, given.shape)
        for block in main.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise ModelError(f"relax: main has a {type(binding).__name__}, which is not understood")
                self.values[binding.var] = self._value(binding.value)
        found = self._value(main.body.body)
        outputs = found if is_sequence(found) else (found,)
        if not all(isinstance(v, str) for v in outputs):
            raise ModelError("relax: main returns something else than tensors or one tuple of tensors")
        graph = self.builder.finish({f"y{i}": v for i, v in enumerate(outputs)}).pruned()
        return Reading(self.module, graph, self.calls)

    def _value(self, expr: Any) -> Any:
        """Name of a tensor, a tuple of such, or the expression itself where it is neither."""
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            return self._constant(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(f) for f in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            return self._call(expr)
        if isinstance(expr, relax.If | relax.Function):
            raise ModelError(f"relax: main has a {type(expr).__name__}, which is not understood")
        return expr

    def _constant(self, expr: Any) -> str:
        if expr not in self.constants:
            self.constants[expr] = self.builder.constant(Constant.of(expr.value.numpy()))
        return self.constants[expr]

    def _call(self, call: Any) -> Any:
        name = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else ""
        if name == "shape_of":
            return call.args[0].ty.shape
        operands = [self._value(arg) for arg in call.args]
        if name == "shape_to_tensor" and isinstance(operands[0], relax.ShapeExpr):
            return self.builder.constant(_extents(operands[0]), "int64")
        fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        types = [_tensor_type(f, f"result of {name or call.op}") for f in fields]
        made = self._understood(READINGS.get(name), call, operands, types)
        if made is None:
            made = self._opaque(name, call, types)
        return made if isinstance(call.ty, relax.TupleType) else made[0]

    def _understood(
        self, reading: Callable[[Site], Any] | None, call: Any, operands: Sequence[Any], types: Sequence[TensorType]
    ) -> tuple[str, ...] | None:
        if reading is None or not operands or not isinstance(operands[0], str | tuple):
            return None
        site = Site(self.builder, operands, call.attrs, types[0].shape, str(types[0].dtype.numpy), len(types))  # type: ignore[arg-type]
        try:
            found = reading(site)
        except ModelError:  # our operator does not take these types
            return None
        made = tuple(found) if is_sequence(found) else (found,)
        same = len(made) == len(types) and all(
            v is not None and self.builder.type_of(v) == t for v, t in zip(made, types, strict=True)
        )
        return made if same else None

    def _opaque(self, name: str, call: Any, types: Sequence[TensorType]) -> tuple[str, ...]:
        inputs = [v for arg in call.args for v in self._read_by(arg)]
        op = name.replace(".", "_") or call.op.name_hint
        self.calls.append(call)
        reason = "a call of Relax that is passed through"
        number = len(self.calls) - 1
        return tuple(self.builder.opaque(op, *inputs, types=types, domain=OPAQUE_DOMAIN, reason=reason, call=number))

    def _read_by(self, arg: Any) -> list[str]:
        """Tensors that an argument of a call names, in the order of `_replaced`."""
        if isinstance(arg, relax.Tuple):
            return [v for f in arg.fields for v in self._read_by(f)]
        if not _names_tensor(arg):
            return []
        found = self.values[arg]
        if isinstance(found, str):
            return [found]
        raise ModelError(f"relax: a call of {arg.name!r} passes a tuple as a whole, which is not understood")


def _replaced(arg: Any, operands: Iterator[Any]) -> Any:
    """An argument of a call with the tensors that it names replaced, in order."""
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_replaced(f, operands) for f in arg.fields])
    if isinstance(arg, relax.Var) and isinstance(arg.ty, relax.ShapeType):
        return relax.ShapeExpr(arg.ty.values)
    return next(operands) if _names_tensor(arg) else arg


def _names_tensor(arg: Any) -> bool:
    return (
        isinstance(arg, relax.Var) and not isinstance(arg, relax.GlobalVar) and not isinstance(arg.ty, relax.ShapeType)
    )


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(d.value) for d in shape.values)


def _tensor_type(type: Any, what: str) -> TensorType:
    """The type of a tensor. Raises `ModelError` for another one, and for extents that are not known."""
    if not isinstance(type, relax.TensorType):
        raise ModelError(f"relax: {what} is {type}, not a tensor")
    shape = type.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(d, tvm.tirx.IntImm) for d in shape.values):
        raise ModelError(f"relax: {what} is {type}; its extents have to be known (relax.transform.BindSymbolicVars)")
    try:
        dtype = DType.of(str(type.dtype))
    except (KeyError, TypeError):
        raise ModelError(f"relax: {what} is {type}, an element type that is not understood") from None
    return TensorType(dtype, _extents(shape))
