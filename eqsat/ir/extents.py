"""Extents that are not numbers: sums of products of symbols, in a normal form.

An extent is an ``int``, or text: a symbol of the model (``seq``), or what is computed of symbols (``past + seq``,
``2*batch*seq``, ``floordiv(seq + 1, 2)``). The text is a normal form, so two extents are provably equal if and only if they are
equal as Python values. A symbol stands for one number, 0 or more; one that starts with ``?`` is about an extent of which nothing
is known, and occurs nowhere else.

>>> multiply(add("seq", 1), "batch"), quotient("batch*seq", "batch")
('batch*seq + batch', 'seq')
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, reduce

from eqsat.ir.normal_form import Dim, Form, Monomial, dim_of, form_of, function_of, plus, times

# --- arithmetic -----------------------------------------------------------------------------------------------------------


def add(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else dim_of(plus(form_of(a), form_of(b)))


def subtract(a: Dim, b: Dim) -> Dim:
    return a - b if isinstance(a, int) and isinstance(b, int) else dim_of(plus(form_of(a), form_of(b), -1))


def multiply(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else dim_of(times(form_of(a), form_of(b)))


def total(dims: Iterable[Dim]) -> Dim:
    return reduce(add, dims, 0)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of extents: how many elements there are."""
    return reduce(multiply, dims, 1)


def quotient(a: Dim, b: Dim) -> Dim | None:
    """``a / b`` where that is a whole number whatever the symbols are, ``None`` where it cannot be told.

    Where ``b`` may be 0, the answer holds for all other values.
    """
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 or a % b else a // b
    above, below = form_of(a), form_of(b)
    if not below:
        return None
    found: Form = {}
    lead = max(below, key=_order)
    while above:
        top = max(above, key=_order)
        factors = _without(top, lead)
        if factors is None or above[top] % below[lead]:
            return None
        part: Form = {factors: above[top] // below[lead]}
        found = plus(found, part)
        above = plus(above, times(part, below), -1)
    return dim_of(found)


def _order(factors: Monomial) -> tuple[int, Monomial]:
    return len(factors), factors


def _without(factors: Monomial, gone: Monomial) -> Monomial | None:
    left = list(factors)
    for factor in gone:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """``a // b``, rounded down; 0 of a ``b`` that is 0, where no model runs.

    One division by numbers after another is one, as of the frames behind several convolutions:

    >>> floor_divide("floordiv(seq + 1, 64) + 1", 3)
    'floordiv(seq + 65, 192)'
    """
    if b == 0:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = quotient(a, b)
    if exact is not None:
        return exact
    if not isinstance(b, int) or b < 0:
        return f"floordiv({a}, {b})"
    form = form_of(a)
    whole = {factors: number // b for factors, number in form.items() if number // b}
    rest = {factors: number % b for factors, number in form.items() if number % b}
    return add(dim_of(whole), _quotient_of_rest(rest, b) if rest.keys() - {()} else 0)


def remainder(a: Dim, b: int) -> Dim:
    """``a`` modulo a positive number, never negative: two of them pad to a multiple.

    >>> add("seq", remainder(subtract(8, remainder("seq", 8)), 8))
    '-8*floordiv(7*seq, 8) + 8*seq'
    """
    return subtract(a, multiply(b, floor_divide(a, b)))


def _quotient_of_rest(rest: Form, b: int) -> Dim:
    """``rest // b``, where all numbers in ``rest`` are smaller than ``b``."""
    varying = [factors for factors in rest if factors]
    called = function_of(varying[0][0]) if len(varying) == len(varying[0]) == 1 and rest[varying[0]] == 1 else None
    inner = called[1][1] if called and called[0] == "floordiv" else 0
    if called and isinstance(inner, int) and inner > 0:
        return floor_divide(add(called[1][0], inner * rest.get((), 0)), inner * b)
    return f"floordiv({dim_of(rest)}, {b})"


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two extents.

    >>> maximum(0, "min(1, seq) + seq - 1"), maximum(0, "max(0, seq - 1) - 1")
    ('seq', 'max(0, seq - 2)')
    """
    if at_least(a, b):
        return a
    if at_least(b, a):
        return b
    for one, other in ((a, b), (b, a)):
        number, more = _bound(other, "max")
        if isinstance(more, str) and at_least(one, number):
            return maximum(one, more)
    for symbol in sorted(symbols(a) | symbols(b)):
        # Is it the same without a ``min(1, symbol)``, where the symbol is 0 and where it is more?
        filled = [_without_least(d, symbol) for d in (a, b)]
        if filled != [a, b]:
            found = maximum(*filled)
            if substitute(found, {symbol: 0}) == maximum(*(substitute(d, {symbol: 0}) for d in (a, b))):
                return found
    return f"max({', '.join(sorted(map(str, (a, b))))})"


def _without_least(dim: Dim, symbol: str) -> Dim:
    """An extent with 1 for ``min(1, symbol)`` in its sum, as it is where the symbol is not 0."""
    least, form = minimum(1, symbol), form_of(dim)
    number = form.get((str(least),), 0)
    return add(subtract(dim, multiply(number, least)), number) if number else dim


def minimum(a: Dim, b: Dim) -> Dim:
    if at_least(a, b):
        return b
    return a if at_least(b, a) else f"min({', '.join(sorted(map(str, (a, b))))})"


def broadcast(*dims: str) -> str:
    """The extent that extents broadcast to, each of which may be 1: one text, whatever the order and nesting.

    Of ``min(512, seq)`` and ``seq`` it is ``seq``: were the other one 512 and smaller, they would not broadcast. So it is of
    ``min(past + 1, past + seq)`` and ``past + seq``, of ``max(1, seq)`` and ``seq``, and of ``max(0, seq - 1)`` and
    ``seq - 1``, which is an extent.

    >>> broadcast(broadcast("seq", "n"), "n"), broadcast("max(0, seq - 1) + 1", "seq")
    ('broadcast(n, seq)', 'seq')
    >>> broadcast("min(n, seq)", "seq"), broadcast("min(n + 1, seq)", "seq")
    ('broadcast(min(n, seq), seq)', 'seq')
    """
    parts: set[str] = set()
    for d in dims:
        called = operands(d, "broadcast")
        parts.update(map(str, called) if called else (d,))
    for d in sorted(parts):
        least, more = _bound(d, "max")
        if (least <= 1 and more in parts) or any(_is_first_of(d, p) or _is_short(d, p) for p in parts):
            parts.discard(d)
    return f"broadcast({', '.join(sorted(parts))})" if len(parts) > 1 else parts.pop()


def _is_first_of(dim: Dim, other: Dim) -> bool:
    """Whether an extent is ``min(k, other)``, of a ``k`` that is not 0."""
    sums = _operands_and_number(dim, "min")
    return other in sums and all(x == other or at_least(x, 1) for x in sums)


def _is_short(dim: Dim, symbol: Dim) -> bool:
    """Whether an extent is never larger than a symbol, and 1 where that is 1."""
    if dim == symbol or symbols(symbol) != frozenset({symbol}) or symbols(dim) != frozenset({symbol}):
        return False
    return at_least(symbol, dim) and substitute(dim, {str(symbol): 1}) == 1


def operands(dim: str, function: str) -> tuple[Dim, ...]:
    """The operands of an extent that is a function of some; none if it is anything else."""
    called = function_of(dim) if dim.startswith(f"{function}(") and _is_factor(dim) else None
    return called[1] if called else ()


def unbounded(dim: Dim) -> Dim:
    """``x`` of an extent that is ``max(k, x)``, plus a number perhaps, with that number; any other as it is.

    >>> unbounded("max(0, seq - 1) + 1")
    'seq'
    """
    return _bound(dim, "max")[1] or dim


def among(dim: Dim, known: Collection[Dim]) -> Dim:
    """An extent, by its name among ``known`` ones: none is negative, so ``max(0, seq - 1)`` is ``seq - 1`` beside that."""
    least, more = _bound(dim, "max")
    return more if least <= 0 and isinstance(more, str) and more in known else dim


def _bound(dim: Dim, function: str) -> tuple[int, Dim]:
    """``k`` and ``x`` of an extent that is ``min(k, x)``, or ``max(k, x)``, plus a number perhaps; (0, 0) of any other."""
    sums = _operands_and_number(dim, function)
    numbers, others = [x for x in sums if isinstance(x, int)], [x for x in sums if isinstance(x, str)]
    return (numbers[0], others[0]) if len(numbers) == len(others) == 1 else (0, 0)


def _operands_and_number(dim: Dim, function: str) -> list[Dim]:
    """Of an extent that is a function of some plus a number perhaps, each operand with that number; none of any other."""
    form = form_of(dim)
    varying = dim_of({factors: n for factors, n in form.items() if factors})
    found = operands(varying, function) if isinstance(varying, str) else ()
    return [add(x, form.get((), 0)) for x in found]


def _is_factor(dim: str) -> bool:
    form = form_of(dim)
    return len(form) == 1 and next(iter(form.items())) == ((dim,), 1)


# --- questions ------------------------------------------------------------------------------------------------------------


@cache
def at_least(a: Dim, b: Dim) -> bool:
    """Whether ``a >= b`` whatever the symbols are."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    return _never_negative(subtract(a, b))


def at_least_where(a: Dim, b: Dim, extent: Dim) -> bool:
    """Whether ``a >= b`` for all values of the symbols for which ``extent`` is one, which no negative number is.

    >>> at_least_where("seq - 1", 0, "2*seq - 1"), at_least_where("seq - 2", 0, "2*seq - 1")
    (True, False)
    """
    if at_least(a, b):
        return True
    form = form_of(extent)
    varying, number = [factors for factors in form if factors], form.get((), 0)
    if len(varying) != 1 or len(varying[0]) != 1 or function_of(varying[0][0]) or form[varying[0]] < 0 or number > 0:
        return False
    symbol = varying[0][0]
    above = {symbol: add(symbol, -(number // form[symbol,]))}  # no less than the quotient, rounded up
    return at_least(substitute(a, above), substitute(b, above))


@cache
def _never_negative(dim: Dim) -> bool:
    """Whether all terms are at least 0, or are with ``p`` or ``q``, which is no less, for a ``min(p, q)`` that is taken away,
    with each of them for a ``max(p, q)``, or with ``p / n`` for a ``floordiv(p, n)``."""
    form = form_of(dim)
    if all(number >= 0 and all(map(_is_whole, factors)) for factors, number in form.items()):
        return True
    smaller = [(n, factors[0]) for factors, n in form.items() if n < 0 and len(factors) == 1]
    enough: dict[str, Callable[[Iterable[bool]], bool]] = {"min": any, "max": all}
    return any(
        enough[called[0]](_never_negative(add(dim, multiply(n, subtract(operand, atom)))) for operand in called[1])
        if called[0] in enough
        else _never_negative_with_quotient(dim, n, atom, *called[1])
        for n, atom in smaller
        if (called := function_of(atom)) and called[0] in (*enough, "floordiv")
    )


def _never_negative_with_quotient(dim: Dim, times: int, atom: str, above: Dim, below: Dim) -> bool:
    """Whether ``dim`` is not, although ``times`` the quotient ``atom`` are subtracted: no more than before rounding."""
    if not isinstance(below, int) or below <= 0:
        return False
    rest = subtract(dim, multiply(times, atom))
    return _never_negative(add(multiply(below, rest), multiply(times, above)))


@cache
def _is_whole(factor: str) -> bool:
    """Whether a factor is at least 0: symbols are, and what is made of such; the larger of two, if one is."""
    function, parts = function_of(factor) or ("", ())
    return (any if function == "max" else all)(at_least(d, 0) for d in parts)


def differ(a: Dim, b: Dim) -> bool:
    """Whether ``a != b`` whatever the symbols are: one is larger, or a multiple of some number would be none."""
    between = form_of(subtract(a, b))
    common = math.gcd(*(number for factors, number in between.items() if factors))
    return at_least(a, add(b, 1)) or at_least(b, add(a, 1)) or (common > 1 and between.get((), 0) % common != 0)


def terms(dim: Dim) -> list[tuple[int, Monomial]]:
    """The sum that an extent is: each term a number and the factors that it is multiplied with."""
    return [(number, factors) for factors, number in sorted(form_of(dim).items(), key=lambda term: _order(term[0]))]


@cache
def symbols(dim: Dim) -> frozenset[str]:
    """The symbols that an extent is made of."""
    found: set[str] = set()
    for atom in (atom for factors in form_of(dim) for atom in factors):
        called = function_of(atom)
        found.update(*map(symbols, called[1])) if called else found.add(atom)
    return frozenset(found)


def is_nameless(dim: Dim) -> bool:
    """Whether an extent is made of one of which nothing is known."""
    return isinstance(dim, str) and "?" in dim and any(s.startswith("?") for s in symbols(dim))


def _broadcast(*numbers: int) -> int:
    return next((n for n in numbers if n != 1), 1)


_MEANING: dict[str, Callable[..., Dim]] = {"max": maximum, "min": minimum, "floordiv": floor_divide}


def substitute(dim: Dim, known: Mapping[str, int] | Mapping[str, Dim]) -> Dim:
    """An extent with numbers, or other extents, for some of its symbols and functions."""
    return _made_of(dim, known, {})


def _made_of(dim: Dim, known: Mapping[str, int] | Mapping[str, Dim], made: dict[Dim, Dim]) -> Dim:
    """``made``: extents that were looked at before. Of an image made smaller step by step each holds the one before it several
    times."""
    if isinstance(dim, int):
        return dim
    if dim not in made:
        made[dim] = total(
            reduce(multiply, (_substituted(atom, known, made) for atom in factors), number)
            for factors, number in form_of(dim).items()
        )
    return made[dim]


def _substituted(atom: str, known: Mapping[str, int] | Mapping[str, Dim], made: dict[Dim, Dim]) -> Dim:
    called = function_of(atom)
    if called is None or atom in known:
        return known.get(atom, atom)
    name, operands = called[0], [_made_of(d, known, made) for d in called[1]]
    if name != "broadcast":
        return _MEANING[name](*operands)
    numbers = [d for d in operands if isinstance(d, int)]
    texts = [d for d in operands if isinstance(d, str)]
    large = _broadcast(*numbers) if numbers else 1
    return large if large != 1 or not texts else broadcast(*texts) if len(texts) > 1 else texts[0]


def evaluate(dim: Dim, number_of: Callable[[str], int]) -> int:
    """The number that an extent is, ``number_of`` each symbol given."""
    found = substitute(dim, {s: number_of(s) for s in symbols(dim)})
    assert isinstance(found, int)
    return found
