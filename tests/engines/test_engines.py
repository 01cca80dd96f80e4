"""Engines agree with each other, and say what they cannot do."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import eqsat
from eqsat.engines import ENGINES, load_on
from eqsat.errors import FeedError, ModelError, OptionError

NEEDS = {"relax": "tvm", "openvino": "openvino", "torch": "torch", "inductor": "torch"}
"""Engine -> the package of an extra that it needs."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    package = NEEDS.get(request.param, "")
    if package and find_spec(package) is None:
        pytest.skip(f"engine {request.param} needs {package}, which is not installed")
    return request.param


def program() -> eqsat.Result:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3, 16))
    w = b.constant(np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32))
    y = b.op("Add", b.op("MatMul", x, w), b.constant(np.ones(64, np.float32)))
    return eqsat.optimize(b.finish({"y": b.op("Softmax", y), "z": b.op("Relu", y)}), verify=False, form="flat")


def test_engines_agree(engine: str) -> None:
    optimised = program().program
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)}
    expected = optimised.run(feeds)
    found = eqsat.run(optimised, feeds, engine=engine)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_a_loaded_program_runs_again_and_checks_its_inputs(engine: str) -> None:
    loaded = load_on(program().original, engine)
    for seed in (0, 1):
        x = np.random.default_rng(seed).standard_normal((3, 16)).astype(np.float32)
        assert loaded({"x": x})["z"].shape == (3, 64)
    with pytest.raises(FeedError, match="input 'x'"):
        loaded({"x": np.zeros((3, 15), np.float32)})


def test_an_engine_that_does_not_exist_is_one_clear_error() -> None:
    with pytest.raises(OptionError, match="choose one of numpy, onnxruntime"):
        eqsat.run(program().program, {}, engine="tvm")


@pytest.mark.parametrize("name", NEEDS)
def test_an_engine_that_is_not_installed_says_how_to_get_it(name: str) -> None:
    if find_spec(NEEDS[name]) is not None:
        pytest.skip(f"{NEEDS[name]} is installed")
    with pytest.raises(OptionError, match=r"pip install 'eqsat\[\w+\]'"):
        eqsat.run(program().program, {}, engine=name)


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_what_openvino_cannot_load_is_one_clear_error() -> None:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3, 3))
    with pytest.raises(ModelError, match=r"OpenVINO: .*Det"):
        eqsat.run(b.finish({"y": b.op("Det", x)}), {"x": np.eye(3, dtype=np.float32)}, engine="openvino")


def test_extras_are_imported_by_who_asks_for_them() -> None:
    code = "import sys, eqsat; assert not {'tvm', 'eqsat.relax', 'torch', 'eqsat.fx'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_outputs_have_the_names_of_the_model_where_openvino_drops_what_computes_them() -> None:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3,))
    y = b.op("Mul", b.op("Relu", x), b.constant(np.ones(3, np.float32)))
    found = eqsat.run(b.finish({"y": y}), {"x": np.ones(3, np.float32)}, engine="openvino")
    assert list(found) == ["y"]
