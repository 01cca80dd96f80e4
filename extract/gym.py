"""Extraction-gym files: e-graphs with costs in the JSON of the ``egraph-serialize`` crate.

``{"nodes": {id: {"op": name, "children": [node ids], "eclass": id, "cost": number}}, "root_eclasses": [e-class ids]}``;
a child is named by any e-node of the child e-class, a missing cost is 1. Source:
https://github.com/egraphs-good/egraph-serialize.
"""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from eqsat.errors import OutputError
from eqsat.extract.problem import ExtractionError, ExtractionProblem


@dataclass(frozen=True)
class GymGraph:
    """A problem with the names of the file: of its e-nodes, e-classes and operators."""

    problem: ExtractionProblem
    node_names: tuple[str, ...]
    class_names: tuple[str, ...]
    operators: tuple[str, ...]


def read_gym(path: str | PathLike[str]) -> GymGraph:
    """Read a file. Raises :class:`ExtractionError` naming the file and the first entry that is missing or malformed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExtractionError(f"{path}: cannot be read ({error}); give a readable extraction-gym file") from error
    try:
        return parse_gym(text)
    except ExtractionError as error:
        raise ExtractionError(f"{path}: {error}") from error


def parse_gym(text: str) -> GymGraph:
    """Read the JSON text of a file; errors as in :func:`read_gym`."""
    try:
        data: dict[str, Any] | None = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExtractionError(f"not JSON ({error}); export it with egraph-serialize") from error
    nodes: dict[str, Any] | None = data.get("nodes") if isinstance(data, dict) else None
    roots: list[Any] | None = data.get("root_eclasses") if isinstance(data, dict) else None
    if not isinstance(nodes, dict) or not isinstance(roots, list):
        raise ExtractionError("no 'nodes' object or no 'root_eclasses' list; export it with egraph-serialize")
    class_number: dict[str, int] = {}
    owner: dict[str, int] = {}
    entry: dict[str, Any] | None
    for name, entry in nodes.items():
        eclass = entry.get("eclass") if isinstance(entry, dict) else None
        if not isinstance(eclass, str):
            raise ExtractionError(f"node '{name}': 'eclass' is {eclass!r}, not a string; name the e-class of the node")
        owner[name] = class_number.setdefault(eclass, len(class_number))
    node_children: list[tuple[int, ...]] = []
    node_cost: list[float] = []
    for name, node in nodes.items():
        listed: list[Any] | None = node.get("children", [])
        cost = node.get("cost", 1.0)
        if not isinstance(listed, list):
            raise ExtractionError(f"node '{name}': 'children' is {listed!r}, not a list; list node ids")
        for child in listed:
            if not isinstance(child, str) or child not in owner:
                raise ExtractionError(f"node '{name}': child {child!r} is not a node of the file; add it")
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not cost >= 0:
            raise ExtractionError(f"node '{name}': cost {cost!r} is not a number >= 0; give one")
        node_children.append(tuple(owner[child] for child in listed))
        node_cost.append(float(cost))
    for root in roots:
        if not isinstance(root, str) or root not in class_number:
            raise ExtractionError(f"root e-class {root!r} has no node; name an e-class of the file")
    problem = ExtractionProblem(
        len(class_number),
        list(owner.values()),
        node_children,
        node_cost,
        tuple(class_number[root] for root in roots),
    )
    operators = tuple(str(node.get("op", "")) for node in nodes.values())
    return GymGraph(problem, tuple(owner), tuple(class_number), operators)


def gym_graph(problem: ExtractionProblem) -> GymGraph:
    """Give a problem the names that a file needs: e-class ``c`` is "c", e-node ``n`` is "c.n"."""
    names = tuple(f"{owner}.{node}" for node, owner in enumerate(problem.node_class))
    return GymGraph(problem, names, tuple(map(str, range(problem.class_count))), ("",) * len(names))


def format_gym(graph: GymGraph) -> str:
    """Return the JSON text of ``graph``.

    Raises :class:`ExtractionError` if an e-class used as a child or root has no e-node: the format cannot name it.
    """
    problem = graph.problem
    representative: dict[int, str] = {}
    for node, owner in enumerate(problem.node_class):
        representative.setdefault(owner, graph.node_names[node])
    used = {child for children in problem.node_children for child in children}.union(problem.roots)
    for current in sorted(used):
        if current not in representative:
            raise ExtractionError(
                f"e-class {graph.class_names[current]}: used but without e-nodes, which the format cannot say; "
                "drop the e-nodes that use it"
            )
    nodes = {
        graph.node_names[node]: {
            "op": graph.operators[node],
            "children": [representative[child] for child in problem.node_children[node]],
            "eclass": graph.class_names[owner],
            "cost": problem.node_cost[node],
        }
        for node, owner in enumerate(problem.node_class)
    }
    return json.dumps({"nodes": nodes, "root_eclasses": [graph.class_names[r] for r in problem.roots]}, indent=1)


def write_gym(graph: GymGraph, path: str | PathLike[str]) -> None:
    """Write ``graph`` as an extraction-gym file. Raises :class:`eqsat.errors.OutputError` if the path is not writable."""
    try:
        Path(path).write_text(format_gym(graph) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error}); choose a writable path") from error
