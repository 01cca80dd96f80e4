"""What a wrong result may rest on: it is left out, and the model optimised again.

A rule that is wrong somewhere, or fails, costs a user that rule, not the model. Kernels that do not compute what the original
does name the rules of the proofs that they are right: of those, the rules of the weakest class go first, for they promise least.
Where only outputs differ, rules have to be of a stronger class in the next attempt, and where all are exact, be others: a runtime
may have made something else of what they left. What users say about rules is left as it is: with rules of their own in the
result, or only some allowed, they want to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eqsat.errors import FailedRuleError
from eqsat.exactness import Exactness
from eqsat.options import Options
from eqsat.result import Result
from eqsat.rewrite import AnyRule, find_rule

if TYPE_CHECKING:
    from eqsat.verification import Verification

ATTEMPTS, _BY_KERNELS = 5, 3
"""How often a model is optimised, at most, and how many of these attempts go by the rules of kernels before classes do."""


@dataclass(frozen=True)
class Suspects:
    """``rules`` to do without, or, if there are none, the weakest class that rules may have, ``numerics``. ``because``: what was
    wrong with them, or how one failed."""

    rules: tuple[str, ...]
    numerics: str
    because: str

    def left_out_of(self, options: Options) -> Options:
        """``options`` without them."""
        return replace(options, numerics=self.numerics, disabled_rules=(*options.disabled_rules, *self.rules))

    def __str__(self) -> str:
        return f"{', '.join(self.rules) or f'rules of a weaker class than {self.numerics}'}: {self.because}"

    def to_dict(self) -> dict[str, Any]:
        """For the report."""
        return {"rules": list(self.rules), "numerics": self.numerics, "because": self.because}


def failed(error: FailedRuleError, options: Options, attempt: int) -> Suspects | None:
    """The rule that failed in the ``attempt``-th attempt; ``None`` if the user should know first, or nothing helps."""
    if not _may_do_without([find_rule(error.rule)], options, attempt):
        return None
    return Suspects((error.rule,), options.numerics, str(error))


def suspects(result: Result, found: Verification, options: Options, attempt: int) -> Suspects | None:
    """What to do without after the ``attempt``-th attempt, whose result was ``found`` to be wrong; ``None`` as for `failed`."""
    known = {rule.name: rule for rule in result.rules}
    used = {name for kernel in result.program.kernels for name in kernel.rules} & known.keys()
    if not _may_do_without(map(known.__getitem__, used), options, attempt):
        return None
    weakest = {name for _, rules in found.wrong_kernels for name in _of_weakest_class(rules, known)}
    if weakest and attempt <= _BY_KERNELS:
        return Suspects(tuple(sorted(weakest)), options.numerics, found.wrong_kernels[0][0])
    if result.program.exactness is Exactness.EXACT:
        return Suspects(tuple(sorted(used)), options.numerics, found.failures[0]) if used else None
    return Suspects((), Exactness(result.program.exactness - 1).label, found.failures[0])


def _may_do_without(rules: Iterable[AnyRule], options: Options, attempt: int) -> bool:
    return attempt < ATTEMPTS and options.only_rules is None and all(rule.family != "user" for rule in rules)


def _of_weakest_class(names: Sequence[str], known: Mapping[str, AnyRule]) -> list[str]:
    """Those of the weakest class; what was folded without a rule has no name to leave it out by."""
    rules = [known[name] for name in names if name in known]
    weakest = max((rule.exactness for rule in rules), default=None)
    return [rule.name for rule in rules if rule.exactness is weakest]
