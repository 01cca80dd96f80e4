"""Models of transformers in PyTorch, Inductor and ONNX Runtime, as they are and optimised: milliseconds, kernels, errors.

    python -m benchmarks.torch_runtimes bert llama --layers 2 --hidden 256 --length 128 --image 224

Ours is what ``torch.compile(model, backend="eqsat")`` gives, with each runtime. Inductor is the fairest there is: weights as
constants, linear layers of one input joined, kernels tried out (`eqsat.fx.TUNED`). All take turns in one process on one thread,
timed by what they use of the CPU. Kernels are those in Inductor's code, generated ones + calls of libraries. Errors are largest
differences from PyTorch, as a part of the largest output. At the end are geometric means over the models. Exit status 1 if an
error exceeds the tolerance, a graph fell back or rules were left out.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.torch_models import KNOWN, MODELS, TOLERANCES, build, fallbacks_of, largest_error, milliseconds, parsed

COLUMNS = ("torch", "torch, ours", "inductor", "inductor, ours", "ort", "ort, ours")
_INDUCTOR, _INDUCTOR_OURS, _DEFAULT = 2, 3, 5
Call = Callable[[], Any]


def inductor_kernels(code: Sequence[str]) -> tuple[int, int]:
    """Kernels that the wrappers in Inductor's code call: generated ones, and those of libraries."""
    calls = "\n".join(source[source.index("def call(") :] for source in code if "def call(" in source)
    library = len(re.findall(r"(?:extern_kernels\.\w+|torch\.ops\.(?!inductor)[\w.]+)\(", calls))
    return len(re.findall(r"^\s*(?:cpp_\w+|triton_\w+\.run)\(", calls, re.MULTILINE)), library


def measure(
    name: str, sizes: dict[str, int], length: int, runs: int
) -> tuple[list[float], list[tuple[int, int]]] | None:
    """Prints three lines for a model; its milliseconds by column and Inductor's kernels before and after, ``None`` where
    results do not agree, a graph fell back or rules were left out."""
    import torch
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    model, draw = build(name, **sizes)
    inputs = draw(1, length)
    calls: list[Call] = [lambda: model(**inputs)]
    kernels: list[tuple[int, int]] = []
    with torch.inference_mode(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = model(**inputs)
        for runtime in ("eager", "", "inductor"):
            options = {"backend": "eqsat", "options": {"runtime": runtime}} if runtime else {"backend": "inductor"}
            function = torch.compile(model, **options)
            _, code = run_and_get_code(function, **inputs)
            kernels += [inductor_kernels(code)] if code else []
            calls.append(lambda f=function: f(**inputs))
        calls.append(_in_onnxruntime(model, inputs))
        function = torch.compile(model, backend="eqsat")
        calls.append(lambda f=function: f(**inputs))
        errors = [largest_error(_like(call(), expected), expected) for call in calls]
        taken = milliseconds(runs, *calls, clock=time.process_time)
    fallbacks = fallbacks_of(said)
    print(f"{name:<12} ms     ", *(f"{ms:>14.2f}" for ms in taken))
    counts = ["", "", *("{} + {}".format(*k) for k in kernels), "", ""]
    print(f"{'':<12} kernels", *(f"{count:>14}" for count in counts))
    print(f"{'':<12} error  ", *(f"{error:>14.1e}" for error in errors), *fallbacks, flush=True)
    return None if fallbacks or max(errors) > TOLERANCES["float32"] else (taken, kernels)


def _in_onnxruntime(model: Any, inputs: dict[str, Any]) -> Call:
    """The export as it is, at ONNX Runtime's highest level: what it returns are its outputs in order."""
    from eqsat.backends.onnxruntime import Session
    from eqsat.backends.torch_tensors import to_array
    from eqsat.frontends.torch_export import as_onnx

    source: Any = as_onnx(model, inputs)
    session = Session(source, "all", threads=1)
    feeds = {v.name: to_array(inputs[v.name]) for v in source.graph.input}
    outputs = [v.name for v in source.graph.output]
    return lambda: session.run(feeds, outputs)


def _like(found: Any, expected: Any) -> Any:
    """Arrays by name as the tensors of a model's output."""
    import torch

    if type(found) is not dict:
        return found
    tensors = [k for k, v in expected.items() if isinstance(v, torch.Tensor)]
    return {**expected, **dict(zip(tensors, map(torch.as_tensor, found.values()), strict=True))}


def _summarise(found: dict[str, tuple[list[float], list[tuple[int, int]]]]) -> None:
    """Geometric means of Inductor's time over ours, and where ours is slower or has more kernels."""
    for columns in ((_INDUCTOR_OURS,), (_DEFAULT,), (_INDUCTOR_OURS, _DEFAULT)):
        ratios = {name: taken[_INDUCTOR] / min(taken[c] for c in columns) for name, (taken, _) in found.items()}
        print_ratios(f"inductor over {' or '.join(COLUMNS[c] for c in columns)}", ratios)
    more = [f"{name} {sum(k[0])} -> {sum(k[1])}" for name, (_, k) in found.items() if sum(k[0]) < sum(k[1])]
    print("more kernels:", *more or ["none"])


def print_ratios(title: str, ratios: Mapping[str, float]) -> None:
    """The geometric mean over models, the least, and the models where the ratio is below 1."""
    slower = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio < 1]
    mean = statistics.geometric_mean(ratios.values())
    print(f"{title}: {mean:.2f}, least {min(ratios.values()):.2f}; below 1:", *slower or ["none"])


def parser_of(description: str | None, *, runs: int) -> argparse.ArgumentParser:
    """Arguments that say which models of `MODELS` are measured, by default those of transformers, of what sizes and how often."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS], metavar="MODEL", help=", ".join(KNOWN))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256, help="extent of the hidden values")
    parser.add_argument("--image", type=int, default=224, help="extent of images")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--runs", type=int, default=runs)
    return parser


def sizes_of(given: argparse.Namespace) -> dict[str, int]:
    """The sizes that models are built with."""
    return {"layers": given.layers, "hidden": given.hidden, "image": given.image}


@contextmanager
def tuned_on_one_thread() -> Generator[None]:
    """Inductor at its best, of the whole process: Dynamo does not look at the options of one compilation."""
    import torch
    from torch._inductor import config, select_algorithm

    from eqsat.fx import TUNED

    torch.set_num_threads(1)
    select_algorithm.PRINT_AUTOTUNE = False
    with config.patch(dict(TUNED)):
        yield


def main() -> int:
    given = parsed(parser_of(__doc__, runs=15))
    print(" " * 20, *(f"{column:>14}" for column in COLUMNS))
    sizes = sizes_of(given)
    with tuned_on_one_thread():
        measured = {name: measure(name, sizes, given.length, given.runs) for name in given.models}
    well = {name: found for name, found in measured.items() if found is not None}
    if well:
        _summarise(well)
    return 0 if len(well) == len(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
