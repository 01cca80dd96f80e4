"""Models of transformers in PyTorch, Inductor and ONNX Runtime, as they are and optimised: milliseconds, kernels, errors.

    python -m benchmarks.torch_runtimes bert llama --layers 4 --hidden 256 --length 128

Inductor has the weights as constants and joins linear layers of one input (`eqsat.fx.INDUCTOR`): the fair baseline. All take
turns in one process on one thread, timed by what they use of the CPU. Kernels are those in Inductor's code, generated ones +
calls of libraries, and for "eager, ours" those of the target. Errors are largest differences from PyTorch, as a part of the
largest output. Exit status 1 if one exceeds the tolerance.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.torch_models import MODELS, TOLERANCE, build, largest_error, milliseconds

COLUMNS = ("eager", "eager, ours", "inductor", "inductor, ours", "ort all", "ort, ours")
Call = Callable[[], Any]


def inductor_kernels(code: Sequence[str]) -> tuple[int, int]:
    """Kernels that the wrappers in Inductor's code call: generated ones, and those of libraries."""
    calls = "\n".join(source[source.index("def call(") :] for source in code if "def call(" in source)
    library = len(re.findall(r"(?:extern_kernels\.\w+|torch\.ops\.(?!inductor)[\w.]+)\(", calls))
    return len(re.findall(r"^\s*(?:cpp_fused\w*|triton_\w+\.run)\(", calls, re.MULTILINE)), library


def compile_counted(
    module: Any, inputs: Sequence[Any], named: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[int, int]]:
    """``module`` compiled by Inductor, and the kernels of its code."""
    from torch._inductor.utils import run_and_get_code

    from eqsat.fx import compiled

    function = compiled(module)
    _, code = run_and_get_code(function, *inputs, **named)
    return function, inductor_kernels(code)


def measure(name: str, layers: int, settings: dict[str, int], length: int, runs: int, target: str) -> bool:
    """Prints two lines for a model and says whether all results agree."""
    import onnx
    import torch
    from torch.utils._pytree import tree_leaves

    import eqsat
    from eqsat.backends.onnxruntime import Session
    from eqsat.frontends.torch_export import as_onnx

    torch.set_num_threads(1)
    torch.compiler.reset()
    model, draw = build(name, layers, **settings)
    named = draw(1, length)
    source = as_onnx(model, named)
    assert isinstance(source, onnx.ModelProto)
    in_torch = eqsat.optimize(source, target=target, form="flat")
    in_onnxruntime = eqsat.optimize(source)
    module = in_torch.to_torch()
    tensors = [named[v] for v in module.input_names]
    with torch.inference_mode():
        expected = [v for v in tree_leaves(model(**named)) if isinstance(v, torch.Tensor)]
        before, kernels_before = compile_counted(model, (), named)
        after, kernels_after = compile_counted(module, tensors, {})
        feeds = {v: x.numpy() for v, x in zip(module.input_names, tensors, strict=True)}
        sessions = [Session(source, "all", threads=1), Session(in_onnxruntime.to_onnx(), "all", threads=1)]
        outputs = in_torch.original.outputs
        calls: list[Call] = [
            lambda: model(**named),
            lambda: module(*tensors),
            lambda: before(**named),
            lambda: after(*tensors),
            *(lambda s=s: s.run(feeds, outputs) for s in sessions),
        ]
        errors = [largest_error(_tensors(call()), expected) for call in calls]
        taken = milliseconds(runs, *calls, clock=time.process_time)
    print(f"{name:<11} ms     ", *(f"{ms:>14.2f}" for ms in taken))
    counts = ["", "", *("{} + {}".format(*k) for k in (kernels_before, kernels_after)), "", ""]
    counts[1] = str(in_torch.program.kernel_count)
    print(f"{'':<11} kernels", *(f"{count:>14}" for count in counts))
    print(f"{'':<11} error  ", *(f"{error:>14.1e}" for error in errors), flush=True)
    return max(errors) <= TOLERANCE


def _tensors(found: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    values = found.values() if isinstance(found, dict) and type(found) is dict else tree_leaves(found)
    return [torch.as_tensor(v) for v in values if not isinstance(v, int | float | str)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="extent of the hidden values of language models")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--target", default="inductor-cpu", help="what programs for PyTorch are optimised for")
    given = parser.parse_args()
    unknown = set(given.models) - set(MODELS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(MODELS)}")
    print(" " * 19, *(f"{column:>14}" for column in COLUMNS))
    sizes = {"hidden": given.hidden}
    well = [measure(n, given.layers, sizes, given.length, given.runs, given.target) for n in given.models]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
