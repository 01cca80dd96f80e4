"""A captured graph as an exported program, its weights bound as constants."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from eqsat.dynamo.captured import Captured, UnsupportedError
from eqsat.errors import ModelError, OptionError
from eqsat.frontends.torch_export import exporting


class _Exportable(torch.overrides.TorchFunctionMode):
    """Spells out what torch's exporter has no form for: up to 2.11 it fails at ``isfinite`` of half precision.

    ``unseen_is_zero``: attention of a query that may see nothing, as of padding on the left, is zero in PyTorch; exported, and in
    ONNX Runtime, it looks at all keys alike.
    """

    unseen_is_zero = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.isfinite, Tensor.isfinite):
            (x,) = args
            return x - x == 0  # infinities and NaN leave NaN
        if func in (Tensor.index_copy_, Tensor.__setitem__) and not kwargs and (found := _along_axis(func, *args)):
            return args[0].index_put_(*found)
        found = func(*args, **kwargs or {})
        if self.unseen_is_zero and func is torch.nn.functional.scaled_dot_product_attention:
            given: Mapping[str, Any] = kwargs or {}
            mask = given.get("attn_mask", args[3] if len(args) > 3 else None)
            if mask is not None and mask.dtype is torch.bool:
                return torch.where(mask.any(-1, keepdim=True), found, 0.0)
        return found


def _along_axis(function: Any, x: Tensor, *given: Any) -> tuple[Any, Any] | None:
    """Places along all axes up to one, and values, of ``x.index_copy_(axis, places, values)`` and ``x[:, :, places] = values``;
    ``None`` for anything else that is assigned.

    The exporter, told of a single axis, moves it to the front, and all of ``x`` with it, as of a cache for the row that is new.
    """
    axis: list[int]
    *axis, index, values = given
    if function is Tensor.__setitem__:
        before: list[Any]
        *before, index = cast(Sequence[Any], index if isinstance(index, tuple) else (index,))
        axis = [len(before)] if all(isinstance(i, slice) and i == slice(None) for i in before) else []
    if not axis or not isinstance(index, Tensor) or (index.ndim, index.dtype) != (1, torch.int64):
        return None
    if not isinstance(values, Tensor) or values.ndim != x.ndim:
        return None
    counted = [torch.arange(extent, device=x.device) for extent in x.shape[: axis[0] % x.ndim]] + [index]
    shapes = [[-1 if i == k else 1 for i in range(len(counted))] for k in range(len(counted))]
    return tuple(place.reshape(shape) for place, shape in zip(counted, shapes, strict=True)), values


class _Bound(torch.nn.Module):
    """The captured graph as a module of its tensors alone: weights are its own, extents are read off the tensors, and what it
    writes to its inputs it returns."""

    def __init__(
        self, captured: Captured, weights: Sequence[Tensor], integers: Mapping[int, int], mode: _Exportable
    ) -> None:
        super().__init__()
        self.mode = mode
        self.captured = captured
        self.graph = captured.module
        self.integers = integers
        self.kept = [captured.outputs.index(n) for n in captured.computed]
        for i, weight in zip(captured.weights, weights, strict=True):
            self.register_buffer(f"weight_{i}", weight.detach())

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given: dict[int, Any] = dict(zip(self.captured.tensors, tensors, strict=True))
        given |= {i: given[i].clone() for i in self.captured.written}
        given |= {i: getattr(self, f"weight_{i}") for i in self.captured.weights}
        given |= {i: tensors[k].shape[axis] for i, (k, axis) in self.captured.sizes.items()}
        given |= self.integers
        with self.mode:
            outputs = self.graph(*(given[i] for i in sorted(given)))
        return (*(outputs[k] for k in self.kept), *(given[i] for i in self.captured.written))


def export_captured(
    captured: Captured,
    weights: Sequence[Tensor],
    tensors: Sequence[Tensor],
    integers: Mapping[int, int],
    *,
    symbolic: bool,
    unseen_is_zero: bool = False,
) -> torch.export.ExportedProgram:
    """The graph with ``weights`` and ``integers`` as constants, for the sizes of ``tensors`` or, ``symbolic``, for all that
    Dynamo's guards let through. ``unseen_is_zero``: see `_Exportable`.

    Raises `ModelError` where torch cannot export it, `UnsupportedError` where the program would not do all that the graph does,
    `OptionError` where it drops out at random, as in training.
    """
    mode = _Exportable()
    mode.unseen_is_zero = unseen_is_zero
    shapes = (tuple({k: _dimension(e) for k, e in found.items()} for found in captured.symbols),) if symbolic else None
    with torch.no_grad(), exporting("captured by Dynamo"):
        # Torch marks tensors that its own graphs return, and extents that are marked are symbols, whatever is asked for.
        unmarked = tuple(t.detach() for t in tensors)
        exported = torch.export.export(
            _Bound(captured, weights, integers, mode), unmarked, dynamic_shapes=shapes, strict=False
        )
        # Only a functional program says what it writes to.
        functional = exported.run_decompositions({}) if _writes(exported) else exported
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


def _name_product_of_bytes(node: torch.fx.Node) -> None:
    """As torchao writes it for GPUs it has an operator for an argument, which torch's exporter does not take (2.14)."""
    if node.target is not torch.ops.higher_order.out_dtype:
        return
    function, dtype, *operands = node.args
    values = (x.meta.get("val") if isinstance(x, torch.fx.Node) else None for x in operands)
    integers = all(isinstance(x, Tensor) and x.dtype is torch.int8 for x in values)
    if integers and (function, dtype) == (torch.ops.aten.mm.default, torch.int32):
        node.target, node.args = torch.ops.aten._int_mm.default, tuple(operands)


def _dimension(extent: torch.SymInt) -> Any:
    """A symbolic extent as a named dimension, which holds for all sizes that Dynamo lets through, or else the export fails."""
    from torch.export import Dim

    expression = extent.node.expr
    if not expression.is_Symbol:
        raise ModelError(f"extent {expression} is no symbol")
    bounds = extent.node.shape_env.bound_sympy(expression)
    limits = {k: int(v) for k, v in (("min", bounds.lower), ("max", bounds.upper)) if v.is_Integer}
    return Dim(str(expression), **limits)


def _writes(exported: torch.export.ExportedProgram) -> bool:
    targets = (getattr(n.target, "_schema", None) for n in exported.graph.nodes)
    return any(schema is not None and schema.is_mutable for schema in targets)


_SWITCHES = ("train", "training", "dropout_p")
"""Arguments by which an operator draws random numbers in training alone."""


def _refuse_chance(node: torch.fx.Node) -> None:
    schema = getattr(node.target, "_schema", None)
    if schema is None or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if any(given.get(name) for name in _SWITCHES):
        raise OptionError(
            f"backend 'eqsat' is for inference, and {schema.name} is active: call the model's eval() first"
        )
    if not set(_SWITCHES).intersection(names):
        raise UnsupportedError(f"{schema.name} draws random numbers")
