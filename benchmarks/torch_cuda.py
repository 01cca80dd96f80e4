"""Models of PyTorch on a GPU in PyTorch and Inductor, as they are and optimised: kernels, microseconds, errors.

    python -m benchmarks.torch_cuda bert llama --dtype float16 --layers 2 --hidden 256 --length 128 --image 224 --processes 8

Ours is what ``torch.compile(model, backend="eqsat")`` gives there: the program in Inductor. Inductor alone has the same
configuration: weights as constants, linear layers of one input joined. ``--scheme``: of models that torchao quantises. Kernels
are those that the GPU runs for one call, copies included (PyTorch's profiler). ``called``: microseconds of the call, waiting for
its end; ``replayed``: of a CUDA graph of it, which leaves out what Python takes to launch kernels. Medians, all in turn, one
process at a time. Models are compiled in several processes at once. Errors are largest differences from the model in float32, as
a part of its largest output. Exit status 1 if a graph fell back, rules were left out, or an error is above the tolerance of
float32 and more than twice that of PyTorch itself.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.torch_models import (
    TOLERANCES,
    build,
    fallbacks_of,
    finished,
    largest_error,
    milliseconds,
    parsed,
    placed,
)
from benchmarks.torch_quantised import SCHEMES, quantised
from benchmarks.torch_runtimes import parser_of, print_ratios, sizes_of

COLUMNS = ("torch", "inductor", "inductor, ours")
_INDUCTOR, _OURS = 1, 2
Call = Callable[[], Any]


@dataclass
class Row:
    """Of one model, by column: kernels that the GPU ran by name, microseconds of a call and of a CUDA graph's replay (NaN where
    it cannot be captured), and errors. ``fallbacks``: what was said of graphs that ran as they are."""

    name: str
    kernels: list[Counter[str]]
    called: list[float]
    replayed: list[float]
    errors: list[float]
    fallbacks: list[str]


@dataclass
class Compiled:
    """A model, ready to be timed; ``calls`` by column."""

    name: str
    calls: list[Call]
    errors: list[float]
    fallbacks: list[str]

    def timed(self, runs: int) -> Row:
        graphs = [_captured(call) for call in self.calls]
        called = milliseconds(runs, *(finished(call) for call in self.calls))
        replayed = milliseconds(runs, *(finished(graph or (lambda: None)) for graph in graphs))
        return Row(
            self.name,
            [_kernels(call) for call in self.calls],
            [1e3 * ms for ms in called],
            [1e3 * ms if graph else float("nan") for ms, graph in zip(replayed, graphs, strict=True)],
            self.errors,
            self.fallbacks,
        )


def compiled(
    name: str, sizes: dict[str, int], length: int, dtype: Any, scheme: str | None, options: dict[str, Any]
) -> Compiled:
    """The model compiled in every way, quantised by a ``scheme`` of `benchmarks.torch_quantised` if one is given. ``options`` are
    those of the backend."""
    import torch

    model, draw = build(name, **sizes)
    _draw_vectors(model)
    inputs = draw(1, length)
    exact = model(**inputs)
    model, inputs = model.to("cuda", dtype), placed(inputs, "cuda", dtype)
    model = model if scheme is None else quantised(model, scheme)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        functions = [
            model,
            torch.compile(model, backend="inductor", dynamic=False),
            torch.compile(model, backend="eqsat", dynamic=False, options=options),
        ]
        calls: list[Call] = [lambda f=f: f(**inputs) for f in functions]
        errors = [largest_error(placed(call(), "cpu", torch.float32), exact) for call in calls]
    return Compiled(name, calls, errors, fallbacks_of(said))


def _draw_vectors(model: Any) -> None:
    """Biases and scales as training leaves them: zeros and ones, which models start with, would be removed."""
    import torch

    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += 0.02 * torch.randn_like(parameter)


def _captured(call: Call) -> Call | None:
    """The replay of a CUDA graph of a call, ``None`` where it cannot be captured, as when the GPU has to be waited for."""
    import torch

    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            kept = call()
        torch.cuda.synchronize()
    except Exception as error:  # torch raises what it likes
        print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return None
    return lambda: (graph.replay(), kept)[0]


def _kernels(call: Call) -> Counter[str]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return Counter(e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA)


@dataclass(frozen=True)
class Work:
    """What each process is told: how to build models and compile them, how often to run each call, and whose turn it is."""

    sizes: dict[str, int]
    length: int
    dtype: str
    scheme: str | None
    runs: int
    options: dict[str, Any]
    threads: int
    wait: float
    ready: Any
    turn: Any
    found: Any

    def measure(self, names: Sequence[str]) -> None:
        """Compiles models beside other processes, then times them alone; puts a `Row` or a traceback for each."""
        import torch
        from torch._inductor import config

        from eqsat.fx import INDUCTOR

        torch.backends.cudnn.allow_tf32 = False
        models: list[Compiled] = []
        with config.patch({**INDUCTOR, "compile_threads": self.threads}), torch.no_grad():
            for name in names:
                try:
                    dtype = getattr(torch, self.dtype)
                    models.append(compiled(name, self.sizes, self.length, dtype, self.scheme, self.options))
                except Exception:  # the others may work
                    self.found.put((name, traceback.format_exc()))
            with contextlib.suppress(threading.BrokenBarrierError):  # another process has died, or takes longer
                self.ready.wait(self.wait)
            with self.turn:
                for model in models:
                    try:
                        self.found.put((model.name, model.timed(self.runs)))
                    except Exception:  # the others may work
                        self.found.put((model.name, traceback.format_exc()))


def _print(row: Row, *, names: bool) -> None:
    cells = [[k.total() for k in row.kernels], [round(t, 1) for t in row.called], [round(t, 1) for t in row.replayed]]
    for title, values in zip(("kernels", "called", "replayed"), cells, strict=True):
        print(f"{row.name:<12} {title:<8}", *(f"{value:>14}" for value in values))
    print(f"{row.name:<12} {'error':<8}", *(f"{error:>14.1e}" for error in row.errors), *row.fallbacks, flush=True)
    if names:
        for title, kernels in zip(COLUMNS, row.kernels, strict=True):
            print(f"    {title}:", *(f"{count} x {name[:100]}" for name, count in kernels.items()), sep="\n        ")


def _summarise(rows: Sequence[Row]) -> None:
    """Geometric means of Inductor's time over ours, and where ours is slower or has more kernels."""
    for title in ("called", "replayed"):
        taken = {row.name: getattr(row, title) for row in rows}
        ratios = {n: r for n, t in taken.items() if (r := t[_INDUCTOR] / t[_OURS]) == r}
        if ratios:
            print_ratios(f"{title}: inductor over ours", ratios)
    counts = {row.name: [k.total() for k in row.kernels] for row in rows}
    sums = [sum(found[c] for found in counts.values()) for c in (_INDUCTOR, _OURS)]
    more = [f"{name} {k[_INDUCTOR]} -> {k[_OURS]}" for name, k in counts.items() if k[_OURS] > k[_INDUCTOR]]
    print(f"kernels: {sums[0]} -> {sums[1]}; more:", *more or ["none"])


def main() -> int:
    parser = parser_of(__doc__, runs=50)
    parser.add_argument("--dtype", default="float16", choices=TOLERANCES)
    parser.add_argument("--scheme", choices=SCHEMES, help="quantise the models so (needs torchao)")
    parser.add_argument("--names", action="store_true", help="list the kernels, too")
    parser.add_argument("--target", help="of the optimiser; by default the one that suits the device")
    parser.add_argument(
        "--wait", type=float, default=300, help="seconds that models wait for others to be compiled, too"
    )
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    given = parsed(parser)
    context = multiprocessing.get_context("spawn")
    count = min(given.processes, len(given.models))
    work = Work(
        sizes_of(given),
        given.length,
        given.dtype,
        given.scheme,
        given.runs,
        {"verify": False, **({"target": given.target} if given.target else {})},
        max(1, (os.cpu_count() or 1) // count),
        given.wait,
        context.Barrier(count),
        context.Lock(),
        found := context.Queue(),
    )
    processes = [context.Process(target=work.measure, args=(given.models[k::count],)) for k in range(count)]
    for process in processes:
        process.start()
    print(" " * 21, *(f"{column:>14}" for column in COLUMNS))
    rows: list[Row] = []
    failed = 0
    while len(rows) + failed < len(given.models):
        try:
            name, row = found.get(timeout=5)
        except queue.Empty:
            if any(process.is_alive() for process in processes):
                continue
            break
        if isinstance(row, Row):
            rows.append(row)
            _print(row, names=given.names)
        else:
            failed += 1
            print(f"{name}: {row}", flush=True)
    for process in processes:
        process.join()
    if rows:
        _summarise(rows)
    well = [not row.fallbacks and row.errors[_OURS] <= max(2 * row.errors[0], TOLERANCES["float32"]) for row in rows]
    return 0 if all(well) and len(rows) == len(given.models) else 1


if __name__ == "__main__":
    sys.exit(main())
