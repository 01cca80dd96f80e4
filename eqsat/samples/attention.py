"""Random spellings of attention, right and slightly wrong ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.samples import Drawing, Instance, Sampler, fixed

LOWEST = float(np.finfo(np.float32).min)


def draw_attention(d: Sampler) -> Instance:
    """A product, steps on the scores in any order, a softmax, now and then with a guard, and a product with values."""
    if d.chance(0.08):
        return _masked_by_places(d)
    drawing = Drawing()
    half = d.chance(0.15)
    lead, rows = _lead(d), d.extents(4)
    queries, keys, size, width = rows
    q = drawing.value(_floats(d, (*lead, queries, size), half))
    if len(lead) == 2 and d.chance(0.15):  # batch and heads are one axis of the products
        lead = (lead[0] * lead[1],)
        q = drawing.op("Reshape", q, drawing.value(fixed((*lead, queries, size), "int64")))
    shared = len(lead) > 1 and d.chance(0.15)
    own = (*lead[:-1], 1) if shared else lead
    own = own[1:] if len(own) > 1 and d.chance(0.15) else own
    if d.chance(0.4):
        k = drawing.value(_floats(d, (*own, size, keys), half))
    else:
        stored = (*own, keys, size)
        perm = (*range(len(own)), len(own) + 1, len(own))
        k = drawing.op("Transpose", drawing.value(_floats(d, stored, half)), perm=perm)
    if d.chance(0.3) and not half:
        q = drawing.op("Mul", q, _number(d, drawing, len(lead)))
    if d.chance(0.3) and not half:
        k = drawing.op("Div", k, _number(d, drawing, 0))
    if d.chance(0.25) and not half:  # scaled once more, while its elements are elsewhere
        moved = drawing.op("Reshape", q, drawing.value(fixed([size, -1], "int64")))
        moved = drawing.op("Mul", moved, _number(d, drawing, 0))
        q = drawing.op("Reshape", moved, drawing.value(fixed((*lead, queries, size), "int64")))
    mixed = half and d.chance(0.2)  # products in float32 of queries and keys in half precision
    q, k = (drawing.op("Cast", x, to=1) if mixed else x for x in (q, k))
    scores = drawing.op("MatMul", q, k)
    shape: tuple[int, ...] = (*lead, queries, keys)
    if half and not mixed:
        scores = _masked_in_half(d, drawing, scores, shape) if d.chance(0.4) else scores
        scores = drawing.op("Cast", scores, to=1)
    forbids = d.chance(0.15)  # keys are forbidden before the softmax, and their probabilities zeros behind it
    if forbids and d.chance(0.15):
        return _forbidden_along_another_axis(d, rows)
    steps = () if forbids and d.chance(0.6) else _steps(d, len(shape))
    for step in steps:
        if step is not masked_by_window or (len(shape) == 4 and shape[0] % 2 == 0):
            scores, shape = step(d, drawing, scores, shape)
    axis = -1 if d.chance(0.9) else len(shape) - 2
    zero = drawing.value(fixed(0.0, "float32"))
    chances = _guarded(d, drawing, scores, shape, axis) if forbids else drawing.op("Softmax", scores, axis=axis)
    if d.chance(0.25) or _undefined in steps:
        chances = drawing.op("Where", drawing.op("IsNaN", chances), zero, chances)
    if half:
        chances = drawing.op("Cast", chances, to=10)
    if d.chance(0.15) and not half:
        chances = drawing.op("Mul", chances, _number(d, drawing, 0))
    same = own if shared and shape[:-2] == lead else shape[:-2]
    if d.chance(0.1) and len(same) > 1:  # other batches, or no axis for them
        same = (1, *same[1:]) if d.chance() else same[1:]
    v = drawing.value(_floats(d, (*same, keys, width), half))
    return drawing.finish(drawing.op("MatMul", chances, v), *([chances] if d.chance(0.3) else []))


def _masked_by_places(d: Sampler) -> Instance:
    """A mask that places of queries and keys tell, whose extents are symbols: causality, and what is near it."""
    drawing, causal = Drawing(), d.chance(0.4)

    def choose(*options: Any) -> Any:
        return options[0] if causal else d.choose(options)

    batch, rows, other, size = d.extents(4)
    columns = choose(rows, rows, rows, other)
    unknown = {rows, columns}
    q, k, v = (drawing.value(d.floats((batch, n, size)), unknown) for n in (rows, columns, columns))
    scores = drawing.op("MatMul", q, drawing.op("Transpose", k, perm=(0, 2, 1)))
    kind = d.integer(0, 2)
    if kind == 0:
        grid = [drawing.op("Unsqueeze", drawing.places(q, 1), [1]), drawing.places(k, 1, choose(0, 0, 1, -1, 2))]
        allowed = drawing.op(choose("GreaterOrEqual", "Greater", "Less", "LessOrEqual"), *choose(grid, grid[::-1]))
    elif kind == 1:
        ones = drawing.op("Expand", fixed(1.0, "float32"), drawing.op("Shape", scores, start=1))
        cut = drawing.op("Trilu", ones, choose(0, 0, 1, -1), upper=choose(0, 1))
        turned = rows == columns and choose(False, False, False, True)
        cut = drawing.op("Transpose", cut, perm=(1, 0)) if turned else cut
        zero = fixed(0.0, "float32")
        allowed = choose(drawing.op("Cast", cut, to=9), drawing.op("Equal", cut, zero))
    else:
        table = np.tri(max(rows, columns) + d.integer(1, 2), k=choose(0, 0, 1, -1), dtype=np.bool_)
        ends = [drawing.op("Shape", x, start=1, end=2) for x in (q, k)]
        starts = choose([0, 0], [0, 0], [1, 1])
        ends = drawing.op("Add", drawing.op("Concat", *ends, axis=0), starts)
        allowed = drawing.op("Slice", fixed(table), starts, ends)
    numbers = [fixed(choose(n, n, n, 0.5), "float32") for n in (0.0, d.choose((-np.inf, -np.inf, LOWEST, -1e4)))]
    if d.chance(0.3):
        operands = choose((scores, numbers[1]), (numbers[1], scores))
        scores = drawing.op("Where", allowed, *operands)
    else:
        scores = drawing.op("Add", scores, drawing.op("Where", allowed, *choose(numbers, numbers[::-1])))
    return drawing.finish(drawing.op("MatMul", drawing.op("Softmax", scores, axis=-1), v))


def _guarded(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...], axis: int) -> str:
    """The softmax of scores of which some are forbidden, with zeros in their place, now and then in that of the others."""
    allowed, zero = drawing.value(_choice(d, d.broadcast_of(shape))), drawing.value(fixed(0.0, "float32"))
    low = drawing.value(fixed(d.choose((LOWEST, -1e9, -np.inf, -3.0, -3.0)), "float32"))
    others = (d.chance(0.85), d.chance(0.5))
    scores = drawing.op("Where", allowed, *((scores, low) if others[1] else (low, scores)))
    chances = drawing.op("Softmax", scores, axis=axis)
    return drawing.op("Where", allowed, *((chances, zero) if others[0] == others[1] else (zero, chances)))


def _forbidden_along_another_axis(d: Sampler, rows: tuple[int, ...]) -> Instance:
    """Keys that are forbidden along the first axis, and along the second one behind a view."""
    drawing, n = Drawing(), d.integer(2, 3)
    queries, keys, size, width = rows
    q, k, v = (
        drawing.value(d.floats(shape)) for shape in ((n, n, queries, size), (n, n, size, keys), (n, n, 1, keys, width))
    )
    allowed = drawing.value(_choice(d, (d.choose((n, n, 1)), 1, queries, keys)))
    scores = drawing.op("Where", allowed, drawing.op("MatMul", q, k), drawing.value(fixed(-1e9, "float32")))
    scores = drawing.op("Reshape", scores, drawing.value(fixed((n, n, 1, queries, keys), "int64")))
    chances = drawing.op("Where", allowed, drawing.op("Softmax", scores, axis=-1), drawing.value(fixed(0.0, "float32")))
    return drawing.finish(drawing.op("MatMul", chances, v))


def _floats(d: Sampler, shape: tuple[int, ...], half: bool) -> np.ndarray:
    return d.rng.normal(size=shape).astype(np.float16) if half else d.floats(shape)


def _forbidding(d: Sampler, shape: tuple[int, ...], dtype: Any) -> Any:
    """A constant mask that forbids later keys or some at random, now and then all of a row."""
    queries, keys = shape[-2:]
    pattern = np.tril(np.ones((queries, keys))) if d.chance() else d.rng.random((queries, keys)) < 0.7
    low = d.choose((-np.inf, -1e9, -1e4, LOWEST)) if dtype == np.float32 else d.choose((-np.inf, -65504.0))
    return fixed(np.where(pattern, 0, low).astype(dtype))


def _masked_in_half(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> str:
    """Scores with a mask in float16: one that forbids, small numbers, both, or middling numbers beside a key without."""
    kind = d.integer(0, 5)
    if kind == 5:  # raised to about the lowest number behind the mask
        low = drawing.value(fixed(d.choose((-65504.0, -65504.0, -1e4)), "float16"))
        return drawing.op("Max", _masked_in_half(d, drawing, scores, shape), low)
    if kind == 0:
        return drawing.op("Add", scores, drawing.value(_floats(d, shape, True)))
    if kind == 1:
        return drawing.op("Add", scores, drawing.value(_forbidding(d, shape, np.float16)))
    near = fixed(_floats(d, shape, True))
    if kind == 2:
        open_rows = d.chance(0.8)
        far = d.rng.random(shape) < 0.5
        far[..., d.integer(0, shape[-1] - 1)] &= not open_rows
        mask = np.where(far, d.choose((-100.0, -300.0, -5000.0)), near.array).astype(np.float16)
        return drawing.op("Add", scores, drawing.value(fixed(mask)))
    allowed, low = drawing.value(_choice(d, d.broadcast_of(shape))), d.choose((-65504.0, -65504.0, -1e4, -300.0))
    number = drawing.value(fixed(low, "float16"))
    if kind == 3:
        mask = drawing.op("Where", allowed, drawing.value(near), number)
    else:
        mask = drawing.op("Where", allowed, drawing.value(fixed(0.0, "float16")), number)
        mask = drawing.op("Add", drawing.value(near), mask)
    return drawing.op("Add", scores, mask)


def _choice(d: Sampler, shape: tuple[int, ...]) -> np.ndarray:
    """Truth values, both of them if there is more than one element."""
    found = d.booleans(shape)
    if found.size > 1:
        found.flat[0], found.flat[-1] = True, False
    return found


def _lead(d: Sampler) -> tuple[int, ...]:
    return d.extents(d.choose((1, 2, 2, 2, 3)), ones=0.2)


def _number(d: Sampler, drawing: Drawing, rank: int) -> str:
    shape: Any = d.choose(((), (1,), (1,) * rank))
    return drawing.value(fixed(np.full(shape, d.choose((0.125, 0.25, -0.5, 2.0, 0.3)), np.float32)))


Shaped = tuple[str, tuple[int, ...]]
"""Scores, and their shape."""


def _scaled(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    if d.chance(0.1):
        return drawing.op("Mul", scores, drawing.value(fixed(0.0, "float32"))), shape
    factor = _number(d, drawing, len(shape))
    return drawing.op(d.choose(("Mul", "Div")), scores, factor), shape


def _scaled_each(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """Factors for each head or query, now and then of both signs or zero."""
    low, queries = d.choose((0.5, 0.5, 0.5, -0.5, 0.0)), d.choose((1, shape[-2]))
    factors = drawing.value(fixed(d.rng.uniform(low, 2, (*shape[1:-2], queries, 1)), "float32"))
    return drawing.op(d.choose(("Mul", "Div")), scores, factors), shape


def _added(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    mask = d.floats(d.broadcast_of(shape))
    if mask.ndim and d.chance(0.3):  # forbids some keys or all of a row, or what cannot be: NaN follows
        number = np.float32(d.choose((-np.inf, -np.inf, LOWEST, LOWEST, -2e38, np.inf, np.nan)))
        rows = d.rng.random((*mask.shape[:-1], 1)) < 0.3
        mask = np.where(rows | (d.rng.random(mask.shape) < 0.3), number, mask)
    return drawing.op("Add", scores, drawing.value(d.either(mask, 0.5))), shape


def _computed(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """A mask that is computed: all of a row may be forbidden."""
    allowed = drawing.value(_choice(d, d.broadcast_of(shape)))
    low = d.choose((LOWEST, -1e9, -1e4, -np.inf))
    branches = [drawing.value(fixed(0.0, "float32")), drawing.value(fixed(low, "float32"))]
    mask = drawing.op("Where", allowed, *branches)
    return drawing.op("Add", mask, scores), shape


def _replaced(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    allowed = drawing.value(_choice(d, d.broadcast_of(shape)))
    low = drawing.value(fixed(d.choose((LOWEST, -1e32, -1e8, -65504.0, -np.inf, -3.0, -3.0, -3.0)), "float32"))
    operands = (scores, low) if d.chance() else (low, scores)
    return drawing.op("Where", allowed, *operands), shape


def _capped(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    return drawing.op("Tanh", scores), shape


def _forbidden(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    return drawing.op("Add", scores, drawing.value(_forbidding(d, shape, np.float32))), shape


def _closed(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """A mask that may forbid all of some rows and nothing of others."""
    rows = fixed(np.where(d.rng.random((*shape[:-1], 1)) < 0.5, -np.inf, 0.0), "float32")
    return drawing.op("Add", scores, drawing.value(rows)), shape


def _undefined(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """A mask that is NaN here and there."""
    mask = np.where(d.rng.random(shape) < 0.1, np.nan, 0.0).astype(np.float32)
    return drawing.op("Add", scores, drawing.value(mask)), shape


def _floored(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """Scores that are raised from minus infinity, now and then from more."""
    low = drawing.value(fixed(d.choose((LOWEST, LOWEST, -1e38, -1e4, -1.0)), "float32"))
    return drawing.op("Max", *((scores, low) if d.chance() else (low, scores))), shape


def _beside_products(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    """Products as masks: relative positions."""
    size, rank = d.integer(1, 3), len(shape)
    factors = (
        drawing.value(d.rng.normal(size=(*shape[:-2], *n)).astype(np.float32))
        for n in ((shape[-1], size), (size, shape[-2]))
    )
    near = drawing.op("Transpose", drawing.op("MatMul", *factors), perm=(*range(rank - 2), rank - 1, rank - 2))
    return drawing.op("Add", scores, near), shape


def _regrouped(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> Shaped:
    if len(shape) == 3 and not d.chance(0.3):
        return scores, shape
    grouped = (1, *shape) if len(shape) == 3 else (shape[0] * shape[1], *shape[2:])
    return drawing.op("Reshape", scores, drawing.value(fixed(grouped, "int64"))), grouped


_ANY = (
    _scaled,
    _scaled_each,
    _added,
    _added,
    _computed,
    _replaced,
    _capped,
    _forbidden,
    _floored,
    _beside_products,
    _regrouped,
)
_IN_ORDER = (
    *((_replaced,), (_replaced,), (_replaced,), (_undefined,), (_undefined,), (_closed, _floored), (_closed, _floored)),
    *((_added, _scaled_each),) * 4,
    *((_capped, _added), (_added, _capped)),
)
"""What an order of steps decides."""


def _steps(d: Sampler, rank: int) -> Sequence[Any]:
    if d.chance(0.7):
        return d.choose(_IN_ORDER)
    windows = (masked_by_window,) if rank == 4 else ()
    return [d.choose((*_ANY, *windows)) for _ in range(d.integer(0, 3))]


def masked_by_window(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """A mask for each window, added or chosen where images and windows are axes of their own; mostly one axis again behind."""
    split = (2, shape[0] // 2, *shape[1:]) if d.chance(0.8) else (shape[0] // 2, 2, *shape[1:])
    scores = drawing.op("Reshape", scores, drawing.value(fixed(split, "int64")))
    varying = (*(1 if d.chance(0.3) else n for n in split[:2]), 1, *shape[-2:])[d.integer(0, 1) :]
    if d.chance(0.6):
        scores = drawing.op("Add", scores, drawing.value(d.either(d.floats(varying), 0.5)))
    else:
        low = drawing.value(fixed(d.choose((-1e32, -1e9, -np.inf, -3.0)), "float32"))
        operands = (scores, low) if d.chance() else (low, scores)
        scores = drawing.op("Where", drawing.value(_choice(d, varying)), *operands)
    if d.chance(0.2):
        return scores, split
    return drawing.op("Reshape", scores, drawing.value(fixed(shape, "int64"))), shape
