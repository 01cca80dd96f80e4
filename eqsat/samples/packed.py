"""Random products by weights packed in bytes: one with a constant behind it, and several of one value."""

from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.samples import Drawing, Instance, Sampler, fixed

_BLOCK = 16


class Packed:
    """How the weights of some products are packed: ``inner`` rows of so many bits, with zero points or without. Scales and zero
    points lie in one row at times."""

    def __init__(self, d: Sampler) -> None:
        self._d = d
        self.bits, self.count = d.choose((2, 4, 4, 8)), d.integer(1, 3)
        self.inner = self.count * _BLOCK - d.choose((0, 0, 5))
        self.zeros = d.choose(("", "bytes", "floats"))
        self.level = d.choose((0, 4))
        self._flat = d.chance(0.2)

    def attributes(self, columns: int) -> dict[str, Any]:
        return {"K": self.inner, "N": columns, "bits": self.bits, "block_size": _BLOCK, "accuracy_level": self.level}

    def operands(self, columns: int) -> list[np.ndarray | None]:
        """Weight, scales, zero points, no order of rows, and a bias at times."""
        d = self._d
        kinds = {
            "bytes": d.integers((columns, -(-self.count * self.bits // 8)), "uint8"),
            "floats": self._exact(columns, self.count),
        }
        weight = d.integers((columns, self.count, _BLOCK * self.bits // 8), "uint8")
        scales = np.float32(2.0) ** d.rng.integers(-4, 1, (columns, self.count)).astype(np.float32)
        zeros = kinds.get(self.zeros)
        if self._flat:
            scales, zeros = scales.reshape(-1), None if zeros is None else zeros.reshape(-1)
        return [weight, scales, zeros, None, self._exact(columns) if d.chance() else None]

    def rows(self, *lead: int) -> np.ndarray:
        return self._exact(*lead, self.inner)

    def _exact(self, *shape: int) -> np.ndarray:
        """Quarters: sums of their products are exact in any order, however long the rows."""
        return self._d.rng.integers(-9, 10, shape).astype(np.float32) / np.float32(4)


def _product_and_shape(d: Sampler) -> tuple[Packed, dict[str, Any], tuple[int, ...]]:
    """What ``L(x, w, *o2, *o3, *o4, *b, **l)`` reads, and mostly the shape of a number for each column."""
    packed, (rows, columns) = Packed(d), d.extents(2)
    found: dict[str, Any] = dict(zip(("w", "o2", "o3", "o4", "b"), packed.operands(columns), strict=True))
    shape = d.choose(((columns,), (columns,), (1, columns), (), (rows, 1), (2, rows, columns)))
    return packed, found | {"x": packed.rows(rows), "l": packed.attributes(columns)}, shape


def _as_constants(drawn: dict[str, Any]) -> dict[str, Any]:
    """What is not absent, the operands beside ``x`` as constants."""
    return {k: v if k in "xlcs" else fixed(v) for k, v in drawn.items() if v is not None}


def packed_product_plus(d: Sampler) -> dict[str, Any]:
    """What ``L(x, w, *o2, *o3, *o4, *b, **l) + c`` reads. At times the two biases overflow together, not so the result."""
    packed, found, shape = _product_and_shape(d)
    c = d.floats(shape)
    if d.chance(0.1):
        least = np.float32(1 << (packed.bits - 1))  # the weight is its negative all over
        found |= {"w": np.zeros_like(found["w"]), "o3": None, "b": np.full(found["w"].shape[:1], 2.5e38, np.float32)}
        found |= {"o2": np.full_like(found["o2"], 1 / least)}
        found["x"] = np.where(np.arange(packed.inner) == 0, np.float32(2.5e38), np.zeros_like(found["x"]))
        c = np.full_like(c, 2.5e38)
    return _as_constants(found | {"c": d.either(c, 0.9)})


def packed_product_times(d: Sampler) -> dict[str, Any]:
    """What ``L(x, w, *o2, *o3, *o4, *b, **l) * s`` reads. At times the scales overflow with ``s``, though the result does not."""
    _, found, shape = _product_and_shape(d)
    s = np.float32(2.0) ** d.rng.integers(-3, 4, shape).astype(np.float32)
    if d.chance(0.1):
        found |= {"o2": np.full_like(found["o2"], 2.0**100), "x": found["x"] * np.float32(2.0**-120), "b": None}
        s = np.full_like(s, 2.0**30)
    return _as_constants(found | {"s": d.either(s, 0.9)})


def packed_products_of_one_value(d: Sampler, op: str) -> Instance:
    """Products of one value by weights that mostly differ in the number of columns alone."""
    drawing, packed = Drawing(), Packed(d)
    x = drawing.value(packed.rows(*d.shape(1, 2)))
    values: list[str] = []
    for _ in range(d.integer(2, 4)):
        how, columns = packed if d.chance(0.9) else Packed(d), d.integer(1, 5)
        operands = [None if a is None else drawing.value(d.either(a, 0.98)) for a in how.operands(columns)]
        while operands[-1] is None:
            operands.pop()
        try:
            values.append(drawing.op(op, x, *operands, **how.attributes(columns)))
        except EqsatError:  # rows of another length
            continue
    return drawing.finish(*(values or [drawing.op("Identity", x)]))
