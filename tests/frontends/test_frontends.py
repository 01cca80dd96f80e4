"""Front ends of users: models of their own, read, optimised and verified like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import eqsat
from eqsat.errors import ModelError, OptionError
from eqsat.frontends import Frontend, frontends, load, register, resolve, unregister


class Layers:
    """Networks of dense layers as JSON files: ``{"inputs": 4, "layers": [{"weights": [[...]], "bias": [...], "then": "relu"}]}``.

    ``batch``: extent of the batch, symbolic unless given. What follows a layer and is not known stays an opaque node.
    """

    name = "layers"
    takes = ("batch",)
    _then = {"relu": "Relu", "tanh": "Tanh", "neg": "Neg"}  # noqa: RUF012

    def accepts(self, source: Any) -> bool:
        return isinstance(source, str | Path) and Path(source).suffix == ".layers"

    def read(self, source: str | Path, batch: int | str = "batch") -> eqsat.Graph:
        try:
            model = json.loads(Path(source).read_text())
        except json.JSONDecodeError as error:
            raise ModelError(f"{source}: no JSON: {error}") from None
        b = eqsat.GraphBuilder(Path(source).stem)
        value = b.input("x", "float32", (batch, model["inputs"]))
        for number, layer in enumerate(model["layers"]):
            try:
                value = b.op(
                    "Add", b.op("MatMul", value, self._weights(b, layer)), b.constant(layer["bias"], "float32")
                )
            except (KeyError, eqsat.ShapeError) as error:
                raise ModelError(f"{source}: layer {number}: {error}") from None
            value = self._followed(b, value, layer.get("then"))
        return b.finish({"y": value})

    @staticmethod
    def _weights(b: eqsat.GraphBuilder, layer: dict[str, Any]) -> str:
        return b.constant(layer["weights"], "float32")

    def _followed(self, b: eqsat.GraphBuilder, value: str, then: str | None) -> str:
        if then is None:
            return value
        if then in self._then:
            return b.op(self._then[then], value)
        return b.opaque(then, value, types=[b.type_of(value)], domain="layers", reason="an activation of its own")[0]


@pytest.fixture
def layers() -> Iterator[Layers]:
    yield register(Layers())
    unregister("layers")


def written(path: Path, *then: str) -> Path:
    rng = np.random.default_rng(0)
    layers = [
        {"weights": rng.normal(size=(4, 4)).tolist(), "bias": rng.normal(size=4).tolist(), "then": t} for t in then
    ]
    path.write_text(json.dumps({"inputs": 4, "layers": layers}))
    return path


def relu_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, ["n"]) for v in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_a_users_front_end_is_read_optimised_verified_and_saved(layers: Layers, tmp_path: Path) -> None:
    path = written(tmp_path / "net.layers", "relu", "neg", "neg")
    graph = eqsat.load(path, batch=3)
    assert isinstance(layers, Frontend)
    assert str(graph.type_of("y")) == "float32[3, 4]"
    result = eqsat.optimize(path)
    assert "Neg" not in result.report.operators_after
    assert result.report.verification["verdict"] == "within tolerance"
    result.save(tmp_path / "net.onnx")
    assert eqsat.verify(path, tmp_path / "net.onnx").verdict == "within tolerance"
    assert sum(eqsat.inspect(path).operators.values()) == 9


def test_what_a_front_end_does_not_understand_passes_through(layers: Layers, tmp_path: Path) -> None:
    graph = eqsat.load(written(tmp_path / "net.layers", "snake"))
    assert [n.key for n in graph.nodes if n.opaque] == ["layers::snake"]


def test_its_errors_name_the_place(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "broken.layers").write_text("{")
    with pytest.raises(ModelError, match=r"broken\.layers: no JSON"):
        eqsat.load(tmp_path / "broken.layers")
    (tmp_path / "wrong.layers").write_text('{"inputs": 3, "layers": [{"weights": [[1.0]], "bias": [0.0]}]}')
    with pytest.raises(ModelError, match=r"wrong\.layers: layer 0: MatMul: inner extents differ"):
        eqsat.optimize(tmp_path / "wrong.layers")


def test_options_that_a_front_end_does_not_take_are_refused(layers: Layers, tmp_path: Path) -> None:
    path = written(tmp_path / "net.layers", "relu")
    with pytest.raises(OptionError, match="dims: layers takes no such option; it takes batch"):
        eqsat.optimize(path, dims={"batch": 3})
    with pytest.raises(OptionError, match="dims: a Graph takes no such option"):
        eqsat.optimize(eqsat.load(path), dims={"nonsense": 3})
    with pytest.raises(OptionError, match="example_inputs: ONNX takes no such option; it takes dims"):
        eqsat.optimize(relu_model(), example_inputs=1)


def test_a_front_end_may_return_a_model_of_onnx() -> None:
    class Named:
        name = "named"
        takes = ("dims",)

        def accepts(self, source: Any) -> bool:
            return source == ("the", "relu")

        def read(self, source: Any, dims: Any = None) -> onnx.ModelProto:
            return relu_model()

    register(Named())
    try:
        assert isinstance(resolve(("the", "relu")), onnx.ModelProto)
        assert str(load(("the", "relu"), {"n": 5}).type_of("y")) == "float32[5]"
        with pytest.raises(OptionError, match="m"):
            load(("the", "relu"), {"m": 5})
    finally:
        unregister("named")


def test_later_front_ends_are_asked_first_and_replace_those_of_their_name(layers: Layers) -> None:
    assert frontends()[0] is layers
    again = register(Layers())
    assert [f for f in frontends() if f.name == "layers"] == [again]
    assert [f.name for f in frontends()][1:] == ["a Graph", "PyTorch", "TVM Relax", "ONNX"]


def test_what_is_no_front_end_is_refused() -> None:
    with pytest.raises(OptionError, match="front end object: has no name, takes, accepts, read"):
        register(object())  # type: ignore[type-var]
    with pytest.raises(OptionError, match="front end 'layerz' does not exist"):
        unregister("layerz")


def test_models_that_no_front_end_reads_are_named() -> None:
    with pytest.raises(ModelError, match=r"expected a path, .* got int"):
        eqsat.optimize(7)


def test_a_class_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(OptionError, match=r"front end Layers: is a class; register an object of it, Layers\(\)"):
        register(Layers)  # type: ignore[type-var]


def test_a_return_that_was_forgotten_is_said(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layers, "read", lambda self, source: None)
    with pytest.raises(ModelError, match=r"front end layers: read returned nothing for str 'net\.layers'"):
        load("net.layers")


def test_options_may_be_arrays(monkeypatch: pytest.MonkeyPatch, layers: Layers, tmp_path: Path) -> None:
    monkeypatch.setattr(Layers, "takes", ("example_inputs",))
    monkeypatch.setattr(Layers, "read", lambda self, source, example_inputs: _doubled(example_inputs))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert load(tmp_path / "m.layers", example_inputs=np.ones(3, np.float32)).type_of("x").shape == (3,)


def _doubled(example: np.ndarray) -> eqsat.Graph:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", example.shape)
    return b.finish({"y": b.op("Add", x, x)})


def test_a_graph_keeps_operators_of_runtimes_as_a_file_does() -> None:
    """Spelled out they would round otherwise, where nothing was rewritten."""
    b = eqsat.GraphBuilder()
    q, k, v = (b.input(name, "float32", (1, 4, 14)) for name in "qkv")
    attention = b.op("MultiHeadAttention", q, k, v, domain="com.microsoft", num_heads=7)
    result = eqsat.optimize(b.finish({"y": attention}), form="flat")
    assert [n.key for n in result.program.graph.nodes] == ["com.microsoft::MultiHeadAttention"]
    assert [n.op_type for n in result.to_onnx().graph.node] == ["MultiHeadAttention"]
    assert result.report.verification["verdict"] == "equal"
