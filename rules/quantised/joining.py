"""Functions of elements commute with Concat and Split, directed as in `eqsat.rules.quantised.movement`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from eqsat.equations import Equations
from eqsat.ir.operators.recenter import RECENTER
from eqsat.rewrite import Apply, Condition, GroupView, Match, Ref, Term, shared
from eqsat.rules.quantised.scales import (
    Step,
    dequantised_parts,
    kernels_before,
    kernels_behind,
    like,
    one_scale,
    same_value,
    same_zero_point,
    shorthands,
    steps,
)
from eqsat.rules.terms import by_class, outputs_of


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


def _behind_concat(view: GroupView, op: str) -> Iterator[Match]:
    concats = by_class((concat, {"concat": concat, "parts": parts}) for concat, parts in view.nodes("Concat"))
    for node, inputs in view.nodes(op):
        for concat in concats.get(inputs[0].handle, [])[:1] if inputs[0] is not None else ():
            yield Match(of_match(node, inputs) | concat, node)


def _behind_split(view: GroupView, op: str) -> Iterator[Match]:
    for split, parts in splits(view):
        for index, output in parts.items():
            for user, node, inputs in view.users(output):
                if user == op and inputs[0] is not None and inputs[0].handle == output.handle:
                    yield Match(of_match(node, inputs) | split | {"index": index}, node)


_SPLITS = ("Split(x, k, outputs=2, **a)[1]", "Split(x, outputs=2, **a)[0]")


group_rule = Equations(__name__, source="each element by itself", shorthands=shorthands).over_groups


def _state(name: str, op: str, short: str, *where: Condition) -> None:
    """The rules of a function of elements, which equations call ``short``."""

    def again(m: Match, value: Term) -> Term:
        return like(m.n, op, value, m.s, m.z)

    def concat(m: Match) -> Term:
        return Apply("Concat", tuple(again(m, p) for p in m.parts), m.concat.attributes)

    def split(m: Match) -> Term:
        return part(m, again(m, m.value))

    concat.__name__ = f"move_{name}_before_concat"
    concat.__doc__ = f"``{op}(Concat(x1, x2, ...)) == Concat({op}(x1), {op}(x2), ...)``"
    split.__name__ = f"move_{name}_before_split"
    split.__doc__ = f"``{op}(Split(x)[i]) == Split({op}(x))[i]``"
    group_rule(find=partial(_behind_concat, op=op), where=where, forms=[f"{short}(Concat(x, y, u, **a))"])(concat)
    group_rule(find=partial(_behind_split, op=op), where=where, forms=[f"{short}({s})" for s in _SPLITS])(split)


# --- DequantizeLinear goes the other way, and first: most of what is joined was dequantised


def _alike(a: Step, b: Step) -> bool:
    """Whether two DequantizeLinear nodes have the same parameters, integer type and attributes."""
    same_node = a.value.dtype is b.value.dtype and a.node.attributes == b.node.attributes
    return same_node and same_value(a.s, b.s) and same_zero_point(a.z, b.z)


def _concats_of_dequantised(view: GroupView) -> Iterator[Match]:
    """Each Concat with the first spelling of its parts as integers that are dequantised by the same parameters."""
    for concat, spelled in dequantised_parts(view):
        for first in spelled[0]:
            picked = [next((step for step in options if _alike(first, step)), None) for options in spelled]
            if all(picked):
                found = {"concat": concat, "parts": tuple(step.value for step in picked if step)}
                yield Match(of_match(first.node, first[1:]) | found, concat)


def _splits_of_dequantised(view: GroupView) -> Iterator[Match]:
    dequantized = by_class((step.node, step) for step in steps(view, "DequantizeLinear"))
    for split, parts in splits(view):
        for step in dequantized.get(split["value"].handle, [])[:1]:
            for index, output in parts.items():
                yield Match(of_match(step.node, step[1:]) | split | {"index": index}, output)


@group_rule(
    find=_concats_of_dequantised,
    where=[one_scale, kernels_before],
    forms=[
        "Concat(D(q), DequantizeLinear(p, s, *z, **n2), **a)",
        "Concat(D(q), DequantizeLinear(p, s, *z, **n2), DequantizeLinear(p, s, *y, **n3), **a)",
    ],
)
def move_dequantize_behind_concat(m: Match) -> Term:
    """``Concat(D(q1, s, z), D(q2, s, z), ...) == D(Concat(q1, q2, ...), s, z)`` for the same constant parameters."""
    return like(m.n, "DequantizeLinear", Apply("Concat", m.parts, m.concat.attributes), m.s, m.z)


@group_rule(
    find=_splits_of_dequantised,
    where=[one_scale, kernels_before],
    forms=[split.replace("x", "D(q)") for split in _SPLITS],
)
def move_dequantize_behind_split(m: Match) -> Term:
    """``Split(D(q, s, z))[i] == D(Split(q)[i], s, z)``"""
    return like(m.n, "DequantizeLinear", part(m, m.q), m.s, m.z)


_state("quantize", "QuantizeLinear", "Q", one_scale, kernels_behind)
_state("recentring", RECENTER, "R")
