"""Dequantised weights side by side are one dequantised weight with a scale per slice, so that merged products stay compact."""

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import form
from eqsat.exactness import Exactness
from eqsat.rewrite import Condition, GroupView, Match, Ref, Term, apply, group_rule, literal
from eqsat.rules.quantised.pairs import BYTES, Step, steps, unblocked
from eqsat.rules.terms import by_class, spread_out

_PART = "DequantizeLinear({}, {}, *{}, **{})"


def _is_whole(step: Step) -> bool:
    return all(v is None or v.type.size == 1 for v in (step.s, step.z))


def _is_part(step: Step, axis: int) -> bool:
    """Whether a constant is dequantised by one scale, or by one for each slice of an axis."""
    known = all(v is None or (v.is_constant and v.type.is_static) for v in step[1:])
    if not known or step.value.dtype not in BYTES or step.value.rank == 0 or not unblocked(step.node.attributes):
        return False
    along = step.s.rank == 1 and int(step.node.attr("axis", 1)) % step.value.rank == axis
    return (_is_whole(step) or along) and not step.node.attr("output_dtype", 0)


def _concats(view: GroupView) -> Iterator[Match]:
    """Each Concat of dequantised constants: the first such spelling of each part."""
    found = by_class((step.node, step) for step in steps(view, "DequantizeLinear"))
    for concat, values in view.nodes("Concat"):
        if len(values) < 2 or concat.type.rank is None or not all(v is not None and v.handle in found for v in values):
            continue
        axis = int(concat.attr("axis", 0)) % concat.rank
        parts = [next((s for s in found[v.handle] if _is_part(s, axis)), None) for v in values if v is not None]
        if all(parts):
            yield Match({"parts": parts, "axis": axis}, concat)


@group_rule(
    find=_concats,
    where=[Condition("one integer type", lambda m: len({p.value.dtype for p in m.parts}) == 1)],
    exactness=Exactness.EXACT,
    source="each element is dequantised by itself",
    forms=[
        form(
            f"Concat({_PART.format('p', 's', 'z', 'n')}, {_PART.format('q', 't', 'y', 'm')}, **a)", constant("p", "q")
        ),
        form(
            f"Concat({_PART.format('p', 's', 'z', 'n')}, {_PART.format('q', 's', 'z', 'm')}, **a)", constant("p", "q")
        ),
    ],
)
def join_dequantized_weights(m: Match) -> Term:
    """``Concat(D(q1, s1, z1), D(q2, s2, z2), ...) == D(Concat(q1, q2, ...), s, z)`` for constants.

    ``s`` and ``z`` hold one element for each slice of the axis. The parts may have parameters of their own for the whole tensor,
    or for each slice of the axis that is joined.
    """
    integers = apply("Concat", *(p.value for p in m.parts), axis=m.axis)
    scales, zeros = (apply("Concat", *column, axis=0) for column in zip(*_columns(m.parts, m.axis), strict=True))
    return apply("DequantizeLinear", integers, scales, zeros, axis=m.axis)


def _columns(parts: Sequence[Step], axis: int) -> Iterator[tuple[Term, Term]]:
    """Scales and zero points of each part, for every slice of the axis."""
    for part in parts:
        extent = part.value.static_shape[axis]

        def spread(v: Ref, whole: bool = _is_whole(part), extent: int = extent) -> Term:
            return spread_out(v, extent) if whole else v

        zeros = literal(np.zeros(extent, part.value.dtype.numpy)) if part.z is None else spread(part.z)
        yield spread(part.s), zeros
