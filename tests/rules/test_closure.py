"""What follows from what is known: the same as by asking every step again until nothing is new."""

from __future__ import annotations

import random

import pytest

from eqsat.rules.terms import closure


@pytest.mark.parametrize("seed", range(20))
def test_closure_is_what_no_step_adds_to(seed: int) -> None:
    draw = random.Random(seed)
    steps = [
        (draw.choices(range(40), k=draw.randrange(4)), draw.choices(range(40), k=draw.randrange(3)))
        for _ in range(draw.randrange(60))
    ]
    expected = set(draw.sample(range(40), 5))
    start, size = set(expected), -1
    while size < len(expected):
        size = len(expected)
        for needed, added in steps:
            if expected.issuperset(needed):
                expected.update(added)
    assert closure(start, steps) == expected
