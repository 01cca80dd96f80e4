"""The tables of docs/tvm_cases.md: every case of TVM's once, each with a test that exists or a reason, and the right sums."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tvm_cases.md").read_text()

CASES = {
    "FoldScaleAxis": 18,
    "CombineParallelDense, -Conv2D, -BatchMatmul": 7 + 4 + 2,
    "Relax CombineParallelMatmul": 10,
    "FakeQuantizationToInteger": 58,
    "SimplifyExpr": 24,
    "SimplifyInference": 1,
    "Relax patterns": 58,
    "Relax rewriters": 27,
    "Relay patterns": 90,
}
"""How many tests TVM's modules have."""

RESULTS = ("as TVM", "offered", "in part", "right", "not", "does not apply")
WITHOUT_TEST = ("not", "does not apply")


@dataclass(frozen=True)
class Row:
    case: str
    tests: tuple[str, ...]
    result: str
    remark: str


def section(family: str) -> str:
    return TEXT.split(f"\n## {family}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """Cells of the rows behind the heading of a table."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def rows(family: str) -> list[Row]:
    found = []
    for case, tests, result, remark in table(section(family)):
        name = case.strip("`")
        named = tuple(re.findall(r"`(\w+)`", tests))
        default = () if result in WITHOUT_TEST else (name.split(".")[-1],)
        found.append(Row(name, named or default, result, remark))
    return found


def functions(family: str) -> set[str]:
    """Tests of the modules that the section names."""
    heading = section(family).split("|")[0]
    paths = re.findall(r"`(tests/[\w/]+\.py)`", heading)
    trees = [ast.parse((ROOT / path).read_text()) for path in paths]
    return {
        n.name for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
    }


@pytest.mark.parametrize("family", CASES)
def test_every_case_is_listed_once(family: str) -> None:
    names = [row.case for row in rows(family)]
    assert len(names) == len(set(names)) == CASES[family]


@pytest.mark.parametrize("family", CASES)
def test_every_case_has_a_test_or_a_reason(family: str) -> None:
    known = functions(family)
    for row in rows(family):
        assert row.result in RESULTS, row
        assert set(row.tests) <= known, row
        assert bool(row.tests) != (row.result in WITHOUT_TEST), row
        assert row.remark or row.result == "as TVM", row


def test_sums_are_right() -> None:
    found = {family: [int(n) for n in numbers] for family, *numbers in table(section("Sums"))}
    expected = {}
    for family in CASES:
        results = Counter(row.result for row in rows(family))
        expected[family] = [sum(results.values()), *(results[r] for r in RESULTS)]
    assert found == expected
