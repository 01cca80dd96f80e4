"""Files with rules of one's own: read, and their rules checked, as a whole or not at all."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path

from eqsat import rewrite
from eqsat.errors import EqsatError, OptionError, RuleError
from eqsat.rewrite import AnyRule

_LOADED: dict[Path, tuple[str, ...]] = {}


def load_rules(path: str | Path) -> tuple[AnyRule, ...]:
    """Runs a Python file that registers rules (``@eqsat.rule``, ``@eqsat.group_rule``) and returns those rules.

    Each is checked by random instances as it is registered. A file that is loaded again replaces the rules it made before.
    Raises `OptionError` for a file that cannot be read and `RuleError` for one that fails, with the line, or that registers
    nothing; then none of its rules stays registered.
    """
    import eqsat.rules  # noqa: F401  # the shipped ones come first, so that what is new is the file's

    path = Path(path)
    if not path.is_file():
        raise OptionError(f"rules {path}: no such file")
    for name in _LOADED.pop(path.resolve(), ()):
        rewrite.unregister(name)
    before = {r.name for r in rewrite.registered_rules()}
    try:
        runpy.run_path(str(path))
        made = _since(before)
        if not made:
            raise RuleError("registers no rule; state one with eqsat.equation, or decorate one with @eqsat.rule")
    except Exception as error:
        for found in _since(before):
            rewrite.unregister(found.name)
        said = " ".join(str(error).split())
        kind = "" if isinstance(error, EqsatError) else f"{type(error).__name__}: "
        raise RuleError(f"rules {path}{_line(path, error)}: {kind}{said}") from error
    _LOADED[path.resolve()] = tuple(r.name for r in made)
    return made


def _since(before: set[str]) -> tuple[AnyRule, ...]:
    return tuple(r for r in rewrite.registered_rules() if r.name not in before)


def _line(path: Path, error: Exception) -> str:
    """Where in the file an error arose."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
