"""Data flows one way, and imports follow it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASE = {"errors", "exactness", "_version"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "exactness": {"errors"},
    "_version": set(),
    "ir": BASE,
    "rewrite": BASE | {"ir"},
    "rules": BASE | {"ir", "rewrite"},
    "frontends": BASE | {"ir"},
    "backends": BASE | {"ir", "frontends"},
    "egraph": BASE | {"ir", "rewrite"},
    "ops": BASE | {"ir", "rewrite"},
    "conditions": {"rules"},
    "rule_check": BASE | {"ir", "rewrite", "rules", "egraph", "backends"},
    "cost": BASE | {"ir"},
    "extract": {"errors"},
    "lower": BASE | {"ir", "rewrite", "egraph", "cost", "extract"},
    "fusion": BASE | {"ir", "rewrite", "egraph", "cost", "extract", "lower"},
    "placement": BASE | {"ir", "rewrite", "egraph", "cost", "extract", "lower", "fusion", "backends", "extraction"},
    "verify": BASE | {"ir", "frontends", "backends", "lower"},
    "report": BASE | {"ir"},
    "inspect": BASE | {"ir", "cost", "lower"},
    "extraction": BASE | {"ir", "egraph", "cost", "backends", "lower", "fusion"},
    "bodies": BASE | {"ir", "backends", "lower", "options", "report"},
    "budget": BASE | {"cost", "lower", "fusion", "extraction"},
    "options": BASE | {"cost", "backends", "placement"},
    "pipeline": BASE | {
        "ir", "rewrite", "rules", "frontends", "backends", "egraph", "cost", "lower", "fusion", "verify", "report", "extraction",
        "bodies", "budget", "placement", "options",
    },
    "comparison": BASE | {"ir", "rewrite", "egraph", "cost", "lower", "fusion", "extraction", "budget", "options", "pipeline"},
    "calibrate": BASE | {"ir", "backends", "cost"},
    "bench": BASE | {"ir", "backends", "cost", "verify", "options", "pipeline"},
    "relax": BASE | {"ir", "backends", "lower", "pipeline"},
    "engines": BASE | {"ir", "backends", "lower", "relax"},
    "commands": BASE | {
        "rewrite", "rules", "cost", "extract", "verify", "inspect", "options", "pipeline", "comparison", "calibrate", "bench",
        "why",
    },
    "dpl": BASE | {"ir", "backends", "verify"},
    "why": BASE | {"ir", "rewrite", "egraph", "pipeline"},
    "cli": BASE | {"commands", "rewrite", "rules", "cost", "extract", "verify", "inspect", "options", "pipeline"},
}  # fmt: skip


def _modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted((ROOT / "eqsat").rglob("*.py")) + sorted((ROOT / "rules").rglob("*.py")):
        relative = path.relative_to(ROOT)
        parts = relative.parts[1:] if relative.parts[0] == "eqsat" else relative.parts
        found.append((parts[0].removesuffix(".py"), path))
    for path in sorted((ROOT / "extract").rglob("*.py")):
        found.append(("extract", path))
    return [(part, path) for part, path in found if part not in ("__init__", "__main__")]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "eqsat" else set()
    return names


@pytest.mark.parametrize(("part", "path"), _modules(), ids=lambda v: v.name if isinstance(v, Path) else v)
def test_imports_point_one_way(part: str, path: Path) -> None:
    for name in _imports(path):
        if name.startswith("eqsat."):
            other = name.split(".")[1]
            assert other == part or other in ALLOWED[part], f"{path} imports {name}"


def test_only_the_engine_imports_egglog() -> None:
    users = {path.name for _, path in _modules() if any(n.split(".")[0] == "egglog" for n in _imports(path))}
    assert users == {"engine.py"}


def test_extract_knows_neither_egglog_nor_onnx() -> None:
    for part, path in _modules():
        if part == "extract":
            assert not {"egglog", "onnx", "onnxruntime"} & {n.split(".")[0] for n in _imports(path)}, path


def test_modules_have_one_subject() -> None:
    long = {str(p.relative_to(ROOT)): n for _, p in _modules() if (n := len(p.read_text().splitlines())) > 400}
    assert not long
