"""Functions of one byte as a look-up in a table of their 256 results, for ONNX Runtime, where each operator is a kernel.

What lies between a byte and a byte, operators on each element with numbers as further operands, is read from a table made at
compile time. On other targets such regions are part of a fused kernel already.
"""

import math
from collections.abc import Iterator

import numpy as np

from eqsat.conditions import condition, worthwhile
from eqsat.exactness import Exactness
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Operator, operators_with, traits_of
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, GroupView, Match, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.quantised.byte_tables import FACTORS, every_byte, is_stable
from eqsat.rules.quantised.pairs import BYTES, per_tensor, unblocked
from eqsat.rules.terms import Node, reshape
from eqsat.rules.views.transposes import is_elementwise
from eqsat.samples import Drawing, Instance, Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "a function of a byte has 256 values"
ENTRIES = 256
_QUANTISATION = ("QuantizeLinear", "DequantizeLinear")


def _converts(op: Operator) -> bool:
    return op.traits.converts


_POINTWISE = frozenset((*operators_with(is_elementwise), *_QUANTISATION, "Reshape", RECENTER)) - {
    *operators_with(_converts)
}
_WITHIN = _POINTWISE | {f"{DOMAIN}::{op}" for op in ("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu")}


def _by_column(op: Operator) -> bool:
    """Whether it is a sum or a product of its operands, or bounds one by the others."""
    traits = op.traits
    return traits.clamps or (1 < traits.operands <= len(traits.affine))


_BY_COLUMN = frozenset((*_QUANTISATION, *operators_with(_by_column)))


class Regions:
    """Which values are functions of the bytes of another one, element by element.

    ``by_column``: further operands may be vectors along the last axis, so that there is a function for each of its indices;
    of unsigned bytes, as signed ones have an unsigned twin.
    """

    def __init__(self, view: GroupView, *, by_column: bool = False) -> None:
        self._nodes: dict[int, list[Node]] = {}
        known: dict[int, tuple[Ref, bool]] = view.notes((Regions, by_column))
        for op in sorted(_BY_COLUMN if by_column else _POINTWISE):
            for node, inputs in view.nodes(op):
                note = known.get(node.enode)
                if note is None or note[0] is not node:
                    signed = by_column and inputs[0] is not None and _is_signed(node, inputs[0])
                    skipped = inputs[0] is None or signed or node.is_constant
                    note = known[node.enode] = node, not skipped and is_pointwise(op, node, inputs, by_column=by_column)
                if note[1]:
                    self._nodes.setdefault(node.handle, []).append((op, node, inputs))
        self._found: dict[int, tuple[Ref, Node | None] | None] = {}
        self._ways: dict[int, list[Node]] = {}
        self._columns: dict[int, np.ndarray] = {}
        self._stable: dict[int, bool] = {}

    def reads(self, node: Ref) -> bool:
        """Whether an e-node is elementwise in what it reads."""
        return any(other.enode == node.enode for _, other, _ in self._nodes.get(node.handle, ()))

    def source(self, value: Ref) -> Ref | None:
        """The bytes farthest back that ``value`` is a function of; ``None`` if there are none."""
        if value.handle not in self._found:
            self._found[value.handle] = None  # a cycle leads nowhere new
            self._found[value.handle] = self._search(value)
        found = self._found[value.handle]
        return None if found is None else found[0]

    def _search(self, value: Ref) -> tuple[Ref, Node | None] | None:
        for op, node, inputs in self._nodes.get(value.handle, ()):
            if op == RECENTER and value.dtype is DType.UINT8:
                continue  # it goes both ways: signed integers are functions of unsigned ones
            sources = [self.source(i) for i in _variable(inputs)]
            first = sources[0] if sources else None
            if first is not None and all(s is not None and s.handle == first.handle for s in sources):
                return first, (op, node, inputs)
        return (value, None) if value.dtype in BYTES else None

    def steps(self, value: Ref) -> int:
        """Operators between ``value`` and its source."""
        return len(self._way(value))

    def _way(self, value: Ref) -> list[Node]:
        if value.handle not in self._ways:
            way: dict[int, Node] = {}
            waiting = [value]
            while waiting:
                found = self._found.get(waiting.pop().handle)
                if found is not None and found[1] is not None and found[1][1].handle not in way:
                    way[found[1][1].handle] = found[1]
                    waiting += _variable(found[1][2])
            self._ways[value.handle] = list(way.values())
        return self._ways[value.handle]

    def key(self, value: Ref) -> frozenset[int]:
        """The e-nodes between ``value`` and its source: what the function depends on."""
        return frozenset(node.enode for _, node, _ in self._way(value))

    def columns(self, value: Ref) -> np.ndarray:
        """``value`` for each byte of its source, in the order of their bits: (256, 1) or (256, columns).

        Raises `Unmet` where a vector on the way is too long to be known.
        """
        if value.handle not in self._columns:
            self._columns[value.handle] = self._evaluated(value, {}, FACTORS[0])
        return self._columns[value.handle]

    def is_stable(self, value: Ref) -> bool:
        """Whether no rounding of the floats on the way may move ``value`` by more than one quantum."""
        if value.handle not in self._stable:
            moved = (self._evaluated(value, {}, factor) for factor in FACTORS[1:])
            self._stable[value.handle] = is_stable(self.columns(value), moved)
        return self._stable[value.handle]

    def _evaluated(self, value: Ref, done: dict[int, np.ndarray], factor: float) -> np.ndarray:
        """``value`` for each byte of its source, all floats on the way times ``factor``."""
        if value.is_constant:
            array = value.value
            return array.reshape(() if array.size == 1 else (-1,))
        if value.handle not in done:
            found = self._found[value.handle]
            assert found is not None
            source, node = found
            if node is None:
                done[value.handle] = every_byte(source.dtype).reshape(ENTRIES, 1)
            else:
                op, root, inputs = node
                read = inputs[:1] if op == "Reshape" else inputs
                operands = [None if i is None else self._evaluated(i, done, factor) for i in read]
                result = operands[0] if op == "Reshape" else evaluate_operator(op, root.attributes, operands)[0]
                assert result is not None
                done[value.handle] = (
                    (result * factor).astype(result.dtype, copy=False) if result.dtype.kind == "f" else result
                )
        return done[value.handle]


def _variable(inputs: tuple[Ref | None, ...]) -> list[Ref]:
    return [i for i in inputs if i is not None and not i.is_constant]


def is_pointwise(op: str, node: Ref, inputs: tuple[Ref | None, ...], *, by_column: bool = False) -> bool:
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
        return all(i.static_shape == node.static_shape for i in _variable(inputs))
    except Unmet:
        return False


def _is_signed(*values: Ref) -> bool:
    return any(v.type.dtype is DType.INT8 for v in values)


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
    """What is quantised and a function of the bytes ``source``, with what reads it."""
    regions = Regions(view)
    found: dict[int, Ref] = {}
    for node, _ in view.nodes("QuantizeLinear"):
        if regions.reads(node):
            found.setdefault(node.handle, node)
    for node in found.values():
        source = regions.source(node)
        if source is not None and source.handle != node.handle:
            readers = frozenset(op for op, _, _ in view.users(node))
            bound = {"regions": regions, "source": source, "readers": readers}
            yield Match(bound, node, key=(source.handle, regions.key(node), readers))


@condition("no rounding on the way moves the result by more than one quantum")
def stable(m: Match) -> bool:
    return m.regions.is_stable(m.root)


@group_rule(
    find=_functions,
    where=[
        worthwhile(
            Condition("not all readers are in a larger region", lambda m: not m.readers or not m.readers <= _WITHIN)
        ),
        worthwhile(Condition("3 to 32 operators", lambda m: 3 <= m.regions.steps(m.root) <= 32)),
        worthwhile(
            Condition("rows as long as a table", lambda m: m.source.rank > 0 and m.source.static_shape[-1] >= ENTRIES)
        ),
        stable,
    ],
    exactness=Exactness.LSB,
    source=SOURCE,
    sample=_drawn,
    domain=DOMAIN,
)
def look_up_functions_of_bytes(m: Match) -> Term:
    """``Q(f(D(q))) == GatherElements(table, Cast(q))`` with ``table = Q(f(D([0, ..., 255])))``, the same for every row.

    ``f`` is any region of operators on each element. Results at rounding ties may be off by one quantum, where the runtime's
    functions round otherwise than ours; not where a rounding on the way may move them by more.
    """
    extents = m.source.static_shape
    table = np.broadcast_to(m.regions.columns(m.root).reshape(-1), (*extents[:-1], ENTRIES))
    found = apply("GatherElements", literal(table), apply("Cast", m.source, to=int(DType.INT32)), axis=-1)
    return found if m.root.static_shape == extents else reshape(found, m.root.static_shape)
