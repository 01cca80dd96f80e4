"""Rotary position embeddings of a part of the features: the operator knows how many of them turn.

Where the part and the rest are those of a value, putting them together cancels.
"""

from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.rules.attention.layout import heads_apart, side_by_side

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
    drawn=(
        "x: [B, H, L, 2 * D]; y: [B, H, L, M]; c: [B, L, D]; s: [B, L, D]; d = 0; i = -1 | 3; r.interleaved = 0 | 1",
        "x: [B, H, L, 2 * D + 2]; d = 2 * D",
        "y: [B, M, L, 2 * D]; i = 1",
        "x: [B, L, 2 * D]; y: [B, L, M]; r.num_heads = 1; i = -1 | 2",
    ),
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
    drawn=(
        """x: [B, L, H, 2 * D]; y: [B, L, H, M]; c: [B, L, D]; s: [B, L, D]; d = 0; i = -1 | 3; h = H; u = [B, L, H * 2 * D]
           w = [B, L, H, 2 * D]; r.interleaved = 0 | 1""",
        "x: [B, L, H, 2 * D + 2]; u = [B, L, -1]; w = [B, L, H, -1]; d = 2 * D",
        "y: [B, M, H, 2 * D]; i = 1",
        "h = 1; c: [B, L, H * D]; s: [B, L, H * D]",
    ),
)
