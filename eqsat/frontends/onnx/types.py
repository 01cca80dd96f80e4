"""Types in an ONNX file: dimensions, symbols and the values the caller fixes them to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eqsat.errors import ModelError, OptionError
from eqsat.ir.extents import from_expression, substitute, symbol
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.types import UNKNOWN, Dim, DType, OpaqueType, TensorType, Type

_CODES = {int(d) for d in DType}


@dataclass(frozen=True)
class Symbols:
    """``names``: those of the extents of a model's inputs; ``fixed``: numbers or other names that the caller gives some.
    ``ours``: extents are written as we write them, with symbols that stand for the same elsewhere."""

    names: frozenset[str] = frozenset()
    fixed: Mapping[str, Dim] = field(default_factory=dict)
    ours: bool = False

    def read(self, text: str) -> Dim:
        """What a file calls an extent: a symbol, or an expression over those of the inputs."""
        if self.ours:
            return self.fixed.get(text, text)
        known = {symbol(s): symbol(n) if isinstance(n, str) else n for s, n in self.fixed.items()}
        return substitute(symbol(text) if text in self.fixed else from_expression(text, self.names), known)


def read_type(proto: Any, symbols: Symbols, where: str) -> Type:
    """The type a ``TypeProto`` describes. Unknown if it says nothing."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind != "tensor_type":
        return OpaqueType(proto.SerializeToString(deterministic=True))
    tensor = proto.tensor_type
    if tensor.elem_type not in _CODES:
        raise ModelError(f"{where}: unknown element type {tensor.elem_type}")
    if not tensor.HasField("shape"):
        return TensorType(DType(tensor.elem_type), None)
    return TensorType(DType(tensor.elem_type), tuple(_read_dim(d, symbols) for d in tensor.shape.dim))


def _read_dim(proto: Any, symbols: Symbols) -> Dim:
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        # Exporters write 0 or -1 for "any extent" of an input, and ONNX Runtime takes negative ones so.
        return proto.dim_value if proto.dim_value >= 0 else fresh_symbol()
    if kind == "dim_param" and proto.dim_param and isinstance(proto.dim_param, str):
        return symbols.read(proto.dim_param)
    return fresh_symbol()


def symbols_of(infos: Iterable[Any]) -> list[str]:
    """Symbolic dimensions of ``ValueInfoProto`` messages, in order of appearance."""
    found: dict[str, None] = {}
    for info in infos:
        if info.type.WhichOneof("value") == "tensor_type":
            for dim in info.type.tensor_type.shape.dim:
                if dim.WhichOneof("value") == "dim_param" and dim.dim_param:
                    found[dim.dim_param] = None
    return list(found)


def name_dims(graph: Any) -> None:
    """Names the extents of inputs that have neither number nor name, in place: ``mask.1`` is the one of axis 1 of ``mask``."""
    taken = set(symbols_of([*graph.input, *graph.output, *graph.value_info]))
    for info in graph.input:
        if info.type.WhichOneof("value") != "tensor_type" or not info.type.tensor_type.HasField("shape"):
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            unnamed = not dim.dim_param if dim.WhichOneof("value") != "dim_value" else dim.dim_value < 0
            if unnamed:
                name = f"{info.name}.{axis}"
                while name in taken:
                    name += "_"
                taken.add(name)
                dim.dim_param = name


def check_dims(dims: Mapping[str, Dim], graph: Any) -> None:
    """Raises `OptionError` unless ``dims`` gives symbols that ``graph`` has extents of at least 1, or another name."""
    if not dims:
        return
    known = symbols_of([*graph.input, *graph.output, *graph.value_info])
    shown = symbols_of(graph.input) or known
    for name, extent in dims.items():
        if name not in known:
            raise OptionError(
                f"dims: the model has no symbolic dimension {name!r}; it has {', '.join(shown) or 'none'}"
            )
        if isinstance(extent, str):
            if not extent.isidentifier() or extent in dims:
                raise OptionError(f"dims: {name} = {extent!r}: another name is a word, and not itself among dims")
        elif isinstance(extent, bool) or not isinstance(extent, int) or extent <= 0:
            raise OptionError(f"dims: {name} = {extent!r}: an extent is an integer of at least 1, or another name")


def fix_dims(info: Any, dims: Mapping[str, Dim]) -> None:
    """Replaces symbols in a ``ValueInfoProto``, in place."""
    if info.type.WhichOneof("value") == "tensor_type":
        for dim in info.type.tensor_type.shape.dim:
            if dim.WhichOneof("value") == "dim_param" and dim.dim_param in dims:
                found = dims[dim.dim_param]
                if isinstance(found, str):
                    dim.dim_param = found
                else:
                    dim.dim_value = found
