"""What a verification found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from eqsat.errors import VerificationError
from eqsat.verification.compare import Judgement

EQUAL, WITHIN, FAILED, NOT_RUN, NOT_JUDGED = "equal", "within tolerance", "failed", "not run", "not judged"


@dataclass
class Verification:
    """Verdict on a program or a pair of models.

    ``verdict``: ``equal`` (bit by bit), ``within tolerance``, ``failed``, ``not run`` (the reason is in ``notes``) or
    ``not judged`` (rules were used that promise no equality). ``outputs``: by output the largest absolute error over all
    runs, the same relative to the output's largest element, the mean absolute error, and the tolerance of the run with
    the largest error. ``levels``: for each level of ONNX Runtime at which both were run, the largest absolute error of any
    output and its tolerance. ``bytes_compared``: of outputs and of what kernels compute, over all runs. ``failures``: one line
    for each output and kernel that disagrees; ``wrong_kernels``: those of the latter, with the rules that they rest on.
    """

    verdict: str = NOT_RUN
    runs: int = 0
    outputs: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    kernels_checked: int = 0
    kernels_unchanged: int = 0
    bytes_compared: int = 0
    levels: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    failures: list[str] = field(default_factory=list[str])
    wrong_kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        """Whether nothing disagreed. (A verification that did not run has not passed.)"""
        return self.verdict in (EQUAL, WITHIN)

    def add(self, part: Verification) -> None:
        """Takes over what was found of kernels, or at levels."""
        self.kernels_checked += part.kernels_checked
        self.kernels_unchanged += part.kernels_unchanged
        self.bytes_compared += part.bytes_compared
        self.levels |= part.levels
        self.failures += part.failures
        self.wrong_kernels += part.wrong_kernels
        self.notes += part.notes

    def record(self, output: str, judgement: Judgement) -> None:
        """Takes note of one output of one run."""
        found = judgement.distance
        unknown = math.inf if found.misfit else 0.0
        entry = self.outputs.setdefault(
            output,
            {"max_abs_error": 0.0, "max_rel_error": 0.0, "mean_abs_error": 0.0, "tolerance": judgement.tolerance},
        )
        if max(found.max_abs, unknown) > entry["max_abs_error"]:
            entry["max_abs_error"] = max(found.max_abs, unknown)
            entry["tolerance"] = judgement.tolerance
        entry["max_rel_error"] = max(entry["max_rel_error"], found.max_rel, unknown)
        entry["mean_abs_error"] = max(entry["mean_abs_error"], found.mean_abs, unknown)

    def __str__(self) -> str:
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        lines = [
            {
                EQUAL: f"The outputs are equal bit by bit in {runs}.",
                WITHIN: f"The outputs agree within tolerance in {runs}.",
                NOT_JUDGED: f"The outputs were compared in {runs}, and not judged.",
                FAILED: "The outputs differ.",
                NOT_RUN: "The models were not compared.",
            }[self.verdict]
        ]
        for name, entry in self.outputs.items():
            if entry["max_abs_error"]:
                error, relative, allowed = (entry[k] for k in ("max_abs_error", "max_rel_error", "tolerance"))
                lines.append(
                    f"  {name}: largest error {error:.3g}, {relative:.3g} of the largest element; {allowed:.3g} is allowed"
                )
        return "\n".join([*lines, *(f"  {text}" for text in (*self.failures, *self.notes))])

    def require(self) -> None:
        """Raises `VerificationError` with the first failure if the verdict is ``failed``."""
        if self.verdict == FAILED:
            first, *others = self.failures
            more = f" (and {len(others)} more)" if others else ""
            raise VerificationError(first + more)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        return {
            "verdict": self.verdict,
            "runs": self.runs,
            "outputs": _in_json(self.outputs),
            "kernels_checked": self.kernels_checked,
            "kernels_unchanged": self.kernels_unchanged,
            "bytes_compared": self.bytes_compared,
            "levels": _in_json(self.levels),
            "failures": self.failures,
            "notes": self.notes,
        }


def _in_json(entries: dict[str, dict[str, float]]) -> dict[str, dict[str, float | str]]:
    """``entries``, with text for infinity and NaN, which JSON has no numbers for."""
    return {name: {k: v if math.isfinite(v) else str(v) for k, v in entry.items()} for name, entry in entries.items()}
