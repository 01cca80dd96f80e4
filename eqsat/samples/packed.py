"""Random products of one value by weights packed in bytes."""

from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.samples import Drawing, Instance, Sampler

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
