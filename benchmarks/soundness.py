"""Whole-e-graph soundness: every spelling of every value of random graphs, evaluated and compared with its e-class.

    python -m benchmarks.soundness [--graphs 10000] [--models 5] [--seed 0] [--processes 2] [--optimize]

Half of the graphs are random networks (`benchmarks.random_graphs`), half are instances of the left side of one rule after the
other; small versions of every model family (`benchmarks.small_models`) come first, each with several draws of its weights and
inputs. All rules run on each. Prints graphs, e-nodes compared, rules that fired and violations; the exit status is 1 if there
are any.

``--optimize``: each is optimised for ONNX Runtime instead, with and without its own operators, and verified at all its levels:
what its kernels and its optimiser make of a program is no part of the e-graph. Half of the random networks are quantised then.
What is drawn goes to the ends of the range of floats, where not all that is reported is an error of a rule.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain
from multiprocessing import Pool

import eqsat
import eqsat.rules  # registers the shipped rules
from benchmarks.random_graphs import random_graph
from benchmarks.rule_trials import instance_of
from benchmarks.small_models import names, small_model
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph
from eqsat.errors import EqsatError, LeftOutWarning, VerificationError
from eqsat.ir.interpret import run
from eqsat.rewrite import registered_rules
from eqsat.samples import Instance, Sampler

_EVERY = 4
"""Each so many graphs that are optimised are quantised."""

LIMITS = Limits(time_s=60.0, nodes=20_000)

Outcome = tuple[int, dict[str, int], list[str]]
"""E-nodes compared, matches by rule, what is wrong."""


def check(number: int, seed: int = 0) -> Outcome:
    """Saturates graph ``number`` with all rules and evaluates every e-node."""
    instance = _instance(number, seed)
    return (0, {}, []) if instance is None else _checked(f"graph {number}", instance)


def check_model(name: str, seed: int = 0) -> Outcome:
    """The same for the small version of a model family."""
    return _checked(f"{name}, seed {seed}", small_model(name, seed))


def check_optimized(which: int | str, seed: int = 0) -> Outcome:
    """Optimises a graph, or the small version of a model family, for ONNX Runtime, and verifies the results at all levels."""
    quantised = isinstance(which, int) and which % _EVERY == _EVERY - 1
    instance = _instance(which, seed, quantised) if isinstance(which, int) else small_model(which, seed)
    if instance is None:
        return 0, {}, []
    enodes, fired, wrong = 0, dict[str, int](), list[str]()
    for form in ("onnxruntime", "flat"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", LeftOutWarning)
            try:
                report = eqsat.optimize(instance.graph, form=form, verify="full").report
                enodes += report.enodes
                fired |= {name: found["matches"] for name, found in report.rules.items() if found["matches"]}
            except (LeftOutWarning, VerificationError) as error:
                wrong.append(f"{which}, seed {seed}, {form}: {error}\n{instance.graph}")
    return enodes, fired, wrong


def _checked(label: str, instance: Instance) -> Outcome:
    encoding = encode(instance.graph)
    try:
        result = saturate(encoding.egraph, registered_rules(), LIMITS)
    except EqsatError as error:
        return len(encoding.egraph.nodes), {}, [f"{label}: {error}\n{instance.graph}"]
    wrong = [str(violation) for violation in check_egraph(encoding, instance.feeds)]
    if result.stop_reason is not StopReason.SATURATED:
        wrong.append(f"not saturated: {result.stop_reason.value}")
    fired = {name: n for name, n in result.matches.items() if n}
    return len(encoding.egraph.nodes), fired, [f"{label}: {text}\n{instance.graph}" for text in wrong]


def _instance(number: int, seed: int, quantised: bool = False) -> Instance | None:
    """What is drawn for a number; ``None`` if that is no graph: shapes that do not broadcast, a mirror of an empty axis."""
    try:
        if number % 2:
            instance = random_graph(1_000_000 * seed + number, quantised=quantised)
        else:
            rules = registered_rules()
            instance = instance_of(rules[number // 2 % len(rules)], Sampler(1_000_000 * seed + number))
        run(instance.graph, instance.feeds)
    except (EqsatError, ValueError, IndexError):
        return None
    return instance


def _check_with(arguments: tuple[int | str, int], optimize: bool = False) -> Outcome:
    """``arguments``: the number of a graph or the name of a family, and a seed."""
    which, seed = arguments
    if optimize:
        return check_optimized(which, seed)
    return check(which, seed) if isinstance(which, int) else check_model(which, seed)


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=5, help="draws of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--optimize", action="store_true", help="optimise and verify each in ONNX Runtime")
    options = parser.parse_args(None if arguments is None else list(arguments))
    start = time.perf_counter()
    graphs, enodes, fired, wrong = 0, 0, Counter[str](), list[str]()
    with Pool(options.processes) as pool:
        models = [(name, options.models * options.seed + n) for name in names() for n in range(options.models)]
        work = chain(models, ((number, options.seed) for number in range(options.graphs)))
        for count, matches, messages in pool.imap_unordered(
            partial(_check_with, optimize=options.optimize), work, chunksize=5
        ):
            enodes += count
            graphs += count > 0
            fired.update(matches)
            wrong += messages
    for message in sorted(wrong)[:20]:
        print(message)
    rules = registered_rules()
    print(
        f"{options.graphs} graphs and {len(models)} small models, {enodes} e-nodes, "
        f"{len(fired)} of {len(rules)} rules fired, {len(wrong)} violations"
    )
    print(f"{time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
