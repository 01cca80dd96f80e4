"""What callbacks and patterns say of operands."""

from __future__ import annotations

import numpy as np
import pytest

from eqsat.dpl import Const, Var, call, find, graph_of, is_op, wildcard
from eqsat.errors import RuleError
from eqsat.ir.types import tensor_type


@pytest.mark.parametrize(("dtype", "value"), [("int64", 2.5), ("uint8", -1), ("int64", float("inf")), ("bool", 2)])
def test_a_number_that_the_other_operand_cannot_hold_is_refused(dtype: str, value: float) -> None:
    x = Var("x", tensor_type(dtype, (3,)))
    with pytest.raises(RuleError, match=f"{value} is no {dtype}"):
        call("Mul", x, value)


def test_a_number_takes_the_type_of_the_other_operand() -> None:
    made = call("Mul", Var("x", tensor_type("int64", (3,))), 2.0).args[1]
    assert isinstance(made, Const)
    assert made.data.numpy() == np.int64(2)


def test_an_operand_of_a_pattern_may_be_absent() -> None:
    x, most = Var("x", tensor_type("float32", (4,))), Var("most", tensor_type("float32", ()))
    capped = graph_of({"y": call("Clip", x, None, most)})
    bounded = graph_of({"y": call("Clip", x, most, most)})
    pattern = is_op("Clip")(wildcard(), None, wildcard())
    assert [name for name, _ in find(pattern, capped)] == ["y"]
    assert not list(find(pattern, bounded))
