"""Dequantised weights side by side are one dequantised weight with a scale per slice, so that merged products stay compact."""

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import form, group_rule
from eqsat.rewrite import GroupView, Match, Term, apply, literal
from eqsat.rules.linear.alignment import spread
from eqsat.rules.quantised.scales import Step, dequantised_parts


def blocks(step: Step) -> tuple[int, int]:
    """How large the blocks are that have a scale each, and along which axis; 0 where there are none."""
    size = int(step.node.attr("block_size", 0))
    return size, size and int(step.node.attr("axis", 1)) % step.value.rank


def _is_part(step: Step, axis: int) -> bool:
    """Whether a constant is dequantised by one scale, by one for each slice of an axis, or in blocks along another."""
    known = all(v is None or (v.is_constant and v.type.is_static) for v in step[1:])
    if not known or not step.value.dtype.is_integer or step.value.rank == 0 or step.node.attr("output_dtype", 0):
        return False
    block, across = blocks(step)
    if block:
        return across != axis
    whole = all(v is None or v.type.size == 1 for v in (step.s, step.z))
    along = step.s.rank == 1 and int(step.node.attr("axis", 1)) % step.value.rank == axis
    return whole or along


def _stated(parts: Sequence[Step], axis: int) -> dict[str, int]:
    """Attributes of the parts joined: an axis as the parts state it, if they do, for runtimes may see it only where counted from
    the start (`eqsat.lower.rounded_products`)."""
    block, _ = blocks(parts[0])
    stated = (int(p.node.attr("axis", 1)) for p in parts if block or p.s.type.size != 1)
    return {"axis": next(stated, axis)} | ({"block_size": block} if block else {})


def _concats(view: GroupView) -> Iterator[Match]:
    """Each Concat of dequantised constants: the first such spelling of each part."""
    for concat, spelled in dequantised_parts(view):
        axis = concat.attr("axis") % (concat.type.rank or 1)
        parts = [next((step for step in options if _is_part(step, axis)), None) for options in spelled]
        if all(parts):
            yield Match({"parts": parts, "axis": axis}, concat)


@group_rule(
    find=_concats,
    where=[
        "one integer type: all(p.value.dtype is parts[0].value.dtype for p in parts)",
        "the same blocks: all(blocks(p) == blocks(parts[0]) for p in parts)",
    ],
    source="each element is dequantised by itself",
    forms=[
        form(
            f"Concat(DequantizeLinear(p, s, *z, **n), DequantizeLinear(q, {scale}, *{zero}, **m), **a)",
            constant("p", "q"),
        )
        for scale, zero in ("ty", "sz")
    ],
)
def join_dequantized_weights(m: Match) -> Term:
    """``Concat(D(q1, s1, z1), D(q2, s2, z2), ...) == D(Concat(q1, q2, ...), s, z)`` for constants.

    ``s`` and ``z`` hold one element for each slice of the axis, or for each of the blocks. The parts may have parameters of their
    own for the whole tensor, for each slice of the axis that is joined, or for blocks along another.
    """
    block, _ = blocks(m.parts[0])
    extents = [p.value.static_shape[m.axis] for p in m.parts]
    integers = apply("Concat", *(p.value for p in m.parts), axis=m.axis)
    scales = (p.s if block else spread(p.s, n) for p, n in zip(m.parts, extents, strict=True))
    zeros = (
        literal(np.zeros(p.s.static_shape if block else n, p.value.dtype.numpy))
        if p.z is None
        else (p.z if block else spread(p.z, n))
        for p, n in zip(m.parts, extents, strict=True)
    )
    joined = (apply("Concat", *parts, axis=m.axis if block else 0) for parts in (scales, zeros))
    return apply("DequantizeLinear", integers, *joined, **_stated(m.parts, m.axis))
