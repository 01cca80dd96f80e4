"""Float products fused with what surrounds them, as ONNX Runtime has kernels: FusedMatMul, FusedConv, FusedGemm.

The kernels scale inside the product and apply the activation to each tile while it is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operators.onnxruntime_products import ACTIVATIONS
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.terms import constant, last_axes_exchanged, matmul, mul, permutation_of
from eqsat.samples import Drawing, Instance, Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime"
FUSED_MATMUL = f"{DOMAIN}::FusedMatMul"
FUSED = {"Conv": f"{DOMAIN}::FusedConv", "Gemm": f"{DOMAIN}::FusedGemm"}
a, b, c, x, w, z = variables("a b c x w z")
bias, rest = variables("bias? rest?")


# ---- matrix products


def _matrices(d: Sampler) -> dict[str, Any]:
    rows, inner, columns, batch = d.extents(4)
    left = (batch,) if d.chance(0.3) else ()
    right = (batch,) if d.chance(0.3) else ()
    dtype = d.choose(("float32", "float32", "float64"))
    return {"a": d.floats((*left, rows, inner), dtype), "b": d.floats((*right, inner, columns), dtype)}


def _number(d: Sampler, like: Any) -> Any:
    shape = d.choose(((), (), (1,), (1, 1)))
    value = d.scale(shape, like.dtype.name)
    return fixed(value) if d.chance(0.9) else value


def _scaled(d: Sampler) -> dict[str, Any]:
    found = _matrices(d)
    return {**found, "c": _number(d, found["a"]), "product": {"transA": 0, "alpha": 0.5} if d.chance(0.5) else {}}


def _swapped(side: str) -> Any:
    def draw(d: Sampler) -> dict[str, Any]:
        found = _matrices(d)
        rank = found[side].ndim
        swap = last_axes_exchanged(rank)
        perm = swap if rank == 2 or d.chance(0.8) else d.permutation(rank)
        stored = found[side].transpose([perm.index(i) for i in range(rank)])
        attributes = {"alpha": -0.5} if d.chance(0.5) else {}
        return {**found, side: stored, "moved": {"perm": perm}, "product": attributes}

    return draw


def _factor(m: Match) -> float:
    """The number that a product of matrices is multiplied by. Raises `Unmet` if it is not one finite number."""
    m.require(m.a.rank >= 2 and m.b.rank >= 2, "a vector")
    m.require(m.root.handle != m.product.handle, "the product is the scaled value itself")
    m.require(
        math.prod(m.c.static_shape) == 1 and m.c.rank <= m.product.rank, "no scalar, or one that enlarges the result"
    )
    factor = float(m.c.value.reshape(()))
    m.require(math.isfinite(factor) and factor not in (0.0, 1.0), "neutral, zero or infinite factor")
    return factor


def _as_file(number: float) -> float:
    """Rounded as files store attributes."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


@rule(
    mul(matmul(a, b).named("product"), c),
    where=[constant("c")],
    exactness=Exactness.ROUNDING,
    source="linearity of the matrix product",
    sample=lambda d: {**_scaled(d), "product": {}},
    domain=DOMAIN,
)
def fold_scale_into_fused_matmul(m: Match) -> Term:
    """``(a @ b) * c == FusedMatMul(a, b, alpha=c)`` for a number ``c``."""
    m.require(m.root.dtype is DType.FLOAT, "attributes are float32")
    return apply(FUSED_MATMUL, m.a, m.b, alpha=_as_file(_factor(m)))


@rule(
    mul(apply(FUSED_MATMUL, a, b).named("product"), c),
    where=[constant("c")],
    exactness=Exactness.ROUNDING,
    source="linearity of the matrix product",
    sample=_scaled,
    domain=DOMAIN,
)
def fold_scale_into_scaled_matmul(m: Match) -> Term:
    """``FusedMatMul(a, b, alpha) * c == FusedMatMul(a, b, alpha * c)``."""
    m.require(m.root.dtype is DType.FLOAT, "attributes are float32")
    alpha = _as_file(m.product.attr("alpha", 1.0) * _factor(m))
    m.require(math.isfinite(alpha) and alpha != 0.0, "the product of the factors overflows")
    return Apply(FUSED_MATMUL, (m.a, m.b), m.product.attributes.updated(alpha=alpha))


def _flipped(m: Match, side: str) -> Attributes:
    perm = permutation_of(m.moved)
    rank = len(perm)
    m.require(rank >= 2 and perm == last_axes_exchanged(rank), "other axes than the last two move")
    m.require(m.root.dtype in (DType.FLOAT, DType.DOUBLE), "no kernel for the element type")
    attributes = m.product.attributes
    m.require(not (m.a.rank < 2 or m.b.rank < 2), "a vector")
    return attributes.updated(**{side: 1 - attributes.get(side, 0)})


def _transposed(term: Any) -> Apply:
    return apply("Transpose", term).named("moved")


@rule(
    apply("MatMul", _transposed(a), b).named("product"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=lambda d: {**_swapped("a")(d), "product": {}},
    domain=DOMAIN,
)
def fuse_transpose_into_left_operand(m: Match) -> Term:
    """``a^T @ b == FusedMatMul(a, b, transA=1)``."""
    return Apply(FUSED_MATMUL, (m.a, m.b), _flipped(m, "transA"))


@rule(
    apply("MatMul", a, _transposed(b)).named("product"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=lambda d: {**_swapped("b")(d), "product": {}},
    domain=DOMAIN,
)
def fuse_transpose_into_right_operand(m: Match) -> Term:
    """``a @ b^T == FusedMatMul(a, b, transB=1)``."""
    return Apply(FUSED_MATMUL, (m.a, m.b), _flipped(m, "transB"))


@rule(
    apply(FUSED_MATMUL, _transposed(a), b).named("product"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_swapped("a"),
    domain=DOMAIN,
)
def absorb_transpose_into_left_operand(m: Match) -> Term:
    """``FusedMatMul(a^T, b) == FusedMatMul(a, b, transA=1)``, and back if it is transposed already."""
    return Apply(FUSED_MATMUL, (m.a, m.b), _flipped(m, "transA"))


@rule(
    apply(FUSED_MATMUL, a, _transposed(b)).named("product"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_swapped("b"),
    domain=DOMAIN,
)
def absorb_transpose_into_right_operand(m: Match) -> Term:
    """``FusedMatMul(a, b^T) == FusedMatMul(a, b, transB=1)``, and back if it is transposed already."""
    return Apply(FUSED_MATMUL, (m.a, m.b), _flipped(m, "transB"))


# ---- epilogues


def _convolution(d: Sampler) -> dict[str, Any]:
    batch, channels, filters = d.extents(3)
    spatial = d.integer(1, 3)
    size = tuple(d.integer(3, 5) for _ in range(spatial))
    x = d.floats((batch, channels, *size))
    weights = d.floats((filters, channels, *(d.integer(1, 2) for _ in size)))
    return {"x": x, "w": fixed(weights), "conv": {"pads": tuple(d.integer(0, 1) for _ in range(2 * spatial))}}


def _result(drawn: dict[str, Any]) -> np.ndarray:
    return evaluate_operator("Conv", Attributes(drawn["conv"]), (drawn["x"], drawn["w"].array, None))[0]


def _with_sum(d: Sampler) -> dict[str, Any]:
    drawn = _convolution(d)
    if d.chance(0.6):
        drawn["bias"] = fixed(d.floats((drawn["w"].array.shape[0],)))
    shape = _result(drawn).shape
    return {**drawn, "z": d.floats(shape if d.chance(0.8) else d.broadcast_of(shape))}


@rule(
    apply("Add", apply("Conv", x, w, bias).named("conv"), z),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_with_sum,
    domain=DOMAIN,
)
def fuse_sum_into_convolution(m: Match) -> Term:
    """``Conv(x, w, bias) + z == FusedConv(x, w, bias, z)`` for ``z`` of the result's shape that is not constant."""
    m.require(m.root.dtype is DType.FLOAT and not m.z.is_constant, "no kernel for the element type, or a constant")
    m.require(m.z.static_shape == m.root.static_shape == m.conv.static_shape, "the sum broadcasts")
    return Apply(FUSED["Conv"], (m.x, m.w, m.bias, m.z), m.conv.attributes)


def _activated_product(d: Sampler) -> Instance:
    drawing = Drawing()
    drawn = _convolution(d)
    kind = d.choose(("Conv", "Gemm", "sum"))
    if kind == "Gemm":
        rows, inner, columns = d.extents(3)
        values = [drawing.value(v) for v in (d.floats((rows, inner)), fixed(d.floats((inner, columns))))]
        product = drawing.op("Gemm", *values, *([drawing.value(d.floats((columns,)))] if d.chance() else []))
    else:
        values = [drawing.value(drawn["x"]), drawing.value(drawn["w"])]
        product = drawing.op("Conv", *values, **drawn["conv"])
        if kind == "sum":
            summand = drawing.value(d.floats(_result(drawn).shape))
            product = drawing.op(FUSED["Conv"], *values, None, summand, **drawn["conv"])
    name = d.choose(tuple(ACTIVATIONS))
    if name == "Clip":
        bounds = [drawing.value(fixed(v, "float32")) for v in (-0.5, 2.0)]
        return drawing.finish(drawing.op("Clip", product, *bounds[: d.integer(1, 2)]))
    parameters: dict[str, Any] = {p: 0.25 for p in ACTIVATIONS[name] if d.chance()}
    return drawing.finish(drawing.op(name, product, **parameters))


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_activated_product, domain=DOMAIN)
def fuse_activation_into_product(view: GroupView) -> Iterator[Merge]:
    """``activation(Conv(x, w, b) + z) == FusedConv(x, w, b, z, activation)``, likewise ``Gemm``.

    An activation has its parameters as attributes; Clip has constant bounds, and none in ``FusedGemm``.
    """
    products: dict[int, list[tuple[str, Ref, tuple[Ref | None, ...]]]] = {}
    for op, fused in {"Conv": FUSED["Conv"], "Gemm": FUSED["Gemm"], FUSED["Conv"]: FUSED["Conv"]}.items():
        for node, inputs in view.nodes(op):
            if not node.attr("activation") and node.dtype is DType.FLOAT and not node.is_constant:
                products.setdefault(node.handle, []).append((fused, node, inputs))
    for name in ACTIVATIONS:
        for node, inputs in view.nodes(name):
            for fused, product, operands in products.get(inputs[0].handle if inputs[0] else -1, ()):
                try:
                    added = _parameters(name, node, inputs, fused)
                except Unmet:
                    continue
                yield node, apply(fused, *operands, **{**product.attributes, **added})


def _parameters(name: str, node: Ref, inputs: tuple[Ref | None, ...], fused: str) -> dict[str, Any]:
    """Attributes of a fused product that say what is applied to it. Raises `Unmet` if they cannot."""
    defaults = {"LeakyRelu": {"alpha": 0.01}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}}.get(name, {})
    if name == "Clip":
        if fused != FUSED["Conv"]:
            raise Unmet("FusedGemm does not clip")
        low, high = ((*inputs[1:], None, None))[:2]
        limit = float(np.finfo(np.float32).max)
        numbers = [
            fallback if r is None else float(r.value.reshape(())) for r, fallback in ((low, -limit), (high, limit))
        ]
        if not numbers[0] <= numbers[1]:
            raise Unmet("the bounds are no numbers, or crossed")
        return {"activation": name, "activation_params": tuple(numbers)}
    numbers = {p: _as_file(node.attr(p, defaults[p])) for p in defaults}
    if fused == FUSED["Conv"]:
        return {"activation": name} | ({"activation_params": tuple(numbers.values())} if numbers else {})
    return {"activation": name} | {f"activation_{p}": v for p, v in numbers.items()}
