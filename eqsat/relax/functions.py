"""A kernel as a function of Relax: TVM's ONNX frontend reads it, its operators become loops, constants become parameters."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from eqsat.errors import ModelError
from eqsat.frontends.relax.library import from_onnx, relax, tvm
from eqsat.ir.graph import Node

_MISREAD = frozenset({"Attention"})
"""Operators of the default domain that the frontend takes for others of the same name."""

_REFUSED = "not supported for frontend ONNX: "


@dataclass(frozen=True)
class Function:
    """``body`` is a `relax.Function`: a parameter for each input, then one for each of ``constants``. ``fusable``: it only calls
    loops, so that FuseTIR can make it one."""

    body: Any
    constants: tuple[Any, ...]
    fusable: bool


def check_operators(nodes: Sequence[Node]) -> None:
    """Raises `ModelError` naming the operators that TVM's ONNX frontend would take for something else."""
    found = sorted({n.key for n in nodes if n.domain or n.op in _MISREAD})
    if found:
        raise ModelError(
            f"TVM: its ONNX frontend has no converter for {', '.join(found)}; the target tvm-like avoids it"
        )


@dataclass(frozen=True)
class Read:
    """``body`` is a `relax.Function` of operators; ``loops`` are functions that it calls, where the frontend made them itself."""

    body: Any
    loops: Mapping[Any, Any]


def read_functions(protos: Sequence[onnx.FunctionProto], opset: int) -> dict[str, Read]:
    """Functions of Relax's operators, by name. Raises `ModelError` naming all operators that TVM cannot take."""
    found: dict[str, Read] = {}
    refused: set[str] = set()
    for proto in protos:
        try:
            found[proto.name] = _read(proto, opset)
        except Exception as error:  # TVM raises errors of several libraries
            reason = str(error)
            if _REFUSED in reason:
                refused.update(name.strip() for name in reason.split(_REFUSED)[1].split(","))
            else:
                operators = ", ".join(sorted({n.op_type for n in proto.node} - {"Constant"}))
                refused.add(f"{operators} ({' '.join(reason.split())[:200]})")
    if refused:
        raise ModelError(f"TVM: its ONNX frontend does not take {', '.join(sorted(refused))}")
    return found


def _read(proto: onnx.FunctionProto, opset: int) -> Read:
    types = {v.name: v for v in proto.value_info}
    graph = onnx.GraphProto(name=proto.name)
    graph.node.extend(proto.node)
    graph.input.extend(types[v] for v in proto.input)
    graph.output.extend(types[v] for v in proto.output)
    model = onnx.ModelProto(ir_version=10, graph=graph)
    model.opset_import.add(domain="", version=opset)
    # The frontend prints before it raises, and warns of what it does to names.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = from_onnx(model, dtype_dict=None)
    module = relax.transform.DecomposeOpsForInference()(module)
    main = module["main"]
    loops = {v.name_hint: f for v, f in module.functions.items() if v.name_hint != "main"}
    builder = relax.BlockBuilder()
    renamed = {name: builder.add_func(loop, f"{proto.name}_{name}") for name, loop in loops.items()}
    body = _Renamer(renamed).visit_expr(main.body) if loops else main.body
    return Read(
        relax.Function(main.params, body, main.ret_ty, main.is_pure),
        {renamed[name]: loop for name, loop in loops.items()},
    )


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Gives the functions of a module that are called names of their own."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._names = names

    def visit_global_var_(self, op: Any) -> Any:
        return self._names[op.name_hint]


def legalized(functions: Mapping[str, Read], others: Mapping[Any, Any]) -> tuple[Any, dict[str, Function]]:
    """A module with ``others`` and the loops that the functions call, and the functions, by name."""
    return _prepared(functions, others, relax.transform.LegalizeOps(), _is_tensor)


def composed(functions: Mapping[str, Read], others: Mapping[Any, Any]) -> tuple[Any, dict[str, Function]]:
    """A module with ``others``, and the functions, of operators, by name; scalars stay in them."""
    module, made = _prepared(functions, others, relax.transform.Normalize(), _has_extents)
    return module, {name: replace(function, fusable=True) for name, function in made.items()}


def _prepared(
    functions: Mapping[str, Read], others: Mapping[Any, Any], step: Any, lifts: Callable[[Any], bool]
) -> tuple[Any, dict[str, Function]]:
    module = tvm.IRModule({name: read.body.with_attr("global_symbol", name) for name, read in functions.items()})
    _add(module, others)
    for read in functions.values():
        _add(module, read.loops)
    module = _folded(step(module))
    made = {name: _without_constants(module[name], lifts) for name in functions}
    for name in functions:
        del module[module.get_global_var(name)]
    _add(module, others)
    return module, made


def _folded(module: Any) -> Any:
    """Without operators on what is known: the frontend asks for extents, to count indices from the end."""
    return relax.transform.DeadCodeElimination()(relax.transform.FoldConstant()(module))


def _add(module: Any, others: Mapping[Any, Any]) -> None:
    for variable, function in others.items():
        module.update_func(variable, function)


def _without_constants(function: Any, lifts: Callable[[Any], bool]) -> Function:
    lifter = _ConstantLifter(lifts)
    body = lifter.visit_expr(function.body)
    parameters = [*function.params, *lifter.parameters]
    lifted = relax.Function(parameters, body, function.ret_ty, function.is_pure)
    return Function(lifted, tuple(lifter.constants), all(map(_is_loop, _values(lifted))))


def _is_tensor(constant: Any) -> bool:
    return isinstance(constant.ty, relax.TensorType)


def _has_extents(constant: Any) -> bool:
    return _is_tensor(constant) and constant.ty.ndim != 0


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):
    """Replaces constants by new variables: a function that is to become one loop cannot hold tensors."""

    def __init__(self, lifts: Callable[[Any], bool]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._lifts = lifts
        self.parameters: list[Any] = []
        self.constants: list[Any] = []

    def visit_generic_const_(self, op: Any) -> Any:
        if not self._lifts(op):
            return op
        self.parameters.append(relax.Var(f"c{len(self.constants)}", op.ty))
        self.constants.append(op)
        return self.parameters[-1]


def _values(function: Any) -> list[Any]:
    return [binding.value for block in function.body.blocks for binding in block.bindings]


def _is_loop(value: Any) -> bool:
    if isinstance(value, relax.Call):
        return isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"
    return isinstance(value, relax.TupleGetItem | relax.Tuple | relax.Var)
