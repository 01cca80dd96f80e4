"""Models of transformers, timm and torchvision with random weights through ``torch.compile(model, backend="eqsat")``, against
PyTorch itself.

    python -m benchmarks.torch_models                 # all of them, two sizes each
    python -m benchmarks.torch_models bert llama --layers 4 --time 11
    python -m benchmarks.torch_models timm/vit torchvision/resnet18
    python -m benchmarks.torch_models --device cuda --dtype float16

Each model is called with a first size, for which Dynamo captures a graph of fixed shapes, and with a second, for which it
captures one of symbolic shapes. Exit status 1 if an output differs by more than the tolerance, a graph fell back to PyTorch or
rules were left out.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCES = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest difference from PyTorch, as a part of the largest output, of a few layers."""

Sizes = tuple[int, int]
Inputs = dict[str, Any]


def _tokens(batch: int, length: int, _: int) -> Inputs:
    import torch

    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, (length + 1) // 2 :] = 0
    mask[1:2, : length // 4] = 0  # of a second sequence on the left, where its first queries see nothing
    return {"input_ids": torch.randint(0, 99, (batch, length)), "attention_mask": mask}


def _pixels(batch: int, _: int, image: int) -> Inputs:
    import torch

    return {"pixel_values": torch.randn(batch, 3, image, image)}


def _speech(batch: int, length: int, _: int) -> Inputs:
    """A spectrum of as many frames as the encoder has positions for, and tokens for the decoder."""
    import torch

    return {
        "input_features": torch.randn(batch, 80, 64),
        "decoder_input_ids": torch.randint(0, 99, (batch, length)),
    }


def _pairs(batch: int, length: int, _: int) -> Inputs:
    import torch

    return {**_tokens(batch, length, 0), "decoder_input_ids": torch.randint(0, 99, (batch, length // 2))}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers without ``Model``, its configuration, the key of its number of layers, and what draws inputs.

    ``draw`` takes a batch, a length and the extent of images.
    """

    name: str
    settings: dict[str, Any]
    depth: str
    draw: Callable[[int, int, int], Inputs] = _tokens


_BERT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 99}
_GPT = {"vocab_size": 99, "use_cache": False, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
_LLAMA = {**_BERT, **_GPT, "num_key_value_heads": 2, "max_position_embeddings": 128}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_heads": 4, "vocab_size": 99}
_VIT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "image_size": 64, "patch_size": 16}
_SPEECH = {
    **_GPT,
    "d_model": 64,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_target_positions": 128,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 1,
}

_LAYERS = "num_hidden_layers"

MODELS = {
    "bert": Architecture("Bert", _BERT, _LAYERS),
    "roberta": Architecture("Roberta", {**_BERT, "pad_token_id": 1}, _LAYERS),
    "distilbert": Architecture(
        "DistilBert", {"dim": 64, "n_heads": 4, "hidden_dim": 256, "vocab_size": 99}, "n_layers"
    ),
    "albert": Architecture("Albert", {**_BERT, "embedding_size": 32}, _LAYERS),
    "electra": Architecture("Electra", {**_BERT, "embedding_size": 32}, _LAYERS),
    "mobilebert": Architecture(
        "MobileBert",
        {**_BERT, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
        _LAYERS,
    ),
    "deberta_v2": Architecture(
        "DebertaV2",
        {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
        _LAYERS,
    ),
    "mpnet": Architecture("MPNet", _BERT, _LAYERS),
    "convbert": Architecture("ConvBert", {**_BERT, "embedding_size": 32, "head_ratio": 2}, _LAYERS),
    "gpt2": Architecture("GPT2", {**_GPT, "n_embd": 64, "n_head": 4}, "n_layer"),
    "gpt_neox": Architecture("GPTNeoX", {**_BERT, **_GPT, "max_position_embeddings": 128}, _LAYERS),
    "opt": Architecture(
        "OPT",
        {
            **_GPT,
            "hidden_size": 64,
            "ffn_dim": 256,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 64,
            "max_position_embeddings": 128,
        },
        _LAYERS,
    ),
    "bloom": Architecture("Bloom", {**_GPT, "hidden_size": 64, "n_head": 4}, "n_layer"),
    "falcon": Architecture("Falcon", {**_GPT, "hidden_size": 64, "num_attention_heads": 4}, _LAYERS),
    "llama": Architecture("Llama", _LLAMA, _LAYERS),
    "mistral": Architecture("Mistral", _LLAMA, _LAYERS),
    "qwen2": Architecture("Qwen2", _LLAMA, _LAYERS),
    "qwen3": Architecture("Qwen3", {**_LLAMA, "head_dim": 16}, _LAYERS),
    "gemma": Architecture("Gemma", {**_LLAMA, "head_dim": 16}, _LAYERS),
    "phi": Architecture("Phi", _LLAMA, _LAYERS),
    "t5": Architecture("T5Encoder", _T5, "num_layers"),
    "bart": Architecture("Bart", _SPEECH, "encoder_layers", _pairs),
    "whisper": Architecture("Whisper", {**_SPEECH, "max_source_positions": 32}, "encoder_layers", _speech),
    "clip_text": Architecture("CLIPText", {**_BERT, "eos_token_id": 1}, _LAYERS),
    "clip_vision": Architecture("CLIPVision", _VIT, _LAYERS, _pixels),
    "vit": Architecture("ViT", _VIT, _LAYERS, _pixels),
    "dinov2": Architecture("Dinov2", _VIT, _LAYERS, _pixels),
    "beit": Architecture("Beit", _VIT, _LAYERS, _pixels),
    "swin": Architecture(
        "Swin",
        {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4},
        "",
        _pixels,
    ),
    "segformer": Architecture(
        "Segformer",
        {"hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 1, 2, 2], "depths": [1] * 4},
        "",
        _pixels,
    ),
    "convnext": Architecture("ConvNext", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}, "", _pixels),
    "mobilenet_v2": Architecture(
        "MobileNetV2", {"image_size": 64, "depth_multiplier": 0.5, "initializer_range": 0.15}, "", _pixels
    ),
    "regnet": Architecture(
        "RegNet", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "groups_width": 16}, "", _pixels
    ),
    "resnet": Architecture(
        "ResNet",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "basic"},
        "",
        _pixels,
    ),
}

_OF_TIMM = """byobnet coatnet convnext convnext2 convnext3 efficientnet efficientnet_evos efficientnet_gn efficientnet_ln
    mambaout maxvit nfnet resnet vit vit2 vit3 vit4 vit_relpos"""
_OF_TORCHVISION = """convnext_tiny densenet121 efficientnet_b0 mnasnet0_5 mobilenet_v2 mobilenet_v3_small
    regnet_y_400mf resnet18 shufflenet_v2_x0_5 squeezenet1_1 swin_t"""
PICTURE_MODELS = {"timm": _OF_TIMM.split(), "torchvision": _OF_TORCHVISION.split()}
"""Models of other libraries; of timm those that it has for tests: of few, narrow layers."""

KNOWN = (*MODELS, *(f"{library}/{name}" for library, names in PICTURE_MODELS.items() for name in names))
"""Names of all models, as `build` takes them."""

WIDTHS = (
    {
        "hidden_size",
        "hidden_sizes",
        "intermediate_size",
        "dim",
        "hidden_dim",
        "n_embd",
        "d_model",
        "d_ff",
        "d_kv",
        "ffn_dim",
    }
    | {"encoder_ffn_dim", "decoder_ffn_dim", "word_embed_proj_dim", "head_dim", "embed_dim", "embedding_size"}
    | {"intra_bottleneck_size", "true_hidden_size"}
)
"""Keys of configurations that are multiples of the extent of hidden values, which is 64 in `MODELS`."""

IMAGE = 64
"""Extent of images unless stated."""


def _times(factor: float, value: Any) -> Any:
    return [_times(factor, v) for v in value] if isinstance(value, list) else int(factor * value)


def _picture_model(library: str, name: str, image: int) -> tuple[Any, Callable[[int, int], Inputs]]:
    """A model of images and what draws a batch of them."""
    import torch

    if library == "timm":
        import timm

        model = timm.create_model(f"test_{name}", pretrained=False)
        extent = model.default_cfg["input_size"][-1]
    else:
        import torchvision

        model = torchvision.models.get_model(name, weights=None)
        extent = image
    return model.eval(), lambda batch, length: {"x": torch.randn(batch, 3, extent, extent)}


def build(name: str, layers: int, hidden: int = 0, image: int = IMAGE) -> tuple[Any, Callable[[int, int], Inputs]]:
    """The model with random weights, ready for inference, and what draws its inputs for a batch and a length.

    ``hidden``: another extent of its hidden values than in `MODELS`; ``image``: of its images.
    """
    import torch

    torch.manual_seed(0)
    library, _, kind = name.rpartition("/")
    if library:
        return _picture_model(library, kind, image)
    import transformers

    found = MODELS[name]
    settings = dict(found.settings)
    if hidden:
        settings |= {k: _times(hidden / 64, v) for k, v in settings.items() if k in WIDTHS}
    if "image_size" in settings:
        settings["image_size"] = image
    if found.depth:
        settings[found.depth] = layers
    config = getattr(transformers, f"{found.name.removesuffix('Encoder')}Config")(**settings)
    model = getattr(transformers, f"{found.name}Model")(config).eval()
    return model, lambda batch, length: found.draw(batch, length, image)


def largest_error(found: Any, expected: Any) -> float:
    """Largest difference over all tensors in two outputs of a model, each as a part of its largest element."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        scale = float(expected.abs().max()) or 1.0
        return float((found - expected).abs().max()) / scale
    if isinstance(expected, Mapping):
        return max((largest_error(found[k], v) for k, v in expected.items()), default=0.0)
    if isinstance(expected, tuple | list):
        return max((largest_error(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)
    assert found == expected
    return 0.0


def placed(value: Any, device: str, dtype: Any) -> Any:
    """A tensor, or all tensors in a mapping or a sequence, on a device, floats in a type."""
    import torch

    if isinstance(value, Mapping):
        return {k: placed(v, device, dtype) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [placed(v, device, dtype) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else value.dtype)


def milliseconds(runs: int, *calls: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Median of each call by a clock, all taking turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):
        for found, call in zip(taken, calls, strict=True):
            start = clock()
            call()
            found.append(1e3 * (clock() - start))
    return [statistics.median(found[1:]) for found in taken]


def finished(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, waiting for what it has the GPU do."""
    import torch

    def run() -> Any:
        found = call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return found

    return run


def fallbacks_of(said: Sequence[warnings.WarningMessage]) -> list[str]:
    """What warnings say of graphs that ran as they are, and of rules that were left out."""
    from eqsat import LeftOutWarning
    from eqsat.dynamo import FallbackWarning

    return [str(w.message) for w in said if issubclass(w.category, FallbackWarning | LeftOutWarning)]


def measure(name: str, layers: int, sizes: tuple[Sizes, ...], runs: int, device: str, dtype: str) -> bool:
    """Prints a line for each size of a model and says whether all is well."""
    import torch

    model, draw = build(name, layers)
    model = model.to(device, getattr(torch, dtype))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eqsat")
    well = True
    for size in sizes:
        inputs = placed(draw(*size), device, getattr(torch, dtype))
        with torch.inference_mode(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            expected = model(**inputs)
            start = time.perf_counter()
            found = compiled(**inputs)
            seconds = time.perf_counter() - start
            error = largest_error(found, expected)
            calls = (finished(lambda f=f: f(**inputs)) for f in (model, compiled))  # noqa: B023
            eager, ours = milliseconds(runs, *calls)
        fallbacks = fallbacks_of(said)
        well &= not fallbacks and error <= TOLERANCES[dtype]
        cells = f"{name:<30} {size[0]:>5} x {size[1]:<5} {error:>9.1e} {len(fallbacks):>9} {seconds:>9.1f}"
        print(f"{cells} {eager:>9.2f} {ours:>9.2f}", *fallbacks, sep="\n    ", flush=True)
    return well


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was given. Ends the program where a model is not known."""
    given = parser.parse_args()
    if unknown := set(given.models).difference(KNOWN):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(KNOWN)}")
    return given


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=KNOWN, metavar="MODEL", help=", ".join(KNOWN))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--time", type=int, default=5, metavar="RUNS", help="timed runs of each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCES)
    given = parsed(parser)
    import torch

    torch.backends.cudnn.allow_tf32 = False  # of which convolutions on GPUs are otherwise computed
    names = ("error", "fallbacks", "compile s", "torch ms", "ours ms")
    print(f"{'model':<29} batch x length", *(f"{name:>9}" for name in names))
    sizes = ((1, 16), (3, 24))
    well = [measure(name, given.layers, sizes, given.time, given.device, given.dtype) for name in given.models]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
