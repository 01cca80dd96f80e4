"""docs/rules.md says of each family of rules where it is and how exact: held to the registry."""

from __future__ import annotations

import re
from pathlib import Path

import eqsat.rules
from eqsat.rewrite import AnyRule, registered_rules

ROOT = Path(eqsat.rules.__file__).parents[1]
TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
CELLS = [[cell.strip() for cell in line[1:-1].split("|")] for line in TEXT.splitlines() if re.match(r"\| E\d", line)]
ROWS = {family: rest for family, *rest in CELLS}
FAMILIES = {f"E{i}" for i in range(1, 41)} | {"E10b"}


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


SHIPPED = [rule for rule in registered_rules() if rule.build.__module__.startswith("eqsat.")]


def _module(rule: AnyRule) -> str:
    """The module of a rule among the shipped ones: that of its function, or the family of an equation."""
    return rule.build.__module__.rpartition(".")[2] if "eqsat.rules." in rule.build.__module__ else rule.family


def test_every_family_has_a_row() -> None:
    assert ROWS.keys() == FAMILIES


def test_rows_name_the_modules_and_classes_of_their_rules() -> None:
    modules = {_module(rule) for rule in SHIPPED}
    named = {name: _quoted(cells[1]) for name, cells in ROWS.items()}
    assert set().union(*named.values()) >= modules
    for family, (_, _, classes, _) in ROWS.items():
        known = {rule.exactness.name.lower() for rule in SHIPPED if _module(rule) in named[family]}
        assert {c for c in classes.split(", ") if c} <= known, family


def test_named_parts_exist() -> None:
    rules = {rule.name for rule in registered_rules()}
    for name in _quoted(TEXT) - {"eqsat"} - rules:
        assert (ROOT / "rules" / f"{name}.py").exists(), name
    for name in re.findall(r"\*(\w+)\*", TEXT):
        assert (ROOT / name).is_dir(), name
