"""Extents in normal form mean what was written, whatever numbers the symbols are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from eqsat.frontends.onnx.types import from_expression
from eqsat.ir import extents
from eqsat.ir.extents import (
    Dim,
    add,
    at_least,
    broadcast,
    differ,
    evaluate,
    floor_divide,
    is_nameless,
    maximum,
    minimum,
    multiply,
    quotient,
    remainder,
    substitute,
    subtract,
    symbols,
)
from eqsat.ir.normal_form import Form, symbol

SYMBOLS = ("a", "b", "past", "seq.1", "?7", "'x y'")


def _random(random: np.random.Generator, depth: int = 3) -> tuple[Dim, str]:
    """An extent that is never negative, and Python that computes it of ``s[symbol]``."""
    if depth == 0 or random.random() < 0.2:
        if random.random() < 0.4:
            number = int(random.integers(0, 5))
            return number, str(number)
        name = str(random.choice(SYMBOLS))
        return name, f"s[{name!r}]"
    (x, left), (y, right) = _random(random, depth - 1), _random(random, depth - 1)
    kind = int(random.integers(0, 7))
    if kind >= 5:
        by = int(random.integers(1, 4))
        return (floor_divide(x, by), f"({left} // {by})") if kind == 5 else (remainder(x, by), f"({left} % {by})")
    make, text = (
        (add, f"({left} + {right})"),
        (multiply, f"({left} * {right})"),
        (maximum, f"max({left}, {right})"),
        (minimum, f"min({left}, {right})"),
        (lambda a, b: maximum(subtract(a, b), 0), f"max({left} - {right}, 0)"),
    )[kind]
    return make(x, y), text


def test_arithmetic_holds_for_all_numbers() -> None:
    random = np.random.default_rng(0)
    for _ in range(400):
        dim, text = _random(random)
        for _ in range(4):
            s = {name: int(random.integers(0, 9)) for name in SYMBOLS}
            assert evaluate(dim, s.__getitem__) == eval(text, {"s": s, "max": max, "min": min}), (dim, text)
            some = {name: n for name, n in s.items() if random.random() < 0.5}
            assert evaluate(substitute(dim, some), s.__getitem__) == evaluate(dim, s.__getitem__), dim


def test_what_is_provable_holds_for_all_numbers() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        (x, _), (y, _) = _random(random, 2), _random(random, 2)
        numbers = [{name: int(random.integers(0, 6)) for name in SYMBOLS} for _ in range(6)]
        pairs = [(evaluate(x, s.__getitem__), evaluate(y, s.__getitem__)) for s in numbers]
        assert not at_least(x, y) or all(a >= b for a, b in pairs)
        assert at_least(x, minimum(x, y))
        assert not differ(x, y) or all(a != b for a, b in pairs)
        exact = quotient(x, y)
        if exact is not None:
            assert all(
                b == 0 or evaluate(exact, s.__getitem__) * b == a for (a, b), s in zip(pairs, numbers, strict=True)
            )


def test_the_same_extent_has_one_text() -> None:
    a, b = add(multiply("n", "m"), add("n", 2)), add(add(1, "n"), add(multiply("m", "n"), 1))
    assert a == b == "m*n + n + 2"
    assert subtract(add("past", "seq"), "past") == "seq"
    assert quotient(multiply("batch", multiply(12, "seq")), multiply("batch", 4)) == "3*seq"
    assert quotient(add("n", 1), 2) is None
    assert floor_divide(add(multiply(2, "n"), 5), 2) == "n + 2"
    assert minimum(add("n", 1), "n") == "n"
    assert maximum(0, subtract(minimum(64, "n"), "n")) == 0
    assert maximum(minimum("m", "n"), add("n", 1)) == "n + 1"
    assert at_least(subtract("n", floor_divide(multiply(7, "n"), 8)), 0)
    assert not at_least(subtract("n", floor_divide(multiply(9, "n"), 8)), 0)
    assert differ(multiply(3, "n"), 8)
    assert not differ("n", "m")


@pytest.mark.parametrize("number", [127, 128, 200, 8000])
def test_divisions_by_numbers_one_after_another_are_one(number: int) -> None:
    """Frames of a sound: a stack of convolutions, and what an exporter makes of the whole."""
    frames: Dim = "n"
    for window, stride in ((127, 64), (7, 3), (3, 2)):
        frames = add(floor_divide(subtract(frames, window), stride), 1)
    at_once = add(floor_divide(subtract("n", 127), 384), -1)
    assert frames == at_once == "floordiv(n + 257, 384) - 2"
    assert evaluate(frames, lambda _: number) == ((((number - 127) // 64 + 1) - 7) // 3 + 1 - 3) // 2 + 1


LAST_OF_8 = "min(-8*min(1, max(0, seq - 8)) + seq, 8)"
"""How many elements of 8 come from ``8 - seq`` on, where a negative number counts from the end."""


def test_what_broadcasts_may_be_one() -> None:
    assert broadcast("n", "m") == broadcast("m", "n") == broadcast("m", broadcast("n", "m"))
    assert broadcast(str(minimum("seq", 512)), "seq") == "seq"
    assert broadcast("min(past + 1, past + seq)", "past + seq") == "past + seq"
    assert broadcast("min(past, past + seq)", "past + seq") != "past + seq"
    assert broadcast("max(0, seq - 1) + 1", "seq") == "seq"
    assert broadcast("max(0, seq - 1) + 2", "seq") != "seq"
    assert broadcast("max(0, seq - 1)", "seq - 1") == "seq - 1"
    assert broadcast("max(2, seq - 1)", "seq - 1") != "seq - 1"
    assert broadcast(LAST_OF_8, "seq") == "seq"
    assert broadcast(str(subtract(LAST_OF_8, 1)), "seq") != "seq"
    for n, m in itertools.product((1, 3), (1, 3)):
        assert evaluate(broadcast("n", "m"), {"n": n, "m": m}.__getitem__) == max(n, m)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("batch", "batch"),
        ("past + seq", "past + seq"),
        ("seq+past", "past + seq"),
        ("((batch*seq)//batch)", "seq"),
        ("Max(1, seq)", "max(1, seq)"),
        ("floor(seq/2)", "floordiv(seq, 2)"),
        ("seq**2", "seq*seq"),
        ("seq + (Mod(8 - (Mod(seq, 8)), 8))", "-8*floordiv(7*seq, 8) + 8*seq"),
        ("((seq + (PythonMod(8 - (PythonMod(seq, 8)), 8)))//8)", "-floordiv(7*seq, 8) + seq"),
        ("Mod(seq, past)", "'Mod(seq, past)'"),
        ("other + seq", "'other + seq'"),
        ("batch-size", "batch-size"),
        ("a b", "'a b'"),
        ("7", "'7'"),
        ("2*3", "'2*3'"),
        ("?3", "'?3'"),
    ],
)
def test_names_in_files_are_read_as_expressions_of_symbols_that_inputs_have(text: str, found: Dim) -> None:
    assert from_expression(text, frozenset(("batch", "seq", "past", "batch-size"))) == found


def test_an_input_may_have_an_expression_itself() -> None:
    names = frozenset(("past", "seq", "past + seq", "other + seq"))
    assert from_expression("past + seq", names) == "past + seq"
    assert symbols(from_expression("past + seq", names)) == {"past", "seq"}
    assert symbols(from_expression("other + seq", names)) == {"'other + seq'"}


def test_names_that_read_as_something_else_are_quoted() -> None:
    assert symbol("seq_len.1") == "seq_len.1"
    for name in ("a b", "2", "a*b", "?1", "max(a)", "-n"):
        quoted = symbol(name)
        assert symbols(add(quoted, multiply("n", quoted))) == {quoted, "n"}
        assert not is_nameless(quoted)
    assert is_nameless(add("n", "?5"))


def test_terms_are_sums_of_products() -> None:
    dim = add(multiply(2, multiply("n", "m")), add("n", 3))
    values = {"n": 4, "m": 5}
    assert sum(k * math.prod(values[f] for f in factors) for k, factors in extents.terms(dim)) == 47


def test_what_an_extent_holds_several_times_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of images that are padded and made smaller at each of several steps: texts that double, trees of 2**11 leaves."""
    extent: Dim = "height"
    for _ in range(11):
        extent = maximum(floor_divide(extent, 2), floor_divide(add(extent, 5), 3))
    looked_at: list[Dim] = []
    form_of = extents.form_of

    def counted(dim: Dim) -> Form:
        looked_at.append(dim)
        return form_of(dim)

    monkeypatch.setattr(extents, "form_of", counted)
    expected = 1000
    for _ in range(11):
        expected = max(expected // 2, (expected + 5) // 3)
    assert symbols(extent) == {"height"}
    assert evaluate(extent, lambda _: 1000) == expected
    assert len(looked_at) < 11 * 20


def test_what_was_proved_of_two_extents_is_not_proved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape rules ask the same of each node behind an image that is cut into windows, each time they are asked for a price."""
    halved = floor_divide(add("height", 1), 2)
    assert at_least(add("height", 1), halved)
    monkeypatch.setattr(extents, "form_of", None)
    assert at_least("height + 1", halved)
