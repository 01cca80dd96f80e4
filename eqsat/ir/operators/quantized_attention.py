"""Attention with quantisation inside, as one operator of our own.

``eqsat::QuantizedAttention(Q, K, V, operands...)`` is ``softmax(Q @ K') @ V`` with further operators on its edges. The
attributes ``queries``, ``keys``, ``values``, ``scores``, ``probabilities`` and ``result`` list the operators on each edge, by
the names in `STEPS`, in the order in which they apply; what else they read are the ``operands``, in the order of the edges.
So any edge may be quantised, dequantised, clipped to a narrower range, scaled, masked. ``score_product`` and ``value_product``
are the two products: ``MatMul``, or ``MatMulInteger`` without zero points. ``layout``: of Q, K, V and of the
result: ``bnsh`` (batch, heads, sequence, size) or ``bsnh``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from eqsat.ir.composite import OWN_DOMAIN, define_composite
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, Type

QUANTIZED_ATTENTION = f"{OWN_DOMAIN}::QuantizedAttention"

STEPS = {
    "Add": 1,
    "Cast": 0,
    "Clip": 2,
    "DequantizeLinear": 2,
    "Div": 1,
    "Max": 1,
    "Min": 1,
    "Mul": 1,
    "QuantizeLinear": 2,
    "Tanh": 0,
    "Where": 2,
    "WhereNot": 2,
}
"""Operator on an edge -> number of its other inputs, each of which may be absent. ``Where`` keeps the value where its
condition holds, ``WhereNot`` where it does not; their second operand replaces it. ``Cast`` goes from integers to float32."""

EDGES = ("queries", "keys", "values", "scores", "probabilities", "result")


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    operands = iter(inputs[3:])
    q, k, v = (_edge(b, attributes, edge, x, operands) for edge, x in zip(EDGES[:3], inputs[:3], strict=True))
    rows = attributes.get("layout", "bnsh") == "bsnh"
    if rows:
        q, v = (b.op("Transpose", x, perm=(0, 2, 1, 3)) for x in (q, v))
    k = b.op("Transpose", k, perm=(0, 2, 3, 1) if rows else (0, 1, 3, 2))
    scores = _edge(b, attributes, "scores", b.op(_product(attributes, "score_product"), q, k), operands)
    chances = _edge(b, attributes, "probabilities", b.op("Softmax", scores, axis=-1), operands)
    y = _edge(b, attributes, "result", b.op(_product(attributes, "value_product"), chances, v), operands)
    return [b.op("Transpose", y, perm=(0, 2, 1, 3)) if rows else y]


def _product(attributes: Attributes, name: str) -> Any:
    return attributes.get(name, "MatMul")


def _edge(b: Any, attributes: Attributes, edge: str, value: str | None, operands: Iterator[str | None]) -> Any:
    """``value`` after the operators on an edge."""
    steps: Any = attributes.get(edge, ())
    for step in steps:
        others = [next(operands, None) for _ in range(STEPS[step])]
        if step in ("Where", "WhereNot"):
            condition, number = others
            value = b.op("Where", condition, *((value, number) if step == "Where" else (number, value)))
            continue
        value = b.op(step, value, *others) if step != "Cast" else b.op("Cast", value, to=int(DType.FLOAT))
    return value


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiply-add for each element of Q and key, and for each element of the result and key."""
    shape = app.shape(1)
    axis = 1 if app.attr("layout", "bnsh") == "bsnh" else 2
    keys = shape[axis] if shape is not None and len(shape) == 4 else 1
    return 2.0 * (keys if isinstance(keys, int) else 1) * (count(app.types[0]) + count(outputs[0]))


define_composite(
    QUANTIZED_ATTENTION, _expand, Kind.ANCHOR, flops=_flops, traits=Traits(structure="quantized_attention")
)
