"""A rule that is wrong, or fails, is left out, and the model optimised without it; the user is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import eqsat
import eqsat.rules  # registers the shipped rules
from eqsat import Exactness, GraphBuilder, LeftOutWarning, Options, VerificationError
from eqsat.__main__ import main
from eqsat.backends.onnx_file import to_model
from eqsat.rewrite import apply, group_rule, literal, rule, variables
from eqsat.suspects import Suspects, suspects
from eqsat.verification import Verification

(x,) = variables("x")


pytestmark = pytest.mark.usefixtures("temporary_rules")


def _wrong(family: str) -> None:
    @rule(apply("Softplus", x), exactness=Exactness.ROUNDING, source="wrong on purpose", family=family)
    def forget_softplus(m: Any) -> Any:
        """``Softplus(x) == x``"""
        return m.x


def _failing(family: str) -> None:
    @rule(apply("Softplus", x), exactness=Exactness.EXACT, source="wrong on purpose", family=family)
    def divide_by_nothing(m: Any) -> Any:
        """``Softplus(x) == Abs(x)``"""
        return literal(np.float32(1 // (m.x.rank - m.x.rank)))


def _failing_over_groups(family: str) -> None:
    @group_rule(exactness=Exactness.EXACT, source="wrong on purpose", family=family)
    def look_for_nothing(g: Any) -> Any:
        """``Softplus(x) == Abs(x)``"""
        for ref, _ in g.nodes("Softplus"):
            yield ref, {}["nothing"]


def _graph() -> eqsat.Graph:
    """Of two multiplications one is left."""
    b = GraphBuilder("small")
    x = b.input("x", "float32", (4, 8))
    z = b.op("Mul", b.op("Mul", x, b.constant(2.5, "float32")), b.constant(0.3, "float32"))
    return b.finish({"y": b.op("Softplus", x), "z": z})


def _twice_negated() -> eqsat.Graph:
    b = GraphBuilder()
    return b.finish({"y": b.op("Tanh", b.op("Neg", b.op("Neg", b.input("x", "float32", (4,)))))})


@pytest.mark.parametrize(
    ("make", "name", "because"),
    [
        (_wrong, "forget_softplus", "kernel"),
        (_failing, "divide_by_nothing", "rule 'divide_by_nothing' fails: ZeroDivisionError"),
        (_failing_over_groups, "look_for_nothing", "rule 'look_for_nothing' fails: KeyError"),
    ],
)
def test_the_model_is_optimised_without_the_rule(make: Callable[[str], None], name: str, because: str) -> None:
    make("algebra")
    with pytest.warns(LeftOutWarning, match=f"small: optimised again without {name}: "):
        result = eqsat.optimize(_graph(), form="flat", cost="kernels")
    report = result.report
    assert report.operators_after == {"Softplus": 1, "Mul": 1}
    assert report.verification["verdict"] in ("equal", "within tolerance")
    (left_out,) = report.left_out
    assert left_out["rules"] == [name]
    assert because in left_out["because"]
    assert report.seconds["in_vain"] > 0
    told = f"without {name}, left out after an error"
    assert told in str(report)
    assert f"{told}, which is a bug: please report it: {left_out['because']}" in report.details()


@pytest.mark.parametrize(("make", "error"), [(_wrong, VerificationError), (_failing, eqsat.RuleError)])
def test_a_rule_of_the_user_is_the_users_to_mend(make: Callable[[str], None], error: type[Exception]) -> None:
    make("user")
    with pytest.raises(error):
        eqsat.optimize(_graph(), form="flat", cost="kernels")


def test_rules_that_alone_are_allowed_are_not_left_out() -> None:
    _wrong("algebra")
    with pytest.raises(VerificationError, match="forget_softplus"):
        eqsat.optimize(_graph(), form="flat", cost="kernels", only_rules=["forget_softplus"])


def test_where_no_kernel_is_wrong_a_stronger_class_is_tried() -> None:
    result = eqsat.optimize(_graph(), form="flat", cost="kernels")
    assert result.report.exactness == "rounding"
    found = Verification("failed", failures=["level 'all': output 'y'"])
    wrong = suspects(result, found, Options(), 1)
    assert wrong == Suspects((), "exact", "level 'all': output 'y'")
    assert wrong is not None
    exact = eqsat.optimize(_graph(), form="flat", cost="kernels", numerics=wrong.left_out_of(Options()).numerics)
    assert exact.report.operators_after == {"Softplus": 1, "Mul": 2}
    exact = eqsat.optimize(_twice_negated(), form="flat", cost="kernels", numerics="exact")
    assert suspects(exact, found, Options(numerics="exact"), 2) == Suspects(
        ("cancel_double_negation",), "exact", "level 'all': output 'y'"
    )
    as_it_was = eqsat.optimize(_graph(), form="flat", cost="kernels", numerics="exact")
    assert suspects(as_it_was, found, Options(), 2) is None


def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong("algebra")
    onnx.save(to_model(_graph()), tmp_path / "in.onnx")
    command = [
        "eqsat",
        "optimize",
        str(tmp_path / "in.onnx"),
        "-o",
        str(tmp_path / "out.onnx"),
        "--cost",
        "kernels",
        "-q",
    ]
    monkeypatch.setattr("sys.argv", command)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    assert (tmp_path / "out.onnx").exists()
    said = [line for line in capsys.readouterr().err.splitlines() if "optimised again" in line]
    assert len(said) == 1
    assert said[0].startswith("eqsat: small: optimised again without forget_softplus: kernel")
