"""Objects of PyTorch as ONNX models: a module with example inputs, an exported program, what ``torch.onnx.export`` returns.

Torch is imported only once an object is one of its own.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eqsat.errors import ModelError, OptionError

if TYPE_CHECKING:
    import onnx
    import onnx_ir

_MESSAGE_LIMIT_BYTES = (2 << 30) - (64 << 20)  # protobuf messages end at 2 GiB


def is_torch(source: Any) -> bool:
    """Whether ``source`` is an object of PyTorch or of a class derived from one; no import is needed to tell."""
    return any(c.__module__.split(".")[0] == "torch" for c in type(source).__mro__)


def as_onnx(
    source: Any, example_inputs: Any = None, dynamic_shapes: Any = None, *, opset: int | None = None
) -> onnx.ModelProto | onnx_ir.Model:
    """The ONNX model of a ``torch.nn.Module``, a ``torch.export.ExportedProgram`` or a ``torch.onnx.ONNXProgram``.

    ``example_inputs``: what to call a module with to trace it: a tensor, a sequence of positional arguments or a mapping of
    named ones. ``dynamic_shapes``: which of their extents may vary, as ``torch.export.export`` takes it. ``opset``: to export
    to, torch's own choice unless stated. Raises `ModelError` for anything else, and where torch cannot export it, `OptionError`
    for inputs and shapes of what has its own.
    """
    import torch

    name = type(source).__name__
    if isinstance(source, torch.onnx.ONNXProgram | torch.export.ExportedProgram):
        for option, given in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
            if given is not None:
                raise OptionError(
                    f"{option}: an {name} has inputs and shapes already; leave it out, or give the module"
                )
    if isinstance(source, torch.onnx.ONNXProgram):
        return _model_of(source)
    if isinstance(source, torch.export.ExportedProgram):
        on_cpu, on_gpu = (torch.autocast(device, enabled=False) for device in ("cpu", "cuda"))
        with exporting(name), on_cpu, on_gpu:  # a program's types are what they are, whatever is around
            values = [n.meta.get("val") for n in source.graph.nodes]  # all, as autocast converts types on the way
            program = _export(source, values=values, opset=opset)
            model = _model_of(program)
        _warn_of_writing(program, name)
        return model
    if not isinstance(source, torch.nn.Module):
        raise ModelError(f"model: of PyTorch, expected a Module, an ExportedProgram or an ONNXProgram, got {name}")
    module = getattr(source, "_orig_mod", source)  # what torch.compile returns has the module inside
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(f"module {name}: TorchScript cannot be exported; give the module that it was made from")
    if module.training:
        instead = "; of what torch.export returned, give the ExportedProgram" if "eval" in vars(module) else ""
        raise ModelError(f"module {name}: is in training mode; call its eval() first{instead}")
    arguments, named = _arguments(example_inputs, name)
    values = [*module.parameters(), *arguments, *named.values()]
    given = {"kwargs": named, "dynamic_shapes": dynamic_shapes}
    with exporting(name), torch.no_grad():
        program = _export(module, arguments, values=values, opset=opset, **given)
        model = _model_of(program)
    _warn_of_extents(program, dynamic_shapes, name)
    _warn_of_writing(program, name)
    return model


def _export(source: Any, *arguments: Any, values: Sequence[Any], opset: int | None, **options: Any) -> Any:
    """What torch's exporter makes of a module or a program, whose inputs and weights are ``values``.

    Opset 22 is the first in which convolutions and pools take bfloat16. Constants are folded and nothing else: the exporter's own
    optimiser takes 1e-8 for zero and 1.00001 for one, additions to all elements for replacements of them, folds batch norms into
    convolutions, where it rounds weights of float16 three times, and makes those of bfloat16 float32 (onnxscript 0.7).
    """
    import torch
    from onnxscript.optimizer import fold_constants  # pyright: ignore[reportUnknownVariableType]

    from eqsat.frontends.torch_operators import translation_table
    from eqsat.frontends.torch_types import mend_numbers, mend_outputs, widen

    types = {str(getattr(v, "dtype", "")) for v in values}
    opset = max(opset or 0, 22) if "torch.bfloat16" in types else opset
    given = {"opset_version": opset, "optimize": False, "dynamo": True, "verbose": False, **options}
    program = torch.onnx.export(source, *arguments, custom_translation_table=translation_table(), **given)
    mend_numbers(program)
    fold_constants(program.model, onnx_shape_inference=True)
    mend_outputs(program)
    for node, reason in widen(program.model):
        _refuse_type(program, node, reason)
    return program


def _refuse_type(program: Any, node: Any, reason: str) -> None:
    """Raises `OperatorError` for what ONNX does not take the element types of."""
    made_of = node.metadata_props.get("pkg.torch.onnx.fx_node", "").partition(" ")[0].removeprefix("%")
    named = {n.name: n for n in program.exported_program.graph.nodes}
    if made_of in named:
        raise OperatorError(f"model: {node.op_type} {node.name!r}: {reason}", named[made_of])


def _model_of(program: Any) -> onnx.ModelProto | onnx_ir.Model:
    """One message, if the weights fit into one: that can be run as it is, to verify against.

    Raises `ModelError` for a program that writes to buffers of its module: the model would forget that from call to call.
    """
    exported = getattr(program, "exported_program", None)
    written = [] if exported is None else sorted(set(exported.graph_signature.buffers_to_mutate.values()))
    if written:
        raise ModelError(
            f"module: writes to its buffers ({', '.join(written[:3])}), and a model keeps nothing from call to call: take them "
            "as inputs and return what becomes of them; call eval() if they are statistics of training"
        )
    if exported is not None:
        _refuse_strides(exported)
        _refuse_training(exported)
    weights = (v.const_value for v in program.model.graph.initializers.values())
    fits = sum(w.nbytes for w in weights if w is not None) < _MESSAGE_LIMIT_BYTES
    return program.model_proto if fits else program.model


def _refuse_strides(exported: Any) -> None:
    """Raises `OperatorError` where a program reads memory that a tensor does not fill row by row: torch exports ``as_strided`` as
    if it did."""
    import torch

    for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        source = node.args[0].meta["val"]
        start = (*node.args, None)[3] or node.kwargs.get("storage_offset")
        if not source.is_contiguous() or (source.storage_offset() and start is not None):
            raise OperatorError(f"as_strided of {node.args[0].name}, whose elements do not lie in rows", node)


def _refuse_training(exported: Any) -> None:
    """Raises `ModelError` for a program that drops out at random or updates statistics, as of a module in training, or of a part
    of one."""
    import torch

    active = next((n for n in exported.graph.nodes if any((switches(n) or {}).values())), None)
    if active is not None:
        raise ModelError(
            f"module: {active.target.name()} is active, as in training: call eval() of the module, with all its parts, before "
            "it is exported"
        )
    for node in exported.graph.find_nodes(
        op="call_function", target=torch.ops.aten._native_batch_norm_legit_functional.default
    ):
        if node.args[5]:
            raise OperatorError(
                "module: a batch norm takes the statistics of its input and updates those that it is given, as in training: "
                "torch exports one that reads the latter",
                node,
            )


_SWITCHES = ("train", "training", "dropout_p")


def switches(node: Any) -> dict[str, Any] | None:
    """Of an operator that draws random numbers: the arguments by which it does so in training alone, as they are given; ``None``
    for any other operator."""
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return None
    given = {**dict(zip((a.name for a in schema.arguments), node.args, strict=False)), **node.kwargs}
    never = 0 in (given.get("p"), given.get("dropout"))
    return {a.name: given.get(a.name) and not never for a in schema.arguments if a.name in _SWITCHES}


def _warn_of_extents(program: Any, shapes: Any, name: str) -> None:
    """Torch's exporter fixes extents that were to vary where the module needs it, and says nothing (2.14)."""
    from torch.utils._pytree import tree_leaves

    wanted = {n for dim in tree_leaves(shapes) if isinstance(n := getattr(dim, "__name__", dim), str)}
    inputs = program.model.graph.inputs
    if missing := sorted(wanted - {getattr(extent, "value", "") for value in inputs for extent in value.shape or ()}):
        warnings.warn(
            f"eqsat: module {name}: dynamic_shapes asks for {', '.join(missing)}, which the module does not let vary so: torch "
            f"exports {', '.join(f'{v.name} as {v.shape}' for v in inputs)}",
            stacklevel=7,  # who called `optimize`
        )


def _warn_of_writing(program: Any, name: str) -> None:
    """Torch's exporter leaves out what becomes of inputs that a program writes to, and says nothing (2.14)."""
    if written := sorted(program.exported_program.graph_signature.user_inputs_to_mutate.values()):
        warnings.warn(
            f"eqsat: module {name}: writes to its inputs ({', '.join(written[:3])}), and a model does not: return what becomes "
            "of them, if that is read",
            stacklevel=7,  # who called `optimize`
        )


def _arguments(
    given: Mapping[str, Any] | Sequence[Any] | float | None, name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if given is None:
        raise ModelError(
            f"module {name}: give example_inputs, what to call it with: a tensor, a tuple of them, or a mapping by name"
        )
    if isinstance(given, Mapping):
        return (), dict(given)
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    # A mapping at the end would be taken for named arguments, but for one behind it.
    return (*found, {}) if found and isinstance(found[-1], dict) else found, {}


_ONE_AT_A_TIME = threading.RLock()
"""Exporters are made for one thread, and so is turning what they say aside: two at once would leave standard output turned."""


_EXPORTERS = ("torch", "onnxscript", "onnx_ir")
"""Packages whose loggers say nothing while a graph is exported."""


class _WithoutThread(io.TextIOBase):
    """A stream to which one thread's text does not come, while that of the others does."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        own = threading.get_ident() == self._thread
        return len(text) if own or self._stream is None else self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()


@contextlib.contextmanager
def _quiet_loggers() -> Generator[None]:
    known = {n for n in logging.root.manager.loggerDict if n.split(".")[0] in _EXPORTERS}
    levels = {logger: logger.level for logger in map(logging.getLogger, sorted({*known, *_EXPORTERS}))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextlib.contextmanager
def exporting(name: str) -> Generator[None]:
    """What torch's exporters raise as one `ModelError`; what they print, log and warn of on the way is nobody's business. What
    other threads print and log meanwhile is left alone."""
    with (
        _ONE_AT_A_TIME,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(_WithoutThread(sys.stdout)),
        contextlib.redirect_stderr(_WithoutThread(sys.stderr)),
        _quiet_loggers(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        except ModelError:
            raise
        except Exception as error:  # the exporters' errors have no common base
            cause = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            said = (
                f"module {name}: torch cannot export it: {type(cause).__name__}: {' '.join(str(cause).split())[:400]}"
            )
            node = _node_of(error)
            if node is not None and (others := _returned_beside_tensors(node)):
                returned = ", ".join(map(repr, others))
                said = f"module {name}: it returns {returned}, and models return tensors alone: leave that out"
            raise (ModelError(said) if node is None else OperatorError(said, node)) from error


class OperatorError(ModelError):
    """A node of an exported program that has no form in ONNX."""

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


def _returned_beside_tensors(node: Any) -> list[Any]:
    """Numbers and strings among what a program returns, if that is the node; exporters leave ``None`` out."""
    return [v for v in node.args[0] if isinstance(v, int | float | str)] if node.op == "output" else []


def _node_of(error: BaseException | None) -> Any:
    """The node that an exporter failed at. Its errors hold no more of it than its text, but what they were raised in does."""
    from torch.fx import Node

    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, Node) and (node.op == "call_function" or _returned_beside_tensors(node)):
                return node
        error = error.__cause__
    return None
