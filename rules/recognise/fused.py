"""Fused operators that a file comes with, as what they are built of, so that other rules see through them.

Files that a runtime or its tools have optimised hold products with a scale, activations of sums, norms of sums and attention on
rows, fused as far as their patterns went; files that were quantised without Q/DQ pairs hold operators on bytes; pipelines of
scikit-learn begin with features that are scaled, and may end in a linear regression. They stay as they are where that is
cheapest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.exactness import Exactness
from eqsat.ir.composite import OWN_DOMAIN, built_of
from eqsat.ir.operator import Operator, defined, operators_with, split_key
from eqsat.ir.schema_operator import outputs_asked_for
from eqsat.rewrite import Apply, GroupView, Literal, Match, Ref, Term, apply
from eqsat.rules.linear.alignment import spread
from eqsat.rules.onnxruntime.parameters import SHORT_OF, are_scales, column, quanta
from eqsat.rules.quantised.integer_bounds import INT32_MAX, rounding, scaled, total
from eqsat.rules.quantised.scales import BYTES
from eqsat.rules.terms import outputs_of
from eqsat.samples import Drawing, Instance, Sampler, fixed


def is_fused(op: Operator) -> bool:
    """Whether an operator of another domain, such as a runtime's, is built of others."""
    return op.expand is not None and split_key(op.name)[0] not in ("", OWN_DOMAIN)


def parts(op: str, node: Ref, inputs: tuple[Ref | None, ...], index: int) -> Term:
    """Output ``index`` of an operator as a term of what it is built of. Raises `ShapeError` for those that it does not cover."""
    types = [x and x.type for x in inputs]
    values = [None if x is None else x.values.value_of(x.handle) for x in inputs]
    graph = built_of(defined(op), node.attributes, types, values, f"o{index}")
    terms: dict[str, Any] = {"": None, **{f"i{i}": x for i, x in enumerate(inputs)}}
    terms.update((name, Literal(constant)) for name, constant in graph.constants.items())
    read = {value for part in graph.nodes for value in part.inputs} | set(graph.outputs)
    for part in graph.nodes:
        count = outputs_asked_for(part.key, part.outputs, read)
        made = Apply(part.key, tuple(terms[v] for v in part.inputs), part.attributes, "", count)
        results = [made] if count == 1 else [made.output(i) for i in range(count)]
        terms.update(zip(part.outputs, results, strict=False))
    return terms[graph.outputs[0]]


def _of_file(of: Callable[[Operator], bool], view: GroupView) -> Iterator[Match]:
    for op in operators_with(of, domains=True):
        for node, inputs in view.nodes(op):
            results = outputs_of(view, node) or {0: node}
            types = frozenset(x.dtype for x in inputs if x is not None)
            for index, result in results.items():
                yield Match({"op": op, "node": node, "inputs": inputs, "index": index, "types": types}, result)


OF_FILE = worthwhile("the file has it: node.is_given")

# --- floats


_FORMS = (
    *("BiasGelu(x, b)", "FastGelu(x, *b)", "Gelu(x)", "QuickGelu(x)"),
    *("FusedMatMul(x, y, **a)", "FusedGemm(x, y, *b, activation='Tanh', **a)", "MatMulIntegerToFloat(x, y, s, t)"),
    # norms are of floats, as Tanh is
    "SkipLayerNormalization(Tanh(x), y, g, *h, *b, outputs=4, **a)[3]",
    "SkipSimplifiedLayerNormalization(Tanh(x), y, g, *b, outputs=4, **a)[0]",
)


@group_rule(
    find=partial(_of_file, is_fused),
    where=[OF_FILE, worthwhile("packed numbers stay packed: types.isdisjoint(BYTES)")],
    functions={"BYTES": BYTES},
    exactness=Exactness.ROUNDING,
    source="what its definition says",
    forms=[
        *(f"com.microsoft.{text}" for text in _FORMS),
        "ai.onnx.ml.Scaler(x, offset=(1.5,), scale=(0.5,))",
    ],
)
def take_fused_operator_apart(m: Match) -> Term:
    """``f(x, y, ...) == what f is built of`` for an operator of another domain that the file comes with."""
    return parts(m.op, m.node, m.inputs, m.index)


# --- bytes


def is_quantised(op: Operator) -> bool:
    """Whether an operator on bytes has scales and zero points of its own."""
    return op.traits.quantises and (is_fused(op) or op.traits.product is not None)


def _dequantised(inputs: Sequence[Ref | None], at: int, axis: int) -> Term:
    """An operand, dequantised; ``axis``: along which there are several scales or zero points."""
    q, *parameters = inputs[at : at + 3]
    count = max((v.type.size or 1 for v in parameters if v is not None), default=1)
    if count == 1:
        return apply("DequantizeLinear", q, *map(column, parameters))
    return apply("DequantizeLinear", q, *(v and spread(v, count) for v in parameters), axis=axis)


def _axes(op: str, inputs: Sequence[Ref | None]) -> dict[int, int]:
    """The places of the operands, and the axis along which each may have several scales and zero points."""
    x, w = inputs[0], inputs[3]
    assert x is not None
    assert w is not None
    return {0: 0, 3: 0} if op == "QLinearConv" else {0: max(x.rank - 2, 0), 3: max(w.rank - 1, 0)}


def lie_along(op: str, inputs: Sequence[Ref | None]) -> bool:
    """Whether scales and zero points are numbers, or vectors along the axis of their operand."""
    if "::" in op:
        return True  # its definition says what it covers
    extents = {at: q.shape[axis] for at, axis in _axes(op, inputs).items() if (q := inputs[at]) is not None}
    parameters = ((v, extent) for at, extent in extents.items() for v in inputs[at + 1 : at + 3])
    return all(v is None or v.type.size == 1 or v.shape == (extent,) for v, extent in parameters)


def in_floats(op: str, node: Ref, inputs: Sequence[Ref | None]) -> Term:
    """QLinearMatMul or QLinearConv with operands that are dequantised, in floats, and quantised again.

    A matrix may have a scale for each row on the left, for each column on the right, weights of windows one for each channel.
    """
    operands = [_dequantised(inputs, at, axis) for at, axis in _axes(op, inputs).items()]
    if len(inputs) > 8 and inputs[8] is not None:
        unit = apply("Mul", column(inputs[1]), column(inputs[4]))
        operands.append(apply("DequantizeLinear", inputs[8], unit, axis=0))
    product = Apply(op.removeprefix("QLinear"), tuple(operands), node.attributes)
    return apply("QuantizeLinear", product, column(inputs[6]), column(inputs[7]))


def has_one_scale(op: str, inputs: Sequence[Ref | None]) -> bool:
    """Whether the result is quantised by one scale and zero point."""
    return "::" in op or all(x is None or x.type.size == 1 for x in inputs[6:8])


def sums_alike(op: str, inputs: Sequence[Ref | None]) -> bool:
    """Whether the sums of `in_floats` are within half a quantum of those of integers, which do not overflow."""
    x, sx, zx, w, sw, zw, sy, *_ = inputs
    if not (x and sx and w and sw and sy and are_scales(sx, sw, sy) and x.dtype in BYTES and w.dtype in BYTES):
        return False
    convolves = op == "QLinearConv"
    terms = math.prod(w.static_shape[1:]) if convolves else w.shape[max(w.rank - 2, 0)]
    given = inputs[8] if len(inputs) > 8 else None
    bias = 0.0 if given is None else max(map(abs, given.interval))
    largest = total(terms, x, zx, w, zw, bias)
    off = rounding(terms, (x, sx, zx), (w, sw, zw), sy, 0 if convolves else -1, bias)
    return largest <= INT32_MAX and scaled(sx, sw, largest) and off <= 0.5


def counts_whole(op: str, inputs: Sequence[Ref | None]) -> bool:
    """Whether the kernel has as many quanta in 1 as there are: that of Softmax takes the next lower whole number of them."""
    s = inputs[3]
    return not op.endswith("::QLinearSoftmax") or (s is not None and bool(quanta(s) % 1 <= SHORT_OF))


def _drawn_bytes(d: Sampler) -> Instance:
    drawing = Drawing()
    if d.chance(0.1):
        return _drawn_to_cancel(d, drawing)
    rows, inner, columns = d.extents(3)

    def codes(*shape: int) -> list[str]:
        zero = fixed(d.integers((), "uint8", 60, 180))
        numbers = d.integers(shape, "uint8")
        return [drawing.value(v) for v in (numbers, fixed(d.positive(()) / np.float32(32)), zero)]

    def several(count: int, single: list[str]) -> list[str]:
        """Scales and zero points, or one of either."""
        found = [drawing.value(v) for v in (fixed(d.positive((count,))), fixed(d.integers((count,), "uint8")))]
        return d.choose((found, found, [found[0], single[1]], [single[0], found[1]]))

    kind = d.choose(("QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearSigmoid", "QLinearSoftmax"))
    if kind == "QLinearSigmoid":
        return drawing.finish(drawing.op(f"com.microsoft::{kind}", *codes(rows, columns), *codes()[1:]))
    if kind == "QLinearSoftmax":
        quantum = fixed(np.float32(1 / d.choose((255, 256, 280.5))))
        result = drawing.value(quantum), drawing.value(fixed(np.uint8(0)))
        return drawing.finish(drawing.op(f"com.microsoft::{kind}", *codes(rows, 8), *result, opset=13))
    if kind == "QLinearAdd":
        operands = *codes(rows, columns), *codes(columns)
        return drawing.finish(drawing.op(f"com.microsoft::{kind}", *operands, *codes()[1:]))
    if kind == "QLinearMatMul":
        x, w = codes(rows, inner), codes(inner, columns)
        if d.chance(0.2):
            x[1:] = several(rows, x[1:])
        if d.chance():
            w[1:] = several(columns, w[1:])
        if d.chance(0.2):  # of each of two matrices
            w = codes(2, inner, columns)
            w[1:] = [
                drawing.value(v)
                for v in (fixed(d.positive((2, 1, columns))), fixed(np.full((2, 1, columns), 9, np.uint8)))
            ]
        return drawing.finish(drawing.op(kind, *x, *w, *codes()[1:]))
    x, w = codes(1, inner, rows + 2, 5), codes(columns, inner, 2, 3)
    if d.chance():
        points = fixed(np.full(columns, 128, np.uint8))
        w[1:] = [drawing.value(fixed(d.positive((columns,)))), drawing.value(points)]
    bias = [drawing.value(d.either(d.integers((columns,), "int32", -2000, 2000), 0.9)) for _ in range(int(d.chance()))]
    return drawing.finish(drawing.op(kind, *x, *w, *codes()[1:], *bias))


def _drawn_to_cancel(d: Sampler, drawing: Drawing) -> Instance:
    """Sums of thousands of products of which nothing is left, but in floats."""
    half, columns = 8192, d.integer(2, 4)
    x, w = d.integers((2, half), "uint8", 100, 255), d.integers((half, columns), "int8", 1, 127)
    one, zero = drawing.value(fixed(np.float32(1))), drawing.value(fixed(np.int8(0)))
    order = [*range(half), *(half + d.rng.permutation(half))]
    operands = [drawing.value(np.concatenate((x, x), axis=1)[:, order]), one, drawing.value(fixed(np.uint8(0)))]
    operands += [drawing.value(fixed(np.concatenate((w, -w))[order])), one, zero]
    result = drawing.value(fixed(np.float32(0.01))), drawing.value(fixed(np.uint8(128)))
    return drawing.finish(drawing.op("QLinearMatMul", *operands, *result))


@group_rule(
    find=partial(_of_file, is_quantised),
    where=[
        OF_FILE,
        "numbers, or a scale for each row, column or channel: lie_along(op, inputs)",
        "sums of floats round to those of integers: '::' in op or sums_alike(op, inputs)",
        "whole quanta, if the kernel takes the next lower number: counts_whole(op, inputs)",
        worthwhile("kernels for one scale of the result: has_one_scale(op, inputs)"),
    ],
    exactness=Exactness.LSB,
    source="what its definition says",
    sample=_drawn_bytes,
)
def take_quantised_operator_apart(m: Match) -> Term:
    """``f(q, p, ...) == Q(f'(D(q), D(p), ...))`` for an operator on bytes that the file comes with."""
    return parts(m.op, m.node, m.inputs, m.index) if "::" in m.op else in_floats(m.op, m.node, m.inputs)
