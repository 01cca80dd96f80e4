"""What `optimize` returns: the program, the report, and how to run and save it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.egraph.encode import Encoding
from eqsat.errors import OptionError
from eqsat.growth import collector_off, timed
from eqsat.ir.graph import Graph
from eqsat.lower.program import Program
from eqsat.options import check_form
from eqsat.report import Report
from eqsat.rewrite import AnyRule

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    import torch

    from eqsat.backends.onnxruntime import Session


@dataclass
class Result:
    """An optimised model: the program, the report, and how to save it."""

    original: Graph
    program: Program
    report: Report
    form: str = "flat"
    encoding: Encoding | None = None
    rules: Sequence[AnyRule] = ()
    _session: Session | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self, /, *inputs: Any, **named: Any) -> dict[str, Any]:
        """The outputs by name, computed by ONNX Runtime at its highest level.

        ``inputs`` in the order of the model's, or by name: numpy arrays, or tensors of PyTorch, which make the outputs tensors,
        too. Raises `FeedError` for inputs that do not fit.
        """
        from eqsat.backends.calling import call, load_graph

        if self._session is None:
            self._session = load_graph(self.program.graph, "all", spin=True)
        return call(self._session, self.program.graph, inputs, named)

    def session(self, level: str = "all", *, threads: int | None = None) -> onnxruntime.InferenceSession:
        """The program loaded into ONNX Runtime, without a file and without copying weights.

        ``level``: how far ONNX Runtime rewrites it (``disable``, ``basic``, ``extended``, ``all``); ``threads``: threads of an
        operator, by default one for each core.
        """
        from eqsat.backends.calling import load_graph

        return load_graph(self.program.graph, level, threads=threads, spin=True).inference_session

    def to_onnx(self, *, form: str | None = None) -> onnx.ModelProto:
        """The program as a model in memory, in the form it was optimised for unless another is given.

        Raises `OutputError` above 2 GiB, the most that a message holds: `save` has no such limit.
        """
        from eqsat.backends.onnx_file import to_model

        check_form(form or self.form)
        return to_model(self.program.graph, form=form or self.form, kernels=self.program.kernels)

    def to_torch(self) -> torch.fx.GraphModule:
        """The program as a module of PyTorch: takes the inputs in order, returns a tuple of the outputs in order.

        Raises `OptionError` without PyTorch, `ModelError` for operators that it does not have (docs/torch.md).
        """
        try:
            from eqsat.fx import to_module
        except ImportError as error:
            raise OptionError(f"to_torch is not available: {error}") from None
        return to_module(self.program.graph)

    def save(self, path: str | Path, *, form: str | None = None) -> None:
        """Writes the program as ONNX, atomically, in the form it was optimised for unless another is given.

        Raises `OutputError` if that cannot be done.
        """
        from eqsat.backends.onnx_file import save_onnx

        form = form or self.form
        check_form(form)
        with timed(self.report.seconds, "save"), collector_off():
            weights = {c.source.path for c in self.original.constants.values() if c.source is not None}
            save_onnx(self.program.graph, path, form=form, kernels=self.program.kernels, spared=weights)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the e-graph, its rules and sessions, which belong to this one."""
        return {**self.__dict__, "encoding": None, "rules": (), "_session": None}

    def __repr__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()  # pyright: ignore[reportPrivateUsage]
