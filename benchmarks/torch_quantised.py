"""Models of transformers that torchao quantises, in PyTorch, Inductor and ours: milliseconds and errors.

    python -m benchmarks.torch_quantised bert llama --scheme int8 --layers 2 --hidden 256 --length 128     # needs torchao

Ours is what ``torch.compile(model, backend="eqsat")`` gives. Inductor is the fairest there is, as in `benchmarks.torch_runtimes`,
of the float32 model and of the quantised one. All take turns in one process on one thread, timed by what they use of the CPU.
Errors are largest differences, as a part of the largest output: of what quantising does, and of ours from the quantised model
in PyTorch, where single values may be rounded to the integer beside. At the end are geometric means over the models. Exit status
1 if a graph fell back, rules were left out, or ours is further from the quantised model than that is from the one in float32.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.torch_models import build, fallbacks_of, largest_error, milliseconds, parsed
from benchmarks.torch_runtimes import parser_of, print_ratios, sizes_of, tuned_on_one_thread

SCHEMES = {
    "int8": ("Int8DynamicActivationInt8WeightConfig", {}),
    "int8-weights": ("Int8WeightOnlyConfig", {}),
    "int4": ("Int8DynamicActivationIntxWeightConfig", {"weight_dtype": "int4", "weight_granularity": 32}),
    "int4-weights": ("IntxWeightOnlyConfig", {"weight_dtype": "int4", "granularity": 32}),
}
"""Configurations of ``torchao.quantization.quantize_``: activations and weights, or weights alone; a number is the length of the
groups that share a scale."""

COLUMNS = ("inductor", "torch, int", "inductor, int", "ours, int")
_FLOAT, _INDUCTOR, _OURS = 0, 2, 3


def quantised(model: Any, scheme: str) -> Any:
    """A copy of the model, its linear layers quantised."""
    import torch
    from torchao import quantization

    name, stated = SCHEMES[scheme]
    made = {
        k: getattr(torch, v) if isinstance(v, str) else quantization.PerGroup(v) if isinstance(v, int) else v
        for k, v in stated.items()
    }
    found = copy.deepcopy(model)
    quantization.quantize_(found, getattr(quantization, name)(**made))
    return found


def measure(name: str, scheme: str, sizes: dict[str, int], length: int, runs: int) -> list[float] | None:
    """Prints a line for a model; its milliseconds by column, ``None`` where results do not agree or a graph fell back."""
    import torch

    torch.compiler.reset()
    plain, draw = build(name, **sizes)
    model, inputs = quantised(plain, scheme), draw(1, length)
    with torch.inference_mode(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exact, expected = plain(**inputs), model(**inputs)
        compiled = [torch.compile(plain), model, torch.compile(model), torch.compile(model, backend="eqsat")]
        calls: list[Callable[[], Any]] = [lambda f=f: f(**inputs) for f in compiled]
        lost, moved = largest_error(expected, exact), largest_error(calls[_OURS](), expected)
        taken = milliseconds(runs, *calls, clock=time.process_time)
    fallbacks = fallbacks_of(said)
    print(f"{name:<12}", *(f"{ms:>14.2f}" for ms in taken), f"{lost:>10.1e}{moved:>10.1e}", *fallbacks, flush=True)
    return None if fallbacks or moved > lost else taken


def main() -> int:
    parser = parser_of(__doc__, runs=15)
    parser.add_argument("--scheme", choices=SCHEMES, default="int8")
    given = parsed(parser)
    print(" " * 12, *(f"{column:>14}" for column in COLUMNS), f"{'quantising':>10}{'ours':>10}")
    with tuned_on_one_thread():
        measured = {
            name: measure(name, given.scheme, sizes_of(given), given.length, given.runs) for name in given.models
        }
    well = {name: taken for name, taken in measured.items() if taken is not None}
    if well:
        for title, column in (("inductor, int", _INDUCTOR), ("inductor in float32", _FLOAT)):
            print_ratios(f"{title} over ours", {name: taken[column] / taken[_OURS] for name, taken in well.items()})
    return 0 if len(well) == len(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
