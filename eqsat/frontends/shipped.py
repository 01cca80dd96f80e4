"""The front ends that come with eqsat; each imports its reader when there is something to read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eqsat.frontends.torch_export import as_onnx, is_torch
from eqsat.ir.composite import OWN_DOMAIN
from eqsat.ir.graph import Graph, nodes_within


class GraphFrontend:
    """A `Graph` is one. As of a file, the result may have operators of the domains that it uses."""

    name = "a Graph"
    takes = ()

    def accepts(self, source: Any) -> bool:
        return isinstance(source, Graph)

    def read(self, source: Graph) -> Graph:
        used = {node.domain for node in nodes_within(source.nodes)} - {"", OWN_DOMAIN}
        if not used or source.envelope is not None:
            return source
        from eqsat.frontends.onnx.envelope import Envelope

        return replace(source, envelope=Envelope(imports=dict.fromkeys(sorted(used), 1)))


class OnnxFrontend:
    """Files of ONNX, messages, and objects of onnx-ir. Runtimes read them, too, so they stay what they are until `graph`."""

    name = "ONNX"
    takes = ("dims", "no_overrides")

    def accepts(self, source: Any) -> bool:
        return isinstance(source, str | Path) or _is_from("onnx", source) or _is_from("onnx_ir", source)

    def read(self, source: Any, dims: Mapping[str, int | str] | None = None, no_overrides: bool = False) -> Any:
        return source

    def graph(self, source: Any, dims: Mapping[str, int | str] | None, *, no_overrides: bool = False) -> Graph:
        from eqsat.frontends.onnx.model import load_onnx

        return load_onnx(source, dims=dims, no_overrides=no_overrides)


class TorchFrontend:
    """Objects of PyTorch: exported to ONNX, of which ``dims`` are then."""

    name = "PyTorch"
    takes = ("dims", "example_inputs", "dynamic_shapes")

    def accepts(self, source: Any) -> bool:
        return is_torch(source)

    def read(
        self,
        source: Any,
        example_inputs: Any = None,
        dynamic_shapes: Any = None,
        dims: Mapping[str, int | str] | None = None,
    ) -> Any:
        return as_onnx(source, example_inputs, dynamic_shapes)


class RelaxFrontend:
    """Modules of TVM Relax (docs/tvm.md)."""

    name = "TVM Relax"
    takes = ()

    def accepts(self, source: Any) -> bool:
        return _is_from("tvm", source)

    def read(self, source: Any) -> Graph:
        from eqsat.frontends.relax import from_module

        return from_module(source).graph


def _is_from(package: str, source: Any) -> bool:
    return any(c.__module__.split(".")[0] == package for c in type(source).__mro__)
