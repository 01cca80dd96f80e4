"""Rotary position embeddings: each spelling is one operator; what only looks alike is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_graphs import ints, number

import eqsat
from benchmarks.inflate import MODELS, inflate
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

B, N, S, D = 2, 3, 5, 8
FREQUENCIES = 10.0 ** -np.arange(0, 1, 2 / D)
ANGLES = np.outer(np.arange(S), FREQUENCIES).astype(np.float32)


def turned(b: GraphBuilder, x: Any, size: int = D, *, split: bool = False, at: int | None = None) -> Any:
    half = size // 2 if at is None else at
    if split:
        low, high = b.op("Split", x, ints(b, half, size - half), outputs=2, axis=-1)
    else:
        low = b.op("Slice", x, ints(b, 0), ints(b, half), ints(b, -1))
        high = b.op("Slice", x, ints(b, half), ints(b, np.iinfo(np.int64).max), ints(b, -1))
    return b.op("Concat", b.op("Neg", high), low, axis=-1)


def tables(b: GraphBuilder, shape: tuple[int, ...] = (1, 1, S, D), angles: np.ndarray = ANGLES) -> list[Any]:
    both = np.concatenate((angles, angles), axis=-1)
    return [b.constant(f(both).reshape(shape)) for f in (np.cos, np.sin)]


def computed(b: GraphBuilder, many: int) -> list[Any]:
    """Cosines and sines of positions that are an input, times frequencies, twice."""
    positions = b.op("Unsqueeze", b.op("Cast", b.input("positions", "int64", (many, S)), to=1), ints(b, 2))
    angles = b.op("Mul", positions, b.constant(FREQUENCIES.astype(np.float32)))
    both = b.op("Concat", angles, angles, axis=-1)
    return [b.op("Unsqueeze", b.op(f, both), ints(b, 1)) for f in ("Cos", "Sin")]


def embedded(b: GraphBuilder, x: Any, factors: list[Any], **how: Any) -> Any:
    cosine, sine = factors
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", sine, turned(b, x, **how)))


def graph(tables_of: Any = tables, shape: tuple[int, ...] = (B, N, S, D), **how: Any) -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    return b.finish([embedded(b, x, tables_of(b), **how)])


def partial() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (B, N, S, D + 3))
    head, rest = b.op("Split", x, ints(b, D, 3), outputs=2, axis=-1)
    return b.finish([b.op("Concat", embedded(b, head, tables(b)), rest, axis=-1)])


def left_of(graph: Graph) -> dict[str, int]:
    """Operators of the optimised graph, views aside, after it was run here and in ONNX Runtime."""
    result = eqsat.optimize(graph, verify=False, form="flat")
    rng = np.random.default_rng(5)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        found: Any = graph.type_of(name)
        values = rng.normal(size=found.shape) if found.dtype.is_float else rng.integers(0, 9, found.shape)
        feeds[name] = values.astype(found.dtype.numpy)
    expected = run(graph, feeds)
    for outputs in (run(result.program.graph, feeds), Session(to_model(result.program.graph)).run(feeds)):
        for ours, theirs in zip(outputs.values(), expected.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return {op: n for op, n in result.report.operators_after.items() if op not in ("Reshape", "Unsqueeze")}


def interleaved(b: GraphBuilder, x: Any, *, late: bool = False, wrong: bool = False) -> Any:
    """Neighbours are pairs: every angle twice in a row. ``late``: negated behind the new axis."""
    odd, even = (b.op("Slice", x, ints(b, n), ints(b, D), ints(b, 3), ints(b, 2)) for n in (1, 0))
    odd = b.op("Neg", b.op("Unsqueeze", odd, ints(b, 4))) if late else b.op("Unsqueeze", b.op("Neg", odd), ints(b, 4))
    pairs = (odd, b.op("Unsqueeze", even, ints(b, -1)))
    both = b.op("Reshape", b.op("Concat", *pairs, axis=-1), ints(b, B, N, S, D))
    angles = np.tile(ANGLES, 2) if wrong else np.repeat(ANGLES, 2, axis=-1)
    cosine, sine = (b.constant(f(angles)[None, None]) for f in (np.cos, np.sin))
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", both, sine))


def taken_apart(b: GraphBuilder, x: Any, how: str) -> Any:
    """The second and the first of each pair of neighbours, which have an axis of their own: with it, or without."""
    pairs = b.op("Reshape", x, ints(b, B, N, S, D // 2, 2))
    if how == "Split":
        return b.op("Split", pairs, ints(b, 1, 1), outputs=2, axis=-1)[::-1]
    if how == "Gather":
        return [b.op("Unsqueeze", b.op("Gather", pairs, b.constant(np.int64(n)), axis=-1), ints(b, -1)) for n in (1, 0)]
    parts = [b.op("Slice", pairs, ints(b, n), ints(b, n + 1), ints(b, -1)) for n in (1, 0)]
    if how == "Squeeze":
        parts = [b.op("Squeeze", y, ints(b, -1)) for y in parts]
        return [b.op("Unsqueeze", y, ints(b, -1)) for y in parts]
    return parts


@pytest.mark.parametrize("how", ["Split", "Gather", "Slice", "Squeeze"])
def test_pairs_with_an_axis_of_their_own(how: str) -> None:
    """As diffusion transformers have them: ``x.unflatten(-1, (-1, 2)).unbind(-1)``."""
    b = GraphBuilder()
    x = b.input("x", "float32", (B, N, S, D))
    odd, even = taken_apart(b, x, how)
    turned = b.op("Reshape", b.op("Concat", b.op("Neg", odd), even, axis=-1), ints(b, B, N, S, D))
    cosine, sine = (b.constant(f(np.repeat(ANGLES, 2, axis=-1))[None, None]) for f in (np.cos, np.sin))
    y = b.op("Add", b.op("Mul", x, cosine), b.op("Mul", turned, sine))
    assert left_of(b.finish([y])) == {"RotaryEmbedding": 1}


def test_pairs_that_are_multiplied_as_complex_numbers() -> None:
    b = GraphBuilder()
    imaginary, real = (
        b.op("Squeeze", y, ints(b, -1)) for y in taken_apart(b, b.input("x", "float32", (B, N, S, D)), "Split")
    )
    cosine, sine = (b.constant(f(ANGLES)[None, None]) for f in (np.cos, np.sin))
    first = b.op("Sub", b.op("Mul", real, cosine), b.op("Mul", imaginary, sine))
    second = b.op("Add", b.op("Mul", real, sine), b.op("Mul", imaginary, cosine))
    pairs = [b.op("Unsqueeze", y, ints(b, -1)) for y in (first, second)]
    whole = b.op("Reshape", b.op("Concat", *pairs, axis=-1), ints(b, B, N, S, D))
    assert left_of(b.finish([whole])) == {"RotaryEmbedding": 1}


def test_angles_of_several_axes_of_an_image() -> None:
    """Of places that are an input, as diffusion transformers have them: the pairs of each axis side by side."""
    b = GraphBuilder()
    x, places = b.input("x", "float32", (1, N, S, 2 * D)), b.input("places", "float32", (1, S, 2))
    angles = [
        b.op("Mul", y, b.constant(FREQUENCIES.astype(np.float32)))
        for y in b.op("Split", places, ints(b, 1, 1), outputs=2, axis=-1)
    ]
    factors = [
        b.op(
            "Unsqueeze",
            b.op("Concat", *(each_twice(b, b.op(f, a), D // 2, "Expand") for a in angles), axis=-1),
            ints(b, 1),
        )
        for f in ("Cos", "Sin")
    ]
    left = left_of(b.finish([neighbours_turned(b, x, (1, N, S, 2 * D), factors)]))
    assert left.pop("RotaryEmbedding") == 1
    assert not left.keys() - {"Mul", "Cos", "Sin", "Concat", "Split", "Slice"}


def test_halves_of_the_rows_of_two_sequences() -> None:
    """The halves of tables that are joined along the places are those of each; along the features they are not."""
    rows = left_of(graph(lambda b: [b.op("Concat", *pair, axis=2) for pair in _two_tables(b, (2, 3), D)]))
    assert rows.pop("RotaryEmbedding") == 1
    features = left_of(graph(lambda b: [b.op("Concat", *pair, axis=3) for pair in _two_tables(b, (S, S), D // 2)]))
    assert "RotaryEmbedding" not in features


def _two_tables(b: GraphBuilder, lengths: tuple[int, int], size: int) -> list[Any]:
    """Cosines and sines of inputs, twice."""
    angles = [b.input(f"a{i}", "float32", (1, 1, n, size // 2)) for i, n in enumerate(lengths)]
    return [[b.op("Concat", f, f, axis=-1) for f in (b.op(op, a) for a in angles)] for op in ("Cos", "Sin")]


def each_twice(b: GraphBuilder, x: Any, size: int, how: str) -> Any:
    """``repeat_interleave`` of (batch, sequence, size) as PyTorch's exporters write it."""
    alone = b.op("Unsqueeze", x, ints(b, 3))
    if how == "Concat":
        pairs = b.op("Concat", alone, alone, axis=-1)
    elif how == "Tile":
        pairs = b.op("Tile", alone, ints(b, 1, 1, 1, 2))
    else:
        pairs = b.op("Expand", alone, ints(b, 1, 1, 1, 2))
    return b.op("Reshape", pairs, ints(b, 1, -1, 2 * size))


def neighbours_turned(b: GraphBuilder, x: Any, shape: tuple[int, ...], factors: list[Any]) -> Any:
    odd, even = (b.op("Slice", x, ints(b, n), ints(b, 2**62), ints(b, 3), ints(b, 2)) for n in (1, 0))
    pairs = [b.op("Unsqueeze", y, ints(b, -1)) for y in (b.op("Neg", odd), even)]
    crossed = b.op("Reshape", b.op("Concat", *pairs, axis=-1), ints(b, *shape))
    return b.op("Add", b.op("Mul", x, factors[0]), b.op("Mul", crossed, factors[1]))


def repeated_by(how: str, *, rest: int = 0, in_rows: bool = False) -> Graph:
    """Angles of positions that are an input, each twice in a row, for all features or the first ones."""
    b = GraphBuilder()
    x = b.input("x", "float32", (B, "s", N, D + rest) if in_rows else (B, N, "s", D + rest))
    head, tail = b.op("Split", x, ints(b, D, rest), outputs=2, axis=-1) if rest else (x, None)
    positions = b.op("Unsqueeze", b.op("Cast", b.input("positions", "int64", (1, "s")), to=1), ints(b, 2))
    angles = b.op("Mul", positions, b.constant(FREQUENCIES.astype(np.float32)))
    twice = [b.op(f, each_twice(b, angles, D // 2, how)) for f in ("Cos", "Sin")]
    factors = [b.op("Unsqueeze", f, ints(b, 2 if in_rows else 1)) for f in twice]
    y = neighbours_turned(b, head, (B, -1, N, D) if in_rows else (B, N, -1, D), factors)
    return b.finish([b.op("Concat", y, tail, axis=-1) if rest else y])


def gathered(b: GraphBuilder) -> list[Any]:
    """Rows of tables at positions that are an input."""
    both = np.tile(np.outer(np.arange(9), FREQUENCIES), 2).astype(np.float32)
    rows = b.input("positions", "int64", (B, S))
    return [b.op("Unsqueeze", b.op("Gather", b.constant(f(both)), rows, axis=0), ints(b, 1)) for f in (np.cos, np.sin)]


SPELLINGS: dict[str, Graph] = {
    "constants": graph(),
    "split": graph(split=True),
    "heads behind the sequence": graph(lambda b: tables(b, (1, S, 1, D)), (B, S, N, D)),
    "one place": graph(lambda b: tables(b, (1, 1, 1, D), ANGLES[3:4]), (B, N, 1, D)),
    "part of the features": partial(),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_is_one_operator(name: str) -> None:
    assert left_of(SPELLINGS[name]) == {"RotaryEmbedding": 1}


@pytest.mark.parametrize("late", [False, True])
def test_neighbours_as_pairs(late: bool) -> None:
    b = GraphBuilder()
    graph = b.finish([interleaved(b, b.input("x", "float32", (B, N, S, D)), late=late)])
    assert left_of(graph) == {"RotaryEmbedding": 1}
    (node,) = (
        n for n in eqsat.optimize(graph, verify=False, form="flat").program.graph.nodes if n.op == "RotaryEmbedding"
    )
    assert node.attributes["interleaved"] == 1


@pytest.mark.parametrize("rest", [0, 3])
@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.parametrize("how", ["Expand", "Tile", "Concat"])
def test_angles_of_neighbours_are_repeated_by_any_operator(how: str, in_rows: bool, rest: int) -> None:
    given = repeated_by(how, rest=rest, in_rows=in_rows)
    result = eqsat.optimize(given, form="flat")
    left = result.report.operators_after
    assert left["RotaryEmbedding"] == 1
    assert set(left) <= {"RotaryEmbedding", "Cast", "Cos", "Sin", "Mul", "Reshape", "Unsqueeze", "Expand"}
    for length in (1, 7):
        shape = (B, length, N, D + rest) if in_rows else (B, N, length, D + rest)
        x = np.random.default_rng(length).normal(size=shape).astype(np.float32)
        feeds = {"x": x, "positions": np.arange(length)[None]}
        for ours, theirs in zip(
            Session(to_model(result.program.graph)).run(feeds).values(), run(given, feeds).values(), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_tables_that_are_cut_from_one_large_constant() -> None:
    """As EVA-02 keeps sines and cosines: side by side, and too many to be looked at while nothing asks for them."""
    b = GraphBuilder()
    places = 1024
    angles = np.repeat(np.outer(np.arange(places), FREQUENCIES), 2, axis=-1)
    both = b.constant(np.concatenate((np.sin(angles), np.cos(angles)), axis=-1).astype(np.float32))
    sine, cosine = b.op("Split", both, outputs=2, axis=1, num_outputs=2)
    y = neighbours_turned(b, b.input("x", "float32", (1, N, places, D)), (1, N, places, D), [cosine, sine])
    assert left_of(b.finish([y])) == {"RotaryEmbedding": 1}


def test_rows_of_tables() -> None:
    assert left_of(graph(gathered)) == {"RotaryEmbedding": 1, "Gather": 2}


@pytest.mark.parametrize("cut", [0, 1])
def test_rows_of_the_first_rows_of_tables(cut: int) -> None:
    """As many as there are keys; of tables that are cut along their features halves are not the same."""
    b = GraphBuilder()
    both, rows = np.tile(np.outer(np.arange(9), FREQUENCIES), 2).astype(np.float32), b.input("rows", "int64", (B, S))
    count = b.op("Shape", b.input("keys", "float32", ("all", 1)), start=0, end=1)
    tables = [b.constant(f(both)) for f in (np.cos, np.sin)]
    first = [b.op("Slice", x, ints(b, 0), count, ints(b, cut)) for x in tables]
    taken = [b.op("Unsqueeze", b.op("Gather", x, rows, axis=0), ints(b, 1)) for x in first]
    given = b.finish([embedded(b, b.input("x", "float32", (B, N, S, D)), taken)])
    result = eqsat.optimize(given, form="flat")
    left = result.report.operators_after
    assert left == ({"RotaryEmbedding": 1, "Gather": 2, "Slice": 2, "Shape": 1} if not cut else {**left, "Mul": 2})
    rng = np.random.default_rng(1)
    for length in (9, 8):
        keys, x = np.zeros((length, 1), np.float32), rng.normal(size=(B, N, S, D)).astype(np.float32)
        feeds = {"keys": keys, "x": x, "rows": rng.integers(0, 8, (B, S))}
        ours, theirs = (Session(to_model(g)).run(feeds) for g in (result.program.graph, given))
        np.testing.assert_allclose(*(next(iter(y.values())) for y in (ours, theirs)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("many", [1, B])
def test_computed_tables_are_computed_once(many: int) -> None:
    left = left_of(graph(lambda b: computed(b, many)))
    assert left.pop("RotaryEmbedding") == 1
    assert set(left) <= {"Cast", "Mul", "Cos", "Sin", "Expand"}


def test_computed_tables_times_a_number() -> None:
    """As YaRN and longrope have them, for texts longer than those that the model was trained on."""
    left = left_of(graph(lambda b: [b.op("Mul", table, number(b, 1.19)) for table in computed(b, 1)]))
    assert left.pop("RotaryEmbedding") == 1
    assert set(left) <= {"Cast", "Mul", "Cos", "Sin", "Expand"}


@pytest.mark.parametrize("rows", [False, True])
def test_halves_turned_apart(rows: bool) -> None:
    """As gpt-oss does, with each angle once."""
    b = GraphBuilder()
    x = b.input("x", "float32", (B, S, N, D) if rows else (B, N, S, D))
    cosine, sine = (
        b.constant(f(ANGLES).reshape((1, S, 1, D // 2) if rows else (1, 1, S, D // 2))) for f in (np.cos, np.sin)
    )
    low, high = b.op("Split", x, ints(b, D // 2, D // 2), outputs=2, axis=-1)
    first = b.op("Sub", b.op("Mul", low, cosine), b.op("Mul", high, sine))
    second = b.op("Add", b.op("Mul", high, cosine), b.op("Mul", low, sine))
    left = left_of(b.finish([b.op("Concat", first, second, axis=-1)]))
    assert left.pop("RotaryEmbedding") == 1
    assert set(left) <= {"Reshape"}


def test_attention_is_found_behind_it() -> None:
    """Queries and keys of which two heads share one, as in Llama."""
    b = GraphBuilder()
    q, k, v = (b.input(n, "float32", (B, heads, S, D)) for n, heads in (("q", 4), ("k", 2), ("v", 2)))
    factors = tables(b)
    q, k = embedded(b, q, factors), embedded(b, k, factors)
    spread = (ints(b, B, 2, 2, S, D), ints(b, B, 4, S, D))
    k, v = (b.op("Reshape", b.op("Expand", b.op("Unsqueeze", x, ints(b, 2)), spread[0]), spread[1]) for x in (k, v))
    s = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), number(b, 0.25))
    s = b.op("Where", b.constant(np.tri(S, dtype=np.bool_)), s, number(b, -np.inf))
    assert left_of(b.finish([b.op("MatMul", b.op("Softmax", s), v)])) == {"RotaryEmbedding": 2, "Attention": 1}


def backwards(b: GraphBuilder, how: str) -> Any:
    """The other half negated, or what is turned subtracted."""
    x = b.input("x", "float32", (B, N, S, D))
    low, high = b.op("Split", x, ints(b, D // 2, D // 2), outputs=2, axis=-1)
    if how == "neighbours":
        high, low = (b.op("Slice", x, ints(b, n), ints(b, D), ints(b, 3), ints(b, 2)) for n in (1, 0))
    parts = [high, low]
    negated = int(how != "subtracted")
    parts[negated] = b.op("Neg", parts[negated])
    if how == "neighbours":
        pairs = b.op("Concat", *(b.op("Unsqueeze", part, ints(b, -1)) for part in parts), axis=-1)
        crossed = b.op("Reshape", pairs, ints(b, B, N, S, D))
        factors = [b.constant(f(np.repeat(ANGLES, 2, axis=-1))[None, None]) for f in (np.cos, np.sin)]
    else:
        crossed, factors = b.op("Concat", *parts, axis=-1), tables(b)
    sum_of = "Sub" if how == "subtracted" else "Add"
    return b.op(sum_of, b.op("Mul", x, factors[0]), b.op("Mul", crossed, factors[1]))


@pytest.mark.parametrize("how", ["negated", "subtracted", "neighbours"])
def test_turning_backwards_is_by_negative_sines(how: str) -> None:
    b = GraphBuilder()
    assert left_of(b.finish([backwards(b, how)])) == {"RotaryEmbedding": 1}


def of_another_value(b: GraphBuilder) -> Any:
    x, y = (b.input(n, "float32", (B, N, S, D)) for n in "xy")
    cosine, sine = tables(b)
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", turned(b, y), sine))


def other_tables(b: GraphBuilder) -> Any:
    x = b.input("x", "float32", (B, N, S, D))
    table = np.random.default_rng(0).normal(size=(1, 1, S, D)).astype(np.float32)
    return embedded(b, x, [b.constant(table), b.constant(np.concatenate((ANGLES, ANGLES), -1)[None, None])])


def by_head(b: GraphBuilder) -> Any:
    x = b.input("x", "float32", (B, N, S, D))
    table = np.random.default_rng(0).normal(size=(1, N, S, D // 2)).astype(np.float32)
    return embedded(b, x, [b.constant(np.concatenate((table, table), -1))] * 2)


def halves_of_other_size(b: GraphBuilder) -> Any:
    return embedded(b, b.input("x", "float32", (B, N, S, D)), tables(b), at=D // 2 - 1)


def halves_of_neighbours(b: GraphBuilder) -> Any:
    return interleaved(b, b.input("x", "float32", (B, N, S, D)), wrong=True)


def angles_of_halves(b: GraphBuilder) -> Any:
    """Neighbours are pairs, but angles are there all and then all again."""
    x = b.input("x", "float32", (B, N, S, D))
    alone = b.op("Unsqueeze", b.input("a", "float32", (1, S, D // 2)), ints(b, 2))
    twice = b.op("Reshape", b.op("Expand", alone, ints(b, 1, S, 2, D // 2)), ints(b, 1, 1, S, D))
    return neighbours_turned(b, x, (B, N, S, D), [b.op(f, twice) for f in ("Cos", "Sin")])


WRONG = [
    angles_of_halves,
    of_another_value,
    other_tables,
    by_head,
    halves_of_other_size,
    halves_of_neighbours,
]


@pytest.mark.parametrize("make", WRONG)
def test_what_only_looks_like_it_stays(make: Any) -> None:
    b = GraphBuilder()
    assert "RotaryEmbedding" not in left_of(b.finish([make(b)]))


def test_llama_turns_queries_and_keys_in_every_layer(tmp_path: Path) -> None:
    """With the tables that it was exported with: random numbers turn nothing."""
    path = inflate(MODELS / "llama.onnx", tmp_path, rotary=True)
    left = eqsat.optimize(path, verify=False, form="flat").report.operators_after
    assert (left["RotaryEmbedding"], left["Attention"]) == (12, 6)
