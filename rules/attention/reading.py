"""Reading attention out of the e-graph: from a product back to queries and keys, one step at a time.

Between the product of queries and keys and the softmax, and on each edge around them, exporters put scales, masks, caps,
views and quantisation in any order. Each function here knows one of these steps and reads on; what they compose to is for
`attention.recognition` (one float operator) and `attention.quantised` (one quantised operator) to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from eqsat.ir.extents import operands, product
from eqsat.ir.types import HALVES, Dim, DType
from eqsat.rewrite import GroupView, Ref
from eqsat.rules.attention.magnitudes import FLOORS
from eqsat.rules.attention.scores import FLOATS, Probabilities, Scores, Step, Steps, are_numbers, is_number, quantising
from eqsat.rules.terms import Node, established, nodes_by_class
from eqsat.rules.views.counting import Indices

R = TypeVar("R", Probabilities, Scores)
T = TypeVar("T")


@dataclass
class Reader:
    """The e-nodes that attention is made of, by e-class.

    ``_found``: what `once` was asked for: spellings share most of what they are made of.
    """

    view: GroupView
    by_class: dict[int, list[Node]] = field(init=False)
    indices: Indices = field(init=False)
    _scores: dict[int, Scores | None] = field(default_factory=dict[int, Scores | None])
    _probabilities: dict[int, Probabilities | None] = field(default_factory=dict[int, Probabilities | None])
    _found: dict[tuple[object, int, int], Any] = field(default_factory=dict[tuple[object, int, int], Any])

    def __post_init__(self) -> None:
        self.by_class = nodes_by_class(self.view, sorted(_STEPS))
        self.indices = Indices(self.view)

    def nodes(self, value: Ref, *ops: str) -> Iterator[Node]:
        """E-nodes of the class of ``value`` with one of these operators."""
        return (node for node in self.by_class.get(value.handle, ()) if node[0] in ops)

    def once(self, search: Callable[[Reader, Ref, int], T], value: Ref, depth: int) -> T:
        """What a search finds from an e-class to a depth, which it is asked for once."""
        key = search, value.handle, depth
        if key not in self._found:
            self._found[key] = search(self, value, depth)
        return self._found[key]

    def scores(self, value: Ref) -> Scores | None:
        """``value`` as scores, or ``None``."""
        if value.handle not in self._scores:
            self._scores[value.handle] = None  # a cycle leads nowhere new
            self._scores[value.handle] = self._read_scores(value)
        return self._scores[value.handle]

    def _read_scores(self, value: Ref) -> Scores | None:
        nodes = (*self.nodes(value, "MatMul"), *self.by_class.get(value.handle, ()))
        return next(established(self._stepped, ((value, node) for node in nodes)), None)

    def _stepped(self, value: Ref, node: Node) -> Scores | None:
        step = _STEPS[node[0]]
        return None if step is None else step(self, value, node)

    def probabilities(self, value: Ref) -> Probabilities | None:
        """``value`` as probabilities, or ``None``."""
        if value.handle not in self._probabilities:
            self._probabilities[value.handle] = None
            self._probabilities[value.handle] = self._read_probabilities(value)
        return self._probabilities[value.handle]

    def _read_probabilities(self, value: Ref) -> Probabilities | None:
        """The reading with the fewest steps: a softmax may have been given a shift that it does not need. Where its precision
        alone differs, the more precise one."""
        nodes = self.nodes(value, "Softmax", "Reshape", "DequantizeLinear", "Mul", "Div", "Cast", "Where")
        readings = established(self._read_edge, ((value, *node) for node in nodes))
        return min(readings, key=_length, default=None)

    def _read_edge(self, value: Ref, op: str, node: Ref, inputs: tuple[Any, ...]) -> Probabilities | None:
        source = inputs[0]
        if op == "Softmax":
            scores = self.scores(source) if node.attr("axis", -1) in (-1, value.rank - 1) else None
            return None if scores is None else Probabilities(scores)
        if op == "Reshape":
            return self.probabilities(source) if _only_leading_axes(source, value) else None
        if op in ("Mul", "Div"):
            return self._scaled_probabilities(value, op, inputs)
        if op == "Cast":
            found = self.probabilities(source) if value.dtype in HALVES and source.dtype is DType.FLOAT else None
            return None if found is None else replace(found, steps=(*found.steps, Step("Narrow")))
        if op == "Where":
            return self._guarded_probabilities(value, inputs)
        return _behind(self.probabilities, self.quantised(node, inputs))

    def _scaled_probabilities(self, value: Ref, op: str, inputs: tuple[Any, ...]) -> Probabilities | None:
        a, b = inputs
        for x, c in ((a, b), (b, a))[: 2 if op == "Mul" else 1]:
            found = self.probabilities(x) if is_number(c) and x.type == value.type else None
            if found is not None:
                return replace(found, steps=(*found.steps, Step(op, (c,))))
        return None

    def _guarded_probabilities(self, value: Ref, inputs: tuple[Any, ...]) -> Probabilities | None:
        """``Where(IsNaN(p), 0, p)``, or ``Where(c, 0, p)`` of scores that were replaced by a number where ``c`` holds."""
        condition, a, b = inputs
        for zero, p, swapped in ((a, b, True), (b, a, False)):
            if not (zero.is_constant and zero.interval == (0.0, 0.0) and p.type == value.type):
                continue
            found = self.probabilities(p)
            if found is None:
                continue
            if swapped and any(
                x is not None and x.handle == p.handle for _, _, (x, *_) in self.nodes(condition, "IsNaN")
            ):
                return replace(found, guarded=True)
            steps = found.scores.steps
            if found.steps or not steps or steps[-1].op != "Where":
                continue
            *earlier, last = steps
            alike = last.lead == value.shape[:-2] or all(d == 1 for d in condition.shape[:-2])  # not along other axes
            if last.operands[0] == condition and last.swapped == swapped and alike:
                forbidden = (*earlier, replace(last, op="Forbid"))
                return replace(found, scores=replace(found.scores, steps=forbidden), guarded=True)
        return None

    def quantised(self, node: Ref, inputs: tuple[Any, ...]) -> Iterator[tuple[Ref, Steps]]:
        """What a DequantizeLinear quantised before: the value, and the steps that quantise, clip and dequantise it."""
        last = quantising("DequantizeLinear", node, inputs)
        for source, steps in self.integers(inputs[0]) if last else ():
            yield source, (*steps, *last)

    def integers(self, value: Ref) -> Iterator[tuple[Ref, Steps]]:
        """What was quantised by one scale to the integers ``value``, and the steps that quantise and clip it."""
        for unclipped, steps in self._clipped(value, 3):
            for op, node, inputs in self.nodes(unclipped, "QuantizeLinear"):
                first = quantising(op, node, inputs)
                if first:
                    yield inputs[0], (*first, *steps)

    def integer_probabilities(self, value: Ref) -> Probabilities | None:
        """The integers ``value`` as quantised probabilities, or ``None``."""
        return _behind(self.probabilities, self.integers(value))

    def _clipped(self, integers: Ref, depth: int) -> Iterator[tuple[Ref, Steps]]:
        """The integers, and what they are if a narrower range is taken off."""
        yield integers, ()
        if not depth:
            return
        for op, _, (source, *bounds) in self.nodes(integers, "Clip", "Max", "Min"):
            if source is not None and (op == "Clip" or len(bounds) == 1) and are_numbers(bounds):
                for value, steps in self._clipped(source, depth - 1):
                    yield value, (*steps, Step(op, tuple(bounds)))


def _behind(read: Callable[[Ref], R | None], sources: Iterable[tuple[Ref, Steps]]) -> R | None:
    """The first of some sources that ``read`` reads, with the steps behind it."""
    for source, steps in sources:
        found = read(source)
        if found is not None:
            return replace(found, steps=(*found.steps, *steps))
    return None


def _only_leading_axes(source: Ref, result: Ref) -> bool:
    """Whether a view leaves the last two axes as they are: of as many rows each has as many keys, whatever that is called."""
    if min(source.rank, result.rank) < 3 or source.shape[-2] != result.shape[-2]:
        return False
    before, after = source.shape[-1], result.shape[-1]
    if before == after:
        return True
    return _is_named_after(before, after) and product(source.shape[:-2]) == product(result.shape[:-2])


def _is_named_after(enlarged: Dim, keys: Dim) -> bool:
    """Whether an extent is what ``keys`` broadcast to with another symbol."""
    return isinstance(enlarged, str) and keys in operands(enlarged, "broadcast")


# --- steps ---------------------------------------------------------------------------------------------------------------


def _product(reader: Reader, value: Ref, node: Node) -> Scores | None:
    op, _, (q, k, *zeros) = node
    if any(z is not None for z in zeros) or min(q.rank, k.rank) < 3:
        return None
    if op == "MatMul" and q.dtype not in FLOATS:
        return None
    return Scores(q, k, (), value.shape[:-2], op)


def _scaled(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``scores * c``, ``c * scores`` or ``scores / c`` for one number ``c``, or one for each head or query."""
    op, _, (a, b) = node
    for x, c in ((a, b), (b, a))[: 2 if op == "Mul" else 1]:
        if is_number(c) or (c.is_constant and c.shape[-1:] == (1,) and x.type == value.type):
            found = reader.scores(x)
            if found is not None:
                return found.then(op, c, lead=() if is_number(c) else value.shape[:-2])
    return None


def _as_large(scores: Ref, masked: Ref) -> bool:
    """Whether scores are as large with a mask as without, if with it they are for as many keys as there are values: what another
    symbol broadcasts with them to is that many then, so that the symbol stands for as many, or for 1."""
    if scores.type == masked.type:
        return True
    *others, keys = scores.type.shape or ("",)
    *beside, enlarged = masked.type.shape or ("",)
    return _is_named_after(enlarged, keys) and scores.dtype is masked.dtype and others == beside


def _masked(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``scores + mask`` for a mask that does not enlarge the scores."""
    _, _, (a, b) = node
    for x, mask in ((a, b), (b, a)):
        if _as_large(x, value) and not x.is_constant:
            found = reader.scores(x)
            if found is not None:
                return found.then("Add", mask, lead=value.shape[:-2])
    return None


def _selected(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``Where(condition, scores, number)``, or the other way round."""
    _, _, (condition, a, b) = node
    for x, other, swapped in ((a, b, False), (b, a, True)):
        if _as_large(x, value) and is_number(other):
            found = reader.scores(x)
            if found is not None:
                return found.then("Where", condition, other, swapped=swapped, lead=value.shape[:-2])
    return None


def _floored(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``Max(scores, number)`` for about the lowest number that there is."""
    inputs = node[2]
    for x, number in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
        if x.type == value.type and is_number(number) and number.high <= FLOORS.get(value.dtype, -math.inf):
            found = reader.scores(x)
            if found is not None:
                return found.then("Floor", number)
    return None


def _capped(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``Tanh(scores)``"""
    source = node[2][0]
    found = reader.scores(source)
    return None if found is None else found.then("Tanh")


def _converted(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``Cast(scores)`` of an integer product, or from half precision to float32."""
    source = node[2][0]
    if value.dtype is not DType.FLOAT or source.dtype not in (DType.INT32, *HALVES):
        return None
    found = reader.scores(source)
    return None if found is None else found.then("Cast" if source.dtype is DType.INT32 else "Widen")


def _length(found: Probabilities) -> tuple[int, int]:
    """Steps but for changes of precision, and the fewer the more of those."""
    changes = [step.op in ("Narrow", "Widen") for step in (*found.steps, *found.scores.steps)]
    return len(changes) - sum(changes), -sum(changes)


def _regrouped(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``Reshape(scores)`` that leaves queries and keys as they are; behind a mask the scores are read as they were there.

    A mask for each window is added so: the heads of each image are windows by heads there.
    """
    source = node[2][0]
    if not _only_leading_axes(source, value):
        return None
    found = reader.scores(source)
    if found is None or any(step.lead for step in found.steps):
        return found
    return replace(found, lead=value.shape[:-2])


def _dequantised(reader: Reader, value: Ref, node: Node) -> Scores | None:
    """``DQ(Q(scores))``, perhaps within a narrower range."""
    _, dequantise, inputs = node
    return _behind(reader.scores, reader.quantised(dequantise, inputs))


_STEPS: dict[str, Callable[[Reader, Ref, Node], Scores | None] | None] = {
    "Add": _masked,
    "Cast": _converted,
    "Clip": None,
    "DequantizeLinear": _dequantised,
    "Div": _scaled,
    "IsNaN": None,
    "MatMul": _product,
    "MatMulInteger": _product,
    "Max": _floored,
    "Min": None,
    "Mul": _scaled,
    "QuantizeLinear": None,
    "Reshape": _regrouped,
    "Softmax": None,
    "Tanh": _capped,
    "Transpose": None,
    "Where": _selected,
}
"""What attention is written with, and how scores that end in it are read; ``None``: by those who read what they look for."""
