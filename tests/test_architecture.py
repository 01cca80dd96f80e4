"""Data flows one way, and imports follow it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

from eqsat.ir.operator import operator

ROOT = Path(__file__).resolve().parent.parent
BASE = {"errors", "exactness", "_version"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "exactness": {"errors"},
    "_version": set(),
    "output": {"errors"},
    "ir": BASE,
    "rewrite": BASE | {"ir"},
    "rules": BASE | {"ir", "rewrite", "conditions", "equations", "samples"},
    "samples": BASE | {"ir", "rewrite"},
    "frontends": BASE | {"ir"},
    "backends": BASE | {"output", "ir", "frontends"},
    "egraph": BASE | {"ir", "rewrite"},
    "ops": BASE | {"ir", "rewrite"},
    "conditions": BASE | {"ir", "rewrite"},
    "equations": BASE | {"ir", "rewrite", "conditions"},
    "rule_check": BASE | {"ir", "rewrite", "equations", "samples", "rules", "egraph"},
    "cost": BASE | {"output", "ir"},
    "extract": {"errors"},
    "lower": BASE | {"ir", "rewrite", "egraph", "cost", "extract"},
    "fusion": BASE | {"ir", "rewrite", "egraph", "cost", "extract", "lower"},
    "bounds": BASE | {"ir", "cost", "extract", "fusion"},
    "joint": BASE | {"ir", "rewrite", "egraph", "cost", "extract", "lower", "fusion", "bounds"},
    "placement": BASE | {"ir", "rewrite", "egraph", "cost", "extract", "lower", "fusion", "joint", "backends", "extraction"},
    "verification": BASE | {"ir", "frontends", "backends", "lower"},
    "report": BASE | {"ir", "report_text"},
    "report_text": BASE | {"report", "report_phrases"},
    "report_phrases": BASE,
    "inspection": BASE | {"ir", "cost", "lower"},
    "extraction": BASE | {"ir", "egraph", "cost", "extract", "backends", "lower", "joint"},
    "bodies": BASE | {"ir", "backends", "lower", "options", "report"},
    "budget": BASE | {"cost", "extract", "lower", "fusion", "extraction"},
    "ranges": BASE | {"ir", "fusion", "extraction"},
    "options": BASE | {"ir", "cost", "extract", "backends", "placement"},
    "growth": BASE | {"ir", "rewrite", "rules", "egraph", "cost", "lower", "extraction", "options", "placement", "backends"},
    "rehearsal": BASE | {"ir", "rewrite", "egraph", "extraction", "growth", "options"},
    "result": BASE | {"ir", "rewrite", "egraph", "lower", "backends", "fx", "growth", "options", "report"},
    "suspects": BASE | {"rewrite", "options", "result", "verification"},
    "pipeline": BASE | {
        "rehearsal", "result", "suspects",
        "growth", "ir", "rewrite", "rules", "frontends", "backends", "egraph", "cost", "lower", "fusion", "verification",
        "report", "extraction", "bodies", "budget", "ranges", "placement", "options", "fx", "extract",
    },
    "comparison": BASE | {
        "growth", "ir", "frontends", "rewrite", "egraph", "cost", "lower", "fusion", "extraction", "budget", "options",
        "pipeline", "result",
    },
    "calibrate": BASE | {"ir", "backends", "cost"},
    "speed": BASE | {"ir", "frontends", "backends", "cost", "verification", "options", "pipeline", "result", "engines", "fx"},
    "relax": BASE | {"ir", "frontends", "backends", "lower", "pipeline"},
    "fx": BASE | {"ir", "backends"},
    "dynamo": BASE | {"ir", "frontends", "backends", "options", "pipeline", "result", "fx", "verification"},
    "engines": BASE | {"ir", "backends", "lower", "relax", "fx"},
    "commands": BASE | {
        "output", "api", "rewrite", "rule_check", "rules", "cost", "extract", "verification", "inspection", "options", "pipeline",
        "comparison", "calibrate", "speed", "why",
    },
    "api": BASE | {"growth", "frontends", "inspection", "speed", "verification", "options", "pipeline", "result"},
    "dpl": BASE | {"ir", "verification"},
    "why": BASE | {"growth", "ir", "rewrite", "egraph", "options", "pipeline", "result"},
    "cli": BASE | {"api", "commands", "rewrite", "rules", "cost", "extract", "options", "pipeline"},
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


class Module(NamedTuple):
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    unwieldy: set[str]
    lists_of_operators: int
    rounded_sums: tuple[int, ...]
    unstated_encodings: tuple[int, ...]


@cache
def _read(path: Path) -> Module:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    imports = tuple(n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)))
    return Module(
        imports, _unwieldy(nodes), _lists_of_operators(nodes), _rounded_sums(nodes), _unstated_encodings(nodes)
    )


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in _read(path).imports:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "eqsat" else set()
    return names


def _packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


def test_imports_point_one_way() -> None:
    for part, path in _modules():
        others = {name.split(".")[1] for name in _imports(path) if name.startswith("eqsat.")}
        assert others <= ALLOWED[part] | {part}, f"{path} imports {others - ALLOWED[part]}"


def test_only_what_is_for_torch_imports_it() -> None:
    users = {path.name for part, path in _modules() if part not in ("dynamo", "fx") and _packages(path) & {"torch"}}
    assert users == {
        "torch_arithmetic.py",
        "torch_export.py",
        "torch_operators.py",
        "torch_quantised.py",
        "torch_reductions.py",
        "torch_types.py",
        "torch_tensors.py",
        "result.py",
    }  # the last for the type of what it returns


def test_only_the_engine_imports_egglog() -> None:
    users = {path.name for _, path in _modules() if "egglog" in _packages(path)}
    assert users == {"engine.py"}


def test_extract_knows_neither_egglog_nor_onnx() -> None:
    for part, path in _modules():
        if part == "extract":
            assert not {"egglog", "onnx", "onnxruntime"} & _packages(path), path


def test_modules_have_one_subject() -> None:
    long = {str(p.relative_to(ROOT)): n for _, p in _modules() if (n := len(p.read_text().splitlines())) > 400}
    assert not long


MOST_LINES, MOST_NESTING = 60, 4

EXCEPTIONS = {
    "eqsat/cli.py": {"optimize"},  # one parameter for each option
    "eqsat/egraph/saturate.py": {"saturate"},
    "extract/components.py": {"strong_components"},
    "extract/core.py": {"compacted"},
    "extract/cycles.py": {"unfounded_cuts"},
    "extract/reduce.py": {"drop_cyclic_nodes"},
}
"""Functions that are longer, or deeper, still. None is to be added."""

_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _nesting(node: ast.AST) -> int:
    """Blocks inside one another; ``elif`` and what functions inside hold do not count."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _FUNCTIONS):
            chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deepest = max(deepest, _nesting(child) + (isinstance(child, _BLOCKS) and not chained))
    return deepest


def _unwieldy(nodes: Iterable[ast.AST]) -> set[str]:
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {f.name for f in functions if (f.end_lineno or 0) - f.lineno >= MOST_LINES or _nesting(f) > MOST_NESTING}


def test_functions_are_short_and_shallow() -> None:
    found = {str(path.relative_to(ROOT)): _read(path).unwieldy for _, path in _modules()}
    assert {path: names for path, names in found.items() if names - EXCEPTIONS.get(path, set())} == {}
    deep = "def f(x):\n" + "".join(" " * n + "if x:\n" for n in range(1, 6)) + " " * 6 + "return x\n"
    chained = "def f(x):\n if x:\n  return 1\n" + " elif x:\n  return 2\n" * 9
    for source, names in ((deep, {"f"}), (chained, set()), ("def f():\n" + " f()\n" * 60, {"f"})):
        assert _unwieldy(ast.walk(ast.parse(source))) == names


def _imported(path: Path, known: set[str]) -> set[str]:
    """Modules of ours that a module imports, wherever it does."""
    names: set[str] = set()
    for node in _read(path).imports:
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & known
            names |= submodules if len(submodules) == len(node.names) else submodules | {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known


@pytest.mark.parametrize("room", ["fusion", "bounds", "joint", "frontends", "relax", "lower", "placement"])
def test_modules_of_a_room_import_each_other_one_way(room: str) -> None:
    paths = {
        "eqsat." + ".".join(path.relative_to(ROOT / "eqsat").with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "eqsat" / room).rglob("*.py"))
    }
    edges = [(name, other) for name, path in paths.items() for other in _imported(path, set(paths)) if other != name]
    assert list(nx.simple_cycles(nx.DiGraph(edges))) == []


LISTS_OF_OPERATORS = 5
"""Tables that are about something else than operators: how kernels are told apart, how operands are drawn, what a module does."""


def _names_operators(node: ast.AST) -> bool:
    """Whether a literal lists three operators or more, or has as many as keys."""
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    names = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return sum(1 for name in names if name[:1].isupper() and operator(name) is not None) >= 3


def _lists_of_operators(nodes: Sequence[ast.AST]) -> int:
    """Those that no sampler draws from (``d.choose(...)``, ``ops=...``): a choice of some operators is no fact about them."""
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    drawn = {id(a) for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "choose" for a in c.args}
    drawn |= {id(k.value) for c in calls for k in c.keywords if k.arg == "ops"}
    literals = (ast.Tuple, ast.List, ast.Set, ast.Dict)
    return sum(1 for n in nodes if isinstance(n, literals) and id(n) not in drawn and _names_operators(n))


def test_facts_about_operators_stand_on_their_definitions() -> None:
    """As traits (`eqsat.ir.traits`), not as lists of names. Tables of opsets, of another library's operators and grids of
    timings are no such facts."""
    skipped = (
        "eqsat/ir/operators/",
        "eqsat/frontends/onnx/versions/",
        "eqsat/calibrate/",
        "eqsat/rules/",
        "eqsat/extract/",
        "eqsat/fx/",
    )
    paths = [str(path.relative_to(ROOT)) for _, path in _modules()]
    counts = {p: _read(ROOT / p).lists_of_operators for p in paths if not p.startswith(skipped)}
    assert sum(counts.values()) <= LISTS_OF_OPERATORS, {p: n for p, n in counts.items() if n}
    tables = 'UNARY = frozenset(("Relu", "Neg", "Abs"))\nTABLE = {"Add": 1, "Sub": 2, "Mul": 3}'
    assert _lists_of_operators(list(ast.walk(ast.parse(tables)))) == 2


def _rounded_sums(nodes: Sequence[ast.AST]) -> tuple[int, ...]:
    """Lines in which ``sum`` adds up prices."""
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "sum"]
    return tuple(c.lineno for c in calls if re.search(r"price|cost|bound|measured_s|predicted_s", ast.unparse(c)))


def test_prices_add_up_to_the_same_in_any_order_and_with_any_python() -> None:
    """``math.fsum`` rounds once. ``sum`` rounds every partial sum in Python 3.11, and not from 3.12 on: the release of Python
    would break ties."""
    found = {str(path.relative_to(ROOT)): _read(path).rounded_sums for _, path in _modules()}
    assert not {p: lines for p, lines in found.items() if lines}
    assert _rounded_sums(list(ast.walk(ast.parse("least = sum(k.price for k in kernels)")))) == (1,)


def _unstated_encodings(nodes: Sequence[ast.AST]) -> tuple[int, ...]:
    """Lines where text is read or written as the platform encodes it."""
    found: list[int] = []
    for call in (n for n in nodes if isinstance(n, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        stated = any(k.arg == "encoding" for k in call.keywords)
        if name == "open" and not stated and not any("b" in mode for mode in modes) and _opens_file(call):
            found.append(call.lineno)
        if name in ("read_text", "write_text") and not stated and "utf-8" not in " ".join(modes):
            found.append(call.lineno)
    return tuple(found)


def _opens_file(call: ast.Call) -> bool:
    """Whether a call is the built-in, or a path's: others of that name have operands that are no modes."""
    return isinstance(call.func, ast.Name) or all(isinstance(a, ast.Constant) for a in call.args)


def test_files_are_read_and_written_alike_on_every_platform() -> None:
    found = {str(path.relative_to(ROOT)): _read(path).unstated_encodings for _, path in _modules()}
    assert not {p: lines for p, lines in found.items() if lines}
    wrong = 'open(p)\nopen(p, "w")\np.open("w")\np.read_text()\np.write_text(t)\n'
    right = 'open(p, "xb")\nopen(p, encoding="utf-8")\np.read_text("utf-8-sig")\np.write_text(t, encoding="utf-8")\n'
    assert _unstated_encodings(list(ast.walk(ast.parse(wrong + right)))) == (1, 2, 3, 4, 5)
