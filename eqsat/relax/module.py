"""Program -> module of Relax: a primitive function per kernel, which the main function calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from eqsat.backends.onnx_form import Form, written
from eqsat.backends.onnx_kernels import Calls, call_kernels
from eqsat.errors import ModelError
from eqsat.frontends.relax import OPAQUE_DOMAIN
from eqsat.frontends.relax.library import relax, tvm
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, fresh_name
from eqsat.ir.interpret import evaluate_node
from eqsat.ir.operator import definition_of
from eqsat.ir.types import TensorType, Type, type_of_array
from eqsat.lower.program import Kernel, Program
from eqsat.relax.functions import check_operators, composed, legalized, read_functions


@dataclass(frozen=True)
class Lowered:
    """``module``: ``main`` takes the inputs of the program, then the ``weights``, and returns a tuple of the outputs."""

    module: Any
    weights: Mapping[str, np.ndarray]


def to_module(program: Program) -> Lowered:
    """A module in which each kernel of ``program`` is a call of a function with the attribute ``Primitive``.

    ``relax.transform.FuseTIR`` makes one loop function of each. Kernels that only view their input are reshapes in ``main``;
    nodes that read constants only are computed. Raises `ModelError` for operators that TVM does not take and for extents
    that are not known.
    """
    plan = plan_calls(program)
    check_operators(plan.form.nodes)
    inputs = {v: relax.Var(f"x{i}", relax_type(v, plan.graph.type_of(v))) for i, v in enumerate(plan.graph.inputs)}
    for value in (v for call in plan.calls.nodes for v in call.output):
        relax_type(value, plan.graph.type_of(value))
    weights = {v: relax.Var(f"w{i}", relax_type(v, c.type)) for i, (v, c) in enumerate(plan.constants.items())}
    module = emit_main(plan, {**inputs, **weights}, [*inputs.values(), *weights.values()], {"num_input": len(inputs)})
    return Lowered(module, {v: c.numpy() for v, c in plan.constants.items()})


def kernel_count(module: Any) -> int:
    """Launches of ``main``, before or after ``relax.transform.FuseTIR``: calls of loops and of primitive functions.

    Reshapes launch nothing: the virtual machine views the same buffer under another shape.
    """
    return _launches(module, module["main"])


def _launches(module: Any, function: Any) -> int:
    count = 0

    def visit(expr: Any) -> None:
        nonlocal count
        if not isinstance(expr, relax.Call):
            return
        if isinstance(expr.op, tvm.ir.GlobalVar):
            callee = module[expr.op]
            count += 1 if callee.attrs and callee.attrs.get("Primitive") else _launches(module, callee)
        elif isinstance(expr.op, tvm.ir.Op) and expr.op.name == "relax.call_tir":
            count += not relax.analysis.has_reshape_pattern(module[expr.args[0]])
        elif isinstance(expr.op, tvm.ir.Op) and expr.op.name not in _FREE:
            count += 1

    relax.analysis.post_order_visit(function, visit)
    return count


_FREE = frozenset(("relax.reshape", "relax.memory.view"))


def relax_type(name: str, type: Type) -> Any:
    """The type of a value in Relax. Raises `ModelError` unless it is a tensor of known extents."""
    if not isinstance(type, TensorType) or type.shape is None or not all(isinstance(d, int) for d in type.shape):
        raise ModelError(f"TVM: value {name!r} is {type}; its kernels need known extents, give them with dims=")
    return relax.TensorType(type.shape, str(type.dtype.numpy))


@dataclass(frozen=True)
class Plan:
    """``calls`` of kernels, in order. ``program`` has no nodes that read constants only; ``graph`` is it in the form that TVM's
    ONNX frontend reads; ``constants``: those that ``main`` passes or returns, by name."""

    program: Program
    graph: Graph
    form: Form
    calls: Calls
    constants: dict[str, Constant]

    def reshape(self, call: onnx.NodeProto) -> bool:
        """Whether the call is of a kernel that only views its input."""
        kernel = self._kernel(call)
        if kernel.template != "view" or len(call.input) != 1 or len(call.output) != 1:
            return False
        before, after = (self.graph.type_of(v) for v in (call.input[0], call.output[0]))
        return isinstance(before, TensorType) and isinstance(after, TensorType) and before.dtype == after.dtype

    def opaque(self, call: onnx.NodeProto) -> Node | None:
        """The node, if the call is of one that stands for a call of Relax."""
        kernel = self._kernel(call)
        node = self.program.graph.nodes[kernel.nodes[0]]
        return node if len(kernel.nodes) == 1 and node.domain == OPAQUE_DOMAIN else None

    def template(self, call: onnx.NodeProto) -> str:
        return self._kernel(call).template

    def _kernel(self, call: onnx.NodeProto) -> Kernel:
        return self._kernels[call.output[0]]

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {v: kernel for kernel in self.program.kernels for v in kernel.outputs}


def plan_calls(program: Program) -> Plan:
    """The calls of kernels that make up ``main``."""
    program = _without_constant_nodes(program)
    graph, form = written(program.graph, "functions")
    calls = call_kernels(program.graph, program.kernels, graph, form, defaultdict(lambda: 1))
    read = [v for n in graph.nodes if n.domain == OPAQUE_DOMAIN for v in n.inputs]
    read += [*(v for call in calls.nodes for v in call.input), *graph.outputs]
    constants = {v: found for v in read if (found := form.constants.get(v) or graph.constants.get(v)) is not None}
    return Plan(program, graph, form, calls, constants)


def emit_main(
    plan: Plan,
    environment: Mapping[str, Any],
    parameters: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    opaque: Callable[[Node, Sequence[Any]], Any] | None = None,
    others: Mapping[Any, Any] = MappingProxyType({}),
    as_tuple: bool = True,
    composite: bool = False,
) -> Any:
    """The module: functions of kernels and ``main``.

    ``environment``: what stands for inputs and constants; ``opaque``: the call for a node of the domain ``relax``, of what it
    reads; ``others``: functions that such calls may call; ``as_tuple``: return a tuple even of one output; ``composite``: leave
    functions of kernels in operators of Relax.
    """
    values = dict(environment)
    builder, functions = _with_functions(plan, others, composite)
    with builder.function("main", list(parameters), dict(attributes)):
        with builder.dataflow():
            for call in plan.calls.nodes:
                names: Sequence[str] = call.output
                if plan.reshape(call):
                    shape = relax_type(names[0], plan.graph.type_of(names[0])).shape
                    made = relax.op.reshape(values[call.input[0]], shape)
                elif (node := plan.opaque(call)) is not None and opaque is not None:
                    names = node.outputs
                    made = opaque(node, [values[v] for v in node.inputs])
                else:
                    variable, constants = functions[call.op_type]
                    made = relax.Call(variable, [*(values[v] for v in call.input), *constants])
                result = builder.emit(made)
                if isinstance(result.ty, relax.TupleType):
                    values.update((v, builder.emit(relax.TupleGetItem(result, i))) for i, v in enumerate(names))
                else:
                    values[names[0]] = result
            outputs = [values[v] for v in plan.graph.outputs]
            output = builder.emit_output(relax.Tuple(outputs) if as_tuple or len(outputs) > 1 else outputs[0])
        builder.emit_func_output(output)
    return builder.get()


def _with_functions(plan: Plan, others: Mapping[Any, Any], composite: bool) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """A builder of a module with the functions that are called: name in ``plan`` -> variable, and constants to be passed."""
    templates = {c.op_type: plan.template(c) for c in plan.calls.nodes if not plan.reshape(c) and not plan.opaque(c)}
    read = read_functions([f for f in plan.calls.functions if f.name in templates], plan.form.opset)
    taken = {"main", *(v.name_hint for v in others)}
    names = {name: fresh_name(f"kernel_{name}", taken) for name in read}
    prepare = composed if composite else legalized
    module, prepared = prepare({names[name]: function for name, function in read.items()}, others)
    builder = relax.BlockBuilder(module)
    functions: dict[str, tuple[Any, Any]] = {}
    for name, template in templates.items():
        function = prepared[names[name]]
        body = function.body.with_attr("Primitive", True) if function.fusable else function.body
        if composite:
            body = body.with_attr("Composite", f"eqsat.{template}")
        functions[name] = (builder.add_func(body, names[name]), function.constants)
    return builder, functions


def _without_constant_nodes(program: Program) -> Program:
    """The program with nodes that read constants only computed. Kernels left without nodes are gone."""
    graph = program.graph
    constants = dict(graph.constants)
    place: dict[int, int] = {}
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        definition = definition_of(node)
        if definition is None or not all(not v or v in constants for v in node.inputs):
            place[index] = len(nodes)
            nodes.append(node)
            continue
        found = evaluate_node(node, [constants[v].numpy() if v else None for v in node.inputs])
        for value, array in zip(node.outputs, found, strict=False):
            if value:
                constants[value] = Constant(type_of_array(np.asarray(array)), np.asarray(array))
    if len(nodes) == len(graph.nodes):
        return program
    kernels = [replace(k, nodes=tuple(place[n] for n in k.nodes if n in place)) for k in program.kernels]
    changed = replace(graph, nodes=tuple(nodes), constants=constants).pruned()
    return replace(program, graph=changed, kernels=tuple(k for k in kernels if k.nodes))
