"""Every operator whose form changed, at every opset: read, written back, and written at the newest opset."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_models import Arrays, assert_round_trip, assert_same, model, node, noise, run

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.frontends.onnx.model import load_onnx
from eqsat.frontends.onnx.versions.steps import Refusal, Values, downgrade, steps_of
from eqsat.ir.operator import OPSET

X = noise(2, 3, 4, 4)
Parts = tuple[list[onnx.NodeProto], Arrays, Arrays]
Build = Callable[[int], Any]  # Parts, or None where the opset lacks the operator
CASES: dict[str, Build] = {}


def case(function: Build) -> Build:
    CASES[function.__name__] = function
    return function


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _with_list(
    op: str, attribute: str, values: list[int], since: int, opset: int, outputs=("y",), data=X, **rest
) -> Parts:
    """``op`` whose list is an attribute before ``since`` and an input from then on."""
    if opset < since:
        return [node(op, ["x"], outputs, **{attribute: values}, **rest)], {"x": data}, {}
    return [node(op, ["x", "list"], outputs, **rest)], {"x": data}, {"list": ints(*values)}


@case
def squeeze(opset):
    return _with_list("Squeeze", "axes", [0, 2], 13, opset, data=noise(1, 3, 1))


@case
def squeeze_everything(opset):
    return [node("Squeeze", ["x"])], {"x": noise(1, 3, 1)}, {}


@case
def unsqueeze(opset):
    return _with_list("Unsqueeze", "axes", [0, 3], 13, opset, data=noise(3, 2))


@case
def unsqueeze_from_the_back(opset):
    return None if opset < 11 else _with_list("Unsqueeze", "axes", [-1, 0], 13, opset, data=noise(3, 2))


@case
def reduce_sum(opset):
    return _with_list("ReduceSum", "axes", [1, 3], 13, opset, keepdims=0)


@case
def reduce_mean(opset):
    return _with_list("ReduceMean", "axes", [1], 18, opset)


@case
def reduce_mean_from_the_back(opset):
    return None if opset < 11 else _with_list("ReduceMean", "axes", [-1], 18, opset)


@case
def reduce_everything(opset):
    return [node("ReduceMax", ["x"], keepdims=0)], {"x": X}, {}


@case
def reduce_nothing(opset):
    return None if opset < 18 else ([node("ReduceL2", ["x"], noop_with_empty_axes=1)], {"x": X}, {})


@case
def split_unequal(opset):
    return _with_list("Split", "split", [1, 3], 13, opset, outputs=("y", "z"), axis=3)


@case
def split_equal(opset):
    number = {"num_outputs": 2} if opset >= 18 else {}
    return [node("Split", ["x"], ["z", "y"], axis=2, **number)], {"x": X}, {}


@case
def split_uneven_by_number(opset):
    return None if opset < 18 else ([node("Split", ["x"], ["z", "y"], axis=1, num_outputs=2)], {"x": X}, {})


def _clip(opset, **bounds) -> Parts:
    data = np.array([-np.inf, -2.0, -0.0, 0.5, 7.0, np.inf, np.nan], np.float32)
    if opset < 11:
        return [node("Clip", ["x"], **bounds)], {"x": data}, {}
    names = [n if n in bounds else "" for n in ("min", "max")]
    return [node("Clip", ["x", *names])], {"x": data}, {k: np.array(v, np.float32) for k, v in bounds.items()}


@case
def clip_both(opset):
    return _clip(opset, min=-1.0, max=0.7)


@case
def clip_above(opset):
    return _clip(opset, max=0.7)


@case
def clip_below(opset):
    return _clip(opset, min=0.1)


@case
def clip_nothing(opset):
    return _clip(opset)


@case
def dropout(opset):
    if opset < 12:
        return [node("Dropout", ["x"], ratio=0.3)], {"x": X}, {}
    return [node("Dropout", ["x", "ratio"])], {"x": X}, {"ratio": np.float32(0.3)}


@case
def dropout_with_mask(opset):
    return ([node("Dropout", ["x"], ["y", "z"])], {"x": X}, {}) if opset >= 10 else None


@case
def batch_normalization(opset):
    parameters = {k: np.abs(noise(3, seed=i)) for i, k in enumerate(("scale", "bias", "mean", "var"))}
    return [node("BatchNormalization", ["x", *parameters], epsilon=1e-3)], {"x": X}, parameters


@case
def batch_normalization_of_every_position(opset):
    if opset >= 9:
        return None
    parameters = {k: np.abs(noise(3, 4, 4, seed=i)) for i, k in enumerate(("scale", "bias", "mean", "var"))}
    return [node("BatchNormalization", ["x", *parameters], spatial=0)], {"x": X}, parameters


@case
def group_normalization(opset):
    if opset < 18:
        return None
    extent = 2 if opset < 21 else 4
    parameters = {"scale": noise(extent), "bias": noise(extent, seed=1)}
    return [node("GroupNormalization", ["x", *parameters], num_groups=2)], {"x": noise(2, 4, 3)}, parameters


@case
def pad_constant(opset):
    pads = [0, 0, 1, 0, 0, 0, 2, 1]
    if opset < 11:
        return [node("Pad", ["x"], pads=pads, value=1.5)], {"x": X}, {}
    return [node("Pad", ["x", "pads", "value"])], {"x": X}, {"pads": ints(*pads), "value": np.float32(1.5)}


@case
def pad_reflecting(opset):
    return _with_list("Pad", "pads", [0, 0, 1, 2, 0, 0, 1, 1], 11, opset, mode="reflect")


@case
def pad_axes(opset):
    if opset < 18:
        return None
    return [node("Pad", ["x", "pads", "", "axes"])], {"x": X}, {"pads": ints(1, 2, 3, 0), "axes": ints(-1, 1)}


@case
def slice_some_axes(opset):
    if opset < 10:
        return [node("Slice", ["x"], starts=[1, -3], ends=[9, -1], axes=[1, 3])], {"x": X}, {}
    lists = {"starts": ints(1, -3), "ends": ints(9, -1), "axes": ints(1, 3)}
    return [node("Slice", ["x", *lists])], {"x": X}, lists


@case
def slice_first_axes(opset):
    if opset < 10:
        return [node("Slice", ["x"], starts=[1, 0], ends=[2, 2])], {"x": X}, {}
    return [node("Slice", ["x", "starts", "ends"])], {"x": X}, {"starts": ints(1, 0), "ends": ints(2, 2)}


@case
def slice_backwards(opset):
    if opset < 10:
        return None
    lists = {"starts": ints(3), "ends": ints(-9), "axes": ints(2), "steps": ints(-2)}
    return [node("Slice", ["x", *lists])], {"x": X}, lists


@case
def top_k(opset):
    if opset < 10:
        return [node("TopK", ["x"], ["y", "z"], k=2, axis=1)], {"x": X}, {}
    return [node("TopK", ["x", "k"], ["y", "z"], axis=1)], {"x": X}, {"k": ints(2)}


@case
def top_k_smallest(opset):
    return ([node("TopK", ["x", "k"], ["y", "z"], largest=0)], {"x": X}, {"k": ints(2)}) if opset >= 11 else None


def _axis_attribute(axis: int | None) -> dict[str, Any]:
    return {} if axis is None else {"axis": axis}


def _softmax(op: str, axis: int | None, data: np.ndarray = X):
    return lambda opset: ([node(op, ["x"], **_axis_attribute(axis))], {"x": data}, {})


for _op in ("Softmax", "LogSoftmax", "Hardmax"):
    for _axis in (None, 0, 1, 2, 3):
        CASES[f"{_op.lower()}_{_axis}"] = _softmax(_op, _axis)
CASES["softmax_of_channels"] = _softmax("Softmax", 1, noise(2, 5, 1, 1))
CASES["softmax_from_the_back"] = lambda opset: _softmax("Softmax", -2)(opset) if opset >= 11 else None


def _resize(opset: int, mode: str, scales: list[float]) -> Parts:
    values = np.array(scales, np.float32)
    if opset < 9:
        return [node("Upsample", ["x"], mode=mode, scales=[float(v) for v in scales])], {"x": X}, {}
    if opset < 11:
        return [node("Upsample" if opset == 9 else "Resize", ["x", "s"], mode=mode)], {"x": X}, {"s": values}
    roi = {"roi": np.zeros(0, np.float32)} if opset < 13 else {}
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return [node("Resize", ["x", "roi" if roi else "", "s"], mode=mode, **attributes)], {"x": X}, {"s": values, **roi}


CASES["enlarge_nearest"] = lambda opset: _resize(opset, "nearest", [1, 1, 2, 3])
CASES["enlarge_linear"] = lambda opset: _resize(opset, "linear", [1, 1, 2, 2])
CASES["shrink_nearest"] = lambda opset: _resize(opset, "nearest", [1, 1, 0.6, 0.5]) if opset >= 10 else None


@case
def resize_to_sizes(opset):
    if opset < 11:
        return None
    empty = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32)} if opset < 13 else {}
    names = ["x", *(empty or ("", "")), "sizes"]
    return [node("Resize", names, mode="linear")], {"x": X}, {**empty, "sizes": ints(2, 3, 5, 7)}


@case
def scatter(opset):
    if opset < 9:
        return None
    op = "Scatter" if opset < 11 else "ScatterElements"
    rest = {"i": np.array([[0, 2, 1]], np.int64), "u": noise(1, 3, seed=2)}
    return [node(op, ["x", "i", "u"], axis=0)], {"x": noise(3, 3)}, rest


@case
def scatter_adding(opset):
    if opset < 16:
        return None
    rest = {"i": ints(1, 1, 0).reshape(1, 3), "u": noise(1, 3, seed=2)}
    return [node("ScatterElements", ["x", "i", "u"], reduction="add")], {"x": noise(3, 3)}, rest


@case
def grid_sample(opset):
    if opset < 16:
        return None
    modes = ("bilinear", "linear")
    grid = noise(2, 3, 3, 2, seed=3)
    return [node("GridSample", ["x", "g"], mode=modes[opset >= 20])], {"x": X, "g": grid}, {}


@case
def roi_align(opset):
    if not 10 <= opset < 22:  # the runtime has no kernel since
        return None
    rois = {"r": np.array([[0.0, 0.0, 2.0, 3.0]], np.float32), "b": ints(1)}
    return [node("RoiAlign", ["x", "r", "b"], output_height=2, output_width=2)], {"x": X}, rois


@case
def transposed_convolution(opset):
    return [node("ConvTranspose", ["x", "w"], strides=[2, 2])], {"x": X}, {"w": noise(3, 2, 3, 3)}


@case
def transposed_convolution_same(opset):
    return (
        [node("ConvTranspose", ["x", "w"], strides=[2, 2], auto_pad="SAME_UPPER")],
        {"x": X},
        {"w": noise(3, 2, 3, 3)},
    )


@case
def one_hot(opset):
    if opset < 9:
        return None
    rest = {"depth": ints(4), "values": np.array([0, 1], np.float32)}
    return [node("OneHot", ["x", *rest])], {"x": ints(0, 3, 2, 5)}, rest


@case
def gemm(opset):
    return [node("Gemm", ["x", "w", "c"], alpha=0.5)], {"x": noise(2, 3)}, {"w": noise(3, 4), "c": noise(4)}


@case
def gemm_without_bias(opset):
    return ([node("Gemm", ["x", "w"], transA=1)], {"x": noise(3, 2)}, {"w": noise(3, 4)}) if opset >= 11 else None


@case
def pools(opset):
    nodes = [
        node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
        node("AveragePool", ["m"], kernel_shape=[2, 2], strides=[2, 1], count_include_pad=1),
    ]
    return nodes, {"x": X}, {}


@case
def pools_rounding_up(opset):
    if opset < 10:
        return None
    nodes = [
        node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1),
        node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[0, 1, 0, 1]),
    ]
    return nodes, {"x": X}, {}


@case
def quantization(opset):
    if opset < 10 or opset >= 28:  # ONNX Runtime 1.32 has no kernels for what opset 28 has
        return None
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"])]
    return nodes, {"x": X}, {"s": np.float32(0.1), "z": np.uint8(128)}


@case
def quantization_of_channels(opset):
    if opset < 13 or opset >= 28:
        return None
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=-2), node("DequantizeLinear", ["q", "s", "z"], axis=2)]
    return nodes, {"x": X}, {"s": np.abs(noise(4)), "z": np.zeros(4, np.int8)}


@case
def quantization_of_halves(opset):
    """Quotients are in single precision below opset 23, and in half from then on: 2 of a hundred integers are others."""
    if opset < 19 or opset >= 28:
        return None
    numbers = (np.arange(-600, 600) / 64).astype(np.float16)
    return [node("QuantizeLinear", ["x", "s", "z"])], {"x": numbers}, {"s": np.float16(0.1), "z": np.uint8(128)}


@case
def recurrent(opset):
    rest = {"w": noise(1, 20, 3), "r": noise(1, 20, 5)}
    return [node("LSTM", ["x", "w", "r"], ["y", "h", ""], hidden_size=5)], {"x": noise(4, 2, 3)}, rest


@case
def reshape(opset):
    return [node("Reshape", ["x", "s"])], {"x": X}, {"s": ints(0, -1, 2)}


@case
def shape_of_some_axes(opset):
    return ([node("Shape", ["x"], start=1, end=-1)], {"x": X}, {}) if opset >= 15 else None


@case
def maximum(opset):
    return [node("Max", ["x", "w"])], {"x": X}, {"w": noise(*((4,) if opset >= 8 else X.shape), seed=4)}


@case
def arg_max(opset):
    return [node("ArgMax", ["x"], axis=2, keepdims=0)], {"x": X}, {}


@case
def space_to_depth(opset):
    more: dict[str, Any] = {"mode": "DCR"} if opset >= 28 else {}
    return [node("SpaceToDepth", ["x"], blocksize=2, **more)], {"x": noise(1, 2, 4, 4)}, {}


@case
def counting(opset):
    if opset < 11:
        return None
    bounds = {"first": np.array(2, np.int64), "end": np.array(9, np.int64), "step": np.array(3, np.int64)}
    more: dict[str, Any] = {"stash_type": 1} if opset >= 27 else {}
    return [node("Range", [*bounds], **more)], bounds, {}


@case
def remainder(opset):
    return None if opset < 10 else ([node("Mod", ["x", "w"], fmod=1)], {"x": X}, {"w": np.full((1,), 1.5, np.float32)})


WITHOUT_KERNELS = {"quantization", "quantization_of_channels", "quantization_of_halves", "roi_align"}
"""What ONNX Runtime 1.32 has no kernels for at the newest opset: written at the newest that has."""


@pytest.mark.parametrize("opset", range(7, OPSET + 1))
def test_forms_survive(opset: int) -> None:
    newest_failures = []
    for name, build in CASES.items():
        parts = build(opset)
        if parts is None:
            continue
        nodes, inputs, initializers = parts
        outputs = [o for o in nodes[-1].output if o] + [o for n in nodes[:-1] for o in n.output if o]
        source = model(nodes, inputs, initializers, opset=opset, outputs=outputs)
        try:
            assert_round_trip(source, inputs)
        except Exception as error:
            raise AssertionError(f"{name} at opset {opset}: {error}") from error
        graph = load_onnx(source)
        if any(n.opaque for n in graph.nodes):
            continue
        newest = to_model(replace(graph, envelope=replace(graph.envelope, opset=OPSET)))
        assert newest.opset_import[0].version == OPSET or name in WITHOUT_KERNELS, name
        try:
            before, after = run(source, inputs), run(newest, inputs)
        except Exception as error:
            newest_failures.append(f"{name}: {error}")
            continue
        for a, b in zip(before, after, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7, err_msg=f"{name} at opset {opset}")
    assert not newest_failures


def test_opaque_where_versions_have_no_equivalent() -> None:
    for name, opset in (
        ("batch_normalization_of_every_position", 8),
        ("transposed_convolution_same", 10),
        ("one_hot", 9),
    ):
        parts = CASES[name](opset)
        assert parts is not None
        graph = load_onnx(model(parts[0], parts[1], parts[2], opset=opset))
        assert "no equivalent" in graph.nodes[0].opaque


@pytest.mark.parametrize(
    ("op", "attributes", "found"),
    [
        ("SpaceToDepth", {"blocksize": 2, "mode": "CRD"}, "needs opset 28"),
        ("Mod", {"fmod": 0}, "needs opset 28"),
        ("Range", {"stash_type": 11}, "needs opset 27"),
    ],
)
def test_forms_that_older_opsets_lack_are_refused_there(op: str, attributes: dict[str, Any], found: str) -> None:
    b = eqsat.GraphBuilder("g")
    shape = () if op == "Range" else (1, 2, 4, 4)
    operands = [b.input(f"x{i}", "float32", shape) for i in range({"Range": 3, "Mod": 2}.get(op, 1))]
    graph = b.finish({"y": b.op(op, *operands, **attributes)})
    refusal = downgrade(graph.nodes[0], 26, cast(Values, graph))
    assert isinstance(refusal, Refusal)
    assert f"needs opset {refusal.needs}" == found


def test_files_of_the_newest_opset_are_read_like_others_and_run() -> None:
    """Cast, QuantizeLinear and Range of opsets 27 and 28 take more element types; ONNX Runtime 1.32 has no kernels for the latter
    two at 28, and functions do not say what they are: files have the newest opset that has."""
    codes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    rest = [node("Cast", ["d"], ["c"], to=TensorProto.DOUBLE), node("Cast", ["c"], ["e"], to=TensorProto.FLOAT)]
    scales = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    source = model([*codes, *rest, node("Relu", ["e"])], {"x": X}, scales, opset=28)
    result = eqsat.optimize(source, form="flat")
    assert not result.report.opaque
    assert "Cast" not in result.report.operators_after
    assert result.to_onnx().opset_import[0].version < 28
    assert len(run(result.to_onnx(), {"x": X})) == 1


def test_old_opset_passes_through() -> None:
    source = model([node("LeakyRelu", ["x"], ["r"], alpha=0.5), node("Sqrt", ["r"])], {"x": X}, opset=6)
    assert all(n.opaque for n in load_onnx(source).nodes)
    assert_same(run(source, {"x": X}), run(to_model(load_onnx(source)), {"x": X}))
    assert eqsat.optimize(source).report.opaque == {"LeakyRelu": 1, "Sqrt": 1}


@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize("reader", ["", "node", "branch"])
def test_masks_that_nobody_reads_are_none(opset: int, reader: str) -> None:
    """Before opset 12 nothing is said of the mask of Dropout, which exporters write even so."""
    nodes = [node("Dropout", ["x"], ["d", "mask"], ratio=0.3)]
    if reader == "branch":  # one that is always taken, and read as if it stood there
        branch = onnx.helper.make_graph(
            [*nodes, node("Cast", ["mask"], ["c"], to=1)], "b", [], [_float("d"), _float("c")]
        )
        nodes = [node("If", ["yes"], ["y", "z"], then_branch=branch, else_branch=branch)]
    elif reader == "node":
        nodes += [node("Cast", ["mask"], ["z"], to=1), node("Sqrt", ["d"])]
    else:
        nodes += [node("Sqrt", ["d"])]
    outputs = ["y", "z"] if reader else ["y"]
    graph = load_onnx(model(nodes, {"x": X}, {"yes": np.array(True)}, opset=opset, outputs=outputs))
    dropout = next(n for n in graph.nodes if n.op == "Dropout")
    assert (bool(dropout.opaque), len(dropout.outputs)) == (bool(reader), 2 if reader else 1)


def test_masks_that_nobody_reads_do_not_keep_dropout_from_an_older_opset() -> None:
    nodes = [node("Dropout", ["x"], ["d", "mask"]), node("Sqrt", ["d"])]
    graph = load_onnx(model(nodes, {"x": X}, opset=13, outputs=["y"]))
    written = to_model(replace(graph, envelope=replace(graph.envelope, opset=11)))
    assert written.opset_import[0].version == 11
    assert_same(run(written, {"x": np.abs(X)}), [np.sqrt(np.abs(X))])


def _float(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def test_borders_of_what_has_no_known_type_are_written_at_the_opset_that_they_have() -> None:
    """ONNX has no ImageScaler any more; ONNX Runtime runs it."""
    scaled = node("ImageScaler", ["x"], ["s"], bias=[1.0, 2.0, 3.0], scale=0.5)
    source = model([scaled, node("Pad", ["s"], pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")], {"x": X}, opset=7)
    written = to_model(load_onnx(source))
    assert written.opset_import[0].version == 7
    assert_same(run(source, {"x": X}), run(written, {"x": X}))


def _form(schema: onnx.defs.OpSchema) -> tuple:
    declared: dict[str, Any] = dict(schema.attributes)
    attributes = sorted((k, str(a.type), a.required, str(a.default_value)) for k, a in declared.items())
    return attributes, [str(i.option) for i in schema.inputs], [str(o.option) for o in schema.outputs]


def test_every_change_of_form_is_in_the_table() -> None:
    """A version that changes attributes, defaults, inputs or outputs needs a step; others are extensions of types."""
    bodies = {"If", "Loop", "Scan", "SequenceMap", "Constant", "Upsample"}
    values = {"OptionalHasElement"}  # not read as tensors
    versions: dict[str, dict[int, onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            versions.setdefault(schema.name, {})[schema.since_version] = schema
    missing = []
    for op, found in versions.items():
        order = sorted(found)
        start = max((v for v in order if v <= 7), default=order[0])
        order = [v for v in order if start <= v <= OPSET]
        for old, new in itertools.pairwise(order):
            changed = _form(found[old]) != _form(found[new])
            if changed and op not in bodies | values and not any(s.version == new for s in steps_of(op)):
                missing.append(f"{op} {old} -> {new}")
    assert not missing


def test_split_that_says_neither_sizes_nor_their_number_has_as_many_parts_as_outputs():
    """ONNX Runtime runs such where it does not know the extent when it loads: its tools for images write them."""
    nodes = [node("Shape", ["x"], ["extents"]), node("Split", ["extents"], ["h", "w", "c"], axis=0)]
    x = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    outputs = [onnx.helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in "hwc"]
    opset = [onnx.helper.make_opsetid("", 18)]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], outputs), opset_imports=opset, ir_version=9)
    written = eqsat.optimize(proto, verify=False).to_onnx()
    feeds = {"x": np.zeros((2, 3, 6), np.float32)}
    for found, wanted in zip(run(written, feeds), run(proto, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
