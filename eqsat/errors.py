"""The errors a user can cause: one class per kind, one line each, saying what, where, the values and what to do."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def nearest(name: object, known: Iterable[str]) -> str:
    """The part of a message about a name that is none of ``known`` that asks for the one most like it, if any is."""
    from difflib import get_close_matches

    near = get_close_matches(str(name), list(known), 1)
    return f"did you mean {near[0]!r}? " if near else ""


def choices(name: object, known: Iterable[str]) -> str:
    """The end of a message about a name that is none of ``known``: the one most like it, and all of them."""
    known = list(known)
    return f"{nearest(name, known)}choose one of {', '.join(known)}" if known else "there are none"


class EqsatError(Exception):
    """Base of every error that bad input causes. The command line prints it as one line and exits with status 2."""


class ModelError(EqsatError):
    """The model file is missing, unreadable, malformed or inconsistent."""


class ShapeError(ModelError):
    """Shapes or dtypes of an operator's inputs contradict its definition. ``extents``: one that does, and what it has to be, if
    the definition says so."""

    def __init__(self, message: str, extents: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.extents = extents


class ResourceError(ModelError):
    """There is too little memory, or no thread left, for a runtime to load a model, which says nothing about the model."""


class UndefinedError(ModelError):
    """The reference interpreter has no definition of an operator, whatever its operands."""


class FeedError(EqsatError):
    """Inputs given to a program do not fit its signature."""


class OptionError(EqsatError):
    """An option names something that does not exist, or has a value out of range."""


class OutputError(EqsatError):
    """The result cannot be written where it was asked for."""


class RuleError(EqsatError):
    """A rewrite rule is malformed, a duplicate, or builds a term that its own operators reject."""


class FailedRuleError(RuleError):
    """A rewrite rule fails in the middle of its work: ``rule`` is its name, and what it raised is the cause of this error."""

    def __init__(self, rule: str, cause: Exception) -> None:
        said = str(cause) if isinstance(cause, EqsatError) else f"rule {rule!r} fails: {type(cause).__name__}: {cause}"
        super().__init__(said)
        self.rule = rule


class MemoryBudgetError(EqsatError):
    """No program was found whose peak memory is within the budget; the message says by how much the best one misses it."""


class VerificationError(EqsatError):
    """Original and result disagree by more than their tolerance. The command line exits with status 1."""


class LeftOutWarning(UserWarning):
    """A result was wrong, or a rule failed, and the model was optimised again without what may have made it so."""


def as_path(given: Any, error: type[EqsatError], what: str) -> Path:
    """A path that a user gave. Raises ``error`` for what is none."""
    if not isinstance(given, str | os.PathLike) or "\0" in str(given):  # pyright: ignore[reportUnknownArgumentType]
        raise error(f"{what}: expected the path of a file, got {given!r}"[:300])
    return Path(given)  # pyright: ignore[reportUnknownArgumentType]
