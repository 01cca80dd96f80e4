"""Cost models: the price of one kernel, behind one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from eqsat.cost.target import Target
from eqsat.errors import OptionError, choices
from eqsat.ir.einsum import Step, equation_of, steps
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes, Graph, Node, captures_of
from eqsat.ir.infer import application_of
from eqsat.ir.nominal import nominal_work
from eqsat.ir.operator import Application, Kind, operator, split_key, traits_of
from eqsat.ir.operators.movement import way_of
from eqsat.ir.operators.onnxruntime_products import LEAST_BLOCK
from eqsat.ir.traits import Rows
from eqsat.ir.types import DType, TensorType, Type

VIEW_PRICE = 1e-3
"""Price, in kernels, of a view and of each operator of a kernel after the first: they launch nothing, but of two programs with
as many kernels the shorter is better."""


_VIEWS_INSIDE = 4
"""Views around the product that an Einsum is, or between the transposes that one is: so many at most are dropped with it."""

_BYTES = frozenset((DType.INT8, DType.UINT8))


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel does: operators, operations, bytes crossing its boundary, element type of its main operand.

    A kernel of several operators has the kind of the one that is hardest to fuse, and is a view only if all of them are;
    ``parts`` is then the work of each. Of a single operator ``types`` are those of its operands (``None`` for an absent one)
    and ``results`` of its outputs, with numbers for symbolic extents (`eqsat.ir.nominal`): what timings are looked up by.
    ``dequantised``: whether a convolution of floats may have its image from a DequantizeLinear.
    """

    operators: tuple[str, ...]
    kind: Kind
    flops: float
    bytes_read: float
    bytes_written: float
    dtype: str
    types: tuple[Type | None, ...] = ()
    results: tuple[Type, ...] = ()
    attributes: Attributes = NO_ATTRIBUTES
    parts: tuple[Work, ...] = ()
    dequantised: bool = False

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written


class CostModel(Protocol):
    """Prices kernels. ``unit`` names what the numbers are; ``inf`` means that the target has no such kernel."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    def kernel_cost(self, work: Work, target: Target) -> float: ...


class NamedModel(CostModel, Protocol):
    """A cost model that comes with the package: ``description`` is a line for a list of them."""

    @property
    def description(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Rates:
    """A cost model by its terms: ``launch + operator * operators + max(byte * bytes, operations / peak)``; operators of kernels
    that launch nothing cost ``view`` each. Bounds over all kernels of a target that fuses need this form."""

    launch: float = 0.0
    operator: float = 0.0
    byte: float = 0.0
    counts_operations: bool = False
    view: float = 0.0

    def price(self, work: Work, target: Target) -> float:
        if _free(work, target):
            return self.view * len(work.operators)
        operations_s = work.flops / target.peak(work.dtype) if self.counts_operations else 0.0
        return self.launch + self.operator * len(work.operators) + max(self.byte * work.bytes, operations_s)


@dataclass(frozen=True, slots=True)
class FormulaModel:
    """A cost model that is one formula. ``rates``: the same formula by its terms, if it has that form."""

    name: str
    unit: str
    formula: Callable[[Work, Target], float]
    description: str
    rates: Callable[[Target], Rates] | None = None

    def kernel_cost(self, work: Work, target: Target) -> float:
        return self.formula(work, target)


def _free(work: Work, target: Target) -> bool:
    return work.kind.value in target.free_kinds


def steps_inside(work: Work) -> list[Step]:
    """What a kernel of Einsum computes, one operator after the other; nothing of any other kernel, or where that is not known."""
    if work.operators != ("Einsum",):
        return []
    shapes = [t.shape if isinstance(t, TensorType) else None for t in work.types]
    equation = equation_of(work.attributes["equation"], tuple(None if s is None else len(s) for s in shapes))
    return [] if equation is None or equation.has_diagonals else steps(equation)


IMAGE = 4
"""Axes of an image; a volume has one more."""


def leaves_blocks(work: Work) -> bool:
    """Whether a kernel cuts the channels of an image: ONNX Runtime computes convolutions of images on blocks of channels, those
    of half precision in float32, and has no such kernel on blocks, so that the image is reordered before and the parts after."""
    return _axes_of_cut(work) == IMAGE


def _axes_of_cut(work: Work) -> int:
    """How many axes an image or a volume of floats has whose channels a kernel cuts; 0 if it cuts none."""
    image = work.types[0] if work.types else None
    if work.operators[:1] != ("Split",) or work.attributes.get("axis", 0) != 1 or not isinstance(image, TensorType):
        return 0
    shape = image.shape
    if shape is None or len(shape) < IMAGE or image.dtype not in (DType.FLOAT, DType.FLOAT16):
        return 0
    return len(shape) if isinstance(shape[1], int) and shape[1] >= LEAST_BLOCK else 0


def _turns_inside(work: Work) -> int:
    """How often a kernel transposes within: before and after it normalises along another axis than the last."""
    x = work.types[0] if work.types else None
    if len(work.operators) != 1 or not isinstance(x, TensorType) or x.rank is None:
        return 0
    facts = traits_of(work.operators[0], work.attributes)
    return 2 if facts.rows is Rows.ALONG and work.attributes.get("axis", -1) not in (-1, x.rank - 1) else 0


def static_shape(type: Type | None) -> tuple[int, ...] | None:
    """The shape; ``None`` where it is not known, or there is no tensor."""
    if not isinstance(type, TensorType) or type.shape is None:
        return None
    extents = tuple(d for d in type.shape if isinstance(d, int))
    return extents if len(extents) == len(type.shape) else None


def _scatters(work: Work) -> bool:
    """Whether a kernel is a Transpose that moves elements one by one, in many times what two take that do not."""
    shape = static_shape(work.types[0]) if work.operators == ("Transpose",) else None
    return shape is not None and way_of(work.attributes.get("perm", ()), shape) == "scattered"


def _of_slower_bytes(work: Work, target: Target) -> bool:
    """Whether it is a product of unsigned bytes on a target that multiplies those by signed ones faster."""
    return work.dtype == "uint8*uint8" and target.peak(work.dtype) < target.peak("uint8*int8")


def _left_to_cpu(work: Work, target: Target) -> bool:
    return not target.left_to_cpu.isdisjoint(work.operators)


def _kernels(work: Work, target: Target) -> float:
    operators = len(work.operators)
    inside = 0 if target.templates else len(steps_inside(work))
    if inside:  # no fewer launches, and as one operator nothing that others share or are part of
        return inside + VIEW_PRICE * _VIEWS_INSIDE
    turns = 0 if target.templates else _turns_inside(work)
    if turns:  # as an operator each would be a launch; on a tie this is one operator
        return 1.0 + (1.0 - VIEW_PRICE) * turns
    if not target.templates and _scatters(work):  # more than two in a row with views between
        return 2.0 + VIEW_PRICE * _VIEWS_INSIDE
    if _free(work, target):
        return VIEW_PRICE * operators
    slower = not target.templates and (_axes_of_cut(work) > 0 or _of_slower_bytes(work, target))
    if _left_to_cpu(work, target):  # copies are launches
        return 3.0
    return 1.0 + VIEW_PRICE * (operators - 1 + slower)


def _bytes(work: Work, target: Target) -> float:
    return 0.0 if _free(work, target) else work.bytes


def _roofline(work: Work, target: Target) -> float:
    if _free(work, target):
        return 0.0
    return max(work.bytes / target.bandwidth_bytes_per_s, work.flops / target.peak(work.dtype))


def _roofline_launch(work: Work, target: Target) -> float:
    if _free(work, target):
        return 0.0
    return target.launch_s + target.copies_s * _left_to_cpu(work, target) + _roofline(work, target)


COST_MODELS: dict[str, NamedModel] = {
    model.name: model
    for model in (
        FormulaModel(
            "kernels",
            "kernels",
            _kernels,
            "launches; a view, a further operator in a kernel, a Split of channels, or unsigned weights of bytes count 0.001; "
            "what an Einsum is built of counts, and so do the transposes within a Softmax along an inner axis; a Transpose that "
            "scatters counts as two, and what is left to the CPU with its copies as three",
            lambda target: Rates(launch=1.0 - VIEW_PRICE, operator=VIEW_PRICE, view=VIEW_PRICE),
        ),
        FormulaModel("bytes", "bytes", _bytes, "bytes read and written by kernels", lambda target: Rates(byte=1.0)),
        FormulaModel("flops", "operations", lambda w, _: w.flops, "operations, a multiply-add counts two"),
        FormulaModel(
            "roofline",
            "seconds",
            _roofline,
            "max(bytes / bandwidth, operations / peak)",
            lambda target: Rates(byte=1 / target.bandwidth_bytes_per_s, counts_operations=True),
        ),
        FormulaModel(
            "roofline-launch",
            "seconds",
            _roofline_launch,
            "roofline plus the cost of a launch",
            lambda target: Rates(target.launch_s, byte=1 / target.bandwidth_bytes_per_s, counts_operations=True),
        ),
    )
}


def rates_of(model: CostModel, target: Target) -> Rates | None:
    """The terms of a cost model, ``None`` if it has no such form, or if the target chooses its kernels itself, leaves some to the
    CPU or has other than views for free."""
    if target.left_to_cpu or target.fusion != "cones" or target.free_kinds != frozenset(("view",)):
        return None
    return model.rates(target) if isinstance(model, FormulaModel) and model.rates is not None else None


def cost_models() -> dict[str, NamedModel]:
    """Every cost model by name: the formulas, and the one that looks timings up."""
    return {**COST_MODELS, "measured": find_cost_model("measured")}


def find_cost_model(name: str) -> NamedModel:
    """The cost model called ``name``; ``measured=PATH`` is the measured one with the timings of that file.

    Raises `OptionError` with the names there are.
    """
    base, given, path = name.partition("=")
    if base == "measured":
        from eqsat.cost.measured import MeasuredModel

        return MeasuredModel(Path(path) if given else None)
    try:
        return COST_MODELS[name]
    except KeyError:
        raise OptionError(f"cost model {name!r} does not exist; {choices(name, (*COST_MODELS, 'measured'))}") from None


def work_of(app: Application, outputs: Sequence[Type]) -> Work:
    """The work of a single operator. Constants are read at run time too: they count as bytes, but not what bodies read of the
    graph around them, of which the weights may as well lie in the bodies."""
    definition = None if app.opaque else operator(app.op)
    kind = definition.kind if definition is not None else Kind.OPAQUE
    flops, types, results = nominal_work(definition, app, outputs)
    types = types[: len(types) - captures_of(app.attributes)]
    name = f"opaque::{split_key(app.op)[1]}" if app.opaque else app.op
    dtype = _element_type(kind, types)
    read, written = total_bytes(types), total_bytes(results)
    return Work((name,), kind, flops, read, written, dtype, tuple(types), tuple(results), app.attributes)


def work_of_node(graph: Graph, node: Node) -> Work:
    """The work of a node as a kernel of its own."""
    return work_of(application_of(graph, node), [graph.type_of(v) for v in node.outputs])


def at_load(work: Work) -> Work:
    """The work of an operator that the runtime computes when it loads a program: nothing is left of it but its place."""
    return replace(work, kind=Kind.VIEW, flops=0.0)


def _element_type(kind: Kind, types: Sequence[Type | None]) -> str:
    """The element type of the first operand; of a product of 8-bit integers that of both, such as ``uint8*int8``."""
    first = next((t for t in types if isinstance(t, TensorType)), None)
    if first is None or first.dtype == 0 or first.dtype == 8:
        return "default"
    if kind is Kind.ANCHOR and first.dtype in _BYTES:
        matrices = [t for t in types if isinstance(t, TensorType) and t.dtype in _BYTES and len(t.shape or ()) > 1]
        return "*".join(t.dtype.numpy.name for t in matrices[:2])
    return first.dtype.numpy.name


def total_bytes(types: Sequence[Type | None]) -> float:
    """Bytes of operands or results; nothing for what is absent or of unknown extent."""
    return float(sum(t.bytes or 0 for t in types if isinstance(t, TensorType) and t.dtype != 0))
