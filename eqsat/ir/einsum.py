"""Equations of Einsum: which index each axis of the operands and of the result has.

In ``"bij,bjk->bik"`` each letter is an index; one that the result has not is summed over. An ellipsis stands for any number of
axes, aligned at the last: as indices these are ``.0`` (the last one), ``.1`` and so on. Without an arrow the result has the axes
of the ellipsis and then, sorted, all letters that occur once.

>>> equation_of("...ij, ...jk -> ...ik", (3, 2)).operands
(('.0', 'i', 'j'), ('j', 'k'))
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

Indices = tuple[str, ...]

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@dataclass(frozen=True)
class Equation:
    """The indices of the axes of each operand and of the result."""

    operands: tuple[Indices, ...]
    result: Indices

    @property
    def has_diagonals(self) -> bool:
        """Whether an operand has an index twice."""
        return any(len(set(indices)) < len(indices) for indices in self.operands)

    @property
    def summed(self) -> Indices:
        """The indices that are summed over, in the order in which they occur."""
        every = dict.fromkeys(i for indices in self.operands for i in indices)
        return tuple(i for i in every if i not in self.result)

    def alone(self, operand: int) -> Indices:
        """The indices that are summed over and occur in one operand only."""
        others = {i for n, indices in enumerate(self.operands) if n != operand for i in indices}
        return tuple(i for i in self.operands[operand] if i not in others and i not in self.result)

    def text(self) -> str:
        """The equation with letters for all indices, in the order in which they occur."""
        every = dict.fromkeys(i for indices in (*self.operands, self.result) for i in indices)
        letters = dict(zip(every, string.ascii_letters, strict=False))
        terms = ["".join(letters[i] for i in indices) for indices in (*self.operands, self.result)]
        return f"{','.join(terms[:-1])}->{terms[-1]}"


@lru_cache(1 << 12)
def equation_of(text: str, ranks: tuple[int | None, ...]) -> Equation | None:
    """An equation, applied to operands of these ranks; ``None`` where an ellipsis stands for an unknown number of axes.

    Raises `ValueError` for text that is no equation of such operands.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = [_parsed(term) for term in left.split(",")]
    if len(terms) != len(ranks):
        raise ValueError(f"the equation {text!r} is one of {len(terms)} operands")
    if any(term.ellipsis and rank is None for term, rank in zip(terms, ranks, strict=True)):
        return None
    operands = tuple(term.of_rank(rank) for term, rank in zip(terms, ranks, strict=True))
    spread = max((len(found) - term.letters for found, term in zip(operands, terms, strict=True)), default=0)
    if arrow:
        result = _parsed(right).with_axes(spread)
    else:
        once = Counter(i for found in operands for i in found if not i.startswith("."))
        result = (*_spread(spread), *sorted(i for i, number in once.items() if number == 1))
    _check(text, operands, result, spread)
    return Equation(operands, result)


def _check(text: str, operands: Iterable[Indices], result: Indices, spread: int) -> None:
    known = {i for indices in operands for i in indices}
    if len(set(result)) < len(result):
        raise ValueError(f"the equation {text!r} has an index twice in its result")
    if not known.issuperset(result):
        raise ValueError(f"the result of {text!r} has an index that no operand has")
    if not set(_spread(spread)).issubset(result):
        raise ValueError(f"the equation {text!r} has an ellipsis that is missing from its result")


@dataclass(frozen=True)
class _Term:
    before: str
    ellipsis: bool
    behind: str

    @property
    def letters(self) -> int:
        return len(self.before) + len(self.behind)

    def with_axes(self, spread: int) -> Indices:
        """The indices, with so many in place of the ellipsis."""
        return (*self.before, *(_spread(spread) if self.ellipsis else ()), *self.behind)

    def of_rank(self, rank: int | None) -> Indices:
        more = 0 if rank is None else rank - self.letters
        if more < 0 or (more and not self.ellipsis):
            raise ValueError(f"an operand of {rank} axes has {self.letters} indices")
        return self.with_axes(more)


def _parsed(term: str) -> _Term:
    found = _TERM.fullmatch(term)
    if found is None:
        raise ValueError(f"{term!r} is no list of indices")
    return _Term(found[1], bool(found[2]), found[3])


def _spread(number: int) -> Indices:
    """Indices for the axes of an ellipsis."""
    return tuple(f".{i}" for i in reversed(range(number)))


def order(source: Sequence[str], target: Sequence[str]) -> tuple[int, ...]:
    """The permutation of axes with the indices ``source`` to the order ``target``."""
    return tuple(source.index(i) for i in target)


# --- what is computed one after the other -------------------------------------------------------------------------------

Groups = tuple[Indices, ...]


@dataclass(frozen=True)
class Step:
    """An operator, with the axes of its operands and of its result: each a group of indices. ``perm``: of a Transpose."""

    op: str
    operands: tuple[Groups, ...]
    result: Groups
    perm: tuple[int, ...] = ()


def steps(equation: Equation) -> list[Step]:
    """What runtimes compute: operands are added up and transposed, multiplied as stacks of matrices two by two, and the result is
    transposed. Nothing is said of diagonals, which no operand may have.
    """
    found: list[Step] = []
    gathered = equation.operands[0]
    for n, following in enumerate(equation.operands[1:], 1):
        later = {i for indices in (*equation.operands[n + 1 :], equation.result) for i in indices}
        gathered = _multiplied(found, gathered, following, later)
    gathered = _summed(found, gathered, equation.result)
    _transposed(found, gathered, equation.result)
    return found


def _apart(indices: Indices) -> Groups:
    return tuple((i,) for i in indices)


def _transposed(found: list[Step], source: Indices, target: Indices) -> None:
    if source != target:
        found.append(Step("Transpose", (_apart(source),), _apart(target), order(source, target)))


def _summed(found: list[Step], source: Indices, kept: Collection[str]) -> Indices:
    """What is left of the indices behind the sum over those that are not kept."""
    left = tuple(i for i in source if i in kept)
    if left != source:
        found.append(Step("ReduceSum", (_apart(source),), _apart(left)))
    return left


def _multiplied(found: list[Step], left: Indices, right: Indices, later: Collection[str]) -> Indices:
    """The indices of a product, in which those are summed over that nothing later has."""
    left, right = _summed(found, left, {*right, *later}), _summed(found, right, {*left, *later})
    stack = tuple(i for i in left if i in right and i in later)
    inner = tuple(i for i in left if i in right and i not in later)
    rows, columns = (tuple(i for i in a if i not in b) for a, b in ((left, right), (right, left)))
    _transposed(found, left, (*stack, *rows, *inner))
    _transposed(found, right, (*stack, *inner, *columns))
    found.append(Step("MatMul", ((stack, rows, inner), (stack, inner, columns)), (stack, rows, columns)))
    return (*stack, *rows, *columns)
