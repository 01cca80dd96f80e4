"""docs/rules.md says of each family of rules where it is and how exact: held to the registry."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import eqsat.rules
from eqsat.rewrite import registered_rules

ROOT = Path(eqsat.rules.__file__).parents[1]
TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
TABLE = TEXT.split("\n|---|---|---|---|\n")[1].split("\n\n")[0]
ROWS = [[cell.strip() for cell in line[1:-1].split("|")] for line in TABLE.splitlines()]
ROOMS = [room.name for room in iter_modules(eqsat.rules.__path__) if room.ispkg]
SHIPPED = [rule for rule in registered_rules() if rule.family != "user"]


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def test_every_module_with_rules_has_a_row() -> None:
    assert {name for _, modules, *_ in ROWS for name in _quoted(modules)} >= {rule.family for rule in SHIPPED}


@pytest.mark.parametrize(("family", "modules", "classes", "missing"), ROWS, ids=lambda text: text[:40])
def test_rows_name_modules_that_exist_and_classes_of_their_rules(
    family: str, modules: str, classes: str, missing: str
) -> None:
    known = {rule.exactness.name.lower() for rule in SHIPPED if rule.family in _quoted(modules)}
    assert {c for c in classes.split(", ") if c} <= known, family


def test_named_parts_exist() -> None:
    rules = {rule.name for rule in registered_rules()}
    for name in _quoted(TEXT) - {"eqsat"} - rules:
        if name.split(".")[0] in ROOMS:
            import_module(f"eqsat.rules.{name}")
        else:
            assert re.fullmatch(r"docs|tests|\w+", name), name
    for name in re.findall(r"\*(\w+)\*", TEXT):
        assert (ROOT / name).is_dir(), name


@pytest.mark.parametrize("room", ROOMS)
def test_the_theory_of_a_room_says_what_each_module_holds(room: str) -> None:
    package = import_module(f"eqsat.rules.{room}")
    assert {module.name for module in iter_modules(package.__path__)} <= _quoted(package.__doc__ or "")
    assert room in _quoted(eqsat.rules.__doc__ or "")
