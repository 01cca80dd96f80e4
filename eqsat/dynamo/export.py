"""A captured graph as an exported program, its weights bound as constants."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as tracing_options  # pyright: ignore[reportPrivateUsage]
from torch.fx.traceback import preserve_node_meta

from eqsat.dynamo.captured import Captured, NodeError, Number, UnsupportedError, origin, pairs
from eqsat.dynamo.extents import tell_of_extents
from eqsat.dynamo.spelling import Spelling
from eqsat.dynamo.views import axes_in_memory
from eqsat.errors import ModelError, OptionError
from eqsat.frontends.torch_export import exporting, switches


class _Tracked(torch.fx.Interpreter):
    """Knows at which node it failed."""

    failed: str | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            return super().run_node(n)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        except Exception:
            self.failed = n.name
            raise


class _Bound(torch.nn.Module):
    """The captured graph as a module of its tensors alone, complex ones as pairs: weights are its own, extents are read off the
    tensors, what it computes lies in rows, with axes in another order if need be, and what it writes to its inputs it returns."""

    def __init__(
        self,
        captured: Captured,
        weights: Sequence[Tensor],
        numbers: Mapping[int, float],
        complex_inputs: Sequence[int],
        mode: Spelling,
        *,
        symbolic: bool,
    ) -> None:
        super().__init__()
        self.mode = mode
        self.captured = captured
        self.graph = captured.module
        self.run = _Tracked(self.graph)
        self.numbers = {i: Number(n) if isinstance(n, float) else n for i, n in numbers.items()}
        self.complex_inputs = complex_inputs
        self.symbolic = symbolic
        self.kept = [(captured.outputs.index(n), axes_in_memory(n)) for n in captured.computed]
        for i, weight in zip(captured.weights, weights, strict=True):
            self.register_buffer(f"weight_{i}", pairs(weight.detach()))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.symbolic:
            tell_of_extents(self.captured.symbols, tensors)
        given: dict[int, Any] = dict(zip(self.captured.tensors, tensors, strict=True))
        given |= {i: given[i].clone() for i in self.captured.written}
        given |= {i: getattr(self, f"weight_{i}") for i in self.captured.weights}
        given |= {i: tensors[k].shape[axis] for i, (k, axis) in self.captured.sizes.items()}
        given |= {i: torch.view_as_complex(given[i]) for i in self.complex_inputs}
        given |= self.numbers
        with self.mode, preserve_node_meta():  # nodes tell what they were made of: see `origin`
            outputs = self.run.run(*(given[i] for i in sorted(given)))
        return (*(pairs(outputs[k].permute(axes)) for k, axes in self.kept), *(given[i] for i in self.captured.written))


def export_captured(
    captured: Captured,
    weights: Sequence[Tensor],
    tensors: Sequence[Tensor],
    numbers: Mapping[int, float],
    *,
    symbolic: bool,
    unseen_is_zero: bool = False,
) -> torch.export.ExportedProgram:
    """The graph with ``weights`` and ``numbers`` as constants, for the sizes of ``tensors`` or, ``symbolic``, for all that
    Dynamo's guards let through (see `require`). ``unseen_is_zero``: see `Spelling`.

    Raises `ModelError` where torch cannot export it, `UnsupportedError` where the program would not do all that the graph does,
    its subclass `NodeError` where one of its nodes is in the way, `OptionError` where it drops out at random, as in training.
    """
    mode = Spelling()
    mode.unseen_is_zero = unseen_is_zero
    bound = zip((*captured.weights, *captured.tensors), (*weights, *tensors), strict=True)
    complex_inputs = [i for i, t in bound if t.is_complex()]
    module = _Bound(captured, weights, numbers, complex_inputs, mode, symbolic=symbolic)
    try:
        exported, functional = _traced(module, tensors)
    except ModelError as error:
        raise error if module.run.failed is None else NodeError(str(error), module.run.failed) from error
    signature = functional.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    if written:
        raise UnsupportedError(f"it writes to its inputs ({', '.join(sorted(written)[:3])})")
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _refuse_chance(node)
                _name_product_of_bytes(node)
    return exported


def _traced(
    module: _Bound, tensors: Sequence[Tensor]
) -> tuple[torch.export.ExportedProgram, torch.export.ExportedProgram]:
    """The module as it is exported, and as a functional program: only that says what it writes to."""
    with torch.no_grad(), exporting("captured by Dynamo"):
        # Torch marks tensors that its own graphs return, and extents that are marked are symbols, whatever is asked for.
        unmarked = tuple(pairs(t.detach()) for t in tensors)
        # Else the exporter takes the stride of merged axes for a minimum, which it cannot prove to be what it is (2.13), and
        # extents that happen to be equal for the same.
        with tracing_options.patch(backed_size_oblivious=module.symbolic, use_duck_shape=False):
            exported = torch.export.export(module, unmarked, dynamic_shapes=_shapes(module), strict=False)
        _forget_types(exported)
        if torch.is_autocast_enabled(torch.device(module.captured.device).type):
            exported = exported.run_decompositions(
                {}
            )  # converts types where autocast does; what is exported does not yet
        return exported, exported.run_decompositions({}) if _writes(exported) else exported


def _forget_types(exported: torch.export.ExportedProgram) -> None:
    """Takes out what asserts the types that tensors have where autocast does not convert them yet, as before a conversion."""
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.find_nodes(
                op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
            ):
                module.graph.erase_node(node)


def _name_product_of_bytes(node: torch.fx.Node) -> None:
    """As torchao writes it for GPUs it has an operator for an argument, which torch's exporter does not take (2.14)."""
    if node.target is not torch.ops.higher_order.out_dtype:
        return
    function, dtype, *operands = node.args
    values = (x.meta.get("val") if isinstance(x, torch.fx.Node) else None for x in operands)
    integers = all(isinstance(x, Tensor) and x.dtype is torch.int8 for x in values)
    if integers and (function, dtype) == (torch.ops.aten.mm.default, torch.int32):
        node.target, node.args = torch.ops.aten._int_mm.default, tuple(operands)


def _shapes(module: _Bound) -> Any:
    axes = (dict.fromkeys(found, torch.export.Dim.AUTO) for found in module.captured.symbols)
    return (tuple(axes),) if module.symbolic else None


def _writes(exported: torch.export.ExportedProgram) -> bool:
    schemas = (getattr(n.target, "_schema", None) for n in exported.graph.nodes)
    mutable = any(schema is not None and schema.is_mutable for schema in schemas)
    return mutable or any(map(_updates_statistics, exported.graph.nodes))


def _updates_statistics(node: torch.fx.Node) -> bool:
    """Whether a norm writes to the statistics that it is given, which its schema does not say."""
    return node.target is torch.ops.aten.batch_norm.default and node.args[3] is not None and bool(node.args[5])


def _refuse_chance(node: torch.fx.Node) -> None:
    given = switches(node)
    if given is None:
        return
    name = node.target.name()
    if any(given.values()):
        raise OptionError(f"backend 'eqsat' is for inference, and {name} is active: call the model's eval() first")
    if not given:
        raise NodeError(f"{name} draws random numbers", origin(node))
