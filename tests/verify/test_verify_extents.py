"""The extents a model is run at: those that belong together, those that matter, and no more than memory holds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantised_models import Edit, node, nodes_of, quantised_chain

import eqsat.verification.original
import eqsat.verification.sizes
import eqsat.verification.trials
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Attributes, Graph
from eqsat.ir.types import UNKNOWN
from eqsat.verification import verify_program
from eqsat.verification.extents import sized
from eqsat.verification.feeds import random_feeds
from eqsat.verification.pieces import run_in_interpreter, session_of
from eqsat.verification.relations import relations_of
from eqsat.verification.sizes import TRIAL_BYTES, Sizes
from eqsat.verification.trials import Trial, Trials


def decoder(names: tuple[str, str, str, str] = ("batch", "seq", "past", "total"), second_past: str = "") -> Graph:
    """One step of a decoder: new keys behind stored ones, and a mask over both."""
    batch, seq, past, total = names
    b = GraphBuilder("decoder")
    x = b.input("x", "float32", (batch, seq, 4))
    mask = b.input("attention_mask", "float32", (batch, total))
    keys = b.input("past.key", "float32", (batch, past, 4))
    values = b.input("past.value", "float32", (batch, second_past or past, 4))
    stored, read = (b.op("Concat", v, x, axis=1) for v in (keys, values))
    scores = b.op("MatMul", x, b.op("Transpose", stored, perm=(0, 2, 1)))
    row = b.op("Unsqueeze", mask, b.constant([1], "int64"))
    weights = b.op("Softmax", b.op("Add", scores, row), axis=-1)
    return b.finish({"y": b.op("MatMul", weights, read), "present": stored})


def trials_of(graph: Graph, runs: int = 2) -> list[Trial]:
    run = session_of(graph).run
    chosen = Trials(graph, runs, 0)
    found = chosen.run(run, run)
    return found + chosen.empty(run, found[0], graph)


def test_a_total_is_the_sum_of_stored_and_new() -> None:
    relations = relations_of(decoder())
    assert relations.free == ("batch", "seq", "past")
    assert relations.complete({"batch": 2, "seq": 7, "past": 3})["total"] == 10


def _windows() -> Graph:
    """One layer with a buffer for a window, and one whose keys are all stored, as onnxruntime-genai writes them."""
    make, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        make("ReduceSum", ["attention_mask", "one"], ["valid"], keepdims=0),
        make("Sub", ["valid", "one"], ["last"]),
        make("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        make("Shape", ["attention_mask"], ["shape"], start=1),
        make("Squeeze", ["shape"], ["length"]),
        make("Cast", ["length"], ["total"], to=TensorProto.INT32),
    ]
    window: dict[str, Any] = {"local_window_size": 12, "sliding_window_cache": 1}
    for k, more in enumerate((window, dict[str, Any]())):
        operands = [f"x{k}", "", "", f"k{k}", f"v{k}", "lengths", "total"]
        outputs = [f"y{k}", f"nk{k}", f"nv{k}"]
        nodes.append(
            make("GroupQueryAttention", operands, outputs, domain="com.microsoft", num_heads=2, kv_num_heads=1, **more)
        )
    rows = [info(f"x{k}", TensorProto.FLOAT, ["batch", "seq", 32]) for k in (0, 1)]
    stored = [info(f"{v}{k}", TensorProto.FLOAT, ["batch", 1, f"past{k}", "size"]) for k in (0, 1) for v in "kv"]
    made = [info(f"{v}{k}", TensorProto.FLOAT, None) for k in (0, 1) for v in ("y", "nk", "nv")]
    mask = info("attention_mask", TensorProto.INT64, ["batch", "total"])
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "windows", [*rows, mask, *stored], made, [one])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return load_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def test_stored_keys_fit_grouped_attention_which_is_not_defined_with_windows() -> None:
    graph = _windows()
    assert all(n.opaque for n in graph.nodes if n.op == "GroupQueryAttention")
    sizes = next(Sizes(graph).candidates())
    assert sizes["size"] == 8
    assert sizes["past0"] >= 12, "the buffer holds the window"
    assert sizes["total"] >= 12, "and is full: what is behind the last key is undefined"
    assert sizes["past1"] + sizes["seq"] == sizes["total"]
    assert random_feeds(graph, 0, sizes)["attention_mask"].all(), "no new key is left out"
    assert verify_program(graph, Edit(graph).program()).verdict == "equal"


def test_extents_without_telling_names_are_related_by_what_the_nodes_ask_for() -> None:
    relations = relations_of(decoder(("a", "b", "c", "d"), second_past="e"))
    sizes = relations.complete({s: 5 + k for k, s in enumerate(relations.free)})
    assert sizes["d"] == sizes["b"] + sizes["c"]
    assert sizes["e"] == sizes["c"]


def test_a_mask_that_may_be_longer_than_keys_is_as_long() -> None:
    """Where the mask is cut to length nothing contradicts, but a mask shorter than the keys does."""
    b = GraphBuilder()
    x, past = b.input("x", "float32", ("batch", "seq", 4)), b.input("past", "float32", ("batch", "past", 4))
    mask = b.input("mask", "float32", ("batch", "total"))
    keys = b.op("Concat", past, x, axis=1)
    size = b.op("Gather", b.op("Shape", keys), b.constant([1], "int64"))
    one = b.constant([1], "int64")
    row = b.op("Slice", mask, b.constant([0], "int64"), size, one)
    summed = b.op("Add", b.op("ReduceSum", keys, b.constant([2], "int64"), keepdims=0), row)
    graph = b.finish({"y": summed})
    assert relations_of(graph).complete({"batch": 2, "seq": 5, "past": 3})["total"] == 8


def test_extents_that_fit_as_they_are_are_not_related_by_chance() -> None:
    """Of a length that has to be a multiple of 8, as windows that are laid side by side again ask for, a batch of 7 and one more
    is no telling example."""
    b = GraphBuilder("windows")
    x = b.input("x", "float32", ("batch", 2, "length"))
    windows = b.op("Conv", x, b.constant(np.ones((2, 2, 16), np.float32)), strides=(8,), pads=(8, 8))
    side_by_side = b.op(
        "ConvTranspose", windows, b.constant(np.ones((2, 2, 16), np.float32)), strides=(8,), pads=(8, 8)
    )
    graph = b.finish({"y": b.op("Reshape", side_by_side, b.op("Shape", x))})
    assert relations_of(graph).free == ("batch", "length")
    assert trials_of(graph)


def test_a_mask_among_new_tokens_goes_with_one_token_behind_stored_keys() -> None:
    """It broadcasts to stored and new keys where there is one new token; and the size of a stored head is that of a new one."""
    b = GraphBuilder()
    x, past = b.input("x", "float32", ("batch", "seq", 4)), b.input("past", "float32", ("batch", "past", "size"))
    length = b.op("Shape", x, start=1, end=2)
    among = b.op("ConstantOfShape", b.op("Concat", length, length, axis=0))
    all_keys = b.op("Add", length, b.op("Shape", past, start=1, end=2))
    mask = b.op("Expand", among, b.op("Concat", length, all_keys, axis=0))
    graph = b.finish({"m": mask, "y": b.op("Concat", past, x, axis=1)})
    assert relations_of(graph).complete({"batch": 2, "past": 3}) == {"batch": 2, "past": 3, "seq": 1, "size": 4}


def test_what_is_filled_with_one_number_is_not_worked_out_where_it_is_large() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", "columns"))
    graph = b.finish({"y": b.op("ConstantOfShape", b.op("Shape", x))})
    tracemalloc.start()
    try:
        found = sized(graph, {"x": (1 << 12, 1 << 12)})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert found.type_of(graph.outputs[0]).shape == (1 << 12, 1 << 12)


def test_decoding_runs_one_token_many_tokens_and_nothing_stored() -> None:
    sizes = [trial.sizes for trial in trials_of(decoder())]
    assert {"batch": 1, "seq": 1, "past": 1, "total": 2} in sizes
    assert any(s["batch"] > 1 and s["seq"] > 1 and s["seq"] % 2 and s["past"] > 0 for s in sizes)
    assert any(s["past"] == 0 and s["seq"] > 1 and s["total"] == s["seq"] for s in sizes)
    assert len(sizes) <= 2 + eqsat.verification.trials._EMPTY


def test_a_rewrite_that_is_right_only_for_one_token_is_caught() -> None:
    """A sum instead of the largest: the same for one token only."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "seq", 4))
    graph = b.finish({"y": b.op("ReduceMax", x, b.constant([1], "int64"), keepdims=1)})
    index = nodes_of(graph, "ReduceMax")[0]
    edit = Edit(graph, Exactness.EXACT)
    summed = replace(graph.nodes[index], op="ReduceSum")
    assert verify_program(graph, edit.replace(index, summed).program()).verdict == "failed"


def test_a_broadcast_that_is_lost_where_an_extent_is_1_is_caught() -> None:
    """``x[N, 2] * c[6, 1]`` needs N = 6 or N = 1; only at 1 it matters that c is not merely a factor."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("N", 2))
    graph = b.finish({"y": b.op("Mul", x, b.constant(np.full((6, 1), -1), "float32"))})
    assert [t.sizes["N"] for t in trials_of(graph)] == [6, 1]
    wrong = Edit(graph, Exactness.EXACT).replace(0, node("Neg", ("x",), graph.outputs[0])).program()
    found = verify_program(graph, wrong)
    assert found.verdict == "failed"
    assert "(N=1)" in found.failures[0]


def test_extents_grow_until_a_window_fits() -> None:
    """A short-time Fourier transform as a convolution: no hint for an extent of 512 and more."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", "samples"))
    framed = b.op("Unsqueeze", x, b.constant([1], "int64"))
    graph = b.finish({"y": b.op("Conv", framed, b.constant(np.ones((3, 1, 512)), "float32"), strides=(160,))})
    first = trials_of(graph)[0].sizes
    assert first["samples"] > 512
    assert first["rows"] == 2


def test_a_model_that_runs_at_one_size_of_images_only_is_run_at_that() -> None:
    """Five times five patches of 14, in a file that calls height and width free."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 3, "height", "width"))
    patches = b.op("Conv", x, b.constant(np.ones((8, 3, 14, 14)), "float32"), strides=(14, 14))
    graph = b.finish({"y": b.op("Reshape", patches, b.constant([0, 8, 25], "int64"))})
    sides = {"height": 70, "width": 70}
    assert [t.sizes for t in trials_of(graph)] == [{"batch": n, **sides} for n in (2, 1, 0)]


def test_an_image_of_one_size_leaves_the_length_of_a_text_and_the_batches_alone() -> None:
    """As of CLIP: 25 patches with positions, 8 positions for tokens, and every image beside every text."""
    b = GraphBuilder()
    image = b.input("image", "float32", ("batch", "channels", "height", "width"))
    text = b.input("text", "float32", ("texts", "length", 32))
    patches = b.op("Conv", image, b.constant(np.ones((32, 3, 14, 14)), "float32"), strides=(14, 14), pads=(14,) * 4)
    shape = b.op("Concat", b.op("Shape", patches, end=2), b.constant([-1], "int64"), axis=0)
    rows = b.op("Transpose", b.op("Reshape", patches, shape), perm=(0, 2, 1))
    seen = b.op("Add", rows, b.constant(np.ones((1, 25, 32)), "float32"))
    length = b.op("Shape", text, start=1, end=2)
    positions = b.op(
        "Slice", b.constant(np.ones((1, 8, 32)), "float32"), b.constant([0], "int64"), length, b.constant([1], "int64")
    )
    read = b.op("Add", text, positions)
    axes = b.constant([1], "int64")
    ends = [b.op("ReduceMean", value, axes, keepdims=0) for value in (seen, read)]
    graph = b.finish({"y": b.op("MatMul", ends[0], b.op("Transpose", ends[1], perm=(1, 0)))})
    first, second = (t.sizes for t in trials_of(graph)[:2])
    assert first == {"batch": 2, "channels": 3, "height": 42, "width": 42, "texts": 3, "length": 7}
    assert second == {**first, "batch": 1, "texts": 1}


@pytest.mark.parametrize("rank", [1, 5])
def test_memory_bounds_the_extents(rank: int) -> None:
    """Whatever grows, the values alive at once stay below the bound."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("N",) * rank)
    graph = b.finish({"y": b.op("Add", b.op("Exp", x), x)})
    sizes = list(Sizes(graph).candidates())
    assert sizes
    assert all(2 * 4 * s["N"] ** rank <= TRIAL_BYTES for s in sizes)


_SPELLED: list[tuple[str, dict[str, Any]]] = [
    ("Attention", {"domain": "", "q_num_heads": 4, "kv_num_heads": 4}),
    ("MultiHeadAttention", {"domain": "com.microsoft", "num_heads": 4}),
]


@pytest.mark.parametrize(("op", "attributes"), _SPELLED)
def test_scores_of_attention_count_though_they_are_no_value_of_the_graph(op: str, attributes: dict[str, Any]) -> None:
    """A million tokens would fit, were it not for them; the system ends processes that take as much."""
    b = GraphBuilder()
    rows = b.input("rows", "float32", ("batch", "seq", 32))
    sizes = list(Sizes(b.finish({"y": b.op(op, rows, rows, rows, **attributes)})).candidates())
    assert all(s["batch"] * 4 * s["seq"] ** 2 * 4 <= TRIAL_BYTES for s in sizes)


def test_an_operator_that_is_not_known_may_need_as_much_as_attention() -> None:
    b = GraphBuilder()
    rows = b.input("rows", "float32", ("batch", "seq", 64))
    (y,) = b.opaque("Attend", rows, types=[b.type_of(rows)], domain="my.own", reason="domain my.own")
    assert all(s["batch"] * s["seq"] ** 2 * 4 <= TRIAL_BYTES for s in Sizes(b.finish({"y": y})).candidates())


def test_a_square_of_five_axes_takes_the_extent_its_weight_has() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("N",) * 5)
    graph = b.finish({"y": b.op("MatMul", x, b.constant(np.ones((2, 2)), "float32"))})
    assert [t.sizes for t in trials_of(graph)] == [{"N": 2}, {"N": 2}]


def test_where_known_extents_alone_are_too_large_the_smallest_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eqsat.verification.sizes, "TRIAL_BYTES", 100)
    assert [s["rows"] for s in Sizes(quantised_chain(rows="rows")).candidates()] == [1]


def test_types_and_bytes_at_given_extents() -> None:
    found = sized(
        decoder(), {"x": (2, 7, 4), "attention_mask": (2, 10), "past.key": (2, 3, 4), "past.value": (2, 3, 4)}
    )
    assert found.misfit is None
    assert found.bytes_of("present") == 2 * 10 * 4 * 4
    wrong = sized(decoder(), {"x": (2, 7, 4), "attention_mask": (2, 9), "past.key": (2, 3, 4), "past.value": (2, 3, 4)})
    assert wrong.misfit is not None
    assert wrong.graph.nodes[wrong.misfit].op == "Add"


def test_an_empty_batch_is_compared_where_the_original_takes_it() -> None:
    graph = quantised_chain(rows="rows")
    assert 0 in {t.sizes["rows"] for t in trials_of(graph)}
    assert verify_program(graph, Edit(graph).program()).runs == 3


def test_a_result_that_refuses_an_empty_batch_is_noted_not_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 1, "seq", 4))
    graph = b.finish({"y": b.op("Transpose", x, perm=(0, 2, 1, 3))})
    edit = Edit(graph, Exactness.EXACT)
    target = edit.constant([0, -1, 1, 4], "int64")
    found = verify_program(graph, edit.replace(0, node("Reshape", ("x", target), graph.outputs[0])).program())
    assert found.verdict == "equal"
    assert any("batch=0" in note and "does not" in note for note in found.notes)


def test_empty_tensors_do_not_reach_kernels_that_would_end_the_process() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("seq", "batch", 3))
    w, r = (b.constant(np.ones((1, 8, n)), "float32") for n in (3, 2))
    y, _, _ = b.op("LSTM", x, w, r, hidden_size=2, outputs=3)
    graph = b.finish({"y": y})
    assert not any(t.is_empty for t in trials_of(graph))


def test_empty_tensors_do_not_reach_einsum() -> None:
    b = GraphBuilder()
    q, k = (b.input(n, "float32", ("batch", 2, 3, 4)) for n in "qk")
    graph = b.finish({"scores": b.op("Einsum", q, k, equation="bcxd,bcyd->bcxy")})
    assert not any(t.is_empty for t in trials_of(graph))


def test_empty_tensors_do_not_reach_instance_norm() -> None:
    """With the operand among the values asked for, this ended the process."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4, "height", 5))
    rows = b.op("Reshape", b.op("Exp", x), b.constant([3, 2, -1], "int64"))
    normal = b.op("InstanceNormalization", rows, b.constant([1, 1], "float32"), b.constant([0, 0], "float32"))
    graph = b.finish({"y": b.op("Mul", normal, b.constant([[2], [3]], "float32"))})
    assert not any(t.is_empty for t in trials_of(graph))


def test_a_division_by_an_extent_of_0_is_not_run() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 4))
    size = b.op("Shape", x)
    graph = b.finish({"y": b.op("Reshape", x, b.op("Div", b.op("Mul", size, size), size))})
    assert not any(t.is_empty for t in trials_of(graph))


def test_a_value_of_unknown_dtype_between_kernels_is_checked() -> None:
    """An operator we do not define leaves its result untyped; what the original computes has a type."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    graph = b.finish({"y": b.op("Mul", b.op("Abs", x), b.constant(2.0, "float32"))})
    first = graph.nodes[0]
    opaque = replace(first, attributes=Attributes(), opaque="not covered")
    graph = replace(
        graph,
        nodes=(opaque, *graph.nodes[1:]),
        types=MappingProxyType({**graph.types, first.outputs[0]: UNKNOWN}),
    )
    edit = Edit(graph, Exactness.EXACT)
    twice = node("Add", (first.outputs[0],) * 2, graph.outputs[0])
    found = verify_program(graph, edit.replace(1, twice).program())
    assert (found.verdict, found.kernels_checked) == ("equal", 1)
    assert not found.notes
    wrong = node("Mul", (first.outputs[0],) * 2, graph.outputs[0])
    assert verify_program(graph, edit.replace(1, wrong).program()).verdict == "failed"


def test_a_model_that_runs_at_no_extents_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.backends.onnxruntime import Session

    def fail(self: Session, feeds: object, fetch: object = None) -> object:
        raise ModelError("the table has 3 rows")

    monkeypatch.setattr(Session, "run", fail)
    graph = quantised_chain(rows="rows")
    found = verify_program(graph, Edit(graph).program())
    assert found.verdict == "not run"
    assert "does not run on random inputs: with rows=" in found.notes[0]
    assert "the table has 3 rows; fix extents (--dim rows=N) or give your own inputs (--inputs" in found.notes[0]


def test_the_original_runs_once_for_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs, the values for the kernels and the reference are of one run; noise is for what differs."""
    from eqsat.backends.onnxruntime import Session

    ran: list[tuple[str, ...]] = []
    run = Session.run

    def counted(self: Session, feeds: object, fetch: object = None) -> object:
        ran.append(self.inputs)
        return run(self, feeds, fetch)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "run", counted)
    graph = quantised_chain()
    program = Edit(graph, Exactness.EXACT).replace(0, graph.nodes[0]).program()
    assert verify_program(graph, program).verdict == "equal"
    assert (
        ran.count(("x",)) == 5
    )  # two trials: the original once, the result once, and at a level as often as there are shapes
    assert not any("noise" in name for inputs in ran for name in inputs)


def from_extent(least: int) -> Graph:
    """``x`` times the number of rows beyond ``least``: all zero up to there."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", 4))
    rows = b.op("Cast", b.op("Gather", b.op("Shape", x), b.constant([0], "int64")), to=1)
    beyond = b.op("Relu", b.op("Sub", rows, b.constant(float(least), "float32")))
    return b.finish({"y": b.op("Mul", x, beyond)})


def test_extents_at_which_all_outputs_are_zero_are_passed_over() -> None:
    extents = [t.feeds["x"].shape[0] for t in trials_of(from_extent(8)) if not t.is_empty]
    assert len(set(extents)) == 2
    assert min(extents) > 8


def test_a_second_size_is_run_although_its_outputs_are_zero() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", 4))
    first = next(Sizes(b.finish({"y": b.op("Abs", x)})).candidates())["rows"]
    same = b.op("Equal", b.op("Gather", b.op("Shape", x), b.constant([0], "int64")), b.constant([first], "int64"))
    graph = b.finish({"y": b.op("Mul", x, b.op("Cast", same, to=1))})
    told, mute = (t for t in trials_of(graph) if not t.is_empty)
    assert (told.is_mute, mute.is_mute) == (False, True)
    assert told.feeds["x"].shape[0] == first != mute.feeds["x"].shape[0]


@pytest.mark.parametrize("kind", ["Relu", "Sqrt"])
def test_outputs_that_are_zero_or_nan_in_every_run_are_noted(kind: str) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", 4))
    negative = b.op("Sub", b.op("Neg", b.op("Abs", x)), b.constant(1.0, "float32"))
    graph = b.finish({"mute": b.op(kind, negative), "told": b.op("Exp", x)})
    found = verify_program(graph, Edit(graph, Exactness.EXACT).program())
    assert found.verdict == "equal"
    (note,) = found.notes
    assert note.startswith("output 'mute' is zero or NaN in every run, which says little")


def test_a_model_whose_outputs_are_always_zero_is_still_run() -> None:
    trials = [t for t in trials_of(from_extent(1 << 40)) if not t.is_empty]
    assert len(trials) == 2
    assert all(t.is_mute for t in trials)


@pytest.mark.parametrize("extent", [1 << 35, 1 << 62], ids=["more than fits", "more than can be counted"])
def test_values_larger_than_memory_may_be_are_not_drawn(extent: int) -> None:
    b = GraphBuilder("large")
    x = b.input("x", "float32", (extent, 3))
    graph = b.finish({"y": b.op("Relu", x)})
    found = eqsat.optimize(graph).report.verification
    assert found["verdict"] == "not run"
    assert "its values take" in found["notes"][-1]
    assert "--inputs" in found["notes"][-1]


def test_a_loop_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    make, info = helper.make_node, helper.make_tensor_value_info
    number, truth = info("v", TensorProto.FLOAT, [2]), info("go", TensorProto.BOOL, [])
    step = helper.make_graph(
        [make("Identity", ["go"], ["go_on"]), make("Add", ["v", "v"], ["w"])],
        "step",
        [info("i", TensorProto.INT64, []), truth, number],
        [info("go_on", TensorProto.BOOL, []), info("w", TensorProto.FLOAT, [2])],
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    nodes = [make("Loop", ["", "yes", "x"], ["y"], body=step)]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [2])], [info("y", TensorProto.FLOAT, [2])], [yes]
    )
    monkeypatch.setattr(eqsat.verification.original, "LOOP_S", 0.2)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = eqsat.optimize(model).report.verification
    assert found["verdict"] == "not run"
    assert "did not end within 0.2 s" in found["notes"][-1]


def test_an_operator_that_nothing_runs_is_not_tried_at_other_extents() -> None:
    """As Erfc of tf2onnx, which ONNX has not."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("rows", 4))
    (y,) = b.opaque("Unheard", b.op("Relu", x), types=[b.type_of(x)], domain="", reason="no definition of Unheard")
    graph = b.finish({"y": y})
    tried: list[Any] = []

    def run(feeds: Any) -> dict[str, Any]:
        tried.append(feeds)
        return run_in_interpreter(graph, feeds)

    with pytest.raises(ModelError, match=r"^Unheard: the reference interpreter has no definition of this operator$"):
        Trials(graph, 2, 0).run(run, run)
    assert len(tried) == 1


SCAN = """<ir_version: 8, opset_import: ["" : 17]> agraph
    (float[batch, n, 4] x, float[batch, 4] first) => (float[batch, 4] last, float[batch, m, 4] y)
<int64[1] from = {4}, int64[1] to = {9999}, int64[1] axis = {1}> {
    cut = Slice(x, from, to, axis)
    last, y = Scan <num_scan_inputs: int = 1, scan_input_axes: ints = [1], scan_output_axes: ints = [1],
        body: graph = body (float[batch, 4] p, float[batch, 4] c) => (float[batch, 4] s, float[batch, 4] o) {
            s = Add(p, c)
            o = Identity(s)
        }> (first, cut)
}"""


def _normalised_end() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 2, "n"))
    end = b.op("Slice", x, b.constant([4], "int64"), b.constant([9999], "int64"), b.constant([2], "int64"))
    ones = b.constant(np.ones(2, np.float32))
    return b.finish({"y": b.op("InstanceNormalization", end, ones, ones)})


@pytest.mark.parametrize(
    "graph", [lambda: load_onnx(onnx.parser.parse_model(SCAN)), _normalised_end], ids=["scan", "instance norm"]
)
def test_extents_at_which_an_empty_tensor_ends_the_process_are_not_tried(graph: Callable[[], Graph]) -> None:
    """The names of extents say nothing about how many of them are cut off before a kernel that is not prepared for nothing."""
    tried = list(Sizes(graph()).candidates())
    assert tried
    assert all(sizes["n"] > 4 for sizes in tried)
