"""Factors of queries and keys that are one number each, which the operator takes as its scale."""

from eqsat.rewrite import Apply, Ref, Term
from eqsat.rules.attention.magnitudes import LARGEST
from eqsat.rules.attention.reading import Reader

_DEPTH = 5
"""Most factors, views and transposes above each other through which factors are taken out."""


def number_of(value: Ref, op: str) -> float:
    """What multiplying with a number, or dividing by it, multiplies with; 0 for one that is out of range."""
    number = float(value.value.reshape(()))
    factor = number if op == "Mul" else 1 / number if number else 0.0
    return factor if abs(factor) < LARGEST else 0.0


class Factors:
    """Factors that are one number each, below views and transposes too."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[int, int], tuple[Term, float]] = {}

    def taken_out(self, value: Ref, depth: int = _DEPTH) -> tuple[Term, float]:
        """``value`` without them, and their product."""
        key = value.handle, depth
        if key not in self._known:
            self._known[key] = self._search(value, depth - 1) if depth else (value, 1.0)
        return self._known[key]

    def _search(self, value: Ref, depth: int) -> tuple[Term, float]:
        for op, _, (a, b) in self._reader.nodes(value, "Mul", "Div"):
            for x, c in ((a, b), (b, a))[: 2 if op == "Mul" else 1]:
                if c.is_constant and all(d == 1 for d in c.shape) and x.type == value.type and not x.is_constant:
                    factor = number_of(c, op)
                    if factor and x.handle != value.handle and not self._undone(value, x):
                        term, rest = self.taken_out(x, depth)
                        return term, factor * rest
        for op, node, (x, *others) in self._reader.nodes(value, "Reshape", "Transpose"):
            if x is not None and x.handle != value.handle:
                term, factor = self.taken_out(x, depth)
                if factor != 1:
                    return Apply(op, (term, *(y for y in others if y is not None)), node.attributes), factor
        return value, 1.0

    def _undone(self, value: Ref, multiple: Ref) -> bool:
        """Whether ``multiple`` is made of ``value``, which is made of something else: there is no factor to take out."""
        made = any(
            x is not None and x.handle == value.handle
            for _, _, operands in self._reader.nodes(multiple, "Mul", "Div")
            for x in operands
        )
        return made and any(op not in ("Mul", "Div") for op, _ in self._reader.view.spellings(value))
