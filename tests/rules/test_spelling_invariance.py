"""Random spellings of a block are equal to it, and the optimiser does not care which it is given."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import same_graph

import eqsat
from benchmarks.respelling import SPELLINGS, Writer, respell
from benchmarks.spelling_blocks import BLOCKS, Types, variant
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import TensorType

PER_BLOCK = 5
MANY_WAYS = ("attention", 5003)
"""A mask that can be read in so many ways that each e-class must be read once only."""
UNDONE = ("attention", 21020)
"""Queries that are doubled and halved again."""
FACTORS_IN_A_ROW = (("attention", 22023), ("QDQ", 21022), ("norm", 24077))
SEEDS = [
    *((block, 7 * i + 12 * (i % 3)) for block in BLOCKS for i in range(PER_BLOCK)),
    MANY_WAYS,
    UNDONE,
    *FACTORS_IN_A_ROW,
]


SYMBOLS = Types(symbols=True)
HALVES = (Types("float16"), Types("bfloat16"), Types("float16", symbols=True))
TOLERANCE = {"float32": 2e-4, "float16": 5e-3, "bfloat16": 4e-2}
SIZES = {"batch": 3, "rows": 5}


def _feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; those named mask hold zeros and ones, and a one in each row: of half precision little is left else."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        found = graph.type_of(name)
        assert isinstance(found, TensorType)
        shape = tuple(d if isinstance(d, int) else SIZES[d] for d in found.shape or ())
        array = rng.integers(0, 2, shape) if name == "mask" else rng.normal(size=shape)
        if name == "mask":
            array[..., 0] = 1
        feeds[name] = array.astype(found.dtype.numpy)
    return feeds


QUANTUM = 2.0**-4
"""Scale of the results that the blocks quantise."""


def _agree(a: Graph, b: Graph, seed: int, quantum: float = 0.0) -> None:
    feeds = _feeds(a, seed)
    want, got = run(a, feeds), run(b, feeds)
    for name, value in want.items():
        near = TOLERANCE[value.dtype.name]
        size = 1.0 if near < 1e-3 else max(1.0, float(np.abs(value.astype(np.float64)).max()))
        found, expected = (x.astype(np.float64) for x in (got[name], value))
        np.testing.assert_allclose(found, expected, rtol=near, atol=near * size + quantum, err_msg=name)


def _named(types: Types) -> str:
    return "symbols" * types.symbols + types.dtype * (types.dtype != "float32") or "numbers"


def _has_kernels(chosen: tuple[str, int], types: Types) -> bool:
    """Whether ONNX Runtime can quantise that: what it cannot run stays in steps."""
    return (chosen[0], types.dtype) != ("QDQ", "bfloat16")


@pytest.mark.parametrize("types", [Types(), SYMBOLS, *HALVES], ids=_named)
@pytest.mark.parametrize("block", BLOCKS)
def test_variants_equal_the_plain_spelling(block: str, types: Types) -> None:
    for seed in range(40):
        plain, graph = variant(block, seed, types)
        _agree(plain, graph, seed)


def test_every_spelling_is_used_and_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function of the generator alone, on every block it applies to: it writes something, and that is equal."""
    written: set[str] = set()
    copied = Writer.copy

    def copy(self, node, spellings):  # type: ignore[no-untyped-def]
        def noted(function):  # type: ignore[no-untyped-def]
            def write(writer, node):  # type: ignore[no-untyped-def]
                found = function(writer, node)
                if found is not None:
                    written.add(function.__name__)
                return found

            return write

        copied(self, node, [noted(s) for s in spellings])

    monkeypatch.setattr(Writer, "copy", copy)
    for build, kinds in BLOCKS.values():
        for seed in range(50):
            plain = build(seed % kinds, Types())
            _agree(plain, respell(plain, 1000 + seed, rounds=2, probability=0.35), seed)
    assert written == {s.__name__ for spellings in SPELLINGS.values() for s in spellings}


def test_equal_seeds_give_equal_graphs() -> None:
    assert same_graph(variant("attention", 17)[1], variant("attention", 17)[1])
    assert not same_graph(variant("attention", 17)[1], variant("attention", 22)[1])


@pytest.mark.parametrize(
    ("block", "seed", "types"),
    [
        *((*chosen, Types()) for chosen in SEEDS),
        *((*chosen, SYMBOLS) for chosen in SEEDS[::2]),
        *((*chosen, types) for i, types in enumerate(HALVES) for chosen in SEEDS[i::4] if _has_kernels(chosen, types)),
    ],
    ids=lambda v: _named(v) if isinstance(v, Types) else str(v),
)
def test_every_spelling_ends_in_the_same_structures(block: str, seed: int, types: Types) -> None:
    plain, graph = variant(block, seed, types)
    best, result = (eqsat.optimize(g, verify=False, form="flat") for g in (plain, graph))
    assert result.report.recognized == best.report.recognized
    assert result.report.kernels_after <= best.report.kernels_after
    assert result.report.stop_reason == "saturated"
    if result.report.exactness != "lsb":
        _agree(plain, result.program.graph, seed)
    else:
        _agree(plain, result.program.graph, seed, QUANTUM)
        _agree(plain, eqsat.optimize(graph, verify=False, numerics="rounding", form="flat").program.graph, seed)
