"""The order of heads that lie side by side in rows: what changes it goes into the weights before and behind.

    H(x) == Reshape(Transpose(Reshape(x, (0, 0, a, b, size)), (0, 1, 3, 2, 4)), (0, 0, b * a * size))

    H(x @ w) == x @ H(w)    H(x + b) == H(x) + H(b)    H(RotaryEmbedding(x)) == RotaryEmbedding(H(x))    H(x) @ w == x @ H'(w)

`shared_heads` asks for it: of heads that share keys and values it makes rows side by side.
"""

from __future__ import annotations

from typing import Any

from eqsat.conditions import constant
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref, Term
from eqsat.rules.linear.alignment import reshaped_term
from eqsat.rules.onnxruntime.parameters import lies_along
from eqsat.rules.onnxruntime.shared_heads import exchanged_heads
from eqsat.rules.terms import transpose
from eqsat.samples import Sampler, fixed


def exchanges_heads(t: Ref, p: object, x: Ref, y: Ref) -> bool:
    """Whether ``t`` has two axes of heads, of known number and size, of the rows ``x`` exchanged, and ``y`` is rows again."""
    in_rows = x.rank == y.rank == 3 and t.shape[:2] == x.shape[:2] == y.shape[:2]
    return p == (0, 1, 3, 2, 4) and in_rows and all(isinstance(d, int) for d in t.shape[2:])


def columns(w: Ref, t: Ref) -> Term:
    """The columns of a matrix, or the elements of a vector, in the order that ``t`` has them."""
    *rows, _ = w.static_shape
    inner, outer, size = map(int, t.shape[2:])
    apart = reshaped_term(w, (*rows, outer, inner, size))
    kept = len(rows)
    return reshaped_term(transpose(apart, (*range(kept), kept + 1, kept, kept + 2)), w.static_shape)


def rows(w: Ref, t: Ref) -> Term:
    """The rows of a matrix in the order in which they are multiplied with what ``t`` has in another one."""
    outer, inner, size = map(int, t.shape[2:])
    return reshaped_term(transpose(reshaped_term(w, (outer, inner, size, -1)), (1, 0, 2, 3)), w.static_shape)


def exchanged(x: Ref, t: Ref) -> Term:
    inner, outer, size = map(int, t.shape[2:])
    return exchanged_heads(x, outer, inner, size)


equation = Equations(
    __name__,
    domain="com.microsoft",
    source="permutation of columns; contrib operators of ONNX Runtime",
    functions=named(exchanges_heads, columns, rows, exchanged, lies_along),
)


def _drawn(d: Sampler) -> dict[str, Any]:
    batch, length, outer, inner, size, other = d.extents(6, ones=0.1)
    width = outer * inner * size
    found: dict[str, Any] = {"u": fixed([batch, length, outer, inner, size], "int64")}
    found["v"] = fixed([batch, length, width] if d.chance(0.9) else [batch, length, inner, outer * size], "int64")
    found["t"] = {"perm": (0, 1, 3, 2, 4) if d.chance(0.85) else d.choose(((0, 1, 2, 4, 3), (1, 0, 3, 2, 4)))}
    return found | {"sizes": (batch, length, width, other, outer * inner, size)}


def _product(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    batch, length, width, other, *_ = found.pop("sizes")
    return found | {"x": d.floats((batch, length, other)), "w": d.either(d.floats((other, width)), 0.9)}


def _biased(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    batch, length, width, *_ = found.pop("sizes")
    bias = d.floats(d.choose(((width,), (width,), (1,), (length, width))))
    return found | {"x": d.floats((batch, length, width)), "b": d.either(bias, 0.9)}


def _turned(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    batch, length, width, _, heads, size = found.pop("sizes")
    heads, size = (heads, size) if size % 2 == 0 else (width // 2, 2)
    tables = {name: d.floats((batch, length, size // 2)) for name in "cs"}
    return found | tables | {"x": d.floats((batch, length, width)), "r": {"num_heads": heads}}


def _read(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    batch, length, width, other, *_ = found.pop("sizes")
    found["v"], lead = fixed([batch, length, width], "int64"), d.choose(((),) * 6 + ((batch,),))
    return found | {"x": d.floats((batch, length, width)), "w": d.either(d.floats((*lead, width, other)), 0.9)}


HEADS = "Reshape((t := Transpose(Reshape({}, u, **a), perm=p)), v, **y)"
equation(
    "order_heads_in_weights",
    f"{HEADS.format('MatMul(x, w)')} == MatMul(x, columns(w, t))",
    constant("w"),
    "heads are exchanged: exchanges_heads(t, p, x, y)",
    sample=_product,
)
equation(
    "order_heads_in_bias",
    f"{HEADS.format('x + b')} == exchanged(x, t) + columns(b, t)",
    constant("b"),
    "heads are exchanged: exchanges_heads(t, p, x, y)",
    "a bias along the last axis: lies_along(b, x) and y.shape == x.shape",
    sample=_biased,
)
equation(
    "order_heads_before_rotary_embedding",
    f"{HEADS.format('RotaryEmbedding(x, c, s, num_heads=n, **r)')} == RotaryEmbedding(exchanged(x, t), c, s, num_heads=n, **r)",
    "heads are exchanged: exchanges_heads(t, p, x, y)",
    "whole heads are: y.shape == x.shape and t.shape[4] * n == x.shape[2]",
    sample=_turned,
)
equation(
    "read_heads_in_order_of_weights",
    f"MatMul({HEADS.format('x')}, w) == MatMul(x, rows(w, t))",
    constant("w"),
    "heads are exchanged: exchanges_heads(t, p, x, y)",
    "one matrix: w.rank == 2",
    exactness=Exactness.ROUNDING,
    sample=_read,
)
