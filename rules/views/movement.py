"""Data movement: chains of transposes, of casts and of slices become one; half precision is widened before, narrowed behind."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations, named
from eqsat.ir.operator import Operator, traits_of
from eqsat.ir.operators.quantization import PLAIN
from eqsat.ir.schema_operator import further_inputs, has_one_output
from eqsat.ir.traits import whatever
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Condition, GroupView, Hint, Ref, Term, apply, for_each_operator, shared
from eqsat.rules.terms import int64s, transpose

SPEC = "ONNX operator specification"
ELEMENTS = "each element is converted by itself"


def moves(op: str, node: Ref) -> bool:
    """Whether a node of an operator that may do more only moves elements."""
    return traits_of(op, node.attributes).moves


def moves_elements(op: Operator) -> bool:
    """Whether each element is a copy of one of the first input, at another place."""
    facts = op.traits
    elsewhere = facts.moves and facts.sources == (0,) and not facts.or_zero
    return elsewhere and "::" not in op.name and has_one_output(op.name) and op.name != "Identity"


def is_lossless(source: DType, to: DType) -> bool:
    """Whether every value of ``source`` is one of ``to``, so that casting there and on is casting at once.

    >>> is_lossless(DType.INT8, DType.FLOAT16), is_lossless(DType.INT32, DType.FLOAT)
    (True, False)
    """
    if source is to:
        return True
    if source not in PLAIN or to not in PLAIN or to is DType.BOOL:
        return False
    if source is DType.BOOL:
        return to.is_integer or to.is_float
    if source.is_integer and to.is_integer:
        inner, outer = np.iinfo(source.numpy), np.iinfo(to.numpy)
        return bool(outer.min <= inner.min and inner.max <= outer.max)
    if not to.is_float:
        return False
    outer = ml_dtypes.finfo(to.numpy)
    if source.is_integer:
        return np.iinfo(source.numpy).bits - source.is_signed <= outer.nmant + 1
    inner = ml_dtypes.finfo(source.numpy)
    return inner.nmant <= outer.nmant and inner.maxexp <= outer.maxexp and inner.minexp >= outer.minexp


def has_one_meaning(source: DType, middle: DType, last: DType) -> bool:
    """Whether the second of two casts is defined wherever the one cast is.

    A negative float has no conversion to an unsigned integer; the integer it came from has. Likewise beyond the range.
    """
    if last not in PLAIN:
        return False
    return not (source.is_integer and middle.is_float and last.is_integer) or is_lossless(source, last)


def holds_all(dtype: DType, *bounds: Ref | None) -> bool:
    """Whether each bound is given, and a value of the integer type."""
    if not dtype.is_integer or dtype not in PLAIN:
        return False
    info = np.iinfo(dtype.numpy)
    return all(b is not None and info.min <= int(b.value.reshape(())) <= info.max for b in bounds)


def is_of(dtype: DType, value: Ref) -> bool:
    """Whether all elements of a constant are values of another element type."""
    if dtype not in PLAIN:
        return False
    with np.errstate(all="ignore"):
        there_and_back = value.value.astype(dtype.numpy).astype(value.dtype.numpy)
    return np.array_equal(there_and_back, value.value, equal_nan=value.dtype.is_float)


def compares(op: Operator) -> bool:
    """Whether an operator says how two numbers compare."""
    return op.traits.truth and op.traits.operands == 2 and not op.traits.truths


def runs_forward(data: Ref, starts: Ref, axes: Ref | None, steps: Ref | None) -> bool:
    """Whether a Slice runs forward through axes of known extent."""
    which = range(starts.value.size) if axes is None else axes.value
    return all(isinstance(data.shape[int(a)], int) for a in which) and (steps is None or bool((steps.value > 0).all()))


def cuts(data: Ref, starts: Ref, axes: Ref | None, steps: Ref | None) -> list[tuple[int, int, int]]:
    """Each axis that a Slice cuts, from the front, with its start and step."""
    which = range(starts.value.size) if axes is None else [int(a) % data.rank for a in axes.value]
    strides = [1] * starts.value.size if steps is None else steps.value.tolist()
    return list(zip(which, starts.value.tolist(), strides, strict=True))


def taken(data: Ref, starts: Ref, ends: Ref, axes: Ref | None, steps: Ref | None) -> dict[int, range]:
    """Axis -> indices that a Slice takes, which runs forward through known extents."""
    bounds = zip(cuts(data, starts, axes, steps), ends.value.tolist(), strict=True)
    extents: Any = data.shape
    return {axis: range(extents[axis])[start:end:step] for (axis, start, step), end in bounds}


@shared
def slices_forward(view: GroupView) -> Sequence[tuple[Ref, Ref, dict[int, range]]]:
    """Every Slice by constants that runs forward through known extents, what it cuts, and axis -> indices that it takes."""
    found: list[tuple[Ref, Ref, dict[int, range]]] = []
    for node, inputs in view.nodes("Slice"):
        given: Any = (*inputs, None, None)[:5]
        whole, starts, _, axes, steps = given
        known = all(i is None or i.is_constant for i in given[1:]) and whole.type.shape is not None
        if known and runs_forward(whole, starts, axes, steps):
            found.append((node, whole, taken(*given)))
    return found


def slice_term(data: Ref, ranges: Mapping[int, range]) -> Term:
    """The Slice of ``data`` in normal form: axes ascending, bounds tight, whole axes left out; ``data`` if nothing is cut, and
    nothing is empty."""
    cut = {axis: r for axis, r in sorted(ranges.items()) if r != range(len(r)) or len(r) != data.shape[axis]}
    if not cut:
        return data
    starts, ends = int64s(r.start for r in cut.values()), int64s(r[-1] + 1 for r in cut.values())
    steps = [r.step if len(r) > 1 else 1 for r in cut.values()]
    if max(steps) == 1:
        return apply("Slice", data, starts, ends, int64s(cut))
    return apply("Slice", data, starts, ends, int64s(cut), int64s(steps))


def composed(inner: Mapping[int, range], x: Ref, outer: Mapping[int, range]) -> dict[int, range]:
    """The indices of ``x`` that a slice of a slice takes."""
    found = dict(inner)
    for axis, taken in outer.items():
        extent = x.shape[axis]
        assert isinstance(extent, int)  # the extent of a slice is unknown otherwise
        found[axis] = found.get(axis, range(extent))[taken.start : taken.stop : taken.step]
    return found


def table_first(perm: Sequence[int], axis: int, indices: int) -> tuple[tuple[int, ...], int] | None:
    """How to permute the axes of a table for a permuted look-up along ``axis`` by indices of that many axes, and the axis that is
    looked up then; ``None`` where the axes of the indices do not stay side by side in order.

    >>> table_first((2, 0, 1), 0, 2), table_first((1, 0, 2), 0, 2)
    (((1, 0), 1), None)
    """
    at = perm.index(axis) if indices else 0
    if list(perm[at : at + indices]) != list(range(axis, axis + indices)):
        return None
    others = [p if p < axis else p - indices + 1 for p in (*perm[:at], *perm[at + indices :])]
    return (*others[:at], axis, *others[at:]), at


WIDE = int(DType.FLOAT)
TO_HALF = worthwhile(
    Condition(
        "to half precision",
        lambda m: m.c.attr("to") in HALVES,
        hints=(Hint("c", attribute=("to", int(DType.FLOAT16))),),
    )
)
SMALL = 1 << 16
"""Elements of a table of which another copy is no harm."""

equation = Equations(__name__, functions=named(transpose, DType) | {"PLAIN": PLAIN, "SMALL": SMALL})

equation(
    "compose_transposes",
    "Transpose(Transpose(x, perm=p), perm=q) == transpose(x, [p[i] for i in q])",
    ends="x",
    source="composition of permutations",
)
equation(
    "compose_casts",
    "Cast(Cast(x, to=a, **p), to=b, **q) == (x if b == int(x.dtype) else Cast(x, **q))",
    "the first cast is lossless: is_lossless(x.dtype, DType(a))",
    "the second cast has one meaning: has_one_meaning(x.dtype, DType(a), DType(b))",
    source="inclusion of the value sets of element types",
)


@for_each_operator(moves_elements)
def _cast(op: str) -> None:
    """Casts of half precision lie around what computes in single precision: to it before movement, from it behind."""
    others, name = further_inputs(op), op.lower()
    where = () if traits_of(op).holds is whatever else (f"elements only move: moves('{op}', a)",)
    text = f"Cast({op}(x{others}, **a), to={WIDE}, **c) == {op}(Cast(x, to={WIDE}, **c){others}, **a)"
    equation(f"widen_before_{name}", text, kernels("x", *HALVES), *where, source=ELEMENTS)
    text = f"{op}(Cast(x, **c){others}, **a) == Cast({op}(x{others}, **a), **c)"
    equation(f"narrow_behind_{name}", text, kernels("x", DType.FLOAT), TO_HALF, *where, source=ELEMENTS)


@for_each_operator(compares)
def _compared(op: str) -> None:
    """Exporters widen what they compare in half precision. A constant is not stored wide, and so not known behind its cast."""
    equation(
        f"{op.lower()}_before_widening".replace("orequal", "_or_equal"),
        f"{op}(Cast(x, **c), k) == {op}(x, Cast(k, to=int(x.dtype)))",
        constant("x", "k"),
        "the cast is lossless: is_lossless(x.dtype, k.dtype)",
        "k is of the narrow type: is_of(x.dtype, k)",
        source="inclusion of the value sets of element types",
        drawn=(
            "",
            'x = (1 + 2.0**-12 * d.rng.choice([-1, 0, 1], [A])).astype("float32"); c.to = 10; k = fixed(1, "float16")',
            'x = fixed([1, 2], "float16"); c.to = 1; k = fixed(1 + 2.0**-12 | 1 - 2.0**-12, "float32")',
        ),
    )


equation(
    "compose_casts_of_clipped",
    "Cast(Cast((c := Clip(x, *low, *high)), to=a, **p), to=b, **q) == (c if b == int(x.dtype) else Cast(c, **q))",
    constant("low", "high"),
    "integers: x.dtype.is_integer and DType(b) in PLAIN",
    "the bounds are of the type between: holds_all(DType(a), low, high)",
    source="the bounds are of the type between",
)
equation(
    "normalise_slice",
    "Slice(x, s, t, *a, *b) == slice_term(x, taken(x, s, t, a, b))",
    constant("s", "t", "a", "b"),
    "forward through known extents: runs_forward(x, s, a, b)",
    "something is left: all(taken(x, s, t, a, b).values())",
    source=SPEC,
)
INNER, OUTER = "taken(x, s, t, a, b)", "taken(n, u, v, e, f)"
equation(
    "compose_slices",
    f"Slice((n := Slice(x, s, t, *a, *b)), u, v, *e, *f) == slice_term(x, composed({INNER}, x, {OUTER}))",
    constant("s", "t", "a", "b", "u", "v", "e", "f"),
    "forward through known extents: runs_forward(x, s, a, b)",
    "forward again: runs_forward(n, u, e, f)",
    f"something is left: all(composed({INNER}, x, {OUTER}).values())",
    ends="x",
    source="composition of index maps",
)


# --- look-ups


equation(
    "transpose_table_instead_of_rows",
    """Transpose(Gather(t, i, axis=a, **g), perm=p, **v)
       == Gather(transpose(t, table_first(p, a % t.rank, i.rank)[0]), i, axis=table_first(p, a % t.rank, i.rank)[1])""",
    constant("t"),
    "the axes of the indices stay side by side: table_first(p, a % t.rank, i.rank) is not None",
    worthwhile("a small table: t.type.size <= SMALL"),
    source="composition of index maps",
    drawn=("", 'i = d.integers([N, M], "int64", 0, 1); t: [A, B]; a = 0 | 1; p = (1, 0, 2) | (2, 0, 1) | (0, 2, 1)'),
)
equation(
    "look_up_before_adding_leading_axes",
    "Gather(t, Unsqueeze(i, new), axis=0, **g) == Unsqueeze(Gather(t, i, axis=0), new)",
    constant("new"),
    "leading axes: sorted(new.value) == list(range(new.value.size))",
    source="composition of index maps",
    drawn="""t: [R, K] | [R]; i = d.integers([N] | [N, M], "int64", 0, R - 1); new = [0] | [0, 1] | [1] | [-1] | [0, 2]""",
)
