"""Texts that say what random instances are drawn of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import eqsat
from eqsat.equations import form
from eqsat.errors import RuleError
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, registered_rules
from eqsat.rule_check.automatic import automatic_instances
from eqsat.samples import Instance

FEW = 40


def drawn(text: str, *where: Condition | str, of: str | Sequence[str], count: int = FEW) -> Iterator[Instance]:
    """Instances of a term, of which texts state something."""
    found = itertools.islice(automatic_instances(form(text, *where, drawn=of), {}), 100 * count)
    return itertools.islice((i for i in found if i is not None), count)


def graphs(text: str, *where: Condition | str, of: str | Sequence[str]) -> list[Graph]:
    return [instance.graph for instance in drawn(text, *where, of=of)]


def shapes(graph: Graph, op: str) -> list[tuple[object, ...]]:
    """Of the inputs of the operator."""
    node = next(n for n in graph.nodes if n.op == op)
    return [tuple(graph.type_of(x).shape or ()) for x in node.inputs if x]


def attribute(graph: Graph, op: str, name: str) -> object:
    return next(n for n in graph.nodes if n.op == op).attributes.get(name)


def test_extents_of_one_name_are_one_extent() -> None:
    for graph in graphs("MatMul(x, w)", of="x: [A, K]; w: [K, 2 * K]; SYMBOLS = []"):
        (_, inner), (rows, columns) = shapes(graph, "MatMul")
        assert inner == rows
        assert columns == 2 * int(str(rows))


def test_options_are_drawn_the_first_one_mostly() -> None:
    found = [
        attribute(graph, "Softmax", "axis") for graph in graphs("Softmax(x, **n)", of="x: [3, 4]; n.axis = -1 | 0 | 1")
    ]
    assert set(found) == {-1, 0, 1}
    assert found.count(-1) > FEW / 2


def test_texts_behind_the_first_are_added_to_it_now_and_then() -> None:
    of = ("x: [3, 4]; n.axis = 0", "n.axis = 1", "x: [3, 4, 5]")
    found = {(attribute(g, "Softmax", "axis"), len(shapes(g, "Softmax")[0])) for g in graphs("Softmax(x, **n)", of=of)}
    assert found == {(0, 2), (1, 2), (0, 3)}


def test_a_number_has_the_element_type_of_the_instance() -> None:
    types = set[DType]()
    for graph in graphs("x * c", of="x = d.floats([3]) | d.floats([3], 'float16') | d.integers([3], 'int32'); c = 2.5"):
        (node,) = graph.nodes
        c = next(graph.constants[name].numpy() for name in node.inputs if name in graph.constants)
        assert c == np.asarray(2.5).astype(c.dtype)
        types.add(DType.of(c.dtype))
    assert len(types) > 2


def test_attributes_that_the_equation_names_are_stated_by_that_name() -> None:
    for graph in graphs("Transpose(x, perm=p)", of="x: [2, 3, 4]; p = (2, 0, 1)"):
        assert attribute(graph, "Transpose", "perm") == (2, 0, 1)


def test_element_types_lists_absent_inputs_and_symbols() -> None:
    for graph in graphs("Reshape(x, s)", of="x = d.integers([N, K], 'uint8'); s = [K, N]; SYMBOLS = [N]"):
        (name,) = graph.inputs
        assert isinstance((graph.type_of(name).shape or ("",))[0], str)
        assert [c.numpy().dtype for c in graph.constants.values()] == [np.int64]
    for graph in graphs("Abs(x)", of="x: uint8[2, 3]"):
        assert not graph.nodes or graph.type_of(graph.nodes[0].inputs[0]).dtype is DType.UINT8
    for graph in graphs("Clip(x, *a, *b)", of="a: None; b: None"):
        assert len(shapes(graph, "Clip")) == 1


def test_what_is_left_open_is_derived() -> None:
    of = ("c = 3.0", "c = ...")
    values = {c.numpy().flat[0] for g in graphs("x + c", "c.is_constant", of=of) for c in g.constants.values()}
    assert len(values) > 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: [N, K", "cannot be read"),
        ("x.relu()", "says nothing of a name"),
        ("x: [rows, K]", "'rows' is nothing known"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_where(text: str, said: str) -> None:
    before = {r.name for r in registered_rules()}
    with pytest.raises(RuleError, match=said):
        eqsat.equation("stated_wrong", "Relu(Relu(x)) == Relu(x)", drawn=text)
    assert {r.name for r in registered_rules()} == before


def test_a_text_reaches_what_a_wrong_rule_is_wrong_for() -> None:
    """A square is as large transposed, which extents that are drawn one by one hardly are."""
    with pytest.raises(RuleError, match="does not hold"):
        eqsat.equation(
            "transposes_vanish", "Transpose(x, perm=p) == x", "root.shape == x.shape", drawn="x: [N, N]; p = (1, 0)"
        )
