"""What moves elements commutes with functions of elements: movement happens on the integers.

Directed: DequantizeLinear moves behind movement, QuantizeLinear and recentring before it. Neither adds an operator, and a value
that is dequantised, moved and quantised again meets itself as plain integers. A scale for each index of an axis follows a
Transpose.
"""

from eqsat.conditions import worthwhile
from eqsat.equations import Equations, named
from eqsat.ir.operator import traits_of
from eqsat.ir.schema_operator import further_inputs
from eqsat.ir.traits import whatever
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, Hint, Ref, for_each_operator
from eqsat.rules.quantised import scales
from eqsat.rules.quantised.scales import kernels_before, kernels_behind, one_scale, per_tensor, shorthands
from eqsat.rules.views.movement import moves, moves_elements


def axis_of(n: Ref, s: Ref, z: Ref | None) -> int:
    """The axis along which a node scales; any if there is one scale."""
    return 0 if per_tensor(s, z) else n.attr("axis", 1) % n.rank


equation = Equations(
    __name__,
    source="each element is quantised by itself",
    functions=scales.functions | named(moves),
    shorthands=shorthands,
)


@for_each_operator(moves_elements)
def _past(op: str) -> None:
    """The rules of one operator that moves elements."""
    others, name = further_inputs(op), op.lower()
    where = () if traits_of(op).holds is whatever else (f"elements only move: moves('{op}', a)",)
    equation(f"move_recentring_before_{name}", f"R({op}(q{others}, **a)) == {op}(R(q){others}, **a)", *where)
    if op == "Transpose":
        return
    text = f"{op}(D(q){others}, **a) == D({op}(q{others}, **a))"
    equation(f"move_dequantize_behind_{name}", text, one_scale, kernels_before, *where)
    text = f"Q({op}(x{others}, **a)) == {op}(Q(x){others}, **a)"
    equation(f"move_quantize_before_{name}", text, one_scale, kernels_behind, *where)


equation(
    "move_dequantize_behind_transpose",
    "Transpose(D(q), perm=p, **a) == D(Transpose(q, **a), axis=p.index(axis_of(n, s, z)) if p else 0)",
    "no blocks: unblocked(n.attributes)",
    kernels_before,
)
equation(
    "move_quantize_before_transpose",
    "Q(Transpose(x, perm=p, **a)) == Transpose(Q(x, axis=p[axis_of(n, s, z)] if p else 0), **a)",
    "no blocks: unblocked(n.attributes)",
    kernels_behind,
)

# --- bounds that follow a quantisation at once are part of it

_unsigned = Condition(
    "unsigned bytes: signed ones have an unsigned twin",
    lambda m: m.root.dtype is DType.UINT8,
    hints=tuple(Hint(name, dtypes=frozenset((DType.UINT8,))) for name in ("low", "high")),
)
for _op in ("Reshape", "Transpose"):
    equation(
        f"clip_before_{_op.lower()}",
        f"Clip({_op}(Q(x){further_inputs(_op)}, **a), *low, *high) == {_op}(Clip(Q(x), low, high){further_inputs(_op)}, **a)",
        worthwhile(_unsigned),
        worthwhile(one_scale),
        source="each element by itself",
    )
