"""How far each layer of a quantised model moves its result, in quanta, with the original's values forced into it.

    python -m benchmarks.layer_error --models FOLDER [--names a,b] [--layers quantised|2] [--inputs 16] [--cost measured]
        [--numerics lsb] [--disable-rules a,b] [--details]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Both programs are cut where they hold the same values, and everything
behind a cut reads what the original, without optimisation, has there; compared is what each piece computes: which part of the
elements differ, and how far, in quanta. Where the cuts are decides what a layer is:

- ``quantised``: at every tensor of 8 bits. A layer is what lies between two quantised tensors: an operator or a few.
- a number: at the output of every so many normalisations (2: a layer of an encoder). A single moved quantum in such a layer
  moves everything after it a little, so that far more elements differ at its end than its operators moved.

With random weights, attention gives every token of an input about the same: there a layer has no more different rows than there
are inputs, and it takes several inputs for one tie to be less than 1e-4 of the elements.

Beside ours stands the original itself, cut in the same places and rewritten by ONNX Runtime at its highest level.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import eqsat
from eqsat.backends.calling import load_graph
from eqsat.errors import ModelError
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import operators_with
from eqsat.ir.types import TensorType
from eqsat.verification.feeds import random_feeds
from eqsat.verification.original import Original
from eqsat.verification.values import copied

NORMS = ("LayerNormalization", "SkipLayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization")
LIMIT = 1e-4
"""Part of the elements that a layer may move, by one quantum."""
ALIKE = 0.9
"""Part of the elements in which two quantised tensors agree that stand for the same value."""
COPIES = {*operators_with(lambda op: op.traits.moves and not op.traits.indices), "Dropout"} - {"Split"}
"""Operators whose result is a copy of their operand: not parts of it, nor what a table has for its codes."""
LEAST = 1024
"""Smaller tensors are not compared."""
_FED = "forced:"

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cut:
    """A value of ours and the value of the original that it stands for.

    Codes of ours are ``shift`` larger. A value that is no code has a ``quantum``: scale, zero point and lowest of 256 codes; that
    of ours is ``factor`` times as large as that of the original.
    """

    mine: str
    theirs: str
    shift: int = 0
    quantum: tuple[np.float32, int, int] | None = None
    factor: float = 1.0

    def scaled(self, value: np.ndarray) -> np.ndarray:
        """``value`` of the original, as large as ours if it is no code."""
        return value * np.float32(self.factor) if self.quantum else value

    def forced(self, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """What ours has, of type ``dtype``, where the original has ``value``."""
        moved = self.scaled(value) if self.quantum else value.astype(np.int16) + self.shift
        return moved.astype(dtype)

    def codes(self, value: np.ndarray, shift: int = 0) -> np.ndarray:
        flat = value.reshape(-1)
        if self.quantum is None:
            return flat.astype(np.int64) - shift
        scale, zero, lowest = self.quantum
        return np.clip(np.rint(flat / scale).astype(np.int64) + zero, lowest, lowest + 255)


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
        return self.moved / self.seen if self.seen else 0.0

    @property
    def is_over(self) -> bool:
        return self.fraction > LIMIT or self.furthest > 1


def cut_graph(graph: Graph, values: Sequence[str], outputs: Sequence[str]) -> Graph:
    """``graph`` with an input in place of each of ``values`` wherever it is read; it returns ``outputs``."""
    fed = set(values)
    nodes = [replace(n, inputs=tuple(_FED + v if v in fed else v for v in n.inputs)) for n in graph.nodes]
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=(*graph.inputs, *(_FED + v for v in values)),
        outputs=tuple(dict.fromkeys(outputs)),
        types=MappingProxyType({**graph.types, **{_FED + v: graph.type_of(v) for v in values}}),
    ).pruned()


def open_cut(graph: Graph, values: Sequence[str], outputs: Sequence[str], level: str) -> Callable[[Values], Values]:
    """The cut graph in ONNX Runtime, which may rewrite it up to ``level``: from all inputs to ``outputs``."""
    session = load_graph(cut_graph(graph, values, outputs), level)
    return lambda feeds: session.run({name: feeds[name] for name in session.inputs})


def norm_cuts(ours: Graph, original: Graph, every: int) -> list[Cut]:
    """The outputs of every ``every``-th normalisation. Raises `ModelError` where the programs have different ones."""
    mine, theirs = ([n for n in g.nodes if n.op in NORMS][::every] for g in (ours, original))
    if len(mine) != len(theirs) or not mine:
        raise ModelError(f"{original.name}: {len(mine)} normalisations where the original has {len(theirs)}")
    quantum = None
    cuts = []
    for a, b in zip(mine, theirs, strict=True):
        value = a.outputs[0]
        quantum = _quantum(ours, value) or quantum  # the last one may be an output of the model
        if quantum is None:
            raise ModelError(f"{original.name}: value {value!r} is not quantised")
        cuts.append(Cut(value, b.outputs[0], quantum=quantum, factor=_gain(ours, a) / _gain(original, b)))
    return cuts


def _gain(graph: Graph, norm: Node) -> float:
    """How large the scale of a normalisation is: one scale may be that of another, times a number."""
    return float(np.abs(_constant(graph, norm.inputs[2 if norm.op.startswith("Skip") else 1])).mean(dtype=np.float64))


def _constant(graph: Graph, value: str) -> np.ndarray:
    """What is computed from constants alone."""
    if value in graph.constants:
        return graph.constants[value].numpy()
    node = graph.producers()[value]
    operands = [_constant(graph, v) if v else None for v in node.inputs]
    return evaluate_operator(node.key, node.attributes, operands, len(node.outputs))[node.outputs.index(value)]


def _quantum(graph: Graph, value: str) -> tuple[np.float32, int, int] | None:
    """Scale, zero point and lowest code with which ``value`` is quantised."""
    same = {value}
    for node in graph.nodes:
        if not node.inputs or node.inputs[0] not in same:
            continue
        if copied(node):
            same.update(node.outputs)
        elif node.op == "QuantizeLinear":
            scale, zero = (graph.constants[v].numpy() for v in node.inputs[1:3])
            if scale.size == 1:
                return np.float32(scale.item()), int(zero.item()), int(np.iinfo(zero.dtype).min)
    return None


def codes_of(graph: Graph) -> list[str]:
    """Values of 8 bits that are computed, in order."""
    return [v for node in graph.nodes for v in node.outputs if v and _is_code(graph.type_of(v))]


def _is_code(found: object) -> bool:
    if not isinstance(found, TensorType) or found.dtype.numpy not in (np.uint8, np.int8) or found.shape is None:
        return False
    extents = [d for d in found.shape if isinstance(d, int)]
    return len(extents) == len(found.shape) and math.prod(extents) >= LEAST


def code_cuts(ours: Graph, original: Graph, norms: Sequence[Cut], feeds: Values, right: Values) -> list[Cut]:
    """Pairs of quantised tensors that hold the same codes, or codes apart by the difference of two zero points.

    The values between two norms are looked for among those of the original between the same two norms, with the original's
    values forced in at the norms, so that both agree but for what the operators in between do. Left out are copies (transposed,
    say) of a value that has a partner, and values that are clipped to the partner's range before anything else reads them.
    """
    mine, theirs = codes_of(ours), codes_of(original)
    found = open_cut(ours, [c.mine for c in norms], mine, "disable")(forced_feeds(ours, norms, feeds, right))
    sections = [_sections(g, [getattr(c, side) for c in norms]) for g, side in ((ours, "mine"), (original, "theirs"))]
    producers = ours.producers()
    cuts: list[Cut] = []
    for value in mine:
        if producers[value].op in COPIES:
            continue
        others = [v for v in theirs if sections[1][v] == sections[0][value] and right[v].size == found[value].size]
        best = max(((_agreement(found[value], right[v]), v) for v in others), default=((0.0, 0), ""))
        (share, shift), partner = best
        if share >= ALIKE:
            cuts.append(Cut(value, partner, shift))
    return _finished(ours, cuts)


def _finished(ours: Graph, cuts: Sequence[Cut]) -> list[Cut]:
    """Those of ``cuts`` whose value is read by anything but its copies and the operators that lead to the same partner."""
    partners = {c.mine: c.theirs for c in cuts}
    readers: dict[str, list[Node]] = {}
    for node in ours.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)

    def is_unfinished(value: str, partner: str) -> bool:
        found = readers.get(value, [])
        return bool(found) and all(
            is_unfinished(n.outputs[0], partner) if n.op in COPIES else partners.get(n.outputs[0]) == partner
            for n in found
        )

    return [c for c in cuts if not is_unfinished(c.mine, c.theirs)]


def _agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, int]:
    """In which part of the elements two tensors agree, and by how much the codes of the first are larger."""
    shift = (0 if a.dtype == b.dtype else 128) * (1 if a.dtype == np.uint8 else -1)
    agrees = a.reshape(-1).astype(np.int16) - shift == b.reshape(-1)
    return float(agrees.mean()), shift


def _sections(graph: Graph, bounds: Sequence[str]) -> dict[str, int]:
    """Value -> how many of ``bounds`` lie before it on the longest way."""
    numbers = {v: k + 1 for k, v in enumerate(bounds)}
    found: dict[str, int] = {}
    for node in graph.nodes:
        before = max((numbers.get(v, found.get(v, 0)) for v in node.inputs), default=0)
        found.update(dict.fromkeys(node.outputs, before))
    return found


def forced_feeds(graph: Graph, cuts: Sequence[Cut], feeds: Values, right: Values) -> dict[str, np.ndarray]:
    """The inputs of our cut graph: the model's, and the original's values as this graph has them."""
    forced = dict(feeds)
    for cut in cuts:
        found = graph.type_of(cut.mine)
        assert isinstance(found, TensorType)
        value = cut.forced(right[cut.theirs], found.dtype.numpy)
        forced[_FED + cut.mine] = value.reshape([d if isinstance(d, int) else -1 for d in found.shape or ()])
    return forced


def measure(path: Path, options: argparse.Namespace) -> Iterator[tuple[str, list[str], list[Moved]]]:
    """For ours and the original rewritten: the operators at the ends of the layers, and what the layers did."""
    result = eqsat.optimize(
        path, cost=options.cost, numerics=options.numerics, form="onnxruntime", verify=False,
        time_limit_s=600.0, disabled_rules=tuple(filter(None, options.disable_rules.split(","))),
    )  # fmt: skip
    ours, original = result.program.graph, result.original
    per_tensor = options.layers == "quantised"
    cuts = norms = norm_cuts(ours, original, 1 if per_tensor else int(options.layers))
    wanted = [c.theirs for c in norms] + (codes_of(original) if per_tensor else [])
    runner = Original(original, path, wanted)
    first = random_feeds(original, 0)
    if per_tensor:
        cuts = code_cuts(ours, original, norms, first, runner.fetcher(first)(wanted))
    mine, theirs = [c.mine for c in cuts], list(dict.fromkeys(c.theirs for c in cuts))
    run_ours, run_theirs = open_cut(ours, mine, mine, "disable"), open_cut(original, theirs, theirs, "all")
    layers: dict[str, list[Moved]] = {name: [Moved() for _ in cuts] for name in ("ours", "ALL")}
    for seed in range(options.inputs):
        feeds = random_feeds(original, seed)
        right = runner.fetcher(feeds)(wanted)
        found = run_ours(forced_feeds(ours, cuts, feeds, right))
        rewritten = run_theirs({**feeds, **{_FED + v: right[v] for v in theirs}})
        for k, cut in enumerate(cuts):
            expected = cut.codes(cut.scaled(right[cut.theirs]))
            layers["ours"][k].add(np.abs(cut.codes(found[cut.mine], cut.shift) - expected))
            layers["ALL"][k].add(np.abs(cut.codes(cut.scaled(rewritten[cut.theirs])) - expected))
    for name, graph, side in (("ours", ours, "mine"), ("ALL", original, "theirs")):
        producers = graph.producers()
        yield name, [f"{producers[getattr(c, side)].op} {getattr(c, side)}" for c in cuts], layers[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="bert_int8,bert_int8_trivial,bert_base_qdq,bert_base_trivial_qdq")
    parser.add_argument("--layers", default="quantised")
    parser.add_argument("--inputs", type=int, default=16, help="random inputs")
    parser.add_argument("--cost", default="measured")
    parser.add_argument("--numerics", default="lsb")
    parser.add_argument("--disable-rules", default="")
    parser.add_argument("--details", action="store_true", help="every layer that is over the limit")
    options = parser.parse_args()
    print("| model | program | layers | worst layer | all elements | largest, quanta | over 1 quantum or 1e-4 |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names.split(","):
        for program, ends, layers in measure(options.models / f"{name}.onnx", options):
            whole = sum(m.moved for m in layers) / sum(m.seen for m in layers)
            over = [(end, m) for end, m in zip(ends, layers, strict=True) if m.is_over]
            print(
                f"| {name} | {program} | {len(layers)} | {max(m.fraction for m in layers):.1e} | {whole:.1e} | "
                f"{max(m.furthest for m in layers)} | {len(over)} |",
                flush=True,
            )
            if options.details:
                print("\n".join(f"  {end}: {m.fraction:.1e} by {m.furthest}" for end, m in over), flush=True)


if __name__ == "__main__":
    main()
