"""Values that are put together by writing their parts, as PyTorch exports ``x[..., :k] = y``."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

PERM = (3, 1, 2, 0)


def written(starts: tuple[int, ...], step: int = 1) -> Graph:
    """Parts written to zeros along the last axis, each of two features from a start on, side by side or ``step`` apart."""
    b = GraphBuilder()
    x = b.op(
        "ConstantOfShape",
        b.op(
            "Concat",
            b.op("Shape", b.input("x0", "float32", ("n", 3, 5, 2)), end=3),
            b.constant(np.array([4])),
            axis=0,
        ),
    )
    for i, start in enumerate(starts):
        part = "x0" if i == 0 else b.input(f"x{i}", "float32", ("n", 3, 5, 2))
        places = b.constant(np.arange(start, start + 2 * step, step)[:, np.newaxis])
        new = b.op("Transpose", part, perm=PERM)
        x = b.op("Transpose", b.op("ScatterND", b.op("Transpose", x, perm=PERM), places, new), perm=PERM)
    return b.finish([x])


@pytest.mark.parametrize(
    ("graph", "left"),
    [
        (written((0, 2)), {"Concat": 1}),
        (written((2, 0)), {"Concat": 1}),
        (written((0, 0, 2)), {"Concat": 1}),
        (written((-2, 0)), {"Concat": 1}),
        (written((0, 1), 2), {"Concat": 1, "Reshape": 3}),
        (written((1, 0), 2), {"Concat": 1, "Reshape": 3}),
        (written((-3, 0), 2), {"Concat": 1, "Reshape": 3}),
    ],
    ids=[
        "in_order",
        "last_part_first",
        "written_twice",
        "counted_from_the_end",
        "by_turns",
        "by_turns_last_part_first",
        "by_turns_counted_from_the_end",
    ],
)
def test_a_value_put_together_of_parts_is_their_concatenation(graph: Graph, left: dict[str, int]) -> None:
    result = eqsat.optimize(graph, form="flat")
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 3, 5, 2)).astype(np.float32) for name in graph.inputs}
    for ours, theirs in zip(run(result.program.graph, feeds).values(), run(graph, feeds).values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert result.report.operators_after == left
