"""Modules of PyTorch run on arrays, as they are or compiled by Inductor."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from eqsat.backends.torch_tensors import to_array, to_tensor
from eqsat.errors import ModelError
from eqsat.fx.module import to_module
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import check_feeds

INDUCTOR: Mapping[str, Any] = {"freezing": True, "cpp.enable_concat_linear": True}
"""Options of Inductor for inference: weights are constants, linear layers of one input are one product."""


def compiled(module: torch.nn.Module, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """``module`` compiled by Inductor with `INDUCTOR`, to be called without gradients."""
    return torch.compile(module, backend="inductor", dynamic=dynamic, options=dict(INDUCTOR))


def compiled_for(module: torch.fx.GraphModule, examples: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The same for inputs of the sizes of ``examples`` alone, where Dynamo itself is at work: it does not compile anew what is
    called from its own graphs."""
    from torch._guards import tracing
    from torch._inductor.compile_fx import compile_fx

    with tracing(None), torch.no_grad():
        return compile_fx(module, list(examples), config_patches=dict(INDUCTOR))


class Executable:
    """A graph in PyTorch, called with arrays. ``module`` is what it became; ``inductor``: compiled, else operator by operator.

    Raises `ModelError` for operators that torch does not have.
    """

    def __init__(self, graph: Graph, *, inductor: bool = False) -> None:
        self._graph = graph
        self.module = to_module(graph)
        self._run = compiled(self.module) if inductor else self.module

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises `FeedError` for inputs that do not fit."""
        check_feeds(self._graph, feeds)
        tensors = [to_tensor(np.array(feeds[name], order="C")) for name in self._graph.inputs]
        try:
            with torch.no_grad():
                outputs = self._run(*tensors)
        except Exception as error:  # torch raises what it likes
            raise ModelError(
                f"torch: cannot run the program: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            ) from error
        return {name: to_array(value) for name, value in zip(self._graph.outputs, outputs, strict=True)}
