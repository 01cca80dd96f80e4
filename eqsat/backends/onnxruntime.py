"""ONNX Runtime on the CPU: loads a model, runs it, hands out intermediate values.

Weights in files are not copied: the runtime maps them. Those that are nowhere on disk are lent to it as numpy arrays, of which
ONNX Runtime 1.32 makes a copy.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from eqsat.backends.custom_ops import custom_ops
from eqsat.errors import FeedError, ModelError, OptionError, ResourceError
from eqsat.ir.constants import decode, pack
from eqsat.ir.types import DType, TensorType

if TYPE_CHECKING:
    import onnxruntime

LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_UNSIGNED_OPTION = "session.x64quantprecision"
_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_BFLOAT16_OPTION = "mlas.enable_gemm_fastmath_arm64_bfloat16"
_OF_ANOTHER_PACKAGE = 2  # numpy's code; 0 where a type of its own was unpickled
_QUIET = 4  # fatal only: what goes wrong is raised, so the runtime need not print it as well


class Session:
    """A model, loaded.

    ``model``: a path, the bytes of a ``ModelProto`` or a ``ModelProto``. ``level``: how far ONNX Runtime rewrites the
    graph itself (`LEVELS`). ``threads``: threads per operator, by default one for each core. ``extra_outputs``: names of
    intermediate values to hand out as well. ``folder``: where the external data of a model in memory lies. ``weights``:
    arrays for external initializers whose data is nowhere on disk. ``prepack``: rearrange weights once, for faster runs;
    ``arena``: keep memory between runs. ``profile``: where `end_profile` leaves what every node took, as the beginning of
    a path. ``precision``: ``bf16`` for products of bfloat16. ``flush``: subnormal numbers (below 1.2e-38) are zero in the
    threads that the runtime starts. ``spin``: these threads wait for work without sleeping, as is ONNX Runtime's default: much
    faster with short operators, but it disturbs what takes turns with it. Raises `ModelError` when the model does not load,
    `OptionError` for a precision that the runtime does not have here.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto,
        level: str = "disable",
        *,
        threads: int | None = None,
        extra_outputs: Iterable[str] = (),
        folder: str | Path | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        prepack: bool = False,
        arena: bool = True,
        profile: str | Path | None = None,
        precision: str = "f32",
        flush: bool = False,
        spin: bool = False,
    ) -> None:
        self.label = str(model) if isinstance(model, (str, Path)) else "model in memory"
        extra = tuple(dict.fromkeys(extra_outputs))
        if isinstance(model, (str, Path)):
            if not os.path.isfile(model):
                raise ModelError(f"{model}: no such file, or a pipe, which is read once")
            if extra:
                folder = folder or Path(model).resolve().parent
        source = _source_of(model, extra, self.label)
        # The runtime reads the lent arrays whenever it runs: they have to live as long as the session.
        self._lent = [(name, np.asarray(array, order="C")) for name, array in (weights or {}).items()]

        def options(unsigned: bool) -> onnxruntime.SessionOptions:
            found = _options(level, threads, precision)
            found.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
            found.enable_cpu_mem_arena = arena
            found.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
            found.add_session_config_entry(_UNSIGNED_OPTION, "1" if unsigned else "0")
            found.add_session_config_entry("session.set_denormal_as_zero", "1" if flush else "0")
            if profile is not None:
                found.enable_profiling = True
                found.profile_file_prefix = str(profile)
            if folder is not None:
                found.add_session_config_entry(_FOLDER_OPTION, str(folder))
            if self._lent:
                values = [_ort_value(array) for _, array in self._lent]
                found.add_external_initializers([name for name, _ in self._lent], values)
            return found

        self._session = self._loaded(source, options, unsigned=level in ("extended", "all") and sums_saturate())
        vars(self._session)["lent_weights"] = self._lent  # for users of the session alone
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        self._plain = frozenset(o.name for o in self._session.get_outputs() if _is_plain(o.type))

    def _loaded(
        self, source: str | bytes, options: Callable[[bool], onnxruntime.SessionOptions], *, unsigned: bool
    ) -> onnxruntime.InferenceSession:
        """``unsigned``: constant signed weights are made unsigned, unless that fails, as it does where operators share weights.
        ONNX Runtime does so from EXTENDED on, and not for QLinearMatMul. Only where its kernels saturate otherwise
        (`sums_saturate`): it takes processors with AMX for such, where products of two unsigned ones take 7 times as long.
        """
        import onnxruntime as ort

        settings = options(unsigned)
        try:
            # Its way out of a provider that fails is to print that on standard output, and to try the same one again.
            return ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"], enable_fallback=False)
        except Exception as error:  # the runtime's exceptions have no common base
            if not unsigned:
                raise self.translated(error) from None
        return self._loaded(source, options, unsigned=False)

    @property
    def inference_session(self) -> onnxruntime.InferenceSession:
        """ONNX Runtime's own session; it keeps the lent weights alive."""
        return self._session

    def run(
        self, feeds: Mapping[str, Any], fetch: Iterable[str] | None = None, *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Outputs by name (or only those named in ``fetch``). Raises `ModelError` when an operator fails, and `FeedError` where
        the run takes longer than ``limit_s``."""
        names = list(self.outputs if fetch is None else fetch)
        if limit_s is None:
            return self._run(feeds, names)
        import onnxruntime as ort

        options = ort.RunOptions()
        timer = Timer(limit_s, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return self._run(feeds, names, options)
        except ModelError:
            if options.terminate:
                raise FeedError(f"{self.label}: a run did not end within {limit_s:g} s") from None
            raise
        finally:
            timer.cancel()

    def _run(
        self, feeds: Mapping[str, Any], names: list[str], options: onnxruntime.RunOptions | None = None
    ) -> dict[str, Any]:
        try:
            if self._plain.issuperset(names):
                given = {k: _ort_value(v) if _is_of_another_package(v) else v for k, v in feeds.items()}
                return dict(zip(names, self._session.run(names, given, options), strict=True))
            values = self._session.run_with_ort_values(names, {k: _ort_value(v) for k, v in feeds.items()}, options)
            return {name: _to_numpy(value) for name, value in zip(names, values, strict=True)}
        except Exception as error:
            raise self.translated(error) from None

    def bound(self, feeds: Mapping[str, Any]) -> Bound:
        """The model with its inputs in place, to be run again and again without copying anything in or out."""
        return Bound(self, self._session, feeds)

    def placed(self) -> Placed:
        """The model, for inputs and outputs that lie in memory of the caller's."""
        return Placed(self, self._session)

    def end_profile(self) -> Path:
        """Stops profiling and returns the file with what every node took."""
        return Path(self._session.end_profiling())

    def translated(self, error: Exception) -> ModelError:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        short = any(said in lines[0] for said in ("bad_alloc", "pthread_create failed"))
        kind = ResourceError if short else ModelError
        return kind(f"{self.label}: ONNX Runtime: {_plainly(lines[0])}")


def _plainly(said: str) -> str:
    """What ONNX Runtime said, without the places in its source: the operator and what was wrong."""
    said = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", said)
    failed = re.match(
        r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' Status Message: (.*)", said
    )
    if failed is None:
        return said
    op, name, message = failed.groups()
    message = re.sub(r"^/\S+:\d+ (.* was false\. )?", "", message)
    return f"{op}{f' {name!r}' if name else ''}: {message}"


class _Binding:
    """A model whose inputs and outputs are bound to memory."""

    def __init__(self, session: Session, loaded: Any) -> None:
        self._owner = session
        self._session = loaded
        self._binding = loaded.io_binding()

    def run(self) -> None:
        """One inference. Raises `ModelError` when an operator fails."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise self._owner.translated(error) from None


class Bound(_Binding):
    """A model with its inputs in place. ``run`` leaves the outputs with the runtime; ``outputs`` hands out the last ones."""

    def __init__(self, session: Session, loaded: Any, feeds: Mapping[str, Any]) -> None:
        super().__init__(session, loaded)
        self._feeds = {name: _ort_value(value) for name, value in feeds.items()}
        for name, value in self._feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in session.outputs:
            self._binding.bind_output(name)

    def outputs(self) -> dict[str, Any]:
        """Outputs of the last run by name."""
        return dict(zip(self._owner.outputs, map(_to_numpy, self._binding.get_outputs()), strict=True))


class Placed(_Binding):
    """A model whose inputs and outputs lie at addresses, in rows: nothing of them is converted or copied. What lies where it lay
    in the last run need not be placed again, and has to be there still. Not for several threads at once.

    An output may lie where an input does if what computes it is the only kernel that reads the input, and reads no element that
    it has overwritten.
    """

    def __init__(self, session: Session, loaded: Any) -> None:
        super().__init__(session, loaded)
        self._order: dict[str, None] = {}

    def put_input(self, name: str, dtype: DType, shape: Sequence[int], address: int) -> None:
        self._binding.bind_input(name, "cpu", 0, _element_type(dtype), shape, address or _NOWHERE.ctypes.data)

    def put_output(self, name: str, dtype: DType, shape: Sequence[int], address: int) -> None:
        self._order.setdefault(name)
        self._binding.bind_output(name, "cpu", 0, _element_type(dtype), shape, address or _NOWHERE.ctypes.data)

    def leave_output(self, name: str) -> None:
        """Leaves it to the runtime where an output lies, whose extents are not known before."""
        self._order.setdefault(name)
        self._binding.bind_output(name)

    def outputs(self, names: Collection[str]) -> dict[str, Any]:
        """Of the outputs of the last run those that were left to the runtime, by name."""
        found = zip(self._order, self._binding.get_outputs(), strict=True) if names else ()
        return {name: _to_numpy(value) for name, value in found if name in names}


_NOWHERE = np.zeros(1)
"""Where empty tensors lie: the runtime takes no null pointer."""


def _element_type(dtype: DType) -> Any:
    """As the runtime takes it: releases before 1.21 know no codes."""
    return int(dtype) if dtype.numpy.isbuiltin == _OF_ANOTHER_PACKAGE else dtype.numpy


@cache
def sums_saturate() -> bool:
    """Whether the runtime's kernels for unsigned by signed bytes cut off sums of two products at 16 bits, as they do on x86
    processors without VNNI."""
    from onnx import TensorProto, helper, numpy_helper

    left, right = np.full((8, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["left", "right"], ["sums"])],
        "saturates",
        [helper.make_tensor_value_info("left", TensorProto.UINT8, left.shape)],
        [helper.make_tensor_value_info("sums", TensorProto.INT32, None)],
        [numpy_helper.from_array(right, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bool((Session(model).run({"left": left})["sums"] != 64 * 255 * 127).any())


def _options(level: str, threads: int | None, precision: str) -> onnxruntime.SessionOptions:
    """Those of every session. Raises `OptionError` for a level that does not exist, or a precision that it does not have here."""
    import onnxruntime as ort

    if level not in LEVELS:
        raise OptionError(f"optimization level {level!r}: choose one of {', '.join(LEVELS)}")
    if threads is not None and (not isinstance(threads, int) or threads < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"threads is {threads!r}; it must be a whole number from 1 on")
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = threads or 0  # as many as there are cores
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for library in custom_ops():
        options.register_custom_ops_library(library)
    if precision == "bf16":
        _check_bfloat16()
        options.add_session_config_entry(_BFLOAT16_OPTION, "1")
    return options


def _check_bfloat16() -> None:
    """Raises `OptionError` unless this is the processor that the runtime multiplies floats in bfloat16 on."""
    if platform.machine().lower() not in ("aarch64", "arm64"):
        raise OptionError(
            f"ONNX Runtime: precision bf16: on the CPU it multiplies floats in bfloat16 on ARM64 only ({_BFLOAT16_OPTION}), and "
            f"this is {platform.machine()}"
        )


def _read_without_weights(path: str | Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(path), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:  # protobuf raises its own, and OSError
        raise ModelError(f"{path}: cannot read the model: {str(error).splitlines()[0]}") from None


def _source_of(model: str | Path | bytes | onnx.ModelProto, extra: tuple[str, ...], label: str) -> str | bytes:
    """What the runtime loads: a path, or a message that also returns the values named in ``extra``, of types that are left to it.

    The message is all that is left of it: a model may hold gigabytes of attributes, as trees do.
    """
    if isinstance(model, onnx.ModelProto):
        if not extra:
            return model.SerializeToString()
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
    elif not extra:
        return model if isinstance(model, bytes) else str(model)
    elif isinstance(model, bytes):
        copy = onnx.ModelProto.FromString(model)
    else:
        copy = _read_without_weights(model)
    present = {output.name for output in copy.graph.output}
    defined = {value for node in copy.graph.node for value in node.output}
    for name in extra:
        if name in present:
            continue
        if name not in defined:
            raise ModelError(f"{label}: no node computes a value {name!r}")
        copy.graph.output.append(onnx.ValueInfoProto(name=name))
    return copy.SerializeToString()


def _is_plain(type_text: str) -> bool:
    """Whether numpy itself has the element type the runtime writes as, say, ``tensor(float)``."""
    return not any(word in type_text for word in ("bfloat16", "float8", "float4", "int4", "int2)"))


def _is_of_another_package(value: Any) -> bool:
    """Whether the elements of an array are of a type that numpy itself does not have."""
    found: Any = getattr(value, "dtype", None)
    return found is not None and found.kind not in "OUS" and found.isbuiltin == _OF_ANOTHER_PACKAGE


def _ort_value(array: Any) -> Any:
    import onnxruntime as ort

    array = np.asarray(array, order="C")
    if not _is_of_another_package(array):
        return ort.OrtValue.ortvalue_from_numpy(array)
    dtype = DType.of(array.dtype)
    if dtype.bits < 8:
        value, packed = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(dtype)), pack(array, dtype)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value
    raw = array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))


def _to_numpy(value: Any) -> Any:
    if not value.is_tensor():
        return value.numpy()
    if _is_plain(value.data_type()):
        return value.numpy()
    dtype, shape = DType(value.element_type()), tuple(value.shape())
    raw = bytearray(ctypes.string_at(value.data_ptr(), -(-math.prod(shape) * dtype.bits // 8)))  # bytes are immutable
    return decode(raw, 0, len(raw), TensorType(dtype, shape))
