"""Equivalent spellings of operators, as exporters, converters and people write them. Each states its equation.

All are equal over the reals for finite values, and to float rounding; those of quantisation for powers of two as scales, to
the bit.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.respelling import Values, Writer, spelling
from eqsat.ir.graph import Node

# --- sums, products ------------------------------------------------------------------------------------------------------


@spelling("Add", "Mul", "Max", "Min")
def commute(w: Writer, n: Node) -> Values:
    """``a op b == b op a``."""
    return w.op(n.op, n.inputs[1], n.inputs[0])


@spelling("Add", "Mul")
def reassociate(w: Writer, n: Node) -> Values:
    """``(a op b) op c == a op (b op c)``."""
    a, c = n.inputs if w.chance() else n.inputs[::-1]
    inner = w.producer(a, n.op)
    if inner is None or not w.is_float(a):
        return None
    left, right = inner.inputs if w.chance() else inner.inputs[::-1]
    return w.op(n.op, left, w.op(n.op, right, c))


@spelling("Mul")
def divide_by_reciprocal(w: Writer, n: Node) -> Values:
    """``x * c == x / (1 / c)``."""
    for x, c in (n.inputs, n.inputs[::-1]):
        array = w.array(c)
        if array is not None and w.array(x) is None and w.is_float(c) and array.all():
            return w.op("Div", x, w.constant((1 / array).astype(array.dtype)))
    return None


@spelling("Div")
def multiply_by_reciprocal(w: Writer, n: Node) -> Values:
    """``x / c == x * (1 / c)``."""
    array = w.array(n.inputs[1])
    if array is None or not w.is_float(n.inputs[1]) or not array.all():
        return None
    return w.commuted("Mul", n.inputs[0], w.constant((1 / array).astype(array.dtype)))


@spelling("Div")
def reciprocal_factor(w: Writer, n: Node) -> Values:
    """``x / y == x * Reciprocal(y)``."""
    return w.commuted("Mul", n.inputs[0], w.op("Reciprocal", n.inputs[1]))


@spelling("Reciprocal")
def one_over(w: Writer, n: Node) -> Values:
    """``Reciprocal(x) == 1 / x``."""
    return w.op("Div", w.like(n.inputs[0], 1), n.inputs[0])


@spelling("Mul")
def split_factor(w: Writer, n: Node) -> Values:
    """``x * c == (x * 2c) * 0.5``."""
    for x, c in (n.inputs, n.inputs[::-1]):
        number = w.number(c)
        if number is not None and w.is_float(c) and w.array(x) is None:
            return w.op("Mul", w.op("Mul", x, w.like(c, 2 * number)), w.like(c, 0.5))
    return None


@spelling("Add")
def subtract_negated(w: Writer, n: Node) -> Values:
    """``x + c == x - (-c)``."""
    for x, c in (n.inputs, n.inputs[::-1]):
        array = w.array(c)
        if array is not None and w.is_float(c) and w.array(x) is None:
            return w.op("Sub", x, w.constant(-array))
    return None


@spelling("Sub")
def add_negated(w: Writer, n: Node) -> Values:
    """``a - b == a + -b``."""
    a, b = n.inputs
    array = w.array(b)
    if not w.is_float(a):
        return None
    return w.commuted("Add", a, w.constant(-array) if array is not None else w.op("Neg", b))


@spelling("Neg")
def minus_one_times(w: Writer, n: Node) -> Values:
    """``-x == x * -1`` or ``0 - x``."""
    x = n.inputs[0]
    return w.commuted("Mul", x, w.like(x, -1)) if w.chance() else w.op("Sub", w.like(x, 0), x)


@spelling("Sqrt")
def half_power(w: Writer, n: Node) -> Values:
    """``Sqrt(x) == x ^ 0.5`` for ``x`` of at least 0."""
    return w.op("Pow", n.inputs[0], w.like(n.inputs[0], 0.5))


@spelling("Reciprocal")
def inverse_root(w: Writer, n: Node) -> Values:
    """``Reciprocal(Sqrt(x)) == x ^ -0.5``."""
    root = w.producer(n.inputs[0], "Sqrt")
    return None if root is None else w.op("Pow", root.inputs[0], w.like(root.inputs[0], -0.5))


@spelling("Relu")
def maximum_with_zero(w: Writer, n: Node) -> Values:
    """``Relu(x) == Max(x, 0) == Clip(x, 0)``."""
    x = n.inputs[0]
    zero = w.constant(np.zeros((), w.dtype(x)))
    return w.commuted("Max", x, zero) if w.chance() else w.op("Clip", x, zero)


@spelling("Softmax")
def spelled_softmax(w: Writer, n: Node) -> Values:
    """``e / ReduceSum(e)`` for ``e = Exp(x - ReduceMax(x))``."""
    x, axis = n.inputs[0], int(n.attributes.get("axis", -1))  # type: ignore[call-overload]
    axes = w.integers(w.choose((axis, axis % len(w.shape(x)))))
    e = w.op("Exp", w.op("Sub", x, w.op("ReduceMax", x, axes)))
    return w.op("Div", e, w.op("ReduceSum", e, axes))


@spelling("Softmax")
def softmax_of_shifted(w: Writer, n: Node) -> Values:
    """``Softmax(x) == Softmax(x - ReduceMax(x))``."""
    x, axis = n.inputs[0], int(n.attributes.get("axis", -1))  # type: ignore[call-overload]
    return w.op("Softmax", w.op("Sub", x, w.op("ReduceMax", x, w.integers(axis))), axis=axis)


@spelling("Softmax")
def softmax_in_front(w: Writer, n: Node) -> Values:
    """The softmax over an axis that was moved to another place and back."""
    x = n.inputs[0]
    rank = len(w.shape(x))
    axis = int(n.attributes.get("axis", -1)) % rank  # type: ignore[call-overload]
    if axis != rank - 1 or rank < 2:
        return None
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return w.op("Transpose", w.op("Softmax", w.op("Transpose", x, perm=perm), axis=rank - 2), perm=perm)


# --- products ------------------------------------------------------------------------------------------------------------


@spelling("Mul", "Div")
def scale_an_operand(w: Writer, n: Node) -> Values:
    """``(a @ b) * c == (a * c) @ b == a @ (b * c) == (a * sqrt c) @ (b * sqrt c)``."""
    for x, c in (n.inputs, n.inputs[::-1])[: 2 if n.op == "Mul" else 1]:
        product, number = w.producer(x, "MatMul"), w.number(c)
        if product is None or number is None or number <= 0:
            continue
        number = number if n.op == "Mul" else 1 / number
        a, b = product.inputs
        kind = w.choose(("left", "right", "both"))
        if kind == "both":
            number = math.sqrt(number)
        scaled = [v if kind == other else w.op("Mul", v, w.like(v, number)) for v, other in ((a, "right"), (b, "left"))]
        return w.op("MatMul", *scaled)
    return None


@spelling("MatMul")
def transpose_product(w: Writer, n: Node) -> Values:
    """``a @ b == (b^T @ a^T)^T``."""
    a, b = n.inputs
    if w.array(b) is not None or len(w.shape(a)) != len(w.shape(b)) or not w.is_float(a):
        return None
    perm = _swap(len(w.shape(a)))
    return w.op(
        "Transpose", w.op("MatMul", w.op("Transpose", b, perm=perm), w.op("Transpose", a, perm=perm)), perm=perm
    )


@spelling("MatMul")
def stored_transposed(w: Writer, n: Node) -> Values:
    """``x @ c == x @ (c^T)^T`` with ``c^T`` stored."""
    weight = w.array(n.inputs[1])
    if weight is None or weight.ndim != 2:
        return None
    stored = w.constant(np.ascontiguousarray(weight.T))
    return w.op("MatMul", n.inputs[0], w.op("Transpose", stored, perm=(1, 0)))


@spelling("MatMul")
def product_of_rows(w: Writer, n: Node) -> Values:
    """``x @ c`` on the rows of ``x`` as one matrix."""
    x, c = n.inputs
    shape = w.shape(x)
    if w.array(c) is None or len(w.shape(c)) != 2 or len(shape) < 3 or not w.is_float(x):
        return None
    product = w.op("MatMul", w.op("Reshape", x, w.integers(-1, shape[-1])), c)
    return w.reshaped(product, *shape[:-1], w.shape(c)[1], like=x)


@spelling("Add")
def gemm(w: Writer, n: Node) -> Values:
    """``x @ c + b == Gemm(x, c, b)``, with the weight either way up."""
    for product, b in (n.inputs, n.inputs[::-1]):
        node, bias = w.producer(product, "MatMul"), w.array(b)
        if node is None or bias is None or bias.ndim != 1:
            continue
        x, c = node.inputs
        weight, shape = w.array(c), w.shape(x)
        if weight is None or weight.ndim != 2 or len(shape) < 2 or not w.is_float(x):
            continue
        rows = x if len(shape) == 2 else w.op("Reshape", x, w.integers(-1, shape[-1]))
        if w.chance():
            found = w.op("Gemm", rows, w.constant(np.ascontiguousarray(weight.T)), b, transB=1)
        else:
            found = w.op("Gemm", rows, c, b)
        return found if len(shape) == 2 else w.reshaped(found, *shape[:-1], weight.shape[1], like=x)
    return None


@spelling("Gemm")
def product_and_sum(w: Writer, n: Node) -> Values:
    """``Gemm(x, c, b) == x @ c + b``."""
    weight = w.array(n.inputs[1])
    if len(n.inputs) != 3 or weight is None or set(n.attributes) - {"transB"}:
        return None
    product = w.op("MatMul", n.inputs[0], w.constant(weight.T if n.attributes.get("transB", 0) else weight))
    return w.commuted("Add", product, n.inputs[2])


@spelling("Split")
def slices(w: Writer, n: Node) -> Values:
    """Parts of a value by one slice each."""
    x, shape = n.inputs[0], w.shape(n.inputs[0])
    axis = int(n.attributes.get("axis", 0)) % len(shape)  # type: ignore[call-overload]
    step = shape[axis] // len(n.outputs)
    starts = [i * step for i in range(len(n.outputs))]
    last = w.choose((shape[axis], np.iinfo(np.int64).max))
    ends = [*starts[1:], last]
    at = w.integers(w.choose((axis, axis - len(shape))))
    return tuple(w.op("Slice", x, w.integers(a), w.integers(b), at) for a, b in zip(starts, ends, strict=True))


@spelling("Split")
def separate_products(w: Writer, n: Node) -> Values:
    """``Split(x @ c + b) == x @ c_i + b_i``: packed projections as separate ones."""
    total = w.producer(n.inputs[0], "Add")
    for product, b in () if total is None else (total.inputs, total.inputs[::-1]):
        node, bias = w.producer(product, "MatMul"), w.array(b)
        weight = None if node is None else w.array(node.inputs[1])
        if node is None or bias is None or weight is None or bias.ndim != 1:
            continue
        parts = len(n.outputs)
        pairs = zip(np.split(weight, parts, 1), np.split(bias, parts), strict=True)
        return tuple(w.op("Add", w.op("MatMul", node.inputs[0], w.constant(c)), w.constant(v)) for c, v in pairs)
    return None


# --- movement ------------------------------------------------------------------------------------------------------------


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


@spelling("Transpose")
def two_transposes(w: Writer, n: Node) -> Values:
    """A permutation as two in a row."""
    x = n.inputs[0]
    perm = np.asarray(n.attributes["perm"])
    first = w.rng.permutation(len(perm))
    second = np.argsort(first)[perm]
    return w.op("Transpose", w.op("Transpose", x, perm=first.tolist()), perm=second.tolist())


@spelling("Transpose")
def merge_transposes(w: Writer, n: Node) -> Values:
    """Two permutations in a row as one."""
    inner = w.producer(n.inputs[0], "Transpose")
    if inner is None:
        return None
    perm = [int(inner.attributes["perm"][i]) for i in n.attributes["perm"]]
    return w.op("Transpose", inner.inputs[0], perm=perm)


@spelling("Reshape")
def reshape_by_rows(w: Writer, n: Node) -> Values:
    """A reshape by way of one axis."""
    target = w.array(n.inputs[1])
    if target is None or not target.all():
        return None
    return w.op("Reshape", w.op("Reshape", n.inputs[0], w.integers(-1)), n.inputs[1])


@spelling("Reshape")
def inferred_extents(w: Writer, n: Node) -> Values:
    """A reshape with one extent to be inferred, and equal ones copied."""
    x, given = w.shape(n.inputs[0]), w.array(n.inputs[1])
    if given is None or given.size == 0 or given.min() < 1:
        return None
    y = given.tolist()
    target = [0 if i < len(x) and x[i] == d and w.chance() else d for i, d in enumerate(y)]
    at = w.choose(range(len(y)))
    target[at] = -1
    return w.op("Reshape", n.inputs[0], w.integers(*target))


@spelling("*")
def reshape_detour(w: Writer, n: Node) -> Values:
    """``x == Reshape(Reshape(x))``."""
    x = w.op(n.op, *n.inputs, **dict(n.attributes))
    shape = w.shape(x)
    if not shape:
        return x
    if w.chance():
        axes = w.integers(w.choose(range(len(shape) + 1)))
        return w.op("Squeeze", w.op("Unsqueeze", x, axes), axes)
    return w.reshaped(w.op("Reshape", x, w.integers(-1)), *shape, like=x)


@spelling("*")
def transpose_detour(w: Writer, n: Node) -> Values:
    """``x == Transpose(Transpose(x))``."""
    x = w.op(n.op, *n.inputs, **dict(n.attributes))
    first = w.rng.permutation(len(w.shape(x)))
    back = np.argsort(first).tolist()
    return w.op("Transpose", w.op("Transpose", x, perm=first.tolist()), perm=back) if len(back) > 1 else x


@spelling("*")
def neutral(w: Writer, n: Node) -> Values:
    """``x == Identity(x) == Cast(x) == x * 1 == x + 0``."""
    x = w.op(n.op, *n.inputs, **dict(n.attributes))
    dtype = w.dtype(x)
    kind = w.choose(("Identity", "Cast", "Mul", "Add"))
    if kind == "Identity" or dtype != np.float32:
        return w.op("Identity", x)
    return w.op("Cast", x, to=1) if kind == "Cast" else w.op(kind, x, w.like(x, 1 if kind == "Mul" else 0))


@spelling("Mul", "Add", "Div")
def under_transposes(w: Writer, n: Node) -> Values:
    """``x op c == Transpose(Transpose(x) op c)`` for a number ``c``."""
    x, c = n.inputs
    rank = len(w.shape(x))
    if w.number(c) is None or len(w.shape(c)) > 1 or rank < 2:
        return None
    perm = w.rng.permutation(rank)
    moved = w.op(n.op, w.op("Transpose", x, perm=perm.tolist()), c)
    return w.op("Transpose", moved, perm=np.argsort(perm).tolist())
