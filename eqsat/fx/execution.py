"""Modules of PyTorch run on arrays, as they are or compiled by Inductor."""

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
from eqsat.ir.types import TensorType

INDUCTOR: Mapping[str, Any] = {"freezing": True, "cpp.enable_concat_linear": True}
"""Options of Inductor for inference: weights are constants, linear layers of one input are one product."""

TUNED: Mapping[str, Any] = {**INDUCTOR, "max_autotune": True}
"""The same, with kernels tried out when it compiles, which takes minutes."""


def compiled_for(module: torch.fx.GraphModule, examples: Sequence[torch.Tensor], *, tuned: bool) -> Callable[..., Any]:
    """``module`` compiled by Inductor with `INDUCTOR`, or `TUNED`, for inputs of the sizes of ``examples`` alone.

    Not by `torch.compile`: where Dynamo traces the module, weights are constants only if Inductor's global configuration says so,
    whatever the options, and where Dynamo itself is at work, it does not compile what is called from its own graphs.
    """
    from torch._guards import tracing
    from torch._inductor.compile_fx import compile_fx

    options = TUNED if tuned else INDUCTOR
    with tracing(None), torch.no_grad():
        try:
            return compile_fx(module, list(examples), config_patches={**options})
        except Exception:
            # Torch 2.13 cannot view what it cuts off a product that it pads, on GPUs beside convolutions; and on the CPU it packs
            # constant weights of convolutions of any type, for kernels that there are not of double.
            without = "shape_padding" if any(x.is_cuda for x in examples) else "freezing"
            return compile_fx(module, list(examples), config_patches={**options, without: False})


class Executable:
    """A graph in PyTorch, called with arrays. ``module`` is what it became; ``inductor``: compiled, else operator by operator;
    ``tuned``: see `TUNED`; ``precision``: ``bf16`` for products of bfloat16 (torch's autocast).

    Raises `ModelError` for operators that torch does not have.
    """

    def __init__(self, graph: Graph, *, inductor: bool = False, tuned: bool = False, precision: str = "f32") -> None:
        self._graph = graph
        self.module = to_module(graph)
        self._inductor = inductor
        self._tuned = tuned
        self._compiled: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}
        self._half = precision == "bf16"
        self._tensors: list[torch.Tensor] = []
        self._found: Sequence[torch.Tensor] = ()

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises `FeedError` for inputs that do not fit."""
        self.feed(feeds).run()
        return self.outputs()

    def feed(self, feeds: Mapping[str, np.ndarray]) -> Executable:
        """Puts the inputs in place; itself."""
        check_feeds(self._graph, feeds)
        self._tensors = [to_tensor(np.array(feeds[name], order="C")) for name in self._graph.inputs]
        return self

    def run(self) -> None:
        """One inference. Raises `ModelError` when an operator fails."""
        try:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self._half):
                self._found = self._function()(*self._tensors)
        except Exception as error:  # torch raises what it likes
            raise ModelError(
                f"torch: cannot run the program: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            ) from error

    def _function(self) -> Callable[..., Any]:
        if not self._inductor:
            return self.module
        sizes = tuple(x.shape for x in self._tensors)
        if sizes not in self._compiled:
            self._compiled[sizes] = compiled_for(self.module, self._tensors, tuned=self._tuned)
        return self._compiled[sizes]

    def outputs(self) -> dict[str, np.ndarray]:
        """Outputs of the last run by name, in the types that the graph declares."""
        found = {name: to_array(value) for name, value in zip(self._graph.outputs, self._found, strict=True)}
        if not self._half:
            return found
        types = {name: self._graph.type_of(name) for name in found}
        return {n: a.astype(t.dtype.numpy) if isinstance(t := types[n], TensorType) else a for n, a in found.items()}
