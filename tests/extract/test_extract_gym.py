"""Reading and writing extraction-gym files."""

import json
from pathlib import Path

import pytest
from extraction_instances import merged_matmuls, random_problem

from eqsat.errors import OutputError
from eqsat.extract import ExtractionError, ExtractionProblem, extract
from eqsat.extract.gym import format_gym, gym_graph, parse_gym, read_gym, write_gym

DATA = Path(__file__).parent / "data"


def test_round_trip(tmp_path: Path) -> None:
    for number, problem in enumerate([merged_matmuls(2), *map(random_problem, range(20))]):
        path = tmp_path / f"{number}.json"
        write_gym(gym_graph(problem), path)
        graph = read_gym(path)
        assert format_gym(graph) == format_gym(parse_gym(format_gym(graph)))
        number_of = {name: position for position, name in enumerate(graph.class_names)}
        read = graph.problem
        assert [graph.class_names[c] for c in read.node_class] == [str(c) for c in problem.node_class]
        assert list(read.node_children) == [tuple(number_of[str(k)] for k in own) for own in problem.node_children]
        assert list(read.node_cost) == list(problem.node_cost)
        assert read.roots == tuple(number_of[str(r)] for r in problem.roots)


def test_defaults_and_names() -> None:
    text = '{"nodes": {"a": {"op": "x", "eclass": "c"}, "b": {"children": ["a"], "eclass": "d", "cost": 2}}, '
    graph = parse_gym(text + '"root_eclasses": ["d"]}')
    assert (graph.node_names, graph.class_names, graph.operators) == (("a", "b"), ("c", "d"), ("x", ""))
    assert graph.problem == ExtractionProblem(2, [0, 1], [(), (0,)], [1.0, 2.0], (1,))


@pytest.mark.parametrize(("name", "optimum"), [("loop", 5), ("choice", 37)])
def test_files_of_the_gym(name: str, optimum: float) -> None:
    result = extract(read_gym(DATA / f"{name}.json").problem)
    assert (result.cost, result.optimal) == (optimum, True)


def test_class_without_nodes_cannot_be_written() -> None:
    with pytest.raises(ExtractionError, match="e-class 1: used but without e-nodes"):
        format_gym(gym_graph(ExtractionProblem(2, [0], [(1,)], [1.0], (0,))))


NODE = {"op": "x", "children": [], "eclass": "c", "cost": 1.0}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "not JSON"),
        ([], "no 'nodes' object"),
        ({"nodes": {}}, "no 'root_eclasses' list|no 'nodes' object"),
        ({"nodes": {"a": 1}, "root_eclasses": []}, "node 'a': 'eclass' is None"),
        ({"nodes": {"a": {**NODE, "children": ["z"]}}, "root_eclasses": []}, "node 'a': child 'z' is not a node"),
        ({"nodes": {"a": {**NODE, "children": "z"}}, "root_eclasses": []}, "'children' is 'z', not a list"),
        ({"nodes": {"a": {**NODE, "cost": -1}}, "root_eclasses": []}, "cost -1 is not a number >= 0"),
        ({"nodes": {"a": {**NODE, "cost": "1"}}, "root_eclasses": []}, "cost '1' is not a number >= 0"),
        ({"nodes": {"a": NODE}, "root_eclasses": ["q"]}, "root e-class 'q' has no node"),
    ],
)
def test_malformed_file(tmp_path: Path, data: object, message: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ExtractionError, match=message) as caught:
        read_gym(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_and_unwritable(tmp_path: Path) -> None:
    with pytest.raises(ExtractionError, match="cannot be read"):
        read_gym(tmp_path / "none.json")
    with pytest.raises(OutputError, match="cannot be written"):
        write_gym(gym_graph(merged_matmuls(1)), tmp_path / "none" / "file.json")
