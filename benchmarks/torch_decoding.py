"""Decoders, a token at a time with a static cache of keys and values, in PyTorch and Inductor, as they are and optimised.

    python -m benchmarks.torch_decoding llama gpt2
    python -m benchmarks.torch_decoding llama gpt2 --length 128 --device cuda --dtype float16 --mode reduce-overhead

What ``model.generate(..., cache_implementation="static")`` runs for each token. ``--length``: tokens in the cache before. Each
column has a cache of its own; medians of milliseconds, all in turn, on one thread where it is the CPU. ``mode`` is that of
``torch.compile``, of both compilers. Errors are largest differences from PyTorch, as a part of the largest output, over all
tokens. Exit status 1 if a graph fell back or an error is above the tolerance of the type.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.torch_models import TOLERANCES, build, fallbacks_of, finished, largest_error, milliseconds, parsed
from benchmarks.torch_runtimes import parser_of, print_ratios

COLUMNS = ("torch", "inductor", "ours")
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "gpt2", "gpt_neox", "falcon", "bloom", "opt")
_WARM = 4
"""Tokens before any is timed."""


def steps(model: Any, function: Any, length: int, count: int) -> Callable[[], Any]:
    """Each call: the next of ``count`` tokens behind ``length`` others, by ``function``, the model or what was compiled of it."""
    import torch
    from transformers import StaticCache

    device = next(model.parameters()).device
    tokens = torch.arange(length + count, device=device)[None] * 7 % 89 + 3
    cache = StaticCache(config=model.config, max_cache_len=length + count)
    model(input_ids=tokens[:, :length], past_key_values=cache, use_cache=True)
    rest = iter(tokens[0, length:])
    return lambda: function(input_ids=next(rest).view(1, 1), past_key_values=cache, use_cache=True).last_hidden_state


def measured(name: str, given: Any) -> tuple[list[float], list[float], list[str]]:
    """Milliseconds and errors by column, and what was said of graphs that fell back."""
    import torch

    model, _ = build(name, given.layers, given.hidden)
    model = model.to(given.device, getattr(torch, given.dtype))
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        functions = [
            model,
            *(torch.compile(model, backend=b, mode=given.mode, dynamic=False) for b in ("inductor", "eqsat")),
        ]
        calls = [steps(model, function, given.length, given.runs + _WARM + 1) for function in functions]
        errors = [0.0] * len(calls)
        for _ in range(_WARM):
            expected = calls[0]().clone()
            errors[1:] = [
                max(e, largest_error(call(), expected)) for e, call in zip(errors[1:], calls[1:], strict=True)
            ]
        taken = milliseconds(given.runs, *map(finished, calls))
    return taken, errors, fallbacks_of(said)


def main() -> int:
    parser = parser_of(__doc__, runs=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCES)
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.set_defaults(models=DECODERS, length=64)
    given = parsed(parser)
    import torch

    torch.set_num_threads(1)
    print(f"{'':<12}", *(f"{column:>10}" for column in COLUMNS), f"{'errors':>10}")
    ratios: dict[str, list[float]] = {column: [] for column in COLUMNS[:2]}
    well = True
    with torch.no_grad():
        for name in given.models:
            taken, errors, fallbacks = measured(name, given)
            shown = (f"{e:>10.1e}" for e in errors[1:])
            print(f"{name:<12}", *(f"{t:>10.3f}" for t in taken), *shown, *fallbacks, flush=True)
            for found, time in zip(ratios.values(), taken, strict=False):
                found.append(time / taken[-1])
            well &= not fallbacks and errors[-1] <= TOLERANCES[given.dtype]
    for column, found in ratios.items():
        print_ratios(f"{column} over ours", dict(zip(given.models, found, strict=True)))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
