"""Inputs to run a model on: random ones that make sense to it, or the user's own."""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.errors import FeedError
from eqsat.frontends.onnx.envelope import envelope_of, with_defaults
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import check_feeds
from eqsat.ir.schema_operator import element_type, types_in_map
from eqsat.ir.types import DType, TensorType
from eqsat.verification.relations import extent_of
from eqsat.verification.roles import Meaning, Role, keys_of, meaning_of

_ELEMENTS = 3
"""Of each sequence."""

_WORDS = ("", "a", "text", "equality")

_MOST = 0.75
"""Of the keys of a map."""


def random_feeds(
    graph: Graph,
    seed: int,
    sizes: Mapping[str, int] | None = None,
    deviation: float = 1.0,
    *,
    overridden: bool = False,
) -> dict[str, Any]:
    """One array, list of arrays, or map, for each input of ``graph``, the same for the same seed.

    Token ids lie within their table, a mask keeps the first element of each row and drops some at the end, other integers are
    small, negative at times where nothing may be looked up or counted by them, and never 0 where integers are divided by them,
    floats are normal of mean 0 and standard deviation ``deviation``. What an encoder looks up is one of its categories, or
    another value where it takes that. What has a value in the file has that, weights for example: floats others if they are
    ``overridden``, while extents may be made of integers. ``sizes``: extents of symbolic dimensions (see
    `eqsat.verification.relations`). Maps have most of the keys that are looked up in them. Raises `FeedError` for an input
    whose type is not known, or none of a tensor, a sequence of tensors and a map to float32.
    """
    extents = dict(sizes or {})
    own = envelope_of(graph).defaults
    feeds: dict[str, Any] = {}
    for k, name in enumerate(graph.inputs):
        given = graph.type_of(name)
        tensor = element_type(given) or given
        in_map = types_in_map(given)
        if in_map is not None and in_map[1].dtype is DType.FLOAT:  # Python hands over no others to ONNX Runtime
            feeds[name] = _map(np.random.default_rng([seed, k]), graph, name, in_map[0])
            continue
        if not isinstance(tensor, TensorType) or tensor.shape is None or tensor.dtype is DType.UNDEFINED:
            what = f"{'' if tensor is given else 'a sequence of '}{tensor}"
            raise FeedError(
                f"input {name!r} is {what}: random values need a tensor of known rank, a sequence of such, "
                "or a map to float32"
            )
        shape = tuple(extent_of(d, extents) for d in tensor.shape)
        if min(shape, default=0) < 0:
            raise FeedError(f"input {name!r}: an extent of {shape} is negative")
        if name in own and own[name].shape == shape and not (overridden and tensor.dtype.is_float):
            feeds[name] = own[name].numpy()
            continue
        random = np.random.default_rng([seed, k])
        draw = partial(_draw, random, tensor.dtype, shape, meaning_of(graph, name, extents), deviation)
        feeds[name] = draw() if given is tensor else [draw() for _ in range(_ELEMENTS)]
    return feeds


def load_feeds(given: Mapping[str, Any] | str | Path, graph: Graph) -> dict[str, Any]:
    """The user's inputs, a mapping or an ``.npz`` file. Raises `FeedError` if they do not fit the inputs of ``graph``."""
    if not isinstance(given, str | Path):
        if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise FeedError(
                f"feeds: expected an array by name of each input, or an .npz file, got {type(given).__name__}"
            )
        feeds = dict(with_defaults(graph, given))
        check_feeds(graph, feeds)
        return feeds
    try:
        with zipfile.ZipFile(given):  # numpy would read other files, too, and not say what they are
            archive = np.load(given, allow_pickle=False)
        with archive:
            return load_feeds({name: archive[name] for name in archive.files}, graph)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else (str(error) or repr(error))
        raise FeedError(f"{given}: no readable .npz file, as numpy.savez writes it: {reason.splitlines()[0]}") from None
    except FeedError as error:
        raise FeedError(f"{given}: {error}") from None


def _draw(
    random: np.random.Generator, dtype: DType, shape: tuple[int, ...], meaning: Meaning, deviation: float
) -> np.ndarray:
    role = meaning.role
    if role is Role.KEY:
        other = _WORDS[0] if dtype is DType.STRING else 0
        keys = meaning.keys if meaning.only_keys else (*meaning.keys, other)
        return random.choice(np.array(keys, object if dtype is DType.STRING else np.int64), shape).astype(dtype.numpy)
    if dtype is DType.STRING:
        words = ("1", "2", "17") if role is Role.NUMERAL else _WORDS
        return random.choice(np.array(words, object), shape)
    if role in (Role.MASK, Role.ADDITIVE_MASK):
        mask = _padding_mask(random, shape)
        values = mask if role is Role.MASK else np.where(mask > 0, 0.0, -10000.0)
    elif role is Role.POSITION:
        length = shape[-1] if shape else 1
        values = np.broadcast_to(np.arange(length) % (meaning.limit or length), shape)
    elif role is Role.INDEX:
        values = random.integers(0, meaning.limit or 2, shape)
    elif role is Role.COUNT:
        values = np.ones(shape)
    elif role is Role.POSITIVE:
        values = np.abs(random.standard_normal(shape)) + 0.1
    elif dtype is DType.BOOL:
        values = random.random(shape) < 0.5
    elif dtype.is_integer:
        whole = role is Role.CODE or dtype.bits < 8
        bits = min(dtype.bits - dtype.is_signed, 62)  # numpy draws within int64
        low, high = (-(1 << bits) if dtype.is_signed else 0, 1 << bits) if whole else (-8 if meaning.signed else 0, 8)
        values = random.integers(low, high, shape)
    elif dtype in (DType.COMPLEX64, DType.COMPLEX128):
        values = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    else:
        values = deviation * random.standard_normal(shape)
    if meaning.divides:  # neither 0, nor -1, by which ONNX Runtime ends the process where it divides the least integer
        values = np.where((values <= -2) | (values >= 1), values, 1)
    return np.asarray(values).astype(dtype.numpy)


def _map(random: np.random.Generator, graph: Graph, name: str, keys: DType) -> dict[Any, float]:
    """From keys that are looked up in it, or others where those are not known, to numbers."""
    known = [key for node in graph.nodes if name in node.inputs for key in keys_of(node)]
    drawn = known or (_WORDS if keys is DType.STRING else range(8))
    kept = [key for key in drawn if random.random() < _MOST] or drawn[:1]
    return {key: random.standard_normal() for key in kept}


def _padding_mask(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ones, then zeros, along the last axis; at least a half are ones, and where there is room some are zeros."""
    length = shape[-1] if shape else 1
    kept = random.integers(max(1, (length + 1) // 2), max(2, length), (*shape[:-1], 1))
    return (np.arange(length) < kept).astype(np.float64).reshape(shape)
