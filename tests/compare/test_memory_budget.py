"""Peak memory: liveness by kernels, the order of least memory, and a budget for it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from compared_graphs import two_branches, wide_then_narrow
from typer.testing import CliRunner

import eqsat
from eqsat.cli import app
from eqsat.errors import MemoryBudgetError
from eqsat.ir.interpret import run
from eqsat.lower.liveness import Buffers, buffers_of, peak_memory_bytes
from eqsat.lower.program import Kernel
from eqsat.lower.schedule import least_memory_order, with_least_memory


def _orders(buffers: Buffers, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(buffers.made):
        yield done
    for step in range(len(buffers.made)):
        if step not in done and buffers.after[step] <= set(done):
            yield from _orders(buffers, (*done, step))


def _peak_by_hand(buffers: Buffers, order: tuple[int, ...]) -> int:
    """Bytes alive at each step, from what was made before and will be read again."""
    peak = sum(buffers.bytes[b] for b in buffers.given)
    for i, step in enumerate(order):
        earlier = {b for s in order[: i + 1] for b in buffers.made[s]} | buffers.given
        later = {b for s in order[i:] for b in buffers.read[s]} | buffers.kept | set(buffers.made[step])
        unread = {b for b in buffers.given if not any(b in r for r in buffers.read)}
        peak = max(peak, sum(buffers.bytes[b] for b in (earlier & later) | unread))
    return peak


@pytest.mark.parametrize("seed", range(40))
def test_orders_against_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(3, 6)
    inputs = frozenset((count, count + 1))
    after = tuple(frozenset(j for j in range(i) if rng.random() < 0.35) for i in range(count))
    read = tuple(frozenset(a | {b for b in inputs if rng.random() < 0.3}) for a in after)
    kept = frozenset(i for i in range(count) if not any(i in a for a in after))
    sizes = tuple(rng.randint(1, 20) for _ in range(count + 2))
    buffers = Buffers(sizes, inputs, kept, tuple((i,) for i in range(count)), read, after)
    every = list(_orders(buffers))
    assert all(buffers.peak(o) == _peak_by_hand(buffers, o) for o in every)
    found = least_memory_order(buffers)
    assert found in every
    assert buffers.peak(found) == min(map(buffers.peak, every))


def test_values_inside_a_kernel_are_not_in_memory() -> None:
    b = eqsat.GraphBuilder("chain")
    x = b.input("x", "float32", (256,))
    h = b.op("Exp", b.op("Sin", x))
    graph = b.finish({"y": b.op("ReduceMax", h, keepdims=0)})
    names = [n.outputs[0] for n in graph.nodes]
    assert peak_memory_bytes(graph) == 2048
    one = Kernel("k", "row", (0, 1, 2), ("x",), (names[2],))
    assert peak_memory_bytes(graph, [one]) == 1028
    two = [
        Kernel("a", "pointwise", (0, 1), ("x",), (names[1],)),
        Kernel("b", "ReduceMax", (2,), (names[1],), (names[2],)),
    ]
    assert peak_memory_bytes(graph, two) == 2048
    assert buffers_of(graph, two).made == ((2,), (3,))


def test_a_view_shares_its_buffer_and_keeps_it_alive() -> None:
    b = eqsat.GraphBuilder("views")
    x = b.input("x", "float32", (64,))
    h = b.op("Sin", x)
    v = b.op("Reshape", h, b.constant(np.array([8, 8])))
    w = b.op("ReduceMax", b.op("Exp", h), keepdims=0)
    graph = b.finish({"y": b.op("ReduceMin", v, keepdims=0), "w": w})
    # x, then h beside it; h lives on under the name of the view while exp(h) is computed
    assert peak_memory_bytes(graph) == 2 * 256 + 4
    kept = graph.with_nodes([n for n in graph.nodes if n.op != "ReduceMin"])
    assert buffers_of(kept).read[[n.op for n in kept.nodes].index("Reshape")] == {1}


def test_reordering_lowers_the_peak_and_changes_no_value() -> None:
    program = eqsat.optimize(wide_then_narrow(), verify=False, only_rules=(), form="flat").program
    ordered = with_least_memory(program)
    ordered.graph.check()
    before, after = (peak_memory_bytes(p.graph, p.kernels) for p in (program, ordered))
    assert after < before / 2
    feeds = {"x": np.linspace(-1, 1, 4, dtype=np.float32).reshape(4, 1)}
    assert np.array_equal(run(program.graph, feeds)["y"], run(ordered.graph, feeds)["y"])
    assert sorted(k.name for k in ordered.kernels) == sorted(k.name for k in program.kernels)
    assert all(ordered.graph.nodes[k.nodes[-1]].outputs == k.outputs for k in ordered.kernels)
    assert with_least_memory(program).graph.nodes == ordered.graph.nodes


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "tensorrt-like"])
def test_a_budget_is_kept(target: str) -> None:
    graph = wide_then_narrow(3)
    free = eqsat.optimize(graph, target=target, verify=False, form="flat").report
    assert free.memory_budget == {}
    ample = eqsat.optimize(graph, target=target, memory_budget_bytes=10**9, form="flat").report
    assert ample.memory_budget["candidates"] == 1
    assert ample.peak_memory_bytes == free.peak_memory_bytes
    with pytest.raises(MemoryBudgetError, match=r"at most 7 bytes: the best of \d+ candidates needs \d+, ") as error:
        eqsat.optimize(graph, target=target, memory_budget_bytes=7, verify=False, form="flat")
    least = int(str(error.value).rsplit("raise the budget to ", 1)[1].split()[0])
    assert f"{least - 7} too many" in str(error.value)
    tight = eqsat.optimize(graph, target=target, memory_budget_bytes=least, form="flat")
    assert tight.report.peak_memory_bytes == peak_memory_bytes(tight.program.graph, tight.program.kernels) <= least
    assert tight.report.memory_budget["bytes"] == least
    assert tight.report.cost_after >= free.cost_after
    assert tight.report.lower_bound <= tight.report.cost_after
    assert tight.report.verification["verdict"] in ("equal", "within tolerance")


def test_a_budget_can_change_the_choice() -> None:
    """Products of one input are merged into one kernel, unless the merged result is too large."""
    rng = np.random.default_rng(3)
    b = eqsat.GraphBuilder("products")
    x = b.input("x", "float32", (8, 16))
    products = [b.op("MatMul", x, b.constant(rng.normal(size=(16, 64)).astype(np.float32))) for _ in range(4)]
    graph = b.finish({f"y{i}": b.op("ReduceMax", p, keepdims=0) for i, p in enumerate(products)})
    free = eqsat.optimize(graph, verify=False, form="flat").report
    assert free.operators_after["MatMul"] == 1
    tight = eqsat.optimize(graph, memory_budget_bytes=4_000, verify=False, form="flat").report
    assert tight.operators_after["MatMul"] == 4
    assert tight.peak_memory_bytes <= 4_000 < free.peak_memory_bytes
    assert tight.memory_budget["cost_unconstrained"] == free.cost_after < tight.cost_after


def test_command_line_budget(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    eqsat.optimize(two_branches(), only_rules=(), verify=False, form="flat").save(path)
    arguments = ["optimize", str(path), "--no-verify", "--json", "-", "--memory-budget"]
    done = CliRunner().invoke(app, [*arguments, "1000000"])
    assert json.loads(done.stdout)["memory_budget"]["bytes"] == 1_000_000
    done = CliRunner().invoke(app, [*arguments, "3"])
    assert done.exit_code == 2
    assert "no program was found whose peak memory is at most 3 bytes" in done.stderr.splitlines()[-1]
    assert CliRunner().invoke(app, [*arguments, "-3"]).exit_code == 2
