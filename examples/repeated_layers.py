"""Finds the repeated layers of a model with networkx and draws one of each: ``python examples/repeated_layers.py model.onnx``."""

import sys

import networkx as nx

import eqsat


def layers(network):
    """Parts that only single operators connect to the rest: residual blocks, modules that branch and join. In order."""
    order = {node: place for place, node in enumerate(nx.topological_sort(network))}
    parts = [part for part in nx.biconnected_components(nx.Graph(network)) if len(part) > 2]
    return [network.subgraph(part) for part in sorted(parts, key=lambda part: min(order[node] for node in part))]


def same(first, second):
    """Whether two layers are the same operators, joined in the same way."""
    return nx.is_isomorphic(first, second, node_match=lambda a, b: a["label"] == b["label"])


network = eqsat.load(sys.argv[1]).to_networkx()
operators = network.subgraph(node for node, role in network.nodes(data="role") if role == "operator")
kinds = []
for layer in layers(operators):
    alike = next((kind for kind in kinds if same(kind[0], layer)), None)
    if alike is None:
        kinds.append([layer])
    else:
        alike.append(layer)

print(f"{len(operators)} operators")
for kind in kinds:
    print(f"\n{len(kind)} of these:")
    nx.write_network_text(nx.DiGraph(kind[0]), vertical_chains=True)
