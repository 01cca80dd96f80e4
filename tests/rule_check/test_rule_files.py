"""Files with rules of one's own: loaded, checked, used; and what is said of those that are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.ir.operator import operator, undefine
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
    undefine("mine::Thrice")


def _rule(pattern: str, right: str, exactness: str = "'exact'") -> str:
    return HEAD + RULE.format(pattern=pattern, right=right, exactness=exactness)


def _equation(text: str) -> str:
    return f"import eqsat\neqsat.equation('mine', {text!r}, exactness='rounding')"


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
    command = [sys.executable, "-m", "eqsat", *map(str, arguments)]
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
        ("import eqsat", "registers nothing"),
        ("raise SystemExit(0)", r"my_rules\.py:1: SystemExit: 0"),
        ("\0", r"my_rules\.py: SyntaxError: source code string cannot contain null bytes"),
        (_rule("Relu(x)", "m.x").replace("``", ""), "must state the equation between double backquotes"),
        (
            "import eqsat\n@eqsat.rule\ndef mine(m): ...",
            r"my_rules\.py:2: @eqsat\.rule takes the left side of the rule",
        ),
        (_rule("Relu(x)", "m.x").replace("Relu(x),", "Relu(x), where=['x.low >= 0'],"), "'x.low >= 0' is no condition"),
        (
            _equation("Gemm(x, w, transb=1) == MatMul(x, w)"),
            "'Gemm.*': Gemm has no attribute 'transb'; did you mean 'transB'",
        ),
        (
            _equation(f"Concat({'x, ' * 33}axis=0) == Tile(x, 33)"),
            r"Concat has over 32 inputs; write a rule over groups \(`group_rule`\)",
        ),
        (
            _equation("TopK(x, k, outputs=2) == TopK(x, k, largest=0, outputs=2)"),
            r"TopK has several outputs, which nothing compares: name one, by `\[0\]` behind it",
        ),
        (_equation("Relu(Relu(x)) == Relu(x, axis=1)"), "Relu has no attribute 'axis'; it has none"),
    ],
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


OPERATOR = """
import eqsat
from eqsat.ir.composite import define_composite
from eqsat.ir.operator import Kind
from eqsat.ir.traits import Traits


def thrice(b, attributes, inputs):
    (x,) = inputs
    return [b.op("{op}", b.op("Add", x, x), x)]


define_composite("mine::Thrice", thrice, Kind.ELEMENTWISE, traits=Traits({traits}))
"""
HOMOGENEOUS = "operands=1, rising=True, homogeneous=True"
RECOGNISED = """
eqsat.equation(
    "recognise_thrice", "x + x + x == mine.Thrice(x)", exactness="rounding", domain="mine", reverse="spell_out_thrice"
)
"""


def test_a_file_may_define_operators_and_be_loaded_again(file: Path) -> None:
    file.write_text(OPERATOR.format(op="Add", traits=HOMOGENEOUS))
    before = registered_rules()
    for _ in range(2):
        followed = eqsat.load_rules(file)
        assert operator("mine::Thrice") is not None
        assert set(registered_rules()) == {*before, *followed}
    file.write_text("import eqsat")
    with pytest.raises(eqsat.RuleError, match="registers nothing"):
        eqsat.load_rules(file)
    assert operator("mine::Thrice") is None


def test_rules_that_follow_from_wrong_traits_are_refused_with_their_operator(file: Path) -> None:
    before = registered_rules()
    file.write_text(OPERATOR.format(op="Mul", traits=HOMOGENEOUS))
    with pytest.raises(eqsat.RuleError, match=r"Thrice\(.*does not hold"):
        eqsat.load_rules(file)
    assert operator("mine::Thrice") is None
    assert registered_rules() == before


OWN = """
import numpy as np
from eqsat.ir.composite import define_composite
from eqsat.ir.operator import Kind, define
from eqsat.ir.traits import Traits

ELEMENTWISE = Kind.ELEMENTWISE


def cube(b, attributes, inputs):
    (x,) = inputs
    return [b.op("Mul", x, b.op("Mul", x, x))]


def less(b, attributes, inputs):
    x, y = inputs
    return [b.op("Sub", x, y)]


def same_type(app):
    return (app.tensor(0),)


def in_double(attributes, inputs):
    return (inputs[0].astype(np.float64),)


def square(attributes, inputs):
    return (inputs[0] * inputs[0],)


"""


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("cube, ELEMENTWISE, traits=Traits(operands=1, rising=True)", ""),
        (
            "cube, ELEMENTWISE, traits=Traits(operands=1, bounds=(0.0, 1.0))",
            "its trait bounds=(0.0, 1.0) does not hold",
        ),
        ("cube, ELEMENTWISE, traits=Traits(operands=1, whole=True)", "its trait whole=True does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(operands=1, keeps_whole=True)", ""),
        ("cube, ELEMENTWISE, traits=Traits(truth=True)", "its trait truth=True does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(sources=(0,))", "its trait sources=(0,) does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(moves=True)", "its trait moves=True does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(homogeneous=True)", "its trait homogeneous=True does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(idempotent=True)", "its trait idempotent=True does not hold"),
        ("cube, ELEMENTWISE, traits=Traits(affine=(0,))", "its trait affine=(0,) does not hold"),
        (
            "lambda b, a, i: [b.op('Neg', *i)], ELEMENTWISE, traits=Traits(rising=True)",
            "its trait rising=True does not hold",
        ),
        (
            "lambda b, a, i: [b.op('Softmax', *i)], ELEMENTWISE, traits=Traits(operands=1)",
            "its trait operands=1 does not",
        ),
        ("less, ELEMENTWISE, commutative=True", "it is not commutative for float32[3, 5], float32[3, 5]"),
        (
            "lambda b, a, i: b.op('Relu', *i), ELEMENTWISE",
            "what builds it returned 'relu_1'; expected a list of values",
        ),
        ("lambda b, a, i: [b.op('Rleu', *i)], ELEMENTWISE", "'Rleu' is no operator of ONNX; did you mean 'Relu'?"),
        ("lambda b, a, i: [b.op('mine::Thrice', *i)], ELEMENTWISE", "its definition fails: maximum recursion depth"),
        ("lambda b, a, i: [b.opp('Relu', *i)], ELEMENTWISE", "its definition fails: 'GraphBuilder' object has no attr"),
        ("lambda b, a, i: [b.op('Relu', *I)], ELEMENTWISE", "its definition fails: name 'I' is not defined"),
        ("lambda b, x: [b.op('Relu', x)], ELEMENTWISE", "takes (b, x); expected (builder, attributes, inputs)"),
        ("lambda b, a, i: [b.op('MatMul', *i)], Kind.ANCHOR", ""),
        ("cube, 'elementwise'", "kind is 'elementwise'; expected one of eqsat.ir.operator.Kind"),
        ("cube, ELEMENTWISE, evaluate=square", "evaluate and what it is built from make different values"),
        ("cube, ELEMENTWISE, evaluate=in_double", "of float32[3, 5] infer makes float32[3, 5], evaluate float64[3, 5]"),
        ("cube, ELEMENTWISE, infer=lambda app: app.tensor(0)", "infer and evaluate return a tuple"),
    ],
)
def test_an_operator_that_is_not_what_it_says_is_refused(definition: str, said: str, file: Path) -> None:
    file.write_text(f"{OWN}define_composite('mine::Thrice', {definition})")
    if not said:
        eqsat.load_rules(file)
        assert operator("mine::Thrice") is not None
        return
    with pytest.raises(eqsat.RuleError) as error:
        eqsat.load_rules(file)
    assert "operator 'mine::Thrice'" in str(error.value)
    assert said in str(error.value)
    assert operator("mine::Thrice") is None


@pytest.mark.parametrize("key", ["Thrice", "mine.Thrice", "::Thrice"])
def test_an_operator_of_ones_own_has_a_domain(key: str, file: Path) -> None:
    file.write_text(f"{OWN}define_composite({key!r}, cube, ELEMENTWISE)")
    with pytest.raises(eqsat.RuleError, match=r"has a domain; call it '[\w.]+::Thrice'"):
        eqsat.load_rules(file)
    assert operator(key) is None


def test_a_target_with_kernels_of_ones_own_gets_them(file: Path, tmp_path: Path) -> None:
    file.write_text(OPERATOR.format(op="Add", traits="") + RECOGNISED)
    eqsat.load_rules(file)
    target = tmp_path / "mine.toml"
    target.write_text('extends = "launch-count"\ndomains = ["mine"]\n')
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3,))
    spelled_out = b.finish({"y": b.op("Add", b.op("Add", x, x), x)})
    result = eqsat.optimize(spelled_out, target=str(target))
    assert result.report.operators_after == {"mine::Thrice": 1}
    assert "mine::Thrice" not in eqsat.optimize(spelled_out).report.operators_after
    result.save(tmp_path / "out.onnx")
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["Add", "Add"]


def test_a_target_without_a_kernel_of_ones_own_spells_it_out(file: Path, tmp_path: Path) -> None:
    file.write_text(OPERATOR.format(op="Add", traits="") + RECOGNISED)
    eqsat.load_rules(file)
    target = tmp_path / "cpu.toml"
    target.write_text('extends = "onnxruntime-cpu"\nunsupported = ["mine::Thrice"]\n')
    b = eqsat.GraphBuilder()
    graph = b.finish({"y": b.op("Thrice", b.input("x", "float32", (3,)), domain="mine")})
    assert eqsat.optimize(graph, target=str(target)).report.operators_after == {"Add": 2}
