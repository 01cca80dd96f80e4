"""Graphs, programs and e-graphs in networkx."""

from __future__ import annotations

import networkx as nx

import eqsat
from eqsat.cost.model import find_cost_model
from eqsat.cost.target import load_target
from eqsat.egraph.snapshot import take_snapshot
from eqsat.fusion import kernel_works, price_works
from eqsat.ir.graph import Graph


def layer() -> Graph:
    b = eqsat.GraphBuilder("layer")
    x = b.input("x", "float32", ("n", 4))
    w = b.constant([[1.0] * 4] * 4, "float32", "w")
    h = b.op("Relu", b.op("MatMul", x, w))
    return b.finish({"y": b.op("Mul", h, h), "z": b.op("Split", h, outputs=2, axis=1, num_outputs=2)[1]})


def test_a_graph_has_a_node_for_each_operator_input_constant_and_output() -> None:
    graph = layer()
    network = graph.to_networkx()
    assert sorted(d["label"] for _, d in network.nodes(data=True)) == sorted(
        ["x", "w", "y", "z", "MatMul", "Relu", "Mul", "Split"]
    )
    assert nx.is_directed_acyclic_graph(network)
    assert {d["op"] for _, d in network.nodes(data=True) if d["role"] == "operator"} == {n.op for n in graph.nodes}
    assert nx.descendants(network, ("constant", "w")) >= {("output", "y"), ("output", "z")}


def test_a_value_read_twice_is_two_edges_with_type_and_bytes() -> None:
    network = layer().to_networkx()
    by_op = {d["op"]: n for n, d in network.nodes(data=True) if d["role"] == "operator"}
    edges = network.get_edge_data(by_op["Relu"], by_op["Mul"])
    assert edges is not None
    assert sorted(d["position"] for d in edges.values()) == [0, 1]
    assert {d["type"] for d in edges.values()} == {"float32[n, 4]"}
    assert len({d["bytes"] for d in edges.values()}) == 1
    assert all(d["bytes"] % 16 == 0 < d["bytes"] for d in edges.values())


def test_the_kernels_of_a_program_have_prices_and_the_bytes_that_cross_them() -> None:
    target, model = load_target("h200"), find_cost_model("roofline")
    program = eqsat.optimize(layer(), target="h200", cost="roofline", verify=False).program
    prices = [price_works((work,), target, model) for work in kernel_works(program, target)]
    network = program.to_networkx(prices)
    kernels = [d for _, d in network.nodes(data=True) if d["role"] == "kernel"]
    assert [d["price"] for d in kernels] == prices
    assert sum(d["template"] != "view" for d in kernels) == program.kernel_count
    assert sorted(op for d in kernels for op in d["operators"]) == sorted(n.key for n in program.graph.nodes)
    assert nx.is_directed_acyclic_graph(network)
    (first,) = network.successors(("input", "x"))
    assert network.nodes[first]["bytes_read"] == sum(
        d["bytes"] for _, _, d in network.out_edges(("input", "x"), data=True)
    )
    assert "price" not in program.to_networkx().nodes[0]


def test_an_output_that_is_a_constant_is_a_node_of_the_program() -> None:
    b = eqsat.GraphBuilder()
    graph = b.finish({"y": b.op("Relu", b.constant([-1.0, 2.0], "float32"))})
    network = eqsat.optimize(graph, verify=False).program.to_networkx()
    assert ("constant", "y") in network
    assert network.has_edge(("constant", "y"), ("output", "y"))


def test_an_e_graph_is_bipartite_and_holds_each_e_node_once() -> None:
    b = eqsat.GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", (4,)))
    graph = b.finish({"y": b.op("Div", x, b.constant(3.0, "float32")), "z": b.op("Neg", x)})
    result = eqsat.optimize(graph, verify=False, keep_egraph=True)
    assert result.encoding is not None
    snapshot = take_snapshot(result.encoding.egraph)
    network = snapshot.to_networkx()
    nodes = [n for n, d in network.nodes(data=True) if d["bipartite"] == 1]
    assert nx.is_bipartite(network)
    assert len(nodes) == snapshot.size
    assert all(network.in_degree(n) == 1 for n in nodes)
    assert {d["rule"] for _, d in network.nodes(data=True) if d["bipartite"] == 1} > {""}
    roots = {("class", result.encoding.egraph.find(result.encoding.handles[v])) for v in ("y", "z")}
    relu = next(n for n in nodes if network.nodes[n]["op"] == "Relu")
    assert all(nx.has_path(network, root, relu) for root in roots)
