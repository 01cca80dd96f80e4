"""Operators on 8-bit integers as ONNX Runtime has kernels: ``Q(f(D(a), D(b))) == QLinear<f>(a, b)``.

What such an operator means is just that; but it multiplies by the quotient of the scales, or looks up a table, so at rounding
ties it may be off by one quantum. QLinearSoftmax is one kernel, but takes more time than the three that it stands for.
QLinearWhere has no rule: its kernel (1.31) reads beyond an operand that is a single number.

QLinearSoftmax adds up exponentials of differences to the largest byte, from a table of floats whose largest entry is
``e**-5 / length`` of the largest float; they stay finite times the quanta in 1, of which it takes the next lower whole number.
The sum of up to 4096 floats is within 2**-12, less than a tenth of a quantum. Where a dequantised value overflows and the softmax
is NaN, which has no quantised value, the kernel gives what the bytes say.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from eqsat.conditions import asks, condition, constant, worthwhile
from eqsat.equations import Equations, form
from eqsat.exactness import Exactness
from eqsat.ir.operator import traits_of
from eqsat.ir.operators.onnxruntime_quantised import OPERANDS
from eqsat.rewrite import GroupView, Hint, Match, Ref, Term, apply
from eqsat.rules.onnxruntime.parameters import (
    POSITIVE,
    SHORT_OF,
    SOURCE,
    are_scales,
    dequantized,
    functions,
    quantized,
    scalar,
    single_parameters,
)
from eqsat.rules.quantised.recentring import recenter, recentred
from eqsat.rules.quantised.scales import BYTES, Step, integer_range, per_tensor, steps
from eqsat.rules.terms import by_class, complete_nodes, reshape


@asks(x={"dtypes": BYTES})
def is_byte(x: Ref, y: Ref) -> bool:
    """Whether the integers ``x`` are bytes of the type of the result ``y``; constants may be of the other one."""
    return y.dtype in BYTES and (x.dtype is y.dtype or (x.is_constant and x.dtype in BYTES))


def bytes_of(x: Ref, y: Ref) -> Term:
    """The integers ``x`` in the type of ``y``: those of the other one are moved by 128, as their zero point is."""
    return x if x.dtype is y.dtype else recenter(x)


def zero_of(x: Ref, s: Ref, z: Ref | None, y: Ref) -> Term:
    """The zero point of `bytes_of`."""
    if x.dtype is y.dtype:
        return scalar(z, y.dtype)
    moved = recentred(z, x.dtype, s)
    return moved if s.rank == 0 else reshape(moved, ())


def overflows_as_bytes_do(x: Ref, s: Ref, z: Ref | None, sy: Ref, zy: Ref | None, y: Ref) -> bool:
    """Whether integers ``x`` that are infinite where they are dequantised are beyond the range of the result's type ``y``, too.

    By the scale of a mask of the least number -127 is -inf, of which -128 is made, and -127 in a kernel on integers.
    """
    (low, high), (least, greatest) = integer_range(x.dtype), integer_range(y.dtype)
    zero, moved = (0.0 if point is None else point.high for point in (z, zy))
    numbers = np.arange(low, high + 1) - zero
    with np.errstate(over="ignore"):
        infinite = numbers[np.isinf(numbers.astype(np.float32) * np.float32(s.high))]
    ends = infinite * s.high / sy.high + moved
    return not np.any((least < ends) & (ends < greatest))


def greatest_sum(sy: Ref, *operands: tuple[Ref, Ref, Ref | None]) -> float:
    """By integers, scales and zero points of operands, how many quanta the kernel finds in their sum at most; NaN if infinite."""
    with np.errstate(all="ignore"):
        return float(sum(np.float32(s.high) / np.float32(sy.high) * _numbers(x, z)[1] for x, s, z in operands))


def greatest_product(sy: Ref, *operands: tuple[Ref, Ref, Ref | None]) -> float:
    """The same for their product."""
    with np.errstate(all="ignore"):
        scale = math.prod(np.float32(s.high) for _, s, _ in operands) / np.float32(sy.high)
        return float(max(scale * math.prod(ends) for ends in product(*(_numbers(x, z) for x, _, z in operands))))


def _numbers(x: Ref, z: Ref | None) -> tuple[float, float]:
    """The least and the greatest of the integers less their zero point."""
    (least, greatest), zero = integer_range(x.dtype), 0.0 if z is None else z.high
    return max(x.low, least) - zero, min(x.high, greatest) - zero


_MOST_IMAGE = 2**24
"""Elements of an image whose extents are not known, at most."""


def averages(x: Ref, s: Ref, sy: Ref) -> bool:
    """Whether the kernel for averages of whole images takes the quotient of scales and size: others it refuses."""
    extents = [d for d in x.shape[2:] if isinstance(d, int)]
    size = math.prod(extents) if len(extents) == x.rank - 2 else None
    quotient = s.high / sy.high
    return quotient / (size or 1) < 2.0**8 and quotient / (size or _MOST_IMAGE) >= 2.0**-32


def length(x: Ref) -> int:
    """Extent of the last axis, 0 if it is not known."""
    return x.shape[-1] if x.shape and isinstance(x.shape[-1], int) else 0


equation = Equations(
    __name__, domain="com.microsoft", exactness=Exactness.LSB, quanta=1, source=SOURCE, functions=functions
)
ALIKE = worthwhile(
    "infinite operands end at the same byte: overflows_as_bytes_do(a, sa, za, sy, zy, root) "
    "and overflows_as_bytes_do(b, sb, zb, sy, zy, root)"
)
IN_ORDER = worthwhile("in order: b.is_constant if a.is_constant or b.is_constant else a.handle <= b.handle")


def quantise(op: str, *where: str, given: str = "", kept: str = "") -> None:
    """States the equation for an operator, ``given`` attributes of which the kernel has as ``kept``."""
    operands = "ab"[: OPERANDS[op]]
    values = ", ".join(map(dequantized, operands))
    integers = "".join(f"bytes_of({i}, root), scalar(s{i}), zero_of({i}, s{i}, z{i}, root), " for i in operands)
    equation(
        f"quantise_{op.lower()}",
        f"""{quantized(f"{op}({values}, {given})")}
            == com.microsoft.QLinear{op}({integers}scalar(sy), scalar(zy, root.dtype), {kept})""",
        *[IN_ORDER] * (len(operands) == 2),
        worthwhile(f"kernels for bytes of one type: {' and '.join(f'is_byte({i}, root)' for i in operands)}"),
        *single_parameters(operands),
        *where,
        domain=f"com.microsoft::QLinear{op}",
    )


POOL = "kernel_shape=k, strides=s, pads=p, count_include_pad=c"
quantise(
    "AveragePool",
    worthwhile("kernels for images: a.rank == 4"),
    "windows without holes: all(i == 1 for i in h or ())",
    given=f"{POOL}, ceil_mode=0, auto_pad='NOTSET', dilations=h, **n",
    kept=POOL,
)
quantise(
    "Softmax",
    "the last axis: i in (-1, a.rank - 1)",
    "a sum of few floats: 2 <= length(a) <= 4096",
    "floats that stay finite: 1 <= quanta(sy) <= 128 * length(a)",
    f"whole quanta: quanta(sy) % 1 <= {SHORT_OF}",
    "signed bytes hold 1: root.dtype is uint8 or quanta(sy) + (0 if zy is None else zy.high) <= 127",
    given="axis=i, **n",
    kept="axis=-1, opset=13",
)
quantise("LeakyRelu", given="alpha=alpha, **n", kept="alpha=alpha")
_BOTH = "(a, sa, za), (b, sb, zb)"
_OF_TWO = {
    "Add": (worthwhile(f"a sum of less than 2**31 quanta: greatest_sum(sy, {_BOTH}) < 2**31"), ALIKE),
    "Mul": (worthwhile(f"a product of less than 2**31 quanta: greatest_product(sy, {_BOTH}) < 2**31"),),
}
"""Of more quanta the kernels make the least byte."""
_OF_IMAGES = (worthwhile("a quotient that the kernel takes: averages(a, sa, sy)"),)
for _op in OPERANDS:
    if traits_of(_op).rows is None and _op not in ("AveragePool", "LeakyRelu"):
        quantise(_op, *(_OF_IMAGES if traits_of(_op).spatial else _OF_TWO.get(_op, ())))

# --- Concat, of any number of parts


_SCALES, _ZEROS = ([f"{kind}{i}" for i in "aby"] for kind in "sz")


def _concatenations(view: GroupView) -> Iterator[Match]:
    """What is quantised behind a Concat of dequantised parts; of each the first integers, of the result's type if some are."""
    parts = by_class((part.node, part) for part in steps(view, "DequantizeLinear"))
    joined: dict[int, tuple[Ref, list[list[Step]]]] = {}
    for node, inputs in complete_nodes(view, "Concat"):
        if all(i.handle in parts for i in inputs):
            joined.setdefault(node.handle, (node, [parts[i.handle] for i in inputs]))
    for whole in steps(view, "QuantizeLinear"):
        if whole.value.handle in joined:
            concat, spelled = joined[whole.value.handle]
            chosen = [min(p, key=lambda q: q.value.dtype is not whole.node.dtype) for p in spelled]
            yield Match({"concat": concat, "parts": chosen, "steps": (whole, *chosen)}, whole.node)


@worthwhile
@condition("kernels for positive scales of float32, known zero points", *(Hint(s, **POSITIVE) for s in _SCALES))
def known(m: Match) -> bool:
    return all(are_scales(q.s) and (q.z is None or q.z.is_constant) for q in m.steps)


@condition("one scale and zero point each", *(Hint(name, single=True) for name in (*_SCALES, *_ZEROS)))
def single(m: Match) -> bool:
    return all(per_tensor(q.s, q.z) for q in m.steps)


@equation.over_groups(
    find=_concatenations,
    where=[
        "bytes of one type: root.dtype in BYTES and all(p.value.dtype is root.dtype for p in parts)",
        worthwhile("kernels without blocks, or another precision: unblocked(*(q.node.attributes for q in steps))"),
        known,
        single,
    ],
    forms=[form(quantized(f"Concat({dequantized('a')}, {dequantized('b')}, **n)"), constant(*_SCALES, *_ZEROS))],
    domain="com.microsoft::QLinearConcat",
)
def quantise_concatenation(m: Match) -> Term:
    """``Q(Concat(D(a), D(b), ...)) == QLinearConcat(a, b, ...)``."""
    whole, *parts = [(scalar(q.s), scalar(q.z, m.root.dtype)) for q in m.steps]
    operands = [term for part, own in zip(m.parts, parts, strict=True) for term in (part.value, *own)]
    return apply("com.microsoft::QLinearConcat", *whole, *operands, axis=m.concat.attr("axis") % m.concat.rank)
