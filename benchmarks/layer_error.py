"""How far each layer of a quantised model moves its result, in quanta, with the original's values forced into it.

    python -m benchmarks.layer_error --models FOLDER [--names a,b] [--every 2] [--inputs 4] [--cost measured] [--details]

``FOLDER`` holds inflated models (`benchmarks.inflate`). A layer lies between the outputs of two normalisations, ``--every``
normalisations apart (2 in BERT: one after attention, one after the feed-forward part). Both programs are cut there. Every
layer reads what the original, without optimisation, has at its beginning; compared is what it has at its end, as the codes
to which the program quantises it there: largest difference in quanta, and which part of the elements differ. Beside ours
stands the original itself cut in the same places and rewritten by ONNX Runtime at its highest level.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import eqsat
from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.ir.graph import Graph
from eqsat.ir.types import TensorType
from eqsat.verify.feeds import random_feeds
from eqsat.verify.original import Original
from eqsat.verify.pieces import detached
from eqsat.verify.values import MOVEMENT

NORMS = ("LayerNormalization", "SkipLayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization")
LIMIT = 1e-4
"""Part of the elements that a layer may move, by one quantum."""
_FED = "forced:"


@dataclass
class Moved:
    """What one layer did over all inputs: elements seen, elements moved, largest distance in quanta."""

    seen: int = 0
    moved: int = 0
    furthest: int = 0

    def add(self, distance: np.ndarray) -> None:
        self.seen += distance.size
        self.moved += int(np.count_nonzero(distance))
        self.furthest = max(self.furthest, int(distance.max(initial=0)))

    @property
    def fraction(self) -> float:
        return self.moved / self.seen

    def __str__(self) -> str:
        return f"{self.fraction:.1e} by {self.furthest}"


def norms_of(graph: Graph, every: int) -> list[str]:
    """Outputs of every ``every``-th normalisation, in order."""
    return [node.outputs[0] for node in graph.nodes if node.op in NORMS][::every]


def cut(graph: Graph, values: Sequence[str]) -> Graph:
    """``graph`` with an input in place of each of ``values`` wherever it is read; it returns what it computes for them."""
    fed = set(values)
    nodes = [replace(n, inputs=tuple(_FED + v if v in fed else v for v in n.inputs)) for n in graph.nodes]
    types = {**graph.types, **{_FED + v: graph.type_of(v) for v in values}}
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=(*graph.inputs, *(_FED + v for v in values)),
        outputs=tuple(dict.fromkeys(values)),
        types=MappingProxyType(types),
    )


def quanta_of(graph: Graph, values: Sequence[str]) -> list[tuple[np.float32, int, int]]:
    """Scale, zero point and lowest code (of 256) to which each value is quantised; where it is not, as it is before."""
    found: list[tuple[np.float32, int, int]] = []
    for value in values:
        same = {value}
        for node in graph.nodes:
            if node.inputs and node.inputs[0] in same and node.op in MOVEMENT:
                same.update(node.outputs)
            elif node.inputs and node.inputs[0] in same and node.op == "QuantizeLinear":
                scale, zero = (graph.constants[v].numpy() for v in node.inputs[1:3])
                if scale.size == 1:
                    found.append((np.float32(scale.item()), int(zero.item()), int(np.iinfo(zero.dtype).min)))
                    break
        else:
            if not found:
                raise ModelError(f"{graph.name}: value {value!r} is not quantised")
            found.append(found[-1])
    return found


def codes(value: np.ndarray, quantum: tuple[np.float32, int, int]) -> np.ndarray:
    """The codes of a float array, as QuantizeLinear computes them."""
    scale, zero, lowest = quantum
    return np.clip(np.rint(value.reshape(-1) / scale).astype(np.int64) + zero, lowest, lowest + 255)


def run_cut(graph: Graph, values: Sequence[str], level: str) -> Session:
    """The cut graph in ONNX Runtime, rewritten up to ``level``."""
    model, weights = detached(cut(graph, values).pruned())
    return Session(model, level, weights=weights, prepack=True)


def measure(path: Path, options: argparse.Namespace) -> dict[str, list[Moved]]:
    """Contestant -> what each layer did. Raises `ModelError` where the programs cannot be cut alike."""
    result = eqsat.optimize(
        path, target="onnxruntime-cpu", cost=options.cost, numerics=options.numerics, form="onnxruntime", verify=False
    )
    graphs = {"ours": result.program.graph, "ALL": result.original}
    cuts = {name: norms_of(graph, options.every) for name, graph in graphs.items()}
    if len({len(values) for values in cuts.values()}) > 1 or len(cuts["ours"]) < 2:
        raise ModelError(f"{path}: {cuts} are not the same layers")
    quanta = quanta_of(graphs["ours"], cuts["ours"])
    original = Original(result.original, path, cuts["ALL"])
    found: dict[str, list[Moved]] = {}
    sessions = {
        "ours": run_cut(graphs["ours"], cuts["ours"], "disable"),
        "ours ALL": run_cut(graphs["ours"], cuts["ours"], "all"),
        "ALL": run_cut(graphs["ALL"], cuts["ALL"], "all"),
    }
    for seed in range(options.inputs):
        feeds = random_feeds(result.original, seed)
        right = original.fetcher(feeds)(cuts["ALL"])
        for name, session in sessions.items():
            side = name.removeprefix("ours ") if name == "ALL" else "ours"
            outputs = session.run(_forced(graphs[side], feeds, cuts[side], right, cuts["ALL"]))
            layers = found.setdefault(name, [Moved() for _ in quanta])
            for layer, mine, theirs, quantum in zip(layers, cuts[side], cuts["ALL"], quanta, strict=True):
                layer.add(np.abs(codes(outputs[mine], quantum) - codes(right[theirs], quantum)))
    return found


def _forced(
    graph: Graph, feeds: Mapping[str, Any], cuts: Sequence[str], right: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """The inputs of a cut graph: the model's, and the original's values in the shapes that this graph has them in."""
    forced = dict(feeds)
    for mine, theirs in zip(cuts, names, strict=True):
        found = graph.type_of(mine)
        assert isinstance(found, TensorType)
        forced[_FED + mine] = right[theirs].reshape([d if isinstance(d, int) else -1 for d in found.shape or ()])
    return forced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="bert_int8,bert_int8_trivial,bert_base_qdq,bert_base_trivial_qdq")
    parser.add_argument("--every", type=int, default=2, help="normalisations to a layer")
    parser.add_argument("--inputs", type=int, default=4, help="random inputs")
    parser.add_argument("--cost", default="measured")
    parser.add_argument("--numerics", default="lsb")
    parser.add_argument("--details", action="store_true", help="every layer on a line of its own")
    options = parser.parse_args()
    print("| model | program | layers | worst layer: part of the elements | all layers | largest, quanta | over the limit |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names.split(","):
        found = measure(options.models / f"{name}.onnx", options)
        for program, layers in found.items():
            whole = sum(m.moved for m in layers) / sum(m.seen for m in layers)
            over = [k for k, m in enumerate(layers) if m.fraction > LIMIT or m.furthest > 1]
            print(
                f"| {name} | {program} | {len(layers)} | {max(m.fraction for m in layers):.1e} | {whole:.1e} | "
                f"{max(m.furthest for m in layers)} | {', '.join(map(str, over)) or 'none'} |",
                flush=True,
            )
            if options.details:
                print("\n".join(f"  {k}: {m}" for k, m in enumerate(layers)), flush=True)


if __name__ == "__main__":
    main()
