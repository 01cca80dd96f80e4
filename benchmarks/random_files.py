"""Random files of ONNX of several kinds: graphs of `benchmarks.random_models` with what files have besides."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.model_parts import Refused, Theme, model_of, ran
from benchmarks.random_bodies import with_function
from benchmarks.random_models import Growing
from eqsat.backends.onnxruntime import LEVELS
from eqsat.ir.operator import OPSET, operator, traits_of
from eqsat.ir.schema_operator import to_type_proto
from eqsat.ir.types import type_of_array
from eqsat.samples import Sampler
from eqsat.verification.extents import FATAL_WHEN_EMPTY


def _slides(op: str) -> bool:
    traits = traits_of(op) if operator(op) is not None else None
    return traits is not None and bool(traits.spatial or (traits.product and traits.product.slides))


_INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64", "bool", "bool")
_THEMES = {
    "symbols": Theme(("float32", "float32", "float32", "int64"), symbols=1.0, bodies=0.02),
    "types": Theme(("float16", "float64", "bfloat16", "float32", "float16")),
    "integers": Theme(_INTEGERS, extreme=0.1),
    "bodies": Theme(("float32", "float32", "int64", "bool"), bodies=0.3),
    "opsets": Theme(("float32", "float32", "float32", "int64", "bool"), opsets=(7, OPSET), oddities=0.5, bodies=0.05),
    "extremes": Theme(("float32", "float32", "float16", "int8", "uint8", "int64"), extreme=0.4),
    "shapes": Theme(
        ("float32", "float32", "int64"),
        opsets=(14, OPSET),
        ranks=(2, 4),
        symbols=1.0,
        shapes=0.9,
        planted=0.4,
        steps=(1, 6),
    ),
    "windows": Theme(ranks=(3, 5), wanted=_slides),
}


_Place = tuple[str, int]  # an axis of an input
_TOGETHER = 6  # times that all symbols of a model get other extents together

_LOOSE = {1: 0.3, 2: 3e-2, 4: 2e-3, 8: 2e-3}
"""By how much of the largest element floats may differ that agree by verification, by bytes of an element: so much may quantised
values and cancellation make of a rounding, and no wrong rule passes."""


@dataclass(frozen=True)
class Drawn:
    """A model, and inputs that ONNX Runtime runs it on: at several extents where some are symbols."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]


def kinds() -> tuple[str, ...]:
    return tuple(_THEMES)


def draw_model(kind: str, seed: int) -> Drawn:
    """A model of a kind; equal seeds give equal models. Raises `Refused` where nothing comes of it."""
    d, theme = Sampler(seed), _THEMES[kind]
    g = Growing(d, theme, d.integer(*theme.opsets), set())
    for _ in range(d.integer(1, 3)):
        shape = [0 if d.chance(theme.extreme / 10) else n for n in d.shape(*theme.ranks)]
        g.input(g.array(shape, np.dtype(_dtype(d.choose(theme.dtypes)))))
    g.grow(d.integer(*theme.steps))
    if not g.nodes:
        raise Refused
    outputs = list(dict.fromkeys([*list(g.arrays)[-1:], *d.subset(g.arrays, 0.15)]))
    if d.chance(theme.oddities):
        outputs = _odd_outputs(g, outputs)
    model = model_of(g.nodes, g.inputs, outputs, g.constants, g.opset)
    expected = ran(model, g.inputs)
    shapes = d.chance()
    if d.chance(theme.oddities) and g.opset >= 8:
        first = d.integer(0, len(g.nodes) - 1)
        with_function(model, first, d.integer(first + 1, len(g.nodes)))
    if d.chance(theme.oddities):
        _constants_otherwise(d, model)
    feeds = [dict(g.inputs)]
    if d.chance(theme.symbols):
        feeds = _symbolic(d, model, feeds[0])
    for value in model.graph.output:
        proto = to_type_proto(type_of_array(expected[value.name]))
        if len(feeds) > 1 or not shapes:
            proto.tensor_type.ClearField("shape")
        value.type.CopyFrom(proto)
    if not all(reproducible(model, given) for given in feeds):
        raise Refused
    return Drawn(model, feeds)


def reproducible(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime computes the same again, and survives its own rewriting: some kernels leave outputs unwritten where
    operands are empty."""
    for level in LEVELS:
        with suppress(Refused):
            ran(model, feeds, level=level)
    first = ran(model, feeds)
    for filled in (0x55, 0xAA):  # memory that is handed out again as it was left
        _ = [[np.full(size, filled, np.uint8) for _ in range(20)] for size in (32, 64, 128, 256, 512, 1024, 4096)]
        del _
        again = ran(model, feeds, arena=False)
        if any(unlike(first[name], again[name]) for name in first):
            return False
    return True


def _dtype(name: str) -> np.dtype[Any]:
    from eqsat.ir.types import DType

    return DType.of(name).numpy


def _odd_outputs(g: Growing, outputs: list[str]) -> list[str]:
    """With an input, a constant, or one value twice among them."""
    d = g.d
    more = [*d.subset(g.inputs, 0.3), *d.subset(g.constants, 0.1)]
    if d.chance():
        more += g.op("Identity", outputs[0])
    return list(dict.fromkeys([*outputs, *more]))


def _constants_otherwise(d: Sampler, model: onnx.ModelProto) -> None:
    """Some constants as nodes, some as inputs that have a value."""
    graph = model.graph
    kept = []
    for tensor in graph.initializer:
        kind = d.rng.random()
        if kind < 0.3 and tensor.name not in {o.name for o in graph.output}:
            graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
            continue
        if kind < 0.5:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        kept.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _symbolic(d: Sampler, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Declares extents as symbols, one for all that are equal or for each of them, where ONNX Runtime runs the model at others,
    too; inputs at each, and at others for all symbols together."""
    found, symbols = [feeds], list[tuple[int, list[_Place]]]()
    for extent in sorted({n for a in feeds.values() for n in a.shape}):
        if not d.chance(0.7):
            continue
        places = [(v, i) for v, a in feeds.items() for i, n in enumerate(a.shape) if n == extent]
        kind = d.rng.random()
        for chosen in [places[:1]] if kind < 0.3 else [[place] for place in places] if kind < 0.5 else [places]:
            sizes = d.subset((1, extent + 1, 0, 2 * extent), 0.6)
            others = [sized for n in sizes if (sized := _at_sizes(model, feeds, [(n, chosen)])) is not None]
            if others:
                symbols.append((extent, chosen))
                found += others
    _declare(model, [places for _, places in symbols])
    for _ in range(_TOGETHER if len(symbols) > 1 else 0):
        sizes = [(d.choose((0, 1, 1, 2, 3, 7, 16, *(n for n, _ in symbols))), places) for _, places in symbols]
        if (sized := _at_sizes(model, feeds, sizes)) is not None:
            found.append(sized)
    return found


def _at_sizes(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], sizes: list[tuple[int, list[_Place]]]
) -> dict[str, np.ndarray] | None:
    """Inputs with other extents at some places; `None` where ONNX Runtime does not run them."""
    at = {place: n for n, places in sizes for place in places}
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    _declare(opened, [places for _, places in sizes])
    sized = {v: _resized(a, [at.get((v, i), int(n)) for i, n in enumerate(a.shape)]) for v, a in feeds.items()}
    try:
        found = ran(opened, sized)
        if 0 in at.values():
            nodes = (*model.graph.node, *(node for function in model.functions for node in function.node))
            if any(node.op_type in FATAL_WHEN_EMPTY for node in nodes):
                return None
            told = ran(_taking_zeros(opened), sized)
            return None if any(unlike(found[v], told[v]) for v in found) else sized
    except Refused:
        return None
    return sized


def _taking_zeros(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a 0 that a Reshape is told for an extent of 0, and that copies the extent of whatever is there."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    constants = {t.name for t in model.graph.initializer}
    if all(o.version >= 14 for o in model.opset_import if not o.domain):
        for node in changed.graph.node:
            if node.op_type == "Reshape" and node.input[1] not in constants and not node.attribute:
                node.attribute.append(helper.make_attribute("allowzero", 1))
    return changed


def _declare(model: onnx.ModelProto, symbols: list[list[_Place]]) -> None:
    """Gives the extents at the places of each symbol its name."""
    declared = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    for number, places in enumerate(symbols):
        for name, axis in places:
            declared[name][axis].dim_param = f"s{number}"


def _resized(array: np.ndarray, shape: list[int]) -> np.ndarray:
    return np.resize(array, shape).astype(array.dtype)


def unlike(expected: Any, found: Any) -> str:
    """How a value differs from another; empty if it does not."""
    if isinstance(expected, list):
        return (
            next(filter(None, map(unlike, expected, found)), "") if len(expected) == len(found) else "differs in length"
        )
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"is {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if expected.dtype.kind in "bUO":
        return "" if np.array_equal(expected, found) else "differs"
    with np.errstate(all="ignore"):
        a, b = (np.asarray(v, np.float64) for v in (expected, found))
        told = np.isfinite(a) & (np.abs(a) < 1e30)
        most = np.max(np.abs(a), initial=1e-3, where=told)
        allowed = 1.0 if expected.dtype.itemsize == 1 else 0.0
        allowed = allowed if expected.dtype.kind in "iu" else _LOOSE[expected.dtype.itemsize] * most
        wrong = (~(np.abs(a - b) <= allowed)) & told | (np.isnan(a) != np.isnan(b))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"is {b[at]} at {at}, not {a[at]} ({int(wrong.sum())} of {a.size} elements)"
