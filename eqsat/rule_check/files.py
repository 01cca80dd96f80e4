"""Files with rules of one's own: read, and their rules checked, as a whole or not at all."""

import os
import runpy
import traceback
from pathlib import Path

from eqsat import rewrite
from eqsat.errors import EqsatError, OptionError, RuleError, as_path
from eqsat.ir.operator import defined_operators, undefine
from eqsat.rewrite import AnyRule
from eqsat.rule_check.operators import check_operator

_LOADED: dict[Path, tuple[set[str], set[str]]] = {}
"""Names of the rules and of the operators that a file registered."""


def load_rules(path: str | Path) -> tuple[AnyRule, ...]:
    """Runs a Python file that registers rules (``eqsat.equation``, ``@eqsat.rule``, ``@eqsat.group_rule``) and returns them.

    The file may define operators, too, or nothing else (`eqsat.ir.composite`). Each rule is checked by random instances as it is
    registered, and so are those that follow from the traits of an operator; operators themselves are, too
    (`eqsat.rule_check.operators`). A file that is loaded again replaces what it made before. Raises `OptionError` for a file
    that cannot be read and `RuleError` for one that fails, with the line, or that registers nothing; then nothing of it stays
    registered.
    """
    import eqsat.rules  # pyright: ignore[reportUnusedImport]  # noqa: F401  # the shipped ones come first, so that what is new is the file's

    path = as_path(path, OptionError, "rules")
    if not os.path.isfile(path):
        wrong = "is a folder; give a file" if os.path.isdir(path) else "no such file, or none that you may read"
        raise OptionError(f"rules {path}: {wrong}")
    _take_back(*_LOADED.pop(path.resolve(), (set(), set())))
    rules, operators = _registered()
    try:
        runpy.run_path(str(path))
        made = _registered()[0] - rules, _registered()[1] - operators
        if not any(made):
            raise RuleError("registers nothing; state a rule with eqsat.equation, or decorate one with @eqsat.rule")
        _check_consequences(made[0])
        for key in sorted(made[1]):
            check_operator(key)
    except (Exception, SystemExit) as error:  # a file that ends the process ends its own work, not ours
        _take_back(_registered()[0] - rules, _registered()[1] - operators)
        said = " ".join(str(error).split())
        kind = "" if isinstance(error, EqsatError) else f"{type(error).__name__}: "
        raise RuleError(f"rules {path}{_line(path, error)}: {kind}{said}") from error
    _LOADED[path.resolve()] = made
    return tuple(r for r in rewrite.registered_rules() if r.name in made[0])


def _check_consequences(names: set[str]) -> None:
    """Tries the rules that follow from the traits of the operators: those of the file itself have passed their check."""
    from eqsat.rule_check.check import check_rule

    for found in rewrite.registered_rules():
        if found.name in names and found.family != "user":
            check_rule(found, must_fire=False)


def _registered() -> tuple[set[str], set[str]]:
    """Names of the rules, keys of the operators."""
    return {r.name for r in rewrite.registered_rules()}, set(defined_operators())


def _take_back(rules: set[str], operators: set[str]) -> None:
    for name in rules:
        rewrite.unregister(name)
    for key in operators:
        undefine(key)


def _line(path: Path, error: BaseException) -> str:
    """Where in the file an error arose."""
    if isinstance(error, SyntaxError):
        return "" if error.lineno is None else f":{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
