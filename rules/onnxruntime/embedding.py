"""Rows of tables, their sum and its norm as one operator of ONNX Runtime: EmbedLayerNormalization."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.onnxruntime.norms import over_last_axis
from eqsat.samples import Drawing, Instance, Sampler, fixed

DOMAIN = "com.microsoft"
KEY = f"{DOMAIN}::EmbedLayerNormalization"
Lookup = tuple[Ref, Ref]
"""A table, and the ids of its rows."""


def _draw(d: Sampler) -> Instance:
    """Rows of one or two tables, with ids from the end too, beside a vector for each position."""
    drawing = Drawing()
    batch, length, width = d.extents(3)
    parts = []
    for _ in range(d.integer(1, 2)):
        rows = d.integer(2, 5)
        ids = d.integers((batch, length), d.choose(("int64", "int32")), -rows, rows - 1)
        if d.chance(0.3):
            ids = abs(ids) % rows
        table = drawing.value(fixed(d.floats((rows, width))))
        parts.append(drawing.op("Gather", table, drawing.value(fixed(ids) if d.chance(0.2) else ids), axis=0))
    shape = d.choose(((1, length, width), (1, length, width), (length, width), (1, 1, width)))
    parts.insert(d.integer(0, len(parts)), drawing.value(fixed(d.floats(shape))))
    total = parts[0]
    for part in parts[1:]:
        total = drawing.op("Add", total, part) if d.chance() else drawing.op("Add", part, total)
    vectors = [drawing.value(d.floats((width,))) for _ in range(d.integer(1, 2))]
    return drawing.finish(drawing.op("LayerNormalization", total, *vectors, axis=-1, epsilon=1e-5))


@group_rule(
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime",
    sample=_draw,
    domain=DOMAIN,
)
def normalise_embeddings(view: GroupView) -> Iterator[Merge]:
    """``LayerNormalization(words[i] + segments[j] + positions) == EmbedLayerNormalization(i', j', words, positions, segments)``
    with ``i' = [0, ..., rows - 1][i]``: the kernel takes no ids that count from the end. Also without segments.
    """
    sums: dict[int, list[tuple[Ref, Ref]]] = {}
    for node, (a, b) in view.nodes("Add"):
        if a is not None and b is not None:
            sums.setdefault(node.handle, []).append((a, b))
    lookups: dict[int, Lookup] = {}
    for node, (table, ids) in view.nodes("Gather"):
        if table is not None and ids is not None and node.attr("axis", 0) == 0:
            lookups.setdefault(node.handle, (table, ids))
    for node, inputs in view.nodes("LayerNormalization"):
        data, gamma, beta = (*inputs, None)[:3]
        if data is None or gamma is None:
            continue
        try:
            if not over_last_axis(node, data, gamma, beta) or data.rank != 3:
                continue
            found = next(_embeddings(data, sums, lookups), None)
        except Unmet:
            continue
        if found is not None:
            positions, (words, ids), segments = found
            shift = literal(np.zeros(data.static_shape[-1], np.float32)) if beta is None else beta
            tables: tuple[Any, ...] = (None, words, positions, None)
            if segments is not None:
                tables = (_row_numbers(*segments), words, positions, segments[0])
            operands = (_row_numbers(words, ids), *tables, gamma, shift)
            epsilon = node.attr("epsilon", 1e-5)
            yield node, apply(KEY, *operands, outputs=2, epsilon=epsilon).output(0)


def _embeddings(
    data: Ref, sums: dict[int, list[tuple[Ref, Ref]]], lookups: dict[int, Lookup]
) -> Iterator[tuple[Term, Lookup, Lookup | None]]:
    """Positions, words and segments that add up to ``data``."""
    for pair in sums.get(data.handle, ()):
        for whole, other in permutations(pair):
            if whole.handle in lookups and _is_position(other, data):
                yield _table(other, data), _checked(lookups[whole.handle]), None
            for a, b in sums.get(whole.handle, ()):
                for x, y, z in permutations((a, b, other)):
                    if x.handle in lookups and y.handle in lookups and _is_position(z, data):
                        yield _table(z, data), _checked(lookups[x.handle]), _checked(lookups[y.handle])


def _is_position(value: Ref, data: Ref) -> bool:
    """Whether a constant has a vector for each position, and the same for all of a batch."""
    if not value.is_constant or value.handle == data.handle:
        return False
    _, length, width = data.static_shape
    return value.static_shape in ((1, length, width), (length, width))


def _table(value: Ref, data: Ref) -> Term:
    return reshaped(value, data.static_shape[1:])


def _checked(lookup: Lookup) -> Lookup:
    """Raises `Unmet` unless the table is a constant matrix of float32 and there are two axes of ids."""
    table, ids = lookup
    if not table.is_constant or table.dtype is not DType.FLOAT or table.rank != 2 or ids.rank != 2:
        raise Unmet("no matrix of float32 that is looked up by sequences of ids")
    return lookup


def _row_numbers(table: Ref, ids: Ref) -> Term:
    """Ids that do not count from the end, as the kernel wants them: looked up where they may, which makes them int32, too."""
    if ids.interval[0] < 0:
        return apply("Gather", literal(np.arange(table.static_shape[0], dtype=np.int32)), ids, axis=0)
    return ids if ids.dtype is DType.INT32 else apply("Cast", ids, to=int(DType.INT32))
