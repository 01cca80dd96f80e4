"""OpenVINO on the CPU, an optional extra (``eqsat[openvino]``): loads a model and runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from eqsat.errors import ModelError, OptionError


class OpenVino:
    """A model, loaded: a path, or the bytes of a ``ModelProto``. ``threads``: by default as many as it likes.

    ``precision``: unless ``bf16`` is asked for, in float32; on processors with products of bfloat16 OpenVINO would compute in
    that. Raises `OptionError` where OpenVINO is not installed or the processor has no such products, `ModelError` where the
    model does not load. ``profile``: take note of what each node takes.
    """

    def __init__(
        self, model: str | bytes, threads: int | None = None, precision: str = "f32", *, profile: bool = False
    ) -> None:
        try:
            openvino: Any = import_module("openvino")
        except ImportError as error:
            raise OptionError(f"OpenVINO is not installed: pip install 'eqsat[openvino]' ({error})") from None
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        if profile:
            settings["PERF_COUNT"] = True
        core = openvino.Core()
        if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise OptionError("OpenVINO: precision bf16: this processor has no products of bfloat16 (AVX512_BF16, AMX)")
        self._tensor = openvino.Tensor
        try:
            read = core.read_model(model)
            # Once compiled, an output may be named after a value inside, too.
            self._names = [port.get_any_name() for port in read.outputs]
            self._compiled = core.compile_model(read, "CPU", settings)
        except Exception as error:  # the binding raises bare RuntimeErrors
            raise ModelError(f"OpenVINO: {_last_line(error)}") from None
        self._request = self._compiled.create_infer_request()

    def feed(self, feeds: Mapping[str, np.ndarray]) -> OpenVino:
        """Puts the inputs in place; itself."""
        for port in self._compiled.inputs:
            name = next(n for n in port.get_names() if n in feeds)  # an input that is an output has two
            self._request.set_tensor(port, self._tensor(np.asarray(feeds[name], order="C")))
        return self

    def run(self) -> None:
        """One inference. Raises `ModelError` when an operator fails."""
        try:
            self._request.infer()
        except Exception as error:
            raise ModelError(f"OpenVINO: {_last_line(error)}") from None

    def node_seconds(self) -> dict[tuple[str, str], float]:
        """Name and type of each node that ran -> what it took, of the last run of a model loaded with ``profile``."""
        nodes = self._request.profiling_info
        return {(n.node_name, n.node_type): n.real_time.total_seconds() for n in nodes if n.status.name == "EXECUTED"}

    def node_counts(self) -> Counter[str]:
        """Nodes that ran, of the last run of a model loaded with ``profile``, by the precision that they compute in: ``i8``."""
        infos = (node.get_rt_info() for node in self._compiled.get_runtime_model().get_ordered_ops())
        texts = ((i["execTimeMcs"].astype(str), i["runtimePrecision"].astype(str)) for i in infos)
        return Counter(precision for seconds, precision in texts if seconds != "not_executed")

    def outputs(self) -> dict[str, Any]:
        """Outputs of the last run by name."""
        return {name: self._request.get_output_tensor(k).data.copy() for k, name in enumerate(self._names)}


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[-2:])[:300] or type(error).__name__
