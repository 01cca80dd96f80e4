"""From a graph to the saturated e-graph that programs are extracted from."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eqsat.cost.target import Target
from eqsat.egraph.encode import encode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.saturate import Limits, Saturation, saturate
from eqsat.egraph.snapshot import take_snapshot
from eqsat.errors import OptionError
from eqsat.exactness import Exactness
from eqsat.extraction import Saturated
from eqsat.ir.graph import Graph
from eqsat.lower.shared_weights import without_shares_apart
from eqsat.options import Options
from eqsat.rewrite import AnyRule, select_rules

if TYPE_CHECKING:
    from eqsat.placement import Annotated, Machine

Progress = Callable[[str, str], None]
"""Called with (stage, detail) as the work proceeds."""


def silent(stage: str, detail: str) -> None:
    """Progress that nobody watches."""


def watched(progress: Progress | None) -> Progress:
    """What is told how far the work is; by default nobody. Raises `OptionError` for what is no function."""
    if progress is None:
        return silent
    if not callable(progress):  # pyright: ignore[reportUnnecessaryComparison]  # a user's
        raise OptionError(f"progress is {progress!r}; expected a function of a stage and a detail")
    return progress


@dataclass(frozen=True)
class Growth:
    """What saturation made of a graph. ``kept``: the graph with the values to keep as outputs; ``annotated``: the same with
    its devices, if it has any. ``seconds``: of the stages ``encode``, ``saturate`` and ``analyse``. ``in_vain``: rules that it
    does without because they gained nothing in a part of the graph."""

    kept: Graph
    annotated: Annotated | None
    saturated: Saturated
    saturation: Saturation
    rules: Sequence[AnyRule]
    seconds: dict[str, float]
    in_vain: Sequence[AnyRule] = ()


@dataclass(frozen=True)
class RuleScope:
    """What a target says about rules. Targets of equal scope share a saturated e-graph.

    ``domains``: domains beside the default one whose operators the program may use, or single operators of one.
    ``unsupported``: operators that rules are to spell out, or may, for another processor would run them.
    """

    domains: frozenset[str]
    unsupported: frozenset[str]


def rule_scope(targets: Sequence[Target], form: str) -> RuleScope:
    """The scope of the targets of a machine: operators of a domain may be used if one of them has kernels for them, unless they
    are a runtime's that a file of this form does not name, and that it does not make of pairs. Those of any other domain are
    spelled out in the file, if the model did not have them."""
    from eqsat.backends.onnx_form import FORMS

    runtimes = frozenset[str]().union(*(domains for _, domains in FORMS.values()))
    domains = frozenset[str]().union(*(t.domains for t in targets)) - (runtimes - FORMS[form][1])
    domains = domains.union(*(t.from_pairs for t in targets))
    return RuleScope(domains, frozenset[str]().union(*(t.unsupported | t.left_to_cpu for t in targets)))


def grow(graph: Graph, options: Options, scope: RuleScope, notify: Progress, machine: Machine | None = None) -> Growth:
    """Encodes and saturates a graph, with the devices of ``machine`` if given, by the rules that ``options`` allow and that
    are in ``scope``."""
    import eqsat.rules  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers the shipped rules

    numerics = Exactness.parse(options.numerics)
    rules = select_rules(
        numerics,
        only=options.only_rules,
        disabled=options.rules_left_out,
        domains=scope.domains,
        unsupported=scope.unsupported,
        also=options.rules_added,
    )
    seconds: dict[str, float] = {}
    with timed(seconds, "encode"):
        kept = keeping(graph, options.keep)
        annotated = None
        if machine is not None:
            from eqsat.placement import annotate

            annotated = annotate(kept, options.devices, machine)
        encoding = encode(annotated.graph if annotated else kept, fold_inexact=numerics >= Exactness.ROUNDING)
    with timed(seconds, "saturate"):
        notify("saturate", "")
        limits = Limits(options.time_limit_s, options.node_limit, memory_bytes=options.memory_limit_bytes)
        saturation = saturate(
            encoding.egraph, rules, limits, lambda i, n: notify("saturate", f"iteration {i}, {n} e-nodes")
        )
    with timed(seconds, "analyse"):
        snapshot = without_shares_apart(encoding, take_snapshot(encoding.egraph))
    classes = {r.name: r.exactness for r in rules} | {FOLD_EXACT: Exactness.EXACT, FOLD_INEXACT: Exactness.ROUNDING}
    saturated = Saturated(encoding, snapshot, classes, scope.domains, options.file_form, options.reader)
    return Growth(kept, annotated, saturated, saturation, rules, seconds)


def keeping(graph: Graph, keep: Sequence[str]) -> Graph:
    """The graph with the values in ``keep`` as additional outputs."""
    defined = graph.producers()
    for name in keep:
        if name not in defined and name not in graph.inputs:
            raise OptionError(f"value {name!r} to keep does not exist in the model")
    extra = tuple(n for n in dict.fromkeys(keep) if n not in graph.outputs)
    return replace(graph, outputs=graph.outputs + extra) if extra else graph


@contextmanager
def collector_off() -> Generator[None]:
    """Switches the cyclic garbage collector off: the stages allocate many small objects and next to no cycles, and the
    collector would walk all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Generator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
