"""Einsum as exporters write it: what it stands for is found, and computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.samples import Sampler
from eqsat.samples.einsum import draw_equation

SYMBOLS: tuple[tuple[Any, Any], ...] = ((2, 5), ("batch", 5), (2, "seq"), ("batch", "seq"))
FORMS = ("flat", "onnxruntime")
HEADS, SIZE = 3, 4
WIDTH = HEADS * SIZE


class Writer(GraphBuilder):
    """A graph under construction, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def weights(self, *shape: int) -> str:
        return self.constant((self._rng.normal(size=shape) / 4).astype(np.float32))

    def einsum(self, equation: str, *operands: str) -> str:
        return str(self.op("Einsum", *operands, equation=equation))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> str:
        return self.constant(list(values), "int64")


# --- single nodes ----------------------------------------------------------------------------------------------------------


def _einsum(equation: str, *shapes: tuple[Any, ...], constant: bool = False) -> Graph:
    b = Writer()
    inputs = [b.input(f"x{i}", "float32", s) for i, s in enumerate(shapes[:1] if constant else shapes)]
    return b.finish({"y": b.einsum(equation, *inputs, *(b.weights(*s) for s in shapes[1:] if constant))})


@pytest.mark.parametrize("seed", range(24))
def test_random_equations_are_computed_without_einsum(seed: int) -> None:
    """Also by ONNX Runtime, as numpy computes the equation."""
    operands = 1 + bool(seed % 3)
    equation, shapes = draw_equation(Sampler(seed), operands, summed=seed % 4 > 0, alone=0.2)
    inputs = {f"x{i}": np.random.default_rng(seed).normal(size=s).astype(np.float32) for i, s in enumerate(shapes)}
    graph = _einsum(equation, *shapes)
    result = eqsat.optimize(
        graph, form="flat", cost=lambda work: 1.0 + 9.0 * ("Einsum" in work.operators), verify="none"
    )
    expected = np.einsum(equation.replace(" ", ""), *inputs.values())
    np.testing.assert_allclose(run(result.program.graph, inputs)["y"], expected, rtol=1e-5, atol=1e-4)
    session = ort.InferenceSession(result.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(np.asarray(session.run(None, inputs)[0]), expected, rtol=1e-5, atol=1e-4)
    assert ("Einsum" in result.program.graph.operator_counts()) is _stays(equation, shapes)


def _stays(equation: str, shapes: list[tuple[int, ...]]) -> bool:
    """Whether no rule speaks of the equation: an index twice in an operand, or summed over with 1 in one of the operands."""
    terms, _, last = equation.replace(" ", "").partition("->")
    several = terms.split(",")
    if any(len(set(t.replace(".", ""))) < len(t.replace(".", "")) for t in several):
        return True
    spread = max(len(s) - len(t.replace(".", "")) for s, t in zip(shapes, several, strict=True))
    found: dict[str, set[int]] = {}
    for term, shape in zip(several, shapes, strict=True):
        for index, extent in zip(term.replace("...", "." * spread), shape, strict=True):
            found.setdefault(index, set()).add(extent)
    return any(len(extents) > 1 for index, extents in found.items() if index not in last)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (_einsum("...si,...id->...sd", ("b", 27, 16), ("b", 16, 8)), {"MatMul": 1}),
        (_einsum("nctv,vw->nctw", (2, "c", 5, 6), (6, 6), constant=True), {"MatMul": 1}),
        (_einsum("nctv,cvw->nctw", (2, 4, "t", 6), (4, 6, 6), constant=True), {"MatMul": 1}),
        (_einsum("bis,io->bos", ("b", 4, "s"), (4, 5), constant=True), {"MatMul": 1}),
        (_einsum("nd,bsd->bsn", (7, 4), ("b", "s", 4)), {"MatMul": 1, "Transpose": 1}),
        (_einsum("i , j -> i j", ("n",), (32,)), {"Mul": 1, "Unsqueeze": 1}),
        (_einsum("ij,ij->ij", ("n", 1), ("m", 4)), {"Mul": 1}),
        (_einsum("bhwc->bchw", ("b", 2, 3, 4)), {"Transpose": 1}),
        (_einsum("ijk->k", ("n", 3, 4)), {"ReduceSum": 1}),
        (_einsum("ij,kj->ik", ("n", 6), ("n", 6)), {"Gemm": 1}),
    ],
)
def test_an_equation_is_as_few_operators_as_it_needs(graph: Graph, expected: dict[str, int]) -> None:
    result = eqsat.optimize(graph, form="flat")
    assert result.program.graph.operator_counts() == expected


@pytest.mark.parametrize(
    "graph",
    [
        _einsum("bii->bi", (2, 3, 3)),
        _einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
        _einsum("ij,jk->ik", ("a", "b"), ("c", "d")),  # b may be 1, and then the product has no such matrices
        _einsum("ij,jk->ik", (2, 1), (3, 4)),
    ],
)
def test_an_equation_of_which_no_rule_speaks_stays(graph: Graph) -> None:
    result = eqsat.optimize(graph, form="flat", cost=lambda work: 1.0 + 9.0 * ("Einsum" in work.operators))
    assert result.program.graph.operator_counts() == {"Einsum": 1}


def test_vectors_are_multiplied_element_by_element_on_a_runtime_whose_products_of_vectors_are_slow() -> None:
    result = eqsat.optimize(_einsum("bc,bc->b", (512, 256), (512, 256)), form="onnxruntime")
    assert result.program.graph.operator_counts() == {"Mul": 1, "ReduceSum": 1}


@pytest.mark.parametrize("equation", ["bhid,bhjd->bhij", "bihd,bjhd->bhij", "bhij,bjhd->bihd", "bhid,hjd->bhij"])
def test_einsum_is_never_cheaper_than_the_operators_that_it_stands_for(equation: str) -> None:
    extents = {"b": 2, "h": 12, "i": 128, "j": 96, "d": 64}
    shapes = [tuple(extents[i] for i in term) for term in equation.partition("->")[0].split(",")]
    for form in FORMS:
        result = eqsat.optimize(_einsum(equation, *shapes), form=form, verify="none")
        assert "Einsum" not in result.program.graph.operator_counts()
        assert result.report.cost_after < result.report.cost_before


# --- attention -------------------------------------------------------------------------------------------------------------


def keras(batch: Any, seq: Any, *, mask: bool = False) -> Graph:
    """MultiHeadAttention of Keras: projections by EinsumDense, (batch, sequence, heads, size) throughout, keys before queries."""
    b = Writer()
    x = b.input("x", "float32", (batch, seq, WIDTH))

    def dense(equation: str, x: str, shape: tuple[int, ...], bias: tuple[int, ...]) -> str:
        return str(b.op("Add", b.einsum(equation, x, b.weights(*shape)), b.weights(*bias)))

    q, k, v = (dense("abc,cde->abde", x, (WIDTH, HEADS, SIZE), (HEADS, SIZE)) for _ in range(3))
    scores = b.einsum("aecd,abcd->acbe", k, b.op("Mul", q, b.number(0.5)))
    if mask:
        allowed = b.op("Cast", b.input("mask", "bool", (batch, 1, 1, seq)), to=1)
        scores = b.op("Add", scores, b.op("Mul", b.op("Sub", b.number(1), allowed), b.number(-1e9)))
    y = b.einsum("acbe,aecd->abcd", b.op("Softmax", scores), v)
    return b.finish({"y": dense("abcd,cde->abe", y, (HEADS, SIZE, WIDTH), (WIDTH,))})


def cvt(batch: Any, seq: Any) -> Graph:
    """Heads apart by views, and two equations between."""
    b = Writer()
    x = b.input("x", "float32", (batch, seq, WIDTH))

    def heads() -> str:
        y = b.op("Add", b.op("MatMul", x, b.weights(WIDTH, WIDTH)), b.weights(WIDTH))
        return str(b.op("Transpose", b.op("Reshape", y, b.ints(0, 0, HEADS, SIZE)), perm=(0, 2, 1, 3)))

    q, k, v = heads(), heads(), heads()
    scores = b.op("Mul", b.einsum("bhlk,bhtk->bhlt", q, k), b.number(0.3))
    y = b.op("Transpose", b.einsum("bhlt,bhtv->bhlv", b.op("Softmax", scores), v), perm=(0, 2, 1, 3))
    return b.finish({"y": b.op("MatMul", b.op("Reshape", y, b.ints(0, 0, WIDTH)), b.weights(WIDTH, WIDTH))})


def flax(batch: Any, seq: Any) -> Graph:
    """Projections that put heads before the sequence, and an output that sums over both heads and size."""
    b = Writer()
    x = b.input("x", "float32", (batch, seq, WIDTH))
    q, k, v = (b.einsum("bsd,dnh->bnsh", x, b.weights(WIDTH, HEADS, SIZE)) for _ in range(3))
    scores = b.op("Div", b.einsum("bnqh,bnkh->bnqk", q, k), b.number(2))
    y = b.einsum("bnqk,bnkh->bnqh", b.op("Softmax", scores), v)
    return b.finish({"y": b.einsum("bnsh,nhd->bsd", y, b.weights(HEADS, SIZE, WIDTH))})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("batch", "seq"), SYMBOLS)
@pytest.mark.parametrize(("spelling", "operators"), [(keras, 6), (cvt, 5), (flax, 4)])
def test_attention_is_one_operator_and_its_projections_are_one_product(
    spelling: Callable[[Any, Any], Graph], operators: int, batch: Any, seq: Any, form: str
) -> None:
    """Product, bias, parts, attention, product, bias: no view is left. ONNX Runtime may add the first bias within attention."""
    result = eqsat.optimize(spelling(batch, seq), form=form)
    found = result.program.graph.operator_counts()
    assert result.report.recognized == {"attention": 1}
    assert (found["MatMul"], found["Split"]) == (2, 1)
    assert sum(found.values()) in ((operators,) if form == "flat" else (operators - 1, operators))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("batch", "seq"), SYMBOLS)
def test_attention_of_keras_takes_a_mask(batch: Any, seq: Any, form: str) -> None:
    result = eqsat.optimize(keras(batch, seq, mask=True), form=form)
    assert result.report.recognized == {"attention": 1}
    assert "Einsum" not in result.program.graph.operator_counts()


@pytest.mark.parametrize(("batch", "seq"), SYMBOLS)
@pytest.mark.parametrize(
    ("scores", "values"),
    [("bhid,bhjd->bhij", "bhij,bhjd->bhid"), ("...id,...jd", "...ij,...jv"), ("BHid, BHjd -> BHij", "BHij,BHjd->BHid")],
)
def test_attention_of_heads_first(scores: str, values: str, batch: Any, seq: Any) -> None:
    """One operator; where its kernel takes longer than the steps, what products written as such cost."""

    def attention(*, as_products: bool) -> Graph:
        b = Writer()
        q, k, v = (b.input(n, "float32", (batch, HEADS, seq, SIZE)) for n in "qkv")
        s = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))) if as_products else b.einsum(scores, q, k)
        p = b.op("Softmax", b.op("Mul", s, b.number(0.5)))
        return b.finish({"y": b.op("MatMul", p, v) if as_products else b.einsum(values, p, v)})

    result = eqsat.optimize(attention(as_products=False), form="flat")
    assert result.program.graph.operator_counts() == {"Attention": 1}
    here, there = (eqsat.optimize(attention(as_products=p), form="onnxruntime").report for p in (False, True))
    assert here.cost_after == there.cost_after


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", [3, "blocks"])
def test_attention_in_blocks_with_a_bias(blocks: Any, form: str) -> None:
    """As in LongT5: queries of a block and keys of three, (batch, blocks, positions, heads, size)."""
    b = Writer()
    q, k, v = (b.input(n, "float32", (2, blocks, rows, 3, 8)) for n, rows in (("q", 4), ("k", 12), ("v", 12)))
    scores = b.op("Add", b.einsum("...qhd,...khd->...hqk", q, k), b.weights(1, 1, 3, 4, 12))
    graph = b.finish({"y": b.einsum("...hqk,...khd->...qhd", b.op("Softmax", scores), v)})
    assert eqsat.optimize(graph, form=form).report.recognized == {"attention": 1}


def test_attention_with_one_head_of_keys_for_all() -> None:
    b = Writer()
    q = b.input("q", "float32", ("batch", 8, "seq", 16))
    k, v = (b.input(n, "float32", ("batch", "seq", 16)) for n in "kv")
    y = b.einsum("bhij,bjd->bhid", b.op("Softmax", b.einsum("bhid,bjd->bhij", q, k)), v)
    assert eqsat.optimize(b.finish({"y": y}), form="flat").report.recognized == {"attention": 1}


# --- what follows ----------------------------------------------------------------------------------------------------------


def test_a_scale_folds_into_the_weights_of_an_equation() -> None:
    b = Writer()
    x = b.input("x", "float32", ("batch", "seq", WIDTH))
    y = b.op("Mul", b.einsum("abc,cde->abde", x, b.weights(WIDTH, HEADS, SIZE)), b.number(0.3))
    found = eqsat.optimize(b.finish({"y": y}), form="flat").program.graph.operator_counts()
    assert found == {"MatMul": 1, "Reshape": 1}


def test_an_equation_of_constants_is_a_constant() -> None:
    b = Writer()
    x = b.input("x", "float32", ("n", 5))
    w = b.einsum("ij,kj,k->ik", b.weights(5, 6), b.weights(4, 6), b.weights(4))
    assert eqsat.optimize(b.finish({"y": b.op("MatMul", x, w)})).program.graph.operator_counts() == {"MatMul": 1}


def test_symbols_that_must_be_equal_may_be_priced_as_different_numbers() -> None:
    """An extent of which nothing is known stands beside one that is a number."""
    b = GraphBuilder()
    x, y = b.input("x", "float32", (4, 8)), b.input("y", "float32", (4, "columns"))
    result = eqsat.optimize(b.finish({"z": b.op("Einsum", x, y, equation="ij,ij->ij")}), form="flat")
    assert result.report.operators_after == {"Mul": 1}


# --- as exporters of TensorFlow write it ------------------------------------------------------------------------------------


def _in_rows(b: Writer, x: str, kept: int) -> str:
    """``[batch, heads, rows, size]`` as ``[batch * heads, -1, extent of one axis]``, by the extents that it has at run time."""
    extents = b.op("Shape", x)
    number = b.op("ReduceProd", b.op("Gather", extents, b.ints(0, 1), axis=0), keepdims=1)
    rows = b.op("Concat", number, b.ints(-1), b.op("Gather", extents, b.ints(kept), axis=0), axis=0)
    return b.op("Reshape", x, rows)


def _product(b: Writer, x: str, y: str) -> str:
    """The matrix product of all that is behind the first two axes, whose extents are the larger of both."""
    found = b.op("MatMul", _in_rows(b, x, 3), b.op("Transpose", _in_rows(b, y, 3), perm=(0, 2, 1)))
    lists = [b.op("Shape", v) for v in (x, y)]
    both = b.op("Max", *(b.op("Gather", v, b.ints(0, 1), axis=0) for v in lists))
    last = [b.op("Gather", v, b.ints(2), axis=0) for v in lists]
    return b.op("Reshape", found, b.op("Concat", both, *last, axis=0))


@pytest.mark.parametrize("form", FORMS)
def test_attention_between_products_of_extents_is_one_operator(form: str) -> None:
    b = Writer()
    x = b.input("x", "float32", ("batch", 5, WIDTH))
    heads = [b.op("Reshape", b.op("MatMul", x, b.weights(WIDTH, WIDTH)), b.ints(-1, 5, HEADS, SIZE)) for _ in range(3)]
    q, k, v = (
        b.op("Transpose", h, perm=p) for h, p in zip(heads, ((0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 3, 1)), strict=True)
    )
    weights = b.op("Softmax", b.op("Mul", _product(b, q, k), b.number(SIZE**-0.5)), axis=-1)
    joined = b.op("Transpose", _product(b, weights, v), perm=(0, 2, 1, 3))
    graph = b.finish({"y": b.op("Reshape", joined, b.ints(-1, 5, WIDTH))})
    report = eqsat.optimize(graph, form=form).report
    assert report.recognized["attention"] == 1
    assert report.verification["verdict"] in ("equal", "within tolerance")
    assert not {"Shape", "Gather", "ReduceProd", "Concat"} & report.operators_after.keys()
