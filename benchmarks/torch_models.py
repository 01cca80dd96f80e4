"""Models of transformers with random weights through ``torch.compile(model, backend="eqsat")``, against PyTorch itself.

    python -m benchmarks.torch_models                 # all of them, two sizes each
    python -m benchmarks.torch_models bert llama --layers 4 --time 11

Each model is called with a first size, for which Dynamo captures a graph of fixed shapes, and with a second, for which it
captures one of symbolic shapes. Exit status 1 if an output differs by more than the tolerance or a graph fell back to PyTorch.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

TOLERANCE = 2e-5
"""Largest difference from PyTorch, as a part of the largest output: float32, a few layers."""

Sizes = tuple[int, int]


def _tokens(batch: int, length: int) -> dict[str, Any]:
    import torch

    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    return {"input_ids": torch.randint(0, 99, (batch, length)), "attention_mask": mask}


def _pixels(batch: int, _: int) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(batch, 3, 64, 64)}


_BERT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 99}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "use_cache": False, "max_position_embeddings": 128}

MODELS: dict[str, tuple[str, dict[str, Any], str, Callable[[int, int], dict[str, Any]]]] = {
    "bert": ("Bert", _BERT, "num_hidden_layers", _tokens),
    "roberta": ("Roberta", {**_BERT, "pad_token_id": 1}, "num_hidden_layers", _tokens),
    "distilbert": (
        "DistilBert",
        {"dim": 64, "n_heads": 4, "hidden_dim": 128, "vocab_size": 99},
        "n_layers",
        _tokens,
    ),
    "albert": ("Albert", {**_BERT, "embedding_size": 32}, "num_hidden_layers", _tokens),
    "gpt2": (
        "GPT2",
        {"n_embd": 64, "n_head": 4, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 1, "use_cache": False},
        "n_layer",
        _tokens,
    ),
    "llama": ("Llama", _LLAMA, "num_hidden_layers", _tokens),
    "mistral": ("Mistral", _LLAMA, "num_hidden_layers", _tokens),
    "qwen2": ("Qwen2", _LLAMA, "num_hidden_layers", _tokens),
    "t5": (
        "T5Encoder",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "vocab_size": 99},
        "num_layers",
        _tokens,
    ),
    "vit": (
        "ViT",
        {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64, "patch_size": 16},
        "num_hidden_layers",
        _pixels,
    ),
    "resnet": (
        "ResNet",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "basic"},
        "",
        _pixels,
    ),
}
"""Name -> class of transformers without ``Model``, its configuration, the key of its number of layers, and its inputs."""


WIDTHS = {"hidden_size": 1, "intermediate_size": 4, "dim": 1, "hidden_dim": 4, "n_embd": 1, "d_model": 1, "d_ff": 4}
"""Keys of configurations that are multiples of the extent of hidden values."""


def build(name: str, layers: int, hidden: int = 0) -> tuple[Any, Callable[[int, int], dict[str, Any]]]:
    """The model with random weights, ready for inference, and what draws its inputs for a batch and a length.

    ``hidden``: another extent of its hidden values than in `MODELS`.
    """
    import torch
    import transformers

    prefix, settings, depth, draw = MODELS[name]
    settings = {k: WIDTHS[k] * hidden if hidden and k in WIDTHS else v for k, v in settings.items()}
    torch.manual_seed(0)
    config_of = getattr(transformers, f"{prefix.removesuffix('Encoder')}Config")
    config = config_of(**settings, **({depth: layers} if depth else {}))
    return getattr(transformers, f"{prefix}Model")(config).eval(), draw


def largest_error(found: Any, expected: Any) -> float:
    """Largest difference over all tensors in two outputs of a model, each as a part of its largest element."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        scale = max(float(expected.abs().max()), 1e-6)
        return float((found - expected).abs().max()) / scale
    if isinstance(expected, Mapping):
        return max((largest_error(found[k], v) for k, v in expected.items()), default=0.0)
    if isinstance(expected, tuple | list):
        return max((largest_error(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)
    assert found == expected
    return 0.0


def milliseconds(runs: int, *calls: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Median of each call by a clock, all taking turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):
        for found, call in zip(taken, calls, strict=True):
            start = clock()
            call()
            found.append(1e3 * (clock() - start))
    return [statistics.median(found[1:]) for found in taken]


def measure(name: str, layers: int, sizes: tuple[Sizes, ...], runs: int) -> bool:
    """Prints a line for each size of a model and says whether all is well."""
    import torch

    from eqsat.dynamo import FallbackWarning

    model, draw = build(name, layers)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eqsat")
    well = True
    for size in sizes:
        inputs = draw(*size)
        with torch.inference_mode(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            expected = model(**inputs)
            start = time.perf_counter()
            found = compiled(**inputs)
            seconds = time.perf_counter() - start
            error = largest_error(found, expected)
            eager, ours = milliseconds(runs, lambda: model(**inputs), lambda: compiled(**inputs))  # noqa: B023
        fallbacks = [str(w.message) for w in said if issubclass(w.category, FallbackWarning)]
        well &= not fallbacks and error <= TOLERANCE
        cells = f"{name:<12} {size[0]:>5} x {size[1]:<5} {error:>9.1e} {len(fallbacks):>9} {seconds:>9.1f}"
        print(f"{cells} {eager:>9.2f} {ours:>9.2f}", *fallbacks, sep="\n    ", flush=True)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--time", type=int, default=5, metavar="RUNS", help="timed runs of each")
    given = parser.parse_args()
    unknown = set(given.models) - set(MODELS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(MODELS)}")
    names = ("error", "fallbacks", "compile s", "torch ms", "ours ms")
    print(f"{'model':<11} batch x length", *(f"{name:>9}" for name in names))
    well = [measure(name, given.layers, ((1, 16), (3, 24)), given.time) for name in given.models]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
