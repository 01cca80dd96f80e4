"""Random equations of Einsum, and the shapes of their operands."""

import string
from collections.abc import Sequence

from eqsat.samples import Sampler

Shape = tuple[int, ...]
ELLIPSIS = "..."


def draw_equation(
    d: Sampler, operands: int, *, summed: bool = True, alone: float, free: bool = True
) -> tuple[str, list[Shape]]:
    """An equation, and the shapes of its operands.

    ``summed``: whether operands share indices that the result has not; ``alone``: how likely an operand has one for itself;
    ``free``: whether the result may have indices of one operand. At times an index is 1 in one of several operands, or an
    operand has one twice, or an ellipsis stands for those that all have.
    """
    letters = [str(i) for i in d.rng.permutation(list(string.ascii_letters))]

    def fresh(low: int, high: int) -> list[str]:
        return [letters.pop() for _ in range(d.integer(low, high))]

    several = operands > 1
    shared = fresh(0, 2) if several else []
    inner = fresh(1, 2) if several and summed else []
    own = [fresh(0 if several else 1, 2 if several else 4) if free else [] for _ in range(operands)]
    lone = [fresh(1, 1) if d.chance(alone) else [] for _ in range(operands)]
    every = [*shared, *inner, *(i for found in (*own, *lone) for i in found)]
    extents = dict(zip(every, d.extents(len(every)), strict=True))
    spread = shared if d.chance(0.25) else []
    terms, shapes = list[list[str]](), list[Shape]()
    for found, more in zip(own, lone, strict=True):
        term = _ordered(d, [*shared, *found, *inner, *more], spread, 0.3)
        if term and term[-1] not in spread and d.chance(0.08):
            term.append(term[-1])
        ones = {i for i in term if several and d.chance(0.04)}
        terms.append(term)
        shapes.append(tuple(1 if i in ones else extents[i] for i in term))
    result = _ordered(d, [*shared, *(i for found in own for i in found)], spread, 0.5)
    text = f"{','.join(_text(t, spread) for t in terms)}->{_text(result, spread)}"
    return text if d.chance(0.8) else text.replace(",", " , ").replace("->", " -> "), shapes


def _ordered(d: Sampler, term: Sequence[str], spread: Sequence[str], usual: float) -> list[str]:
    """The indices in some order, those of the ellipsis side by side."""
    rest = [i for i in term if i not in spread]
    if not d.chance(usual):
        rest = [rest[int(i)] for i in d.rng.permutation(len(rest))]
    at = d.integer(0, len(rest)) if spread else 0
    return [*rest[:at], *spread, *rest[at:]]


def _text(term: Sequence[str], spread: Sequence[str]) -> str:
    return "".join(term).replace("".join(spread), ELLIPSIS) if spread else "".join(term)
