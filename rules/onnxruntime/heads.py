"""Products on bytes that read or write attention heads where they lie, for ONNX Runtime.

The kernel of QLinearMatMul broadcasts over a batch of matrices: with the weights cut into those of each head, it writes heads
one after the other, which saves a view and a transpose. The convolution with channels last sums over heads on its way: it
reads heads one after the other, and multiplies what a view and a transpose would have put side by side.

    Transpose(View(a @ w)) == a @ heads(w)
    View(Transpose(a)) @ w == QLinearConv(a, kernels(w))
"""

import math

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, named
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.onnxruntime.parameters import functions
from eqsat.rules.terms import heads_and_rows_exchanged, int64s, reshape, transpose


def cuts_heads(view: Ref, a: Ref, w: Ref) -> bool:
    """Whether a view (..., rows, heads, size) of ``a @ w`` cuts its columns into heads, and its rows as they are."""
    *lead, heads, size = view.static_shape
    return (heads * size,) == w.shape[1:] and math.prod(lead) == math.prod(a.static_shape[:-1])


def _broadcasts(a: Ref, view: Ref) -> bool:
    """Whether the rows of ``a`` are those of the view, up to leading axes of one element."""
    *batch, rows, _, _ = view.static_shape
    lead = a.static_shape[:-1]
    return lead == (rows,) or (*(1 for _ in batch), rows)[-len(lead) :] == lead


def rows_of(a: Ref, view: Ref) -> Term:
    """``a`` beside weights of several heads."""
    *batch, rows, _, _ = view.static_shape
    return a if _broadcasts(a, view) else reshape(a, (*batch, 1, rows, a.static_shape[-1]))


def _leading(a: Ref, view: Ref) -> tuple[int, ...]:
    return (1,) * (view.rank - 3) if _broadcasts(a, view) else ()


def heads_of(w: Ref, a: Ref, view: Ref) -> Term:
    """The weights of each head, in matrices of their own."""
    ones = _leading(a, view)
    return transpose(
        reshape(w, (*ones, w.static_shape[0], *view.static_shape[-2:])), heads_and_rows_exchanged(len(ones) + 3)
    )


def for_heads(parameter: Ref, a: Ref, view: Ref) -> Term:
    """A scale or zero point of the columns for those of each head."""
    heads, size = view.static_shape[-2:]
    return parameter if parameter.type.size == 1 else reshape(parameter, (*_leading(a, view), heads, 1, size))


def joins_heads(view: Ref, a: Ref) -> bool:
    """Whether the last axis of a view of (..., rows, heads, size) is that of heads and size."""
    return view.static_shape[-1] == a.static_shape[1] * a.static_shape[3]


def kernels_of(w: Ref, a: Ref) -> Term:
    """A kernel (heads, 1) for each column of ``w``, which has a row for each head and place in it."""
    _, heads, _, size = a.static_shape
    return transpose(reshape(w, (heads, 1, size, w.static_shape[1])), (3, 2, 0, 1))


def points(zero: Ref, scale: Ref) -> Term:
    """One zero point, as many times as there are scales."""
    return literal(np.full(() if scale.type.size == 1 else scale.static_shape, int(zero.low), zero.dtype.numpy))


equation = Equations(
    __name__,
    domain="com.microsoft",
    source="block matrices",
    functions=functions | named(heads_and_rows_exchanged, int64s),
)


PARAMETERS = """sa = fixed(d.positive([])); za = d.integers([], "uint8"); sy = fixed(d.positive([]) * 64); zy: uint8[()]
                sw = d.positive([N] | []); zw = d.integers([] | [N], "int8", -2, 2) | d.integers([N], "int8", 1, 1)"""
equation(
    "write_heads_from_product",
    """(m := Transpose(Reshape(QLinearMatMul(a, sa, za, w, sw, zw, sy, zy), shape, **v), perm=p))
       == QLinearMatMul(rows_of(a, v), sa, za, heads_of(w, a, v), for_heads(sw, a, v), for_heads(zw, a, v), sy, zy)""",
    constant("w", "sw", "zw"),
    "rows and heads are exchanged: p == heads_and_rows_exchanged(v.rank)",
    "the view cuts columns into heads: cuts_heads(v, a, w)",
    drawn=(
        f"a: uint8[B, R, K]; N = H * S; w: int8[K, N]; shape = [B, R, H, S]; p = (0, 2, 1, 3) | (0, 1, 3, 2); {PARAMETERS}",
        "a: uint8[R, K]; shape = [R, H, S]; p = (1, 0, 2)",
        "a: uint8[1, R, K] | uint8[R, K]; shape = [1, R, H, S]",
        "shape = [1, B * R, H, S]",
        "shape = [H, B * R, S]; p = (1, 0, 2)",
    ),
)


equation(
    "read_heads_in_convolution",
    """QLinearMatMul(Reshape((m := Transpose(a, perm=p)), shape, **v), sa, za, w, sw, zw, sy, zy)
       == Reshape(com.microsoft.QLinearConv(a, scalar(sa), scalar(za), kernels_of(w, a), column(sw), points(zw, sw),
                                            scalar(sy), scalar(zy), channels_last=1, kernel_shape=(a.shape[1], 1)),
                  int64s(root.static_shape))""",
    constant("w", "sw", "zw"),
    "rows and heads are exchanged: p == (0, 2, 1, 3)",
    worthwhile("kernels for unsigned by signed bytes: a.dtype is uint8 and root.dtype is uint8 and w.dtype is int8"),
    "one matrix of weights: w.rank == 2",
    "the view joins heads: joins_heads(v, a)",
    "one scale on the left, and of the result: per_tensor(sa, za, sy, zy)",
    "one zero point of the weights: zw.low == zw.high",
    worthwhile("known extents: root.type.is_static"),
    drawn=(
        f"a: uint8[B, H, R, S]; w: int8[H * S, N]; shape = [B, R, H * S] | [B * R, H * S]; p = (0, 2, 1, 3); {PARAMETERS}",
        "p = (0, 1, 2, 3); shape = [B * R, H * S]",
        'zy = d.integers([], "int8")',
        "sa = fixed(d.positive([B * R])); shape = [B * R, H * S]",
        "w: int8[1, H * S, N]",
        "w: int8[R * H * S, N]; shape = [B, R * H * S]",
    ),
)
