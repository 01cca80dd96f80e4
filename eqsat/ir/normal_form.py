"""The normal form of extents that are not numbers: text, and the sum of products that it is."""

import re
from functools import cache

Dim = int | str
Monomial = tuple[str, ...]
Form = dict[Monomial, int]
"""Coefficients by the factors, sorted, that each is multiplied with."""

FUNCTIONS = ("broadcast", "floordiv", "max", "min")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|[^\s*(),']+|[*(),]| [+-] |\s+")


def symbol(name: str) -> str:
    """The extent that a model calls ``name``: the name itself, in quotes where that would read as something else."""
    plain = re.fullmatch(r"[^\s*(),'?\-\d\"\\][^\s*(),'\"\\]*", name)
    return name if plain else repr(name)


@cache
def form_of(dim: Dim) -> Form:
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    try:
        form, rest = _sum(_TOKEN.findall(dim.removeprefix("-")), -1 if dim.startswith("-") else 1)
    except IndexError:
        return {(dim,): 1}  # no normal form: a symbol, whatever it is
    return {(dim,): 1} if rest else form


def _sum(tokens: list[str], sign: int) -> tuple[Form, list[str]]:
    form, tokens = _product(tokens, sign)
    while tokens and tokens[0] in (" + ", " - "):
        more, rest = _product(tokens[1:], 1 if tokens[0] == " + " else -1)
        form, tokens = plus(form, more), rest
    return form, tokens


def _product(tokens: list[str], sign: int) -> tuple[Form, list[str]]:
    number, factors = sign, list[str]()
    while True:
        head, tokens = tokens[0], tokens[1:]
        if head.isdecimal():
            number *= int(head)
        elif tokens and tokens[0] == "(":
            inside, tokens = _bracket(tokens)
            factors.append(head + inside)
        else:
            factors.append(head)
        if not tokens or tokens[0] != "*":
            return ({tuple(sorted(factors)): number} if number else {}), tokens
        tokens = tokens[1:]


def _bracket(tokens: list[str]) -> tuple[str, list[str]]:
    """The text up to the bracket that closes the first one, and what follows."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            return "".join(tokens[: i + 1]), tokens[i + 1 :]
    raise IndexError("an open bracket")


@cache
def function_of(atom: str) -> tuple[str, tuple[Dim, ...]] | None:
    """The function, one of `FUNCTIONS`, and operands that a factor is made of; ``None`` for a symbol.

    >>> function_of("floordiv(seq + 1, 2)")
    ('floordiv', ('seq + 1', 2))
    """
    name, bracket, inside = atom.partition("(")
    if not bracket or name not in FUNCTIONS:
        return None
    operands: list[str] = [""]
    depth = 0
    for token in _TOKEN.findall(inside[:-1]):
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            operands.append("")
        else:
            operands[-1] += token
    return name, tuple(int(o) if re.fullmatch(r"-?\d+", o) else o for o in map(str.strip, operands))


def dim_of(form: Form) -> Dim:
    if not form:
        return 0
    if len(form) == 1 and () in form:
        return form[()]
    text = ""
    for factors, number in sorted(form.items(), key=lambda term: (-len(term[0]), term[0])):
        size = "*".join((str(abs(number)),) * (abs(number) != 1 or not factors) + factors)
        text += (" - " if number < 0 else " + ") + size
    return text.removeprefix(" + ") if text.startswith(" +") else "-" + text.removeprefix(" - ")


def plus(a: Form, b: Form, factor: int = 1) -> Form:
    """``a + factor * b``"""
    found = dict(a)
    for factors, number in b.items():
        found[factors] = found.get(factors, 0) + factor * number
    return {factors: number for factors, number in found.items() if number}


def times(a: Form, b: Form) -> Form:
    found: Form = {}
    for x, n in a.items():
        for y, m in b.items():
            factors = tuple(sorted(x + y))
            found[factors] = found.get(factors, 0) + n * m
    return {factors: number for factors, number in found.items() if number}
