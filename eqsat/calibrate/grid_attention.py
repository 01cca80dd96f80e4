"""Attention, and the rotary embeddings before it."""

from collections.abc import Iterator, Sequence

from eqsat.calibrate.case import Cases, Kernels, Operand, data, value, weight


def _attention() -> Iterator[Cases]:
    """Heads apart, or side by side, each with keys and values of its own."""
    f = "float32"
    attention = [(1, 12, 128, 64), (1, 12, 197, 64), (8, 12, 384, 64), (2, 8, 256, 8), (2, 8, 64, 16), (1, 8, 128, 64)]
    for biased in (False, True):
        for masked in (False, True):
            yield Kernels(
                "com.microsoft::MultiHeadAttention",
                attention,
                lambda b, h, s, d, biased=biased, masked=masked: [
                    *(data(f, b, s, h * d) for _ in range(3)),
                    *([weight(f, 3 * h * d)] if biased else [None] if masked else []),
                    *([None, data(f, b, 1, s, s)] if masked else []),
                ],
                lambda b, h, s, d: {"num_heads": h, "scale": d**-0.5},
            )
    yield Kernels(
        "Attention",
        attention,
        lambda b, h, s, d: [data(f, b, h, s, d) for _ in range(3)],
        lambda b, h, s, d: {"scale": d**-0.5},
    )
    for masked in (False, True):
        yield Kernels(
            "com.microsoft::Attention",
            attention,
            lambda b, h, s, d, masked=masked: [
                data(f, b, s, h * d), weight(f, h * d, 3 * h * d), weight(f, 3 * h * d),
                *([data("int32", b, s, limit=2)] if masked else []),
            ],
            lambda b, h, s, d: {"num_heads": h, "scale": d**-0.5},
        )  # fmt: skip


def _in_rows(b: int, h: int, g: int, s: int, d: int) -> list[Operand]:
    """Queries of ``h`` heads, keys and values of ``g``, each head of ``d`` columns."""
    return [data("float32", b, s, h * d), data("float32", b, s, g * d), data("float32", b, s, g * d)]


def _side_by_side(
    sizes: Sequence[tuple[int, int, int, int, int]], masked: bool, *, each_head: bool = False
) -> Iterator[Cases]:
    """Attention with the heads side by side, of which several may share keys and values: by either operator that has it, and by
    the one to which those that share are rows of one head. ``each_head``: whether each has a mask of its own."""
    f = "float32"

    def mask(h: int, rows: int, s: int) -> list[Operand]:
        return [data(f, 1, h if each_head else 1, rows, s)] if masked else []

    yield Kernels(
        "Attention",
        sizes,
        lambda b, h, g, s, d: [*_in_rows(b, h, g, s, d), *mask(h, s, s)],
        lambda b, h, g, s, d: {"q_num_heads": h, "kv_num_heads": g, "scale": d**-0.5},
    )
    yield Kernels(
        "com.microsoft::GroupQueryAttention",
        [size for size in sizes if size[4] % 8 == 0],
        lambda b, h, g, s, d: [
            *_in_rows(b, h, g, s, d), None, None, value("int32", [s - 1] * b), value("int32", s),
            *([None] * 3 if masked else []), *mask(h, s, s),
        ],
        lambda b, h, g, s, d: {"num_heads": h, "kv_num_heads": g, "scale": d**-0.5, "causal": 0, "do_rotary": 0},
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::MultiHeadAttention",
        [size for size in sizes if each_head or size[1] != size[2]],
        lambda b, h, g, s, d: [
            data(f, b, s * h // g, g * d), *[data(f, b, s, g * d)] * 2,
            *([None, None] if masked else []), *mask(h, s * h // g, s),
        ],
        lambda b, h, g, s, d: {"num_heads": g, "scale": d**-0.5},
    )  # fmt: skip


_ROWS = ((1, 12, 12, 128, 64), (2, 8, 8, 256, 8), (1, 8, 2, 128, 64), (1, 16, 16, 64, 64), (1, 32, 8, 64, 128))


def _attention_in_rows(masked: bool) -> Iterator[Cases]:
    return _side_by_side((*_ROWS, (8, 12, 12, 384, 64)), masked)


def _attention_in_windows(masked: bool) -> Iterator[Cases]:
    """Many short sequences of few narrow heads, as of the windows of an image, to few long ones of wide heads and of narrow ones;
    with a mask for each head."""
    f = "float32"
    sizes = ((256, 1, 64, 16), (256, 2, 64, 16), (64, 2, 64, 16), (64, 4, 64, 16), (64, 3, 49, 32), (16, 6, 49, 32),
             (4, 12, 49, 32), (16, 2, 64, 16), (16, 6, 16, 64), (8, 6, 32, 64), (2, 4, 16, 16), (1, 4, 16, 64), (1, 4, 64, 64),
             (4, 12, 128, 64), (1, 12, 512, 64), (1, 8, 1024, 40), (49, 4, 16, 32), (196, 1, 16, 64), (196, 2, 16, 32),
             (2, 4, 1024, 8), (2, 8, 1024, 4), (2, 8, 256, 8), (2, 4, 256, 16), (1, 4, 129, 16), (2, 4, 65, 32),
             (1, 8, 197, 24), (16, 4, 64, 16), (4, 8, 64, 16), (16, 3, 49, 32), (1, 24, 49, 32))  # fmt: skip

    yield Kernels(
        "Attention",
        sizes,
        lambda b, h, s, d: [*[data(f, b, h, s, d)] * 3, *([data(f, 1, h, s, s)] if masked else [])],
        lambda b, h, s, d: {"scale": d**-0.5},
    )
    yield from _side_by_side([(b, h, h, s, d) for b, h, s, d in sizes], masked, each_head=True)


def _attention_across() -> Iterator[Cases]:
    """Queries of one sequence on keys of a shorter or longer one, as of an image on those of a smaller one or of a text."""
    f = "float32"
    sizes = ((1, 1, 3136, 49, 64), (1, 1, 784, 49, 128), (1, 2, 196, 49, 96), (2, 4, 1024, 77, 8), (1, 8, 1024, 77, 40),
             (1, 12, 128, 32, 64), (1, 4, 16, 64, 16))  # fmt: skip
    for key, names in (
        ("Attention", ("q_num_heads", "kv_num_heads")),
        ("com.microsoft::MultiHeadAttention", ("num_heads",)),
    ):
        yield Kernels(
            key,
            sizes,
            lambda b, h, s, t, d: [data(f, b, s, h * d), *[data(f, b, t, h * d)] * 2],
            lambda b, h, s, t, d, names=names: {**dict.fromkeys(names, h), "scale": d**-0.5},
        )


def _rotary() -> Iterator[Cases]:
    """Heads side by side that turn by their place, one table for all sequences: by either operator that has it."""
    f = "float32"
    sizes = ((1, 8, 1, 64), (1, 32, 1, 128), (2, 4, 16, 16), (1, 8, 128, 64), (1, 32, 128, 128), (8, 12, 384, 64))
    for precision in (f, "float16"):
        yield Kernels(
            "RotaryEmbedding",
            sizes,
            lambda b, h, s, d, precision=precision: [
                data(precision, b, s, h * d), *[data(precision, b, s, d // 2)] * 2
            ],
            lambda b, h, s, d: {"num_heads": h},
        )  # fmt: skip
    yield Kernels(
        "com.microsoft::RotaryEmbedding",
        sizes,
        lambda b, h, s, d: [data(f, b, s, h * d), value("int64", [0]), *[data(f, s, d // 2)] * 2],
        lambda b, h, s, d: {"num_heads": h},
    )


def _attention_on_stored(masked: bool) -> Iterator[Cases]:
    """Attention on keys and values stored before and new ones, which are stored with them: by the operators that have it."""
    f = "float32"
    sizes = ((1, 8, 4, 1, 127, 64), (1, 8, 8, 1, 127, 64), (1, 32, 8, 1, 127, 128), (1, 32, 8, 1, 1023, 128),
             (2, 4, 2, 1, 16, 16), (8, 12, 12, 1, 255, 64), (1, 8, 4, 32, 96, 64), (1, 8, 4, 128, 128, 64))  # fmt: skip

    def stored(b: int, g: int, p: int, d: int) -> list[Operand]:
        return [data(f, b, g, p, d)] * 2

    def mask(s: int, p: int) -> Operand | None:
        return data(f, 1, 1, s, p + s) if masked else None

    yield Kernels(
        "Attention",
        sizes,
        lambda b, h, g, s, p, d: [*_in_rows(b, h, g, s, d), mask(s, p), *stored(b, g, p, d)],
        lambda b, h, g, s, p, d: {"q_num_heads": h, "kv_num_heads": g, "scale": d**-0.5},
        outputs=3,
    )
    yield Kernels(
        "com.microsoft::GroupQueryAttention",
        sizes,
        lambda b, h, g, s, p, d: [
            *_in_rows(b, h, g, s, d), *stored(b, g, p, d), value("int32", [p + s - 1] * b), value("int32", p + s),
            *([None] * 3 + [mask(s, p)] if masked else []),
        ],
        lambda b, h, g, s, p, d: {"num_heads": h, "kv_num_heads": g, "scale": d**-0.5, "causal": 0, "do_rotary": 0},
        outputs=3,
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::MultiHeadAttention",
        sizes,
        lambda b, h, g, s, p, d: [
            data(f, b, s * h // g, g * d), *[data(f, b, s, g * d)] * 2, None, None,
            data(f, 1, 1, s * h // g, p + s) if masked else None, *stored(b, g, p, d),
        ],
        lambda b, h, g, s, p, d: {"num_heads": g, "scale": d**-0.5},
        outputs=3,
    )  # fmt: skip


def _turned(masked: bool) -> Iterator[Cases]:
    """One query over stored keys, side by side with its key and value, turned inside."""
    f = "float32"
    sizes = ((1, 8, 4, 127, 64), (1, 8, 8, 127, 64), (1, 32, 8, 127, 128), (1, 32, 8, 1023, 128), (2, 4, 2, 16, 16),
             (8, 12, 12, 255, 64))  # fmt: skip
    yield Kernels(
        "com.microsoft::GroupQueryAttention",
        sizes,
        lambda b, h, g, p, d: [
            data(f, b, 1, (h + 2 * g) * d), None, None, *[data(f, b, g, p, d)] * 2,
            value("int32", [p] * b), value("int32", p + 1), *[data(f, p + 1, d // 2)] * 2,
            value("int64", [[i] for i in range(b)]), *([data(f, 1, 1, 1, p + 1)] if masked else []),
        ],
        lambda b, h, g, p, d: {"num_heads": h, "kv_num_heads": g, "scale": d**-0.5, "causal": 0, "do_rotary": 1},
        outputs=3,
    )  # fmt: skip


def _capped(masked: bool) -> Iterator[Cases]:
    """Scores are capped one by one, by a tangent that is not computed on vectors."""
    yield Kernels(
        "Attention",
        _ROWS,
        lambda b, h, g, s, d: [*_in_rows(b, h, g, s, d), *([data("float32", 1, 1, s, s)] if masked else [])],
        lambda b, h, g, s, d: {"q_num_heads": h, "kv_num_heads": g, "scale": d**-0.5, "softcap": 30.0},
    )


ATTENTION: tuple[Cases, ...] = (
    *_attention(),
    *_attention_across(),
    *(
        kernels
        for masked in (False, True)
        for of in (_attention_in_rows, _attention_in_windows, _attention_on_stored, _turned, _capped)
        for kernels in of(masked)
    ),
    *_rotary(),
)
