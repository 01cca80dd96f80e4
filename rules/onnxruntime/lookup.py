"""Functions of one byte as a look-up in a table of their 256 results, for ONNX Runtime, where each operator is a kernel.

What lies between a byte and a byte, operators on each element with numbers as further operands, is read from a table made at
compile time. On other targets such regions are part of a fused kernel already.
"""

import math
from collections.abc import Iterator

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, having, operators_with, traits_of
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, Unmet, apply, literal
from eqsat.rules.quantised.byte_tables import Regions, variable
from eqsat.rules.quantised.scales import per_tensor, unblocked
from eqsat.rules.terms import reshape
from eqsat.rules.views.transposes import is_elementwise
from eqsat.samples import Drawing, Instance, Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "a function of a byte has 256 values"
ENTRIES = 256
_QUANTISATION = ("QuantizeLinear", "DequantizeLinear")


_POINTWISE = frozenset((*operators_with(is_elementwise), *_QUANTISATION, "Reshape", RECENTER)) - {
    *operators_with(having("converts"))
}
_WITHIN = _POINTWISE | {f"{DOMAIN}::{op}" for op in ("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu")}


def _by_column(op: Operator) -> bool:
    """Whether it is a sum or a product of its operands, or bounds one by the others."""
    traits = op.traits
    return traits.clamps or (1 < traits.operands <= len(traits.affine))


_BY_COLUMN = frozenset((*_QUANTISATION, *operators_with(_by_column)))


class Pointwise(Regions):
    """Regions of operators that are kernels of ONNX Runtime.

    ``by_column``: further operands may be vectors along the last axis, so that there is a function for each of its indices;
    of unsigned bytes, as signed ones have an unsigned twin.
    """

    def __init__(self, view: GroupView, *, by_column: bool = False) -> None:
        super().__init__(view, sorted(_BY_COLUMN if by_column else _POINTWISE))
        self._by_column = by_column
        self._known: dict[int, tuple[Ref, bool]] = view.notes((Pointwise, by_column))

    def _is_elementwise(self, op: str, node: Ref, inputs: tuple[Ref | None, ...]) -> bool:
        note = self._known.get(node.enode)
        if note is None or note[0] is not node:
            first = inputs[0]
            signed = self._by_column and first is not None and DType.INT8 in (node.type.dtype, first.type.dtype)
            back = op == RECENTER and node.dtype is DType.UINT8  # signed integers are functions of unsigned ones
            skipped = first is None or signed or back or node.is_constant
            found = not skipped and is_pointwise(op, node, inputs, by_column=self._by_column)
            note = self._known[node.enode] = node, found
        return note[1]


def is_pointwise(op: str, node: Ref, inputs: tuple[Ref | None, ...], *, by_column: bool) -> bool:
    """Whether each element of the result depends on that of the variable operands and on numbers only, or, ``by_column``, on
    numbers and those of vectors along the last axis."""
    try:
        if op in ("Reshape", RECENTER):
            return node.type.is_static
        broadcasts = traits_of(op).operands > 1
        others = inputs if broadcasts else inputs[1:]
        if op in _QUANTISATION and (not per_tensor(*others) or not unblocked(node.attributes)):
            return False
        vectors = by_column and broadcasts
        for i in others:
            if i is not None and not (
                i.type.size == 1 or (vectors and _is_vector(i, node)) if i.is_constant else broadcasts
            ):
                return False
        return all(i.static_shape == node.static_shape for i in variable(inputs))
    except Unmet:
        return False


def _is_vector(value: Ref, node: Ref) -> bool:
    """Whether ``value`` has an element for each index of the last axis of ``node``, and repeats along the others."""
    extents = value.static_shape
    return 1 <= len(extents) <= node.rank and math.prod(extents) == extents[-1] == node.static_shape[-1]


def _drawn(d: Sampler) -> Instance:
    drawing = Drawing()
    dtype = d.choose(("int8", "uint8"))
    shape = (*d.extents(d.integer(0, 2)), ENTRIES if d.chance(0.9) else 3)
    zero = d.integers((), dtype, int(np.iinfo(dtype).min) // 2, int(np.iinfo(dtype).max) // 2)
    parameters = drawing.value(fixed(d.positive(()) / np.float32(8))), drawing.value(fixed(zero))
    source = x = drawing.op("DequantizeLinear", drawing.value(d.integers(shape, dtype)), *parameters)
    for _ in range(d.integer(1, 3)):
        kind = d.integer(0, 4)
        if kind == 0:
            x = drawing.op(d.choose(("Tanh", "Erf", "Gelu", "Sigmoid")), x)
        elif kind == 1:
            number = fixed(d.floats(() if d.chance(0.8) else shape[-1:]))
            x = drawing.op(d.choose(("Add", "Mul")), x, drawing.value(number))
        elif kind == 2:
            x = drawing.op("Mul", source, x)
        elif kind == 3:
            x = drawing.op("DequantizeLinear", drawing.op("QuantizeLinear", x, *parameters), *parameters)
        else:
            x = drawing.op("Reshape", x, drawing.value(fixed(shape, "int64")))
    return drawing.finish(drawing.op("QuantizeLinear", x, *parameters))


def _functions(view: GroupView) -> Iterator[Match]:
    """What is quantised and a function of bytes, with what reads it."""
    regions = Pointwise(view)
    found: dict[int, Ref] = {}
    for node, _ in view.nodes("QuantizeLinear"):
        found.setdefault(node.handle, node)
    for node in found.values():
        region = regions.of(node)
        if region is not None and region.node is not None:
            readers = frozenset(op for op, _, _ in view.users(node))
            yield Match({"region": region, "readers": readers}, node, key=(region.key, readers))


@group_rule(
    find=_functions,
    where=[
        worthwhile("not all readers are in a larger region: not readers or not readers <= WITHIN"),
        worthwhile("3 to 32 operators: 3 <= len(region.way) <= 32"),
        worthwhile(f"rows as long as a table: region.source.static_shape[-1:] >= ({ENTRIES},)"),
        "no rounding on the way moves the result by more than one quantum: region.is_stable",
    ],
    exactness=Exactness.LSB,
    source=SOURCE,
    functions={"WITHIN": _WITHIN},
    sample=_drawn,
    domain=DOMAIN,
)
def look_up_functions_of_bytes(m: Match) -> Term:
    """``Q(f(D(q))) == GatherElements(table, Cast(q))`` with ``table = Q(f(D([0, ..., 255])))``, the same for every row.

    ``f`` is any region of operators on each element. Results at rounding ties may be off by one quantum, where the runtime's
    functions round otherwise than ours; not where a rounding on the way may move them by more.
    """
    extents = m.region.source.static_shape
    table = np.broadcast_to(m.region.values[0].reshape(-1), (*extents[:-1], ENTRIES))
    found = apply("GatherElements", literal(table), apply("Cast", m.region.source, to=int(DType.INT32)), axis=-1)
    return found if m.root.static_shape == extents else reshape(found, m.root.static_shape)
