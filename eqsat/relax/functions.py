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
from eqsat.ir.graph import Node
from eqsat.relax.library import from_onnx, relax, tvm

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


def read_functions(protos: Sequence[onnx.FunctionProto], opset: int) -> dict[str, Any]:
    """Functions of Relax's operators, by name. Raises `ModelError` naming all operators that TVM cannot take."""
    found: dict[str, Any] = {}
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


def _read(proto: onnx.FunctionProto, opset: int) -> Any:
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
    function = relax.transform.DecomposeOpsForInference()(module)["main"]
    return relax.Function(function.params, function.body, function.ret_ty, function.is_pure)


def legalized(functions: Mapping[str, Any], others: Mapping[Any, Any]) -> tuple[Any, dict[str, Function]]:
    """A module with ``others`` and the loops that the functions call, and the functions, by name."""
    module = tvm.IRModule({name: function.with_attr("global_symbol", name) for name, function in functions.items()})
    _add(module, others)
    module = _folded(relax.transform.LegalizeOps()(module))
    made = {name: _without_constants(module[name], _is_tensor) for name in functions}
    for name in functions:
        del module[module.get_global_var(name)]
    _add(module, others)
    return module, made


def composed(functions: Mapping[str, Any], others: Mapping[Any, Any]) -> tuple[Any, dict[str, Function]]:
    """A module with ``others``, and the functions, of operators, by name; scalars stay in them."""
    read = _folded(
        tvm.IRModule({name: function.with_attr("global_symbol", name) for name, function in functions.items()})
    )
    made = {name: _without_constants(read[name], _has_extents) for name in functions}
    module = tvm.IRModule({})
    _add(module, others)
    return module, {name: replace(function, fusable=True) for name, function in made.items()}


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
        super().__init__()
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
