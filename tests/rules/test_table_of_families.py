"""docs/rules.md says of each family of rules where it is and how exact: held to the registry."""

from __future__ import annotations

import re
from pathlib import Path

import eqsat.rules
from eqsat.rewrite import registered_rules

ROOT = Path(eqsat.rules.__file__).parents[1]
TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
CELLS = [[cell.strip() for cell in line[1:-1].split("|")] for line in TEXT.splitlines() if re.match(r"\| E\d", line)]
ROWS = {family: rest for family, *rest in CELLS}
FAMILIES = {f"E{i}" for i in range(1, 41)} | {"E10b"}


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_family_has_a_row() -> None:
    assert ROWS.keys() == FAMILIES
    assert {rule.family for rule in registered_rules() if rule.build.__module__.startswith("eqsat.rules.")} <= FAMILIES


def test_rows_name_the_modules_and_classes_of_their_rules() -> None:
    shipped = [rule for rule in registered_rules() if rule.build.__module__.startswith("eqsat.rules.")]
    for family, (_, modules, classes, _) in ROWS.items():
        rules = [rule for rule in shipped if rule.family == family]
        if rules:
            assert _quoted(modules) == {rule.build.__module__.rpartition(".")[2] for rule in rules}, family
        assert {c for c in classes.split(", ") if c} == {rule.exactness.name.lower() for rule in rules}, family


def test_named_parts_exist() -> None:
    rules = {rule.name for rule in registered_rules()}
    for name in _quoted(TEXT) - {"eqsat"} - rules:
        assert (ROOT / "rules" / f"{name}.py").exists(), name
    for name in re.findall(r"\*(\w+)\*", TEXT):
        assert (ROOT / name).is_dir(), name
