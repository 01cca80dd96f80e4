"""Noise in a graph: what it computes when every rounding is coarser than it is.

A rewrite that reorders a sum or moves a scale changes the roundings of a program and nothing else. So the original itself
says how far a faithful rewrite can move its results: multiply every float that a node rounds by 1 + u, u uniform in
``+-margin`` ulp, and see. `MARGIN` covers what one rewrite can do to one value: summing K products in another order moves
the sum about 0.35 sqrt(2 K) times as far as one ulp of noise on its terms does, which is 32 at K = 4096. (Measured with
ONNX Runtime at K = 3072: 2; its kernels sum in blocks.) Half precision is summed in single precision and rounded once
(`eqsat.verification.halves`), by half an ulp at most: a rewrite leaves out one such rounding and puts in another, so the margin
there is 1.

Where a rewrite may also move an integer by a quantum (class ``lsb``), and for operators that compute integers inexactly,
integers are moved by a quantum at random places too.
"""

import math
from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, Subgraph, with_bodies
from eqsat.ir.nominal import nominal
from eqsat.ir.types import DType, TensorType, Type
from eqsat.verification.values import rounded_floats, rounded_integers, whole_numbers

MARGIN = {DType.DOUBLE: 32.0, DType.FLOAT: 32.0, DType.FLOAT16: 1.0, DType.BFLOAT16: 1.0}
"""Amplitude of the noise, in ulp of 1.0."""

TIE_RATE = {Exactness.ROUNDING: 2.0**-12, Exactness.LSB: 2.0**-8}
"""Share of the elements that a quantum may come or go from at a rounding tie, by exactness class. For ``lsb``: a tie
window of 1/256 quantum, twice what a bias rounded to the accumulator's scale needs."""

_RUNS, _MOST_RUNS, _ELEMENTS = 4, 16, 200_000
"""Runs with different noise from which a tolerance is taken, and as many of graphs that compute few elements; how many elements
they compute together then."""

_POOL = 1 << 18
_SLACK = 4096
_STRETCHES = 16
"""Different stretches of the pool that values of one shape get."""
_BITS = {DType.DOUBLE: 52, DType.FLOAT: 23, DType.FLOAT16: 10, DType.BFLOAT16: 7}


def ulp(dtype: DType) -> float:
    """Spacing of the floats of ``dtype`` above 1.0."""
    return 2.0 ** -_BITS.get(dtype, 23)


@dataclass(frozen=True)
class NoisyGraph:
    """``graph`` takes the inputs of the graph it was made from and, besides, pools of noise (see `pools`)."""

    graph: Graph
    float_pools: tuple[DType, ...]
    tie_rate: float
    sites: int

    def pools(self, seed: int) -> dict[str, np.ndarray]:
        """Noise to feed: another one for each seed."""
        random = np.random.default_rng([seed, 0x6E6F6973])
        feeds: dict[str, np.ndarray] = {}
        unit = random.uniform(-1.0, 1.0, _POOL + _SLACK)
        for dtype in self.float_pools:
            noise = 1.0 + MARGIN[dtype] * ulp(dtype) * unit
            feeds[_pool_name(dtype)] = noise.astype(dtype.numpy)
        if self.tie_rate:
            draw = random.random(_POOL + _SLACK)
            moved = np.where(draw < self.tie_rate / 2, -1.0, np.where(draw > 1 - self.tie_rate / 2, 1.0, 0.0))
            feeds[_TIES] = moved.astype(np.float32)
        return feeds


def rounded_again(array: np.ndarray) -> np.ndarray:
    """A float array with the noise of its own rounding alone: what any run with noise does to it at least."""
    dtype = DType.of(array.dtype)
    unit = np.random.default_rng([0, 0x6E6F6973]).uniform(-1.0, 1.0, min(array.size, _POOL))
    with np.errstate(all="ignore"):
        return array * np.resize(1.0 + MARGIN[dtype] * ulp(dtype) * unit, array.shape).astype(array.dtype)


_TIES = "noise:ties"


def _pool_name(dtype: DType) -> str:
    return f"noise:{dtype.name.lower()}"


def noise_runs_of(graph: Graph) -> int:
    """How many runs with noise are worth their time: of few elements each one says little about a rounding that may flip."""
    types = [nominal(graph.type_of(v)) for node in graph.nodes for v in node.outputs if v]
    elements = sum(t.size or 0 for t in types if t is not None)
    return max(_RUNS, min(_MOST_RUNS, _ELEMENTS // max(elements, 1)))


def add_noise(graph: Graph, exactness: Exactness, whole: Set[str] | None = None) -> NoisyGraph:
    """``graph`` with noise at every value that a rewrite of class ``exactness`` may move.

    ``whole``: values known to be whole numbers; by default what `whole_numbers` finds.
    """
    known = whole_numbers(graph) if whole is None else whole
    bodies = _NoisyBodies(exactness)
    graph = graph.with_nodes([with_bodies(node, bodies.change) for node in graph.nodes])
    floats = rounded_floats(graph, known)
    integers = rounded_integers(graph, known, quantisers=exactness >= Exactness.LSB)
    rename = {v: f"{v}:exact" for v in (*floats, *integers) if v not in graph.inputs}
    read = {v: f"{v}:noisy" for v in floats if v in graph.inputs}
    writer = _Writer(graph)
    for value, noisy in read.items():
        writer.scale(value, noisy, value)
    disturbed = set(floats)
    ties = set(integers)
    for node in graph.nodes:
        inputs = tuple(read.get(v, v) for v in node.inputs)
        writer.nodes.append(replace(node, inputs=inputs, outputs=tuple(rename.get(v, v) for v in node.outputs)))
        for value in node.outputs:
            if value in disturbed and value in rename:
                writer.scale(rename[value], value, value)
            elif value in ties:
                writer.move(rename[value], value, value)
    types = writer.types | {new: graph.type_of(old) for old, new in (*rename.items(), *read.items())}
    dtypes = tuple(dict.fromkeys((*(graph.type_of(v).dtype for v in floats), *bodies.float_pools)))
    pools = {_pool_name(dtype): TensorType(dtype, (_POOL + _SLACK,)) for dtype in dtypes}
    rate = 0.0
    if integers or bodies.ties:
        pools[_TIES] = TensorType(DType.FLOAT, (_POOL + _SLACK,))
        rate = TIE_RATE[min(exactness, Exactness.LSB)]
    result = replace(graph.with_nodes(writer.nodes, types | pools, writer.constants), inputs=(*graph.inputs, *pools))
    return NoisyGraph(result, dtypes, rate, len(floats) + len(integers) + bodies.sites)


class _NoisyBodies:
    """Noise in the bodies of control flow, from the pools of the graph around them, which they capture."""

    def __init__(self, exactness: Exactness) -> None:
        self.float_pools: dict[DType, None] = {}
        self.ties = False
        self.sites = 0
        self._exactness = exactness

    def change(self, body: Subgraph, captured: tuple[str, ...]) -> tuple[Subgraph, tuple[str, ...]]:
        if body.graph is None:
            return body, captured
        noisy = add_noise(body.graph, self._exactness)
        pools = tuple(v for v in noisy.graph.inputs if v not in body.graph.inputs)
        self.float_pools.update(dict.fromkeys(noisy.float_pools))
        self.ties |= _TIES in pools
        self.sites += noisy.sites
        changed = Subgraph(body.proto, body.captures + pools, 0, noisy.graph)
        return changed, captured + pools


class _Writer:
    """Appends the nodes that disturb one value: a stretch of the pool, in the shape of the value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.types: dict[str, Type] = {}
        self.constants: dict[str, Constant] = {}
        self._sites = 0

    def scale(self, source: str, target: str, value: str) -> None:
        """``target = source * (1 + noise)``. In float16, where squares are soon subnormal numbers, an ulp is never less than the
        distance of those; what is 0 stays it."""
        dtype = self.graph.type_of(value).dtype
        noise = self._stretch(source, value, dtype)
        if dtype is not DType.FLOAT16:
            self.nodes.append(Node("Mul", (source, noise), (target,)))
            return
        scaled = self._op("Mul", (source, noise), f"{value}:scaled", dtype)
        sign = self._op("Sign", (source,), f"{value}:sign", dtype)
        moved = self._op("Mul", (sign, self._least(noise, dtype)), f"{value}:least", dtype)
        self.nodes.append(Node("Add", (scaled, moved), (target,)))

    def _least(self, noise: str, dtype: DType) -> str:
        """What moves a subnormal number by as many of their distances as ``noise`` moves 1 by ulps."""
        least = f"{noise}:least"
        if least not in self.types:
            one = self._constant("noise:half:1", np.ones((), dtype.numpy))
            normal = self._constant("noise:half:normal", np.array(np.finfo(dtype.numpy).tiny, dtype.numpy))
            self._op("Mul", (self._op("Sub", (noise, one), f"{noise}:ulps", dtype), normal), least, dtype)
        return least

    def move(self, source: str, target: str, value: str) -> None:
        """``target = source + noise``, kept inside the range of the dtype."""
        dtype = self.graph.type_of(value).dtype
        noise = self._stretch(source, value, None)
        if dtype.is_float:
            if dtype is not DType.FLOAT:
                noise = self._op("Cast", (noise,), f"{value}:ties", dtype, to=int(dtype))
            self.nodes.append(Node("Add", (source, noise), (target,)))
            return
        ends = np.iinfo(dtype.numpy)
        wide = self._op("Cast", (source,), f"{value}:wide", DType.FLOAT, to=int(DType.FLOAT))
        moved = self._op("Add", (wide, noise), f"{value}:moved", DType.FLOAT)
        low = self._constant(f"noise:{dtype.name}:low", np.float32(ends.min))
        high = self._constant(f"noise:{dtype.name}:high", np.float32(ends.max))
        clipped = self._op("Clip", (moved, low, high), f"{value}:clipped", DType.FLOAT)
        self.nodes.append(Node("Cast", (clipped,), (target,), Attributes({"to": int(dtype)})))

    def _stretch(self, source: str, value: str, dtype: DType | None) -> str:
        """The name of a noise tensor that fits ``source``: one of a few stretches of the pool, so that neighbours differ.

        It has the shape of the value, or that of its last dimensions if the value has more elements than the pool.
        """
        pool, kind = (_TIES, DType.FLOAT) if dtype is None else (_pool_name(dtype), dtype)
        start = self._sites % _STRETCHES * (_SLACK // _STRETCHES)
        self._sites += 1
        first = self._constant(f"noise:{start}", np.array([start], np.int64))
        known = self._trailing_shape(value)
        if known is not None:
            noise = f"{pool}:{start}:{known}"
            if noise in self.types:
                return noise
            size = math.prod(known)
            last = self._constant(f"noise:{start + size}", np.array([start + size], np.int64))
            shape = self._constant(f"noise:shape:{known}", np.array(known, np.int64))
        else:
            noise = f"{value}:noise"
            shape = self._op("Shape", (source,), f"{value}:shape", DType.INT64)
            one = self._constant("noise:1", np.array([1], np.int64))
            size = self._op("Size", (source,), f"{value}:size", DType.INT64)
            count = self._op("Reshape", (size, one), f"{value}:count", DType.INT64)
            last = self._op("Add", (count, first), f"{value}:last", DType.INT64)
            length = self._constant("noise:pool", np.array([_POOL], np.int64))
            blocks = self._op("Div", (count, length), f"{value}:blocks", DType.INT64)
            repeats = self._op("Add", (blocks, one), f"{value}:repeats", DType.INT64)
            pool = self._op("Tile", (pool, repeats), f"{value}:tiled", kind)
        cut = self._op("Slice", (pool, first, last), f"{noise}:cut", kind)
        # an extent may be 0, which takes opset 14, at which the original may have no form
        attributes = {} if known and all(known) else {"allowzero": 1}
        return self._op("Reshape", (cut, shape), noise, kind, **attributes)

    def _trailing_shape(self, value: str) -> tuple[int, ...] | None:
        """The longest run of last dimensions that the pool covers; ``None`` if even the last one is not known to be."""
        found = self.graph.type_of(value)
        if found.shape is None or not found.is_static:
            return None
        kept: tuple[int, ...] = ()
        for extent in reversed(found.shape):
            if not isinstance(extent, int) or math.prod(kept) * extent > _POOL:
                return kept or None
            kept = (extent, *kept)
        return kept

    def _op(self, op: str, inputs: tuple[str, ...], output: str, dtype: DType, **attributes: int) -> str:
        self.nodes.append(Node(op, inputs, (output,), Attributes(attributes)))
        self.types[output] = TensorType(dtype, None)
        return output

    def _constant(self, name: str, value: np.ndarray | np.generic) -> str:
        if name not in self.constants:
            self.constants[name] = Constant.of(value)
        return name
