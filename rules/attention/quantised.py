"""Quantised attention: every step that `attention.reading` reads, kept as it is, in one operator of our own.

Nothing is recomputed and nothing reordered, so this is exact whatever the steps are: the operator says which run together,
for targets with kernels that do so.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.equations import group_rule
from eqsat.ir.operators.quantized_attention import QUANTIZED_ATTENTION, STEPS
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply
from eqsat.rules.attention.grouping import batch_and_heads, grouped, regrouped, result_of
from eqsat.rules.attention.layout import SWAP
from eqsat.rules.attention.reading import Reader
from eqsat.rules.attention.scores import Probabilities, Step, Steps, are_numbers, quantising
from eqsat.rules.terms import last_axes_exchanged, permutation_of
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.attention import masked_by_window

_Edge = tuple[Ref, Steps]
_QUANTISED = ("DequantizeLinear", "QuantizeLinear")
SOURCE = "the same operators in the same order"


def _draw(d: Sampler) -> Instance:
    """Attention with quantisation on some of its edges, now and then on none."""
    drawing = Drawing()
    batch, heads, queries, keys, size, width = d.extents(6, ones=0.1)
    lead: tuple[int, ...] = (batch, heads) if d.chance(0.8) else (heads,)
    q = _source(d, drawing, (*lead, queries, size))
    k = _source(d, drawing, (*_shared(d, lead), size, keys))
    scores = drawing.op("MatMul", q, k)
    for _ in range(d.integer(0, 3)):
        kind = d.integer(0, 4)
        if kind == 4 and len(lead) == 2 and lead[0] % 2 == 0:
            scores, shape = masked_by_window(d, drawing, scores, (*lead, queries, keys))
            lead = shape[:-2]
        elif kind == 4:
            each = fixed(d.rng.uniform(-1, 1, (lead[-1], 1, 1)), "float32")
            scores = drawing.op("Mul", drawing.value(each), scores)
        elif kind == 0:
            scores = drawing.op(
                d.choose(("Mul", "Div")), scores, drawing.value(fixed(d.choose((0.5, -0.3)), "float32"))
            )
        elif kind == 1:
            scores = drawing.op("Add", scores, drawing.value(d.either(d.floats(d.broadcast_of((queries, keys))))))
        elif kind == 2:
            scores = _quantised(d, drawing, scores)
        else:
            allowed = drawing.value(d.booleans((queries, keys)))
            low = drawing.value(fixed(-3.0, "float32"))
            scores = drawing.op("Where", allowed, *((scores, low) if d.chance() else (low, scores)))
    chances = drawing.op("Softmax", scores, axis=-1 if d.chance(0.9) else -2)
    if d.chance(0.2):
        zero = drawing.value(fixed(0.0, "float32"))
        chances = drawing.op("Where", drawing.op("IsNaN", chances), zero, chances)
    if d.chance():
        chances = _quantised(d, drawing, chances)
    last = _shared(d, lead)
    if d.chance(0.1):  # in two precisions
        v = drawing.value(d.floats((*last, keys, width), "float16"))
        return drawing.finish(drawing.op("MatMul", drawing.op("Cast", chances, to=10), v))
    y = drawing.op("MatMul", chances, _source(d, drawing, (*last, keys, width)))
    if d.chance():
        y = drawing.op("QuantizeLinear", y, *_parameters(d, drawing))
        if d.chance():
            dtype: Any = drawing.builder.type_of(y)
            y = drawing.op("Max", y, drawing.builder.constant(np.array(2, dtype.dtype.numpy)))
    return drawing.finish(y)


def _shared(d: Sampler, lead: tuple[int, ...]) -> tuple[int, ...]:
    """The same leading extents, or those of one head for all."""
    return lead if d.chance(0.8) else (*lead[:-1], 1)


def _parameters(d: Sampler, drawing: Drawing) -> list[str]:
    zero = fixed(np.int8(d.integer(-3, 3))) if d.chance() else fixed(np.uint8(d.integer(0, 5)))
    return [drawing.value(fixed(np.float32(d.choose((0.25, 0.1, 0.03))))), drawing.value(zero)]


def _source(d: Sampler, drawing: Drawing, shape: tuple[int, ...]) -> str:
    x = drawing.value(d.floats(shape))
    return _quantised(d, drawing, x) if d.chance(0.7) else x


def _quantised(d: Sampler, drawing: Drawing, value: str) -> str:
    parameters = _parameters(d, drawing)
    value = drawing.op("QuantizeLinear", value, *parameters)
    if d.chance(0.3):
        dtype: Any = drawing.builder.type_of(value)
        bound = drawing.builder.constant(np.array(3, dtype.dtype.numpy))
        value = drawing.op(d.choose(("Max", "Min")), value, bound)
    other = drawing.value(fixed(np.float32(0.4)))
    return drawing.op("DequantizeLinear", value, other if d.chance(0.3) else parameters[0], parameters[1])


def _quantised_products(view: GroupView) -> Iterator[Match]:
    """Products of probabilities and values, and what quantises these: on integers, and on what was quantised to them."""
    reader = Reader(view)
    for product in ("MatMul", "MatMulInteger"):
        for root, (p, v, *zeros) in view.nodes(product):
            if p is None or v is None or any(zeros):
                continue
            found = reader.probabilities(p) if product == "MatMul" else reader.integer_probabilities(p)
            if found is None:
                continue
            edges = _Edges(reader, found, v, product)
            names = {"p": p, "v": v, "guarded": found.guarded, "scores": found.scores, "edges": edges}
            for user, steps in ((root, ()), *_results(view, root)):
                for sources in edges.spellings(steps):
                    yield Match({**names, "sources": sources, "result": steps}, user)


def _results(view: GroupView, value: Ref) -> Iterator[tuple[Ref, Steps]]:
    """Values that quantise ``value`` by one scale, and clip that to a narrower range."""
    for op, user, inputs in view.users(value):
        if op == "QuantizeLinear" and inputs[0] is not None and inputs[0].handle == value.handle:
            steps = quantising(op, user, inputs)
            if steps:
                yield user, steps
                yield from _clipped(view, user, steps, 2)


def _clipped(view: GroupView, value: Ref, steps: Steps, depth: int) -> Iterator[tuple[Ref, Steps]]:
    for op, user, inputs in view.users(value) if depth else ():
        narrows = op == "Clip" or (op in ("Max", "Min") and len(inputs) == 2)
        if narrows and inputs[0] is not None and inputs[0].handle == value.handle and are_numbers(inputs[1:]):
            longer = (*steps, Step(op, tuple(inputs[1:])))
            yield user, longer
            if user.handle != value.handle:
                yield from _clipped(view, user, longer, depth - 1)


class _Edges:
    """The operands of the operator and the steps on each of its edges."""

    def __init__(self, reader: Reader, found: Probabilities, v: Ref, product: str) -> None:
        scores = found.scores
        self._reader = reader
        self._lead = scores.lead
        keys, self._stored = self._keys_as_stored(scores.k)
        self._operands = {"queries": scores.q, "keys": keys, "values": v}
        self._inner = {"scores": scores.steps, "probabilities": found.steps}
        self._products = {"score_product": scores.product, "value_product": product}

    def spellings(self, result: Steps) -> Iterator[dict[str, _Edge]]:
        """The operands as integers, and as what was quantised to them, if anything is quantised."""
        integers = {edge: self._dequantised(x) for edge, x in self._operands.items()}
        sources = {edge: self._quantised(*found) for edge, found in integers.items()}
        steps = (s for edge in self.edges(sources, result).values() for s in edge)
        if any(step.op in _QUANTISED for step in steps):
            yield integers
            yield sources

    def edges(self, sources: dict[str, _Edge], result: Steps) -> dict[str, Steps]:
        """The steps on each edge."""
        return {**{edge: steps for edge, (_, steps) in sources.items()}, **self._inner, "result": result}

    @property
    def steps(self) -> Steps:
        """Those between the two products."""
        return (*self._inner["scores"], *self._inner["probabilities"])

    def _keys_as_stored(self, k: Ref) -> tuple[Ref, bool]:
        """What ``k`` (..., size, keys) is the transpose of, and True; else ``k`` and False."""
        for _, node, (stored,) in self._reader.nodes(k, "Transpose"):
            if stored is not None and permutation_of(node) == last_axes_exchanged(k.rank):
                return stored, True
        return k, False

    def _dequantised(self, value: Ref) -> _Edge:
        """The integers that a value is dequantised from, and that step; else the value."""
        for op, node, inputs in self._reader.nodes(value, "DequantizeLinear"):
            step = quantising(op, node, inputs)
            if step:
                return inputs[0], step
        return value, ()

    def _quantised(self, value: Ref, steps: Steps) -> _Edge:
        """What was quantised to the integers, best without a factor before, and the steps from there on; else the integers."""
        found = [(source, (*earlier, *steps)) for source, earlier in self._reader.integers(value)]
        plain = [edge for edge in found if not any(self._reader.nodes(edge[0], "Mul", "Div"))]
        return (*plain, *found, (value, steps))[0]

    def applied(self, root: Ref, sources: dict[str, _Edge], result: Steps) -> Term:
        queries, keys, values = (grouped(x, self._lead) for x, _ in sources.values())
        operands: list[Any] = [queries, keys if self._stored else apply("Transpose", keys, perm=(0, 1, 3, 2)), values]
        attributes: dict[str, Any] = {name: op for name, op in self._products.items() if op != "MatMul"}
        for edge, steps in self.edges(sources, result).items():
            if steps:
                attributes[edge] = tuple("WhereNot" if s.swapped else s.op for s in steps)
            for step in steps:
                operands += [*self._others(step), *[None] * (STEPS[step.op] - len(step.operands))]
        return result_of(apply(QUANTIZED_ATTENTION, *operands, layout="bnsh", **attributes), root, self._lead)

    def _others(self, step: Step) -> list[Term | None]:
        """The other inputs of a step, as they are beside scores of the operator's batch and heads."""
        if not step.lead or (step.lead == self._lead and len(self._lead) < 3):
            return list(step.operands)
        lead = batch_and_heads(self._lead)
        return [
            x if x is None or x.shape in ((), (1,)) else regrouped(x, x.shape, step.lead, lead, x)[0]
            for x in step.operands
        ]


@group_rule(
    find=_quantised_products,
    where=[
        "keys for each head of the queries: scores.k.shape[:-2] == scores.q.shape[:-2]",
        "values for each head of the probabilities: v.shape[:-2] == p.shape[:-2]",
        "NaN stays NaN: not guarded",
        "one precision: all(step.op in STEPS for step in edges.steps)",
    ],
    functions={"STEPS": STEPS},
    source=SOURCE,
    sample=_draw,
    domain="eqsat",
)
def recognise_quantised_attention(m: Match) -> Term:
    """``Q(DQ(Q(Softmax(f(DQ(q) @ DQ(k))))) @ DQ(v)) == QuantizedAttention(q, k', v)`` for any chain ``f`` of scales, masks and
    quantisation."""
    return m.edges.applied(m.root, m.sources, m.result)


def _draw_rows(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, heads, queries, keys, size, width = d.extents(6, ones=0.1)
    layout, order = ("bnsh", range(4)) if d.chance(0.8) else ("bsnh", SWAP)
    bnsh = ((batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, width))
    shapes = [tuple(s[i] for i in order) for s in bnsh]
    operands = [drawing.value(d.integers(s, "int8", -4, 4)) for s in shapes]
    parameters = [p for _ in shapes for p in (drawing.value(fixed(np.float32(0.25))), drawing.value(fixed(np.int8(0))))]
    steps: Any = ("DequantizeLinear",)
    edges = {"queries": steps, "keys": steps, "values": steps}
    y = drawing.op(QUANTIZED_ATTENTION, *operands, *parameters, layout=layout, **edges)
    return drawing.finish(drawing.op("Transpose", y, perm=SWAP if d.chance(0.9) else (2, 0, 1, 3)))


def _transposed_results(view: GroupView) -> Iterator[Match]:
    for node, operands in view.nodes(QUANTIZED_ATTENTION):
        for op, user, _ in view.users(node):
            if op == "Transpose":
                yield Match({"a": node, "operands": operands, "perm": permutation_of(user)}, user)


@group_rule(
    find=_transposed_results,
    where=[
        "heads are before the sequence: a.attr('layout') == 'bnsh'",
        "heads and sequence change places: perm == SWAP",
    ],
    functions={"SWAP": SWAP},
    source="a product of matrices, whichever way they are stored",
    sample=_draw_rows,
    domain="eqsat",
)
def attend_quantised_in_rows(m: Match) -> Term:
    """``Transpose(QuantizedAttention(q, k, v), (0, 2, 1, 3)) == QuantizedAttention(q', k', v')`` with heads behind the
    sequence."""
    moved = (apply("Transpose", x, perm=SWAP) for x in m.operands[:3])
    return Apply(QUANTIZED_ATTENTION, (*moved, *m.operands[3:]), m.a.attributes.updated(layout="bsnh"))
