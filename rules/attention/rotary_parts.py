"""Rotary position embeddings of a part of the features: the operator knows how many of them turn.

Where the part and the rest are those of a value, putting them together cancels.
"""

from functools import partial
from typing import Any

from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rules.attention.layout import heads_apart, side_by_side
from eqsat.samples import Sampler, fixed


def _draw(d: Sampler, *, in_rows: bool) -> dict[str, Any]:
    """The embedding of the first features, heads apart or in rows, now and then slightly wrong."""
    batch, heads, length, half = d.extents(4, ones=0.1)
    left = half > 1 and d.chance(0.1)  # features that do not turn
    many = heads if left or not in_rows or d.chance(0.8) else 1  # one: a head as large as all
    lead = (batch, length, heads) if in_rows else (batch, heads, length)
    r: dict[str, Any] = {"interleaved": 1} if d.chance(0.2) else {}
    r |= ({"rotary_embedding_dim": 2 * half - 2} if left else {}) | ({"num_heads": many} if in_rows else {})
    if not in_rows and d.chance(0.1):  # rows of heads
        lead, r = (batch, length), r | {"num_heads": 1}
    axis = d.choose((*(-1, len(lead)) * 4, 1))
    found: dict[str, Any] = {
        "x": d.floats((*lead, 2 * half)),
        "y": d.floats((*lead, d.integer(1, 3) if axis != 1 else 2 * half)),
    }
    found |= {name: d.floats((batch, length, half * heads // many - left)) for name in "cs"}
    found |= {"u": fixed([batch, length, heads * 2 * half], "int64"), "w": fixed([*lead, 2 * half], "int64")}
    return found | {"r": r, "n": {"axis": axis}}


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding: rotary_embedding_dim",
    functions=named(heads_apart, side_by_side),
)
equation(
    "embed_part_of_the_features",
    """Concat(RotaryEmbedding(x, c, s, *p, rotary_embedding_dim=d, **r), y, axis=i, **n)
       == RotaryEmbedding(Concat(x, y, axis=-1), c, s, p, rotary_embedding_dim=x.shape[3], **r)""",
    "heads are an axis, and so are features, known ones first: x.rank == 4 and i in (-1, 3) and isinstance(x.shape[3], int)",
    "all features of the part turn: not d",
    sample=partial(_draw, in_rows=False),
)
equation(
    "embed_part_of_the_features_in_rows",
    """Concat(Reshape(RotaryEmbedding(Reshape(x, u, **a), c, s, *p, num_heads=h, rotary_embedding_dim=d, **r), w, **t),
              y, axis=i, **n)
       == heads_apart(RotaryEmbedding(side_by_side(Concat(x, y, axis=-1), root), c, s, p, num_heads=h,
                                      rotary_embedding_dim=x.shape[3], **r), root)""",
    "heads in rows are an axis around: x.rank == 4 and t.type == x.type and r.shape[:2] == x.shape[:2] and h == x.shape[2]",
    "of features, known ones first: i in (-1, 3) and isinstance(x.shape[3], int)",
    "all features of the part turn: not d",
    sample=partial(_draw, in_rows=True),
)
