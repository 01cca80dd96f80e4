"""Random spellings of attention, right and slightly wrong ones."""

from typing import Any

import numpy as np

from eqsat.samples import Drawing, Instance, Sampler, fixed

LOWEST = float(np.finfo(np.float32).min)


def draw_attention(d: Sampler) -> Instance:
    """A product, steps on the scores in any order, a softmax, now and then with a guard, and a product with values."""
    drawing = Drawing()
    half = d.chance(0.15)
    lead, rows = _lead(d), d.extents(4)
    queries, keys, size, width = rows
    shared = len(lead) > 1 and d.chance(0.15)
    own = (*lead[:-1], 1) if shared else lead
    q = drawing.value(_floats(d, (*lead, queries, size), half))
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
    scores = drawing.op("MatMul", q, k)
    shape: tuple[int, ...] = (*lead, queries, keys)
    if half and d.chance(0.3):
        mask = _forbidding(d, shape, np.float16) if d.chance(0.7) else _floats(d, shape, half)
        scores = drawing.op("Add", scores, drawing.value(mask))
    if half:
        scores = drawing.op("Cast", scores, to=1)
    for _ in range(d.integer(0, 3)):
        scores, shape = _step(d, drawing, scores, shape)
    axis = -1 if d.chance(0.9) else len(shape) - 2
    chances = drawing.op("Softmax", scores, axis=axis)
    if d.chance(0.25):
        zero = drawing.value(fixed(0.0, "float32"))
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


def _floats(d: Sampler, shape: tuple[int, ...], half: bool) -> np.ndarray:
    return d.rng.normal(size=shape).astype(np.float16) if half else d.floats(shape)


def _forbidding(d: Sampler, shape: tuple[int, ...], dtype: Any) -> Any:
    """A constant mask that forbids later keys or some at random, now and then all of a row."""
    queries, keys = shape[-2:]
    pattern = np.tril(np.ones((queries, keys))) if d.chance() else d.rng.random((queries, keys)) < 0.7
    low = d.choose((-np.inf, -1e9, -1e4, LOWEST)) if dtype == np.float32 else d.choose((-np.inf, -65504.0))
    return fixed(np.where(pattern, 0, low).astype(dtype))


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


def _step(d: Sampler, drawing: Drawing, scores: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    kind = d.integer(0, 9)
    rank = len(shape)
    if kind == 0 and d.chance(0.1):
        return drawing.op("Mul", scores, drawing.value(fixed(0.0, "float32"))), shape
    if kind == 0:
        numbers = _number(d, drawing, rank)
        if d.chance(0.3):  # for each head or query, now and then of both signs or zero
            low, queries = d.choose((0.5, 0.5, -0.5, 0.0)), d.choose((1, shape[-2]))
            numbers = drawing.value(fixed(d.rng.uniform(low, 2, (*shape[1:-2], queries, 1)), "float32"))
        return drawing.op(d.choose(("Mul", "Div")), scores, numbers), shape
    if kind == 9 and rank == 4 and shape[0] % 2 == 0:
        return masked_by_window(d, drawing, scores, shape)
    if kind in (1, 7, 8):
        mask = d.floats(d.broadcast_of(shape))
        if mask.ndim and d.chance(0.3):  # forbids some keys or all of a row, or what cannot be: NaN follows
            number = np.float32(d.choose((-np.inf, -np.inf, LOWEST, LOWEST, -2e38, np.inf, np.nan)))
            rows = d.rng.random((*mask.shape[:-1], 1)) < 0.3
            mask = np.where(rows | (d.rng.random(mask.shape) < 0.3), number, mask)
        mask = d.either(mask, 0.5)
        return drawing.op("Add", scores, drawing.value(mask)), shape
    if kind == 2:  # a mask that is computed: all of a row may be forbidden
        allowed = drawing.value(_choice(d, d.broadcast_of(shape)))
        low = d.choose((LOWEST, -1e9, -1e4, -np.inf))
        branches = [drawing.value(fixed(0.0, "float32")), drawing.value(fixed(low, "float32"))]
        mask = drawing.op("Where", allowed, *branches)
        return drawing.op("Add", mask, scores), shape
    if kind == 3:
        allowed = drawing.value(_choice(d, d.broadcast_of(shape)))
        low = drawing.value(fixed(d.choose((LOWEST, -1e32, -1e9, -np.inf, -3.0)), "float32"))
        operands = (scores, low) if d.chance() else (low, scores)
        return drawing.op("Where", allowed, *operands), shape
    if kind == 4:
        return drawing.op("Tanh", scores), shape
    if kind == 5:
        return drawing.op("Add", scores, drawing.value(_forbidding(d, shape, np.float32))), shape
    if rank == 3 and not d.chance(0.3):
        return scores, shape
    grouped = (1, *shape) if rank == 3 else (shape[0] * shape[1], *shape[2:])
    return drawing.op("Reshape", scores, drawing.value(fixed(grouped, "int64"))), grouped


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
