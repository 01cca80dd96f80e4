"""Functions beside the commands of the same names that have no package of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from eqsat.frontends import load, resolve
from eqsat.growth import Progress, watched
from eqsat.options import AllOptions, Options, takes_options
from eqsat.pipeline import optimize

if TYPE_CHECKING:
    from eqsat.inspection import Inspection
    from eqsat.result import Result
    from eqsat.speed.bench import Bench
    from eqsat.verification import Verification


def inspect(
    source: Any,
    dims: Mapping[str, int | str] | None = None,
    *,
    nodes: bool = False,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
) -> Inspection:
    """Operators, kernels, work and bytes of a model, and what the optimiser will not touch, and why.

    ``source``: as for `eqsat.optimize`; ``dims``: extents of symbolic dimensions by name; ``nodes``: list the nodes, too. Raises
    `ModelError`.
    """
    from eqsat.inspection import inspect_graph

    graph = load(source, dims, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes)
    return inspect_graph(graph, str(source) if isinstance(source, str | Path) else graph.name, nodes=nodes)


def verify(
    original: Any,
    candidate: Any,
    *,
    runs: int = 3,
    seed: int = 0,
    feeds: Sequence[Mapping[str, np.ndarray] | str | Path] | None = None,
) -> Verification:
    """Checks that two models compute the same, within the first one's own sensitivity to single roundings, measured.

    ``original``, ``candidate``: sources as for `eqsat.optimize`. They run ``runs`` times on random inputs of the right kind drawn
    from ``seed``, or once on each of ``feeds``, mappings or ``.npz`` files. The verdict is in the result: nothing is raised where
    they differ. Raises `ModelError` for a model that cannot be read or has other inputs or outputs than the first, `FeedError`
    for feeds that do not fit.
    """
    from eqsat.verification import verify_models

    Options.of({"verification_runs": runs, "seed": seed, "feeds": feeds})
    return verify_models(resolve(original), resolve(candidate), runs=runs, seed=seed, feeds=feeds)


@takes_options(AllOptions)
def bench(
    model: str | Path,
    *others: str | Path,
    engines: str | Sequence[str] | None = None,
    precision: str = "f32",
    levels: Sequence[str] = ("disable", "basic", "extended", "all"),
    runs: int = 7,
    processes: int = 3,
    threads: int = 2,
    profile: bool = False,
    progress: Progress | None = None,
    **options: Unpack[AllOptions],
) -> Bench:
    """Times a model file beside the same model optimised, or beside other files as they are, in several processes.

    By default in ONNX Runtime: ``levels`` says how far it rewrites the models itself, ``profile`` what each kernel of the
    result took. ``engines``: in these (``onnxruntime``, ``openvino``, ``inductor``, or ``"all"``) instead, each in processes of
    its own, with the program optimised for it; once more with floats multiplied in bfloat16 where ``precision`` is ``bf16``.
    ``runs``: timed runs of each in each of ``processes``, with ``threads`` each. Unless stated, programs are not verified. Raises
    `ModelError` and `OptionError` for bad input.
    """
    from eqsat.errors import ModelError, OptionError, as_path
    from eqsat.speed.bench import bench_files, bench_model
    from eqsat.speed.contest import Protocol, check_levels

    protocol = Protocol(runs, processes, threads)
    protocol.check()
    check_levels(levels)
    path, *more = (as_path(m, ModelError, "model to be timed") for m in (model, *others))
    chosen = Options.of({"verify": False, **options})
    notify = watched(progress)
    given: dict[str, Any] = {"protocol": protocol, "levels": levels, "progress": notify}
    if engines is not None or precision != "f32":
        from eqsat.speed.engines import race

        if others or profile:
            raise OptionError("engines: time one model and the programs for it; a profile is of ONNX Runtime alone")
        chosen_engines = "all" if engines is None else engines
        return race(path, chosen_engines, chosen, precision=precision, protocol=protocol, progress=notify).bench
    if not others:
        return bench_model(path, chosen, profile=profile, **given)
    if profile:
        raise OptionError("a profile needs a program of ours: give one model only")
    return bench_files([path, *more], chosen, **given)


def optimize_for(source: Any, engine: str | None, *, progress: Progress, **options: Unpack[AllOptions]) -> Result:
    """`eqsat.optimize` for one engine, for the fastest of several, or of all (``auto``); for none in particular by default."""
    if engine is None:
        return optimize(source, progress=progress, **options)
    from eqsat.speed.engines import engine_names, options_for

    first, *others = engine_names("all" if engine == "auto" else engine)
    if others:
        return fastest(source, (first, *others), progress=progress, **options)
    return optimize(source, progress=progress, **vars(options_for(first, Options.of(options))))


@takes_options(AllOptions)
def fastest(
    source: Any,
    engines: str | Sequence[str] = "all",
    *,
    runs: int = 7,
    processes: int = 3,
    threads: int = 2,
    progress: Progress | None = None,
    **options: Unpack[AllOptions],
) -> Result:
    """Optimises a model for each engine, times original and programs in each, and returns the program that is fastest.

    ``engines``, ``runs``, ``processes``, ``threads``: as for `bench`. The report says which engine it is, and what the others
    took. Raises as `eqsat.optimize` does.
    """
    from eqsat.speed.contest import Protocol
    from eqsat.speed.engines import fastest as run

    protocol = Protocol(runs, processes, threads)
    return run(source, Options.of(options), engines, protocol=protocol, progress=watched(progress))
