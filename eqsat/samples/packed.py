"""Random products by weights packed in bytes: one plus a constant, and several of one value."""

from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.samples import Drawing, Instance, Sampler, fixed

_BLOCK = 16


class Packed:
    """How the weights of some products are packed: ``inner`` rows of so many bits, and zero points or none."""

    def __init__(self, d: Sampler) -> None:
        self._d = d
        self.bits, self.count = d.choose((2, 4, 4, 8)), d.integer(1, 3)
        self.inner = self.count * _BLOCK - d.choose((0, 0, 5))
        self.zeros = d.choose(("", "bytes", "floats"))
        self.level = d.choose((0, 4))

    def attributes(self, columns: int) -> dict[str, Any]:
        return {"K": self.inner, "N": columns, "bits": self.bits, "block_size": _BLOCK, "accuracy_level": self.level}

    def operands(self, columns: int) -> list[np.ndarray | None]:
        """Weight, scales, zero points, no order of rows, and a bias at times."""
        d = self._d
        bytes_of = lambda integers: -(-integers * self.bits // 8)  # noqa: E731
        kinds = {
            "bytes": d.integers((columns, bytes_of(self.count)), "uint8"),
            "floats": self._exact(columns, self.count),
        }
        weight = d.integers((columns, self.count, bytes_of(_BLOCK)), "uint8")
        scales = np.float32(2.0) ** d.rng.integers(-4, 1, (columns, self.count)).astype(np.float32)
        return [weight, scales, kinds.get(self.zeros), None, self._exact(columns) if d.chance() else None]

    def rows(self, *lead: int) -> np.ndarray:
        return self._exact(*lead, self.inner)

    def _exact(self, *shape: int) -> np.ndarray:
        """Quarters: sums of their products are exact in any order, however long the rows."""
        return self._d.rng.integers(-9, 10, shape).astype(np.float32) / np.float32(4)


def packed_product_plus(d: Sampler) -> dict[str, Any]:
    """What ``L(x, w, *o2, *o3, *o4, *b, **l) + c`` reads: ``c`` mostly a number for each column. At times the two biases overflow
    together, though the result does not."""
    packed, (rows, columns) = Packed(d), d.extents(2)
    drawn = dict(zip(("w", "o2", "o3", "o4", "b"), packed.operands(columns), strict=True))
    shape = d.choose(((columns,), (columns,), (1, columns), (), (rows, 1), (2, rows, columns)))
    x, c = packed.rows(rows), d.floats(shape)
    if d.chance(0.1):
        least = np.float32(1 << (packed.bits - 1))  # the weight is its negative all over
        drawn |= {"w": np.zeros_like(drawn["w"]), "o3": None, "b": np.full((columns,), 2.5e38, np.float32)}
        drawn["o2"] = np.full((columns, packed.count), 1 / least, np.float32)
        x, c = np.where(np.arange(packed.inner) == 0, np.float32(2.5e38), np.zeros_like(x)), np.full_like(c, 2.5e38)
    found: dict[str, Any] = {name: fixed(a) for name, a in drawn.items() if a is not None}
    return {**found, "x": x, "l": packed.attributes(columns), "c": d.either(c, 0.9)}


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
