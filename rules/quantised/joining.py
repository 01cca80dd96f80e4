"""Functions of elements commute with Concat and Split, directed as in `eqsat.rules.quantised.movement`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.equations import form
from eqsat.exactness import Exactness
from eqsat.ir.operators.recenter import RECENTER
from eqsat.rewrite import Apply, Condition, GroupView, Match, Ref, Rule, Term, group_rule, shared
from eqsat.rules.quantised.pairs import (
    kernels_before,
    kernels_behind,
    like,
    one_scale,
    same_value,
    same_zero_point,
    shorthands,
)
from eqsat.rules.terms import by_class, outputs_of

Node = tuple[Ref, tuple[Ref | None, ...]]
Found = Callable[[GroupView], Iterator[Match]]


def _spelled_by(view: GroupView, op: str) -> dict[int, list[Node]]:
    return by_class((node, (node, inputs)) for node, inputs in view.nodes(op))


def of_match(node: Ref, inputs: Sequence[Ref | None]) -> dict[str, Any]:
    """What a pattern ``Q(x)``, ``D(q)`` or ``R(q)`` binds."""
    value, scale, zero = (*inputs, None, None)[:3]
    return {"x": value, "q": value, "s": scale, "z": zero, "n": node}


@shared
def splits(view: GroupView) -> Sequence[tuple[dict[str, Any], dict[int, Ref]]]:
    """Each Split that says how many parts it has, and those of its parts that exist."""
    found: list[tuple[dict[str, Any], dict[int, Ref]]] = []
    for split, inputs in view.nodes("Split"):
        value, sizes = (*inputs, None)[:2]
        static = sizes is not None and sizes.type.is_static
        number = sizes.static_shape[0] if sizes is not None and static else split.attr("num_outputs", 0)
        if number and value is not None:
            parts = outputs_of(view, split)
            found.append(({"value": value, "sizes": inputs[1:], "split": split, "number": int(number)}, parts))
    return found


def part(m: Match, value: Term) -> Term:
    """The part of a match, of another value that is split alike."""
    return Apply("Split", (value, *m.sizes), m.split.attributes, "", m.number).output(m.index)


@dataclass(frozen=True)
class Function:
    """A function of elements: its operator, what its rules ask for, and how it is applied to another value."""

    name: str
    op: str
    short: str
    where: tuple[Condition, ...]
    again: Callable[[Match, Term], Term]


QUANTIZE = Function(
    "quantize",
    "QuantizeLinear",
    "Q",
    (one_scale, kernels_behind),
    lambda m, value: like(m.n, "QuantizeLinear", value, m.s, m.z),
)
RECENTRING = Function("recentring", RECENTER, "R", (), lambda m, value: Apply(RECENTER, (value,)))


def _behind_concat(f: Function) -> Found:
    def find(view: GroupView) -> Iterator[Match]:
        concats = _spelled_by(view, "Concat")
        for node, inputs in view.nodes(f.op):
            for concat, parts in concats.get(inputs[0].handle, [])[:1] if inputs[0] is not None else ():
                yield Match(of_match(node, inputs) | {"concat": concat, "parts": parts}, node)

    return find


def _behind_split(f: Function) -> Found:
    def find(view: GroupView) -> Iterator[Match]:
        for split, parts in splits(view):
            for index, output in parts.items():
                for op, node, inputs in view.users(output):
                    if op == f.op and inputs[0] is not None and inputs[0].handle == output.handle:
                        yield Match(of_match(node, inputs) | split | {"index": index}, node)

    return find


_SPLITS = ("Split(x, k, outputs=2, **a)[1]", "Split(x, outputs=2, **a)[0]")


def _forms(*texts: str) -> list[Rule]:
    return [form(text, shorthands=shorthands) for text in texts]


def _state(f: Function) -> None:
    common: Any = {"exactness": Exactness.EXACT, "source": "each element by itself", "where": f.where}

    def concat(m: Match) -> Term:
        return Apply("Concat", tuple(f.again(m, p) for p in m.parts), m.concat.attributes)

    def split(m: Match) -> Term:
        return part(m, f.again(m, m.value))

    concat.__name__ = f"move_{f.name}_before_concat"
    concat.__doc__ = f"``{f.op}(Concat(x1, x2, ...)) == Concat({f.op}(x1), {f.op}(x2), ...)``"
    split.__name__ = f"move_{f.name}_before_split"
    split.__doc__ = f"``{f.op}(Split(x)[i]) == Split({f.op}(x))[i]``"
    group_rule(find=_behind_concat(f), forms=_forms(f"{f.short}(Concat(x, y, u, **a))"), **common)(concat)
    group_rule(find=_behind_split(f), forms=_forms(*(f"{f.short}({split})" for split in _SPLITS)), **common)(split)


# --- DequantizeLinear goes the other way, and first: most of what is joined was dequantised


def _alike(a: Node, b: Node) -> bool:
    """Whether two DequantizeLinear nodes have the same constant parameters, integer type and attributes."""
    (q, scale, zero), (p, scale2, zero2) = ((*inputs, None)[:3] for _, inputs in (a, b))
    if q is None or p is None or scale is None or scale2 is None:
        return False
    constants = all(v is None or v.is_constant for v in (scale, scale2, zero, zero2))
    same_node = q.dtype is p.dtype and a[0].attributes == b[0].attributes
    return constants and same_node and same_value(scale, scale2) and same_zero_point(zero, zero2)


def _concats_of_dequantised(view: GroupView) -> Iterator[Match]:
    """Each Concat with the first spelling of its parts as integers that are dequantised by the same parameters."""
    dequantized = _spelled_by(view, "DequantizeLinear")
    for concat, parts in view.nodes("Concat"):
        choices = [dequantized.get(p.handle, []) if p is not None else [] for p in parts]
        if len(parts) < 2 or not all(choices):
            continue
        for first in choices[0]:
            picked = [next((n for n in nodes if _alike(first, n)), None) for nodes in choices]
            integers = tuple(n[1][0] for n in picked if n is not None)
            if len(integers) == len(parts):
                yield Match(of_match(*first) | {"concat": concat, "parts": integers}, concat)


def _splits_of_dequantised(view: GroupView) -> Iterator[Match]:
    dequantized = _spelled_by(view, "DequantizeLinear")
    for split, parts in splits(view):
        for node in dequantized.get(split["value"].handle, [])[:1]:
            for index, output in parts.items():
                yield Match(of_match(*node) | split | {"index": index}, output)


@group_rule(
    find=_concats_of_dequantised,
    where=[one_scale, kernels_before],
    exactness=Exactness.EXACT,
    source="each element by itself",
    forms=_forms(
        "Concat(D(q), DequantizeLinear(p, s, *z, **n2), **a)",
        "Concat(D(q), DequantizeLinear(p, s, *z, **n2), DequantizeLinear(p, s, *y, **n3), **a)",
    ),
)
def move_dequantize_behind_concat(m: Match) -> Term:
    """``Concat(D(q1, s, z), D(q2, s, z), ...) == D(Concat(q1, q2, ...), s, z)`` for the same constant parameters."""
    return like(m.n, "DequantizeLinear", Apply("Concat", m.parts, m.concat.attributes), m.s, m.z)


@group_rule(
    find=_splits_of_dequantised,
    where=[one_scale, kernels_before],
    exactness=Exactness.EXACT,
    source="each element by itself",
    forms=_forms(*(split.replace("x", "D(q)") for split in _SPLITS)),
)
def move_dequantize_behind_split(m: Match) -> Term:
    """``Split(D(q, s, z))[i] == D(Split(q)[i], s, z)``"""
    return like(m.n, "DequantizeLinear", part(m, m.q), m.s, m.z)


for _f in (QUANTIZE, RECENTRING):
    _state(_f)
