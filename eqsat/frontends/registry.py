"""Which front end reads a model."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from eqsat.errors import ModelError, OptionError, choices
from eqsat.frontends.shipped import GraphFrontend, OnnxFrontend, RelaxFrontend, TorchFrontend
from eqsat.ir.graph import Graph

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    import onnx_ir

OnnxSource: TypeAlias = "str | Path | onnx.ModelProto | onnx_ir.Model"


@runtime_checkable
class Frontend(Protocol):
    """Reads one kind of models."""

    @property
    def name(self) -> str:
        """What its models are called in messages."""
        ...

    @property
    def takes(self) -> Collection[str]:
        """Names of the options that `read` takes: of ``dims``, ``no_overrides``, ``example_inputs``, ``dynamic_shapes``, and
        others of its own."""
        ...

    def accepts(self, source: Any) -> bool:
        """Whether it reads ``source``. Asked of every model, so it looks at types and names, and imports nothing."""
        ...

    @property
    def read(self) -> Callable[..., Graph | OnnxSource]:
        """``read(source, **options)``: the graph, or a model of ONNX to be read in its place, with ``dims`` if given.

        ``options``: those of `takes` that were given. Raises `ModelError` for what cannot be read.
        """
        ...


F = TypeVar("F", bound=Frontend)

_ONNX = OnnxFrontend()
_known: dict[str, Frontend] = {f.name: f for f in (_ONNX, RelaxFrontend(), TorchFrontend(), GraphFrontend())}


def register(frontend: F) -> F:
    """Makes a front end known; it is asked before those that are known already. One of the same name is replaced."""
    if isinstance(frontend, type):
        raise OptionError(f"front end {frontend.__name__}: is a class; register an object of it, {frontend.__name__}()")
    if not isinstance(frontend, Frontend):  # pyright: ignore[reportUnnecessaryIsInstance]
        missing = [name for name in ("name", "takes", "accepts", "read") if not hasattr(frontend, name)]
        raise OptionError(
            f"front end {type(frontend).__name__}: has no {', '.join(missing)} (eqsat.frontends.Frontend)"
        )
    _known.pop(frontend.name, None)
    _known[frontend.name] = frontend
    return frontend


def unregister(name: str) -> None:
    """Forgets a front end. Raises `OptionError` for one that is not known."""
    if name not in _known:
        raise OptionError(f"front end {name!r} does not exist; {choices(name, _known)}")
    del _known[name]


def frontends() -> list[Frontend]:
    """The front ends in the order in which they are asked."""
    return list(reversed(_known.values()))


def resolve(source: Any, **options: Any) -> Graph | OnnxSource:
    """``source`` as a graph, or as a model of ONNX where it is one or its front end makes one of it.

    ``options`` that are ``None``, ``False`` or empty are not given. Raises `ModelError` for what no front end accepts,
    `OptionError` for options that its front end does not take.
    """
    given = {name: value for name, value in options.items() if _is_given(value)}
    frontend = next((f for f in frontends() if f.accepts(source)), None)
    if frontend is None:
        raise ModelError(
            "model: expected a path, an onnx.ModelProto, an onnx_ir.Model, an object of PyTorch (docs/torch.md) or what another "
            f"front end reads ({', '.join(f.name for f in frontends())}), got {type(source).__name__}"
        )
    for name in given:
        if name not in frontend.takes:
            raise OptionError(f"{name}: {frontend.name} takes no such option{_taken(frontend)}")
    found = frontend.read(source, **given)
    if found is None:  # pyright: ignore[reportUnnecessaryComparison]  # a return that was forgotten
        raise ModelError(
            f"front end {frontend.name}: read returned nothing for {type(source).__name__} {reprlib.repr(source)}"
        )
    return found


def _is_given(value: object) -> bool:
    """An option may be an array, which is compared element by element."""
    return value is not None and value is not False and not (isinstance(value, Mapping) and value == {})


def load(source: Any, dims: Mapping[str, int | str] | None = None, **options: Any) -> Graph:
    """The graph of a model: a path, an ``onnx.ModelProto``, an ``onnx_ir.Model``, a `Graph`, an object of PyTorch
    (docs/torch.md), or what another front end reads (`eqsat.frontends`).

    ``dims``: extents of symbolic dimensions by name. ``options``: those of its front end, ``no_overrides`` (`Options`) for
    models of ONNX, ``example_inputs`` and ``dynamic_shapes`` for modules of PyTorch. Raises `ModelError` and `OptionError`.
    """
    found = resolve(source, dims=dims, **options)
    return (
        found if isinstance(found, Graph) else _ONNX.graph(found, dims, no_overrides=bool(options.get("no_overrides")))
    )


def _taken(frontend: Frontend) -> str:
    return f"; it takes {', '.join(frontend.takes)}" if frontend.takes else ""
