"""Files with rules of one's own: loaded, checked, used; and what is said of those that are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import eqsat
from eqsat.rewrite import registered_rules, unregister

README = Path(__file__).parents[2] / "rules" / "README.md"
EQUATIONS, EXAMPLE = (
    b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "import eqsat" in b
)

HEAD = "import eqsat\nfrom eqsat.ops import Add, Mul, Relu, Sub\nx, y, z = eqsat.variables('x y z')\n"
RULE = "@eqsat.rule({pattern}, exactness={exactness})\ndef mine(m):\n    '''``{pattern} == other``.'''\n    return {right}\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    import eqsat.rules  # noqa: F401

    before = {r.name for r in registered_rules()}
    yield tmp_path / "my_rules.py"
    for found in registered_rules():
        if found.name not in before:
            unregister(found.name)


def _rule(pattern: str, right: str, exactness: str = "'exact'") -> str:
    return HEAD + RULE.format(pattern=pattern, right=right, exactness=exactness)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = eqsat.GraphBuilder("g")
    w, s = (b.constant(np.ones(shape, np.float32) * 3) for shape in ((4, 5), (5,)))
    graph = b.finish({"y": b.op("Mul", b.op("MatMul", b.input("x", "float32", ("n", 4)), w), s)})
    path = tmp_path / "model.onnx"
    eqsat.optimize(graph, only_rules=(), form="flat", cost="kernels", verify=False).save(path)
    return path


def test_the_documented_equations_are_rules(file: Path) -> None:
    file.write_text(EQUATIONS)
    assert len(eqsat.load_rules(file)) == EQUATIONS.count("eqsat.equation(")


def test_the_documented_example_runs_as_it_stands(model: Path, file: Path) -> None:
    file.write_text(EXAMPLE)
    arguments = [
        "optimize",
        model,
        "--rules",
        file,
        "--only-rules",
        "fold_factors_of_columns",
        "--form",
        "flat",
        "--json",
        "-",
    ]
    command = [sys.executable, "-m", "eqsat.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"MatMul": 1' in done.stdout.split('"operators_after"')[1]
    assert '"fold_factors_of_columns": {\n      "matches": 1' in done.stdout


def test_rules_of_a_file_are_known_afterwards(file: Path) -> None:
    file.write_text(_rule("Relu(Relu(x))", "Relu(m.x)", "'rounding'"))
    for _ in range(2):  # loading it again replaces them
        (made,) = eqsat.load_rules(file)
        assert made.name == "mine"
        assert made.exactness is eqsat.Exactness.ROUNDING
        assert made in registered_rules()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_rule("Sub(x, y)", "Sub(m.y, m.x)"), r"my_rules\.py:4: rule 'mine' is refused, .* does not hold"),
        (_rule("Relu(x)", "m.x", "'roundng'"), r"exactness 'roundng' does not exist; did you mean 'rounding'\?"),
        (_rule("Relu(x)", "m.x", "3.5"), "exactness 3.5 does not exist"),
        (_rule("Add(x, eqsat.literal(0))", "m.x"), "name a variable, state its value in a condition"),
        ("x, y = variables('x y')", r"my_rules\.py:1: NameError: name 'variables' is not defined"),
        ("import eqsat\nrule x", r"my_rules\.py:2: SyntaxError"),
        ("import eqsat", "registers no rule"),
    ],
    ids=["wrong", "class", "class-type", "literal", "name", "syntax", "empty"],
)
def test_a_file_that_fails_leaves_no_rule(text: str, said: str, file: Path) -> None:
    before = registered_rules()
    file.write_text(text)
    with pytest.raises(eqsat.RuleError, match=said) as error:
        eqsat.load_rules(file)
    assert "\n" not in str(error.value)
    assert registered_rules() == before


def test_good_rules_go_with_a_bad_one(file: Path) -> None:
    good = _rule("Relu(Relu(x))", "Relu(m.x)", "'rounding'").replace("mine", "good")
    before = registered_rules()
    file.write_text(good + _rule("Sub(x, y)", "Sub(m.y, m.x)"))
    with pytest.raises(eqsat.RuleError, match="rule 'mine' is refused"):
        eqsat.load_rules(file)
    assert registered_rules() == before


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(eqsat.OptionError, match=r"nothing\.py: no such file"):
        eqsat.load_rules(tmp_path / "nothing.py")
