"""The table of the best engine for each model: kept model by model, like compared with like."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.best_engine import markdown
from benchmarks.kept import Row, measure_all


def contestant(name: str, seconds: float, precision: str = "f32", misfit: str = "") -> dict[str, Any]:
    samples = [] if misfit else [[seconds] * 3] * 2
    engine = name.split()[1]
    return {
        "name": name, "path": "m", "engine": engine, "level": "all", "precision": precision, "samples": samples,
        "error": None if misfit else 1e-6, "misfit": misfit,
    }  # fmt: skip


def row(*contestants: dict[str, Any]) -> Row:
    return {"contestants": list(contestants), "skipped": {"inductor": "is not installed"}}


def test_the_best_of_ours_is_beside_the_best_of_the_others() -> None:
    text = markdown(
        {
            "m": row(
                contestant("original onnxruntime", 0.004),
                contestant("eqsat onnxruntime", 0.001),
                contestant("original openvino", 0.002),
                contestant("eqsat openvino", 0.0, misfit="OpenVINO: Det is not supported"),
                contestant("eqsat openvino bf16", 0.0005, "bf16"),
            ),
            "n": {"failed": "n.onnx: no such file"},
        },
        ("onnxruntime", "openvino", "inductor"),
    )
    assert "| m | 1.00 | onnxruntime | 2.00 | openvino | 2.00 (2.00-2.00) | 4.00 | - | - | 1e-06 | 1e-06 |" in text
    assert "best of ours against best of the others: geometric mean 2.000 over 1 models, least 2.000" in text
    assert "in onnxruntime, ours against the original: geometric mean 4.000" in text
    assert "in openvino, ours against the original: none" in text
    assert "| m | eqsat openvino bf16 | 0.50 | 1e-06 |" in text
    assert "- eqsat openvino: OpenVINO: Det is not supported (m)" in text
    assert "- inductor: is not installed (m)" in text
    assert "- n.onnx: no such file (n)" in text


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").touch()
    given = argparse.Namespace(
        models=tmp_path, names="", threads=1, results=tmp_path / "figures" / "r.json", restart=False
    )
    seen: list[str] = []

    def measure(path: Path) -> Row:
        if path.stem == "b" and "b" not in seen:
            seen.append("b")
            raise KeyboardInterrupt
        seen.append(path.stem)
        return {"ms": len(seen)}

    def table(rows: Any) -> str:
        return "\n".join(f"| {name} |" for name in rows)

    with pytest.raises(KeyboardInterrupt):
        measure_all(given, {"runs": 1}, measure, table)
    assert list(json.loads(given.results.read_text())["models"]) == ["a"]
    measure_all(given, {"runs": 1}, measure, table, tmp_path / "page.md")
    assert seen == ["a", "b", "b"]
    assert (tmp_path / "page.md").read_text() == "| a |\n| b |\n"
    with pytest.raises(SystemExit, match="other options"):
        measure_all(given, {"runs": 2}, measure, table)
