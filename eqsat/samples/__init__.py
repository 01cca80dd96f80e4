"""Random instances of the left sides of rules, on which their soundness is tested.

A rule's ``sample`` is a function of a `Sampler`. It returns, by name, an array for each variable of the pattern (`fixed`
makes it a constant of the graph instead of an input, ``None`` leaves an optional variable out) and a mapping with the
attributes of each named node. The sample of a group rule returns a finished `Drawing` instead.

Wherever possible, extents are pairwise distinct and permutations are not their own inverse, so that a wrong axis shows.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.operator import defined, split_key
from eqsat.ir.types import DType
from eqsat.rewrite import PROJECTION, Apply, GroupRule, Rule, Term, Variable

T = TypeVar("T")

SYMBOLIC = "symbolic extents"
"""Key under which a sample may name the extents that inputs declare by a symbol; by default one instance of four has some."""

_EXTENTS = (2, 3, 4, 5, 6, 7)
_SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 127.5, -128.0)


@dataclass(frozen=True, eq=False)
class Fixed:
    """An array that becomes a constant of the graph."""

    array: np.ndarray


def fixed(value: Any, dtype: DType | str | None = None) -> Fixed:
    """Marks a value (anything `numpy.asarray` takes) as a constant of the graph."""
    return Fixed(np.asarray(value, None if dtype is None else DType.of(dtype).numpy))


@dataclass(frozen=True, eq=False)
class Applied:
    """What an operator makes of an array: a value of which the e-graph knows bounds, but not the elements."""

    op: str
    array: np.ndarray


Value = np.ndarray | Fixed | Applied
Input = str | Fixed | int | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class Instance:
    """A graph and the arrays to run it on. ``root``: the output that holds the value of the left side."""

    graph: Graph
    feeds: Mapping[str, np.ndarray]
    root: str


class Drawing:
    """A graph under construction together with the arrays that will be fed to it."""

    def __init__(self, name: str = "instance") -> None:
        self.builder = GraphBuilder(name)
        self._feeds: dict[str, np.ndarray] = {}

    def value(self, value: Value, symbolic: Container[int] = ()) -> str:
        """Declares an input holding an array, or a constant, and returns its name.

        Extents in ``symbolic`` are declared by a symbol instead, one for each extent.
        """
        if isinstance(value, Fixed):
            return self.builder.constant(value.array)
        if isinstance(value, Applied):
            return self.op(value.op, self.value(value.array, symbolic))
        name = f"x{len(self._feeds)}"
        self._feeds[name] = value
        shape = [f"d{d}" if d in symbolic else d for d in value.shape]
        return self.builder.input(name, DType.of(value.dtype), shape)

    def op(self, op: str, *inputs: Input, outputs: int = 1, **attributes: Any) -> Any:
        """Applies an operator, named by its key, to values; a tuple of values comes back when ``outputs`` is not 1.

        Integers among the inputs, and lists of them, are constants of int64.
        """
        domain, name = split_key(op)
        return self.builder.op(name, *map(self._input, inputs), outputs=outputs, domain=domain, **attributes)

    def places(self, x: str, axis: int, start: int = 0, step: int = 1) -> str:
        """Numbers from ``start`` on in steps, up to the extent of ``x`` along an axis more: the places there."""
        extent = self.op("Squeeze", self.op("Shape", x, start=axis, end=axis + 1))
        return self.op("Range", start, self.op("Add", extent, start) if start else extent, step)

    def _input(self, given: Input) -> str | None:
        if given is None or isinstance(given, str):
            return given
        return self.value(given if isinstance(given, Fixed) else fixed(given, "int64"))

    def finish(self, *outputs: str) -> Instance:
        """The instance with these outputs, the first of which is the root."""
        names = {f"y{i}": value for i, value in enumerate(dict.fromkeys(outputs))}
        return Instance(self.builder.finish(names), self._feeds, "y0")


class Sampler:
    """Draws shapes, arrays and choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._bytes = ""
        self._dequantises = np.random.default_rng((seed, 1)).random() < 0.05  # not of `rng`, which goes on the same
        self.asked_types: Sequence[str] = ()

    # ---- choices

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def integer_type(self) -> str | None:
        """One of ``asked_types``; else mostly one of 8 bits, the same whenever this is asked, or any."""
        self._bytes = self._bytes or self.choose(("int8", "uint8"))
        if self.asked_types:
            return self._bytes if self._bytes in self.asked_types else self.choose(self.asked_types)
        return self._bytes if self.chance(0.7) else None

    def dequantises(self) -> Mapping[str, int]:
        """Attributes of DequantizeLinear, the same whenever this is asked: now and then it makes half precision of any scale."""
        return {"output_dtype": int(DType.FLOAT16)} if self._dequantises else {}

    def subset(self, items: Iterable[T], probability: float = 0.5) -> list[T]:
        return [item for item in items if self.chance(probability)]

    # ---- shapes

    def extents(self, count: int, ones: float = 0.1) -> tuple[int, ...]:
        """``count`` extents, pairwise distinct up to six of them; each is 1 with probability ``ones``."""
        drawn: list[int] = []
        while len(drawn) < count:
            drawn.extend(self.rng.permutation(_EXTENTS).tolist())
        return tuple(1 if self.chance(ones) else int(d) for d in drawn[:count])

    def shape(self, low: int = 1, high: int = 4, ones: float = 0.1) -> tuple[int, ...]:
        """A shape of a rank from ``low`` to ``high``."""
        return self.extents(self.integer(low, high), ones)

    def permutation(self, rank: int) -> tuple[int, ...]:
        """A permutation of axes; from rank 3 on mostly one that is not its own inverse."""
        perm: tuple[int, ...] = ()
        for _ in range(8):
            perm = tuple(int(p) for p in self.rng.permutation(rank))
            if any(perm[perm[i]] != i for i in range(rank)):
                break
        return perm

    def broadcast_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to ``shape`` without enlarging it: leading axes may be gone, others may be 1."""
        kept = list(shape)[self.integer(0, len(shape)) :]
        return tuple(1 if self.chance(0.3) else d for d in kept)

    def broadcast_with(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with ``shape``; in one case of three the result is larger than ``shape``."""
        found = list(self.broadcast_of(shape))
        if not self.chance(0.33):
            return tuple(found)
        grown = [int(self.choose(_EXTENTS)) if d == 1 else d for d in shape]
        return tuple(grown) if self.chance() else (self.integer(2, 3), *grown)

    # ---- arrays

    def floats(
        self, shape: Sequence[int], dtype: DType | str = "float32", *, wild: bool = False, infinite: bool = False
    ) -> np.ndarray:
        """Floats of both signs around 1, with zeros, halves and ties among them.

        ``wild`` adds magnitudes from 1e-6 to 1e6, ``infinite`` infinities, NaN and the largest finite numbers.
        """
        size = math.prod(shape)
        array = self.rng.normal(size=size) * 2
        if wild:
            array *= 10.0 ** self.rng.uniform(-6, 6, size)
        special = self.rng.random(size) < 0.15
        array[special] = self.rng.choice(_SPECIAL, int(special.sum()))
        if infinite:
            limit = float(np.finfo(np.float32).max)
            extreme = self.rng.random(size) < 0.25
            array[extreme] = self.rng.choice([np.inf, -np.inf, np.nan, limit, -limit], int(extreme.sum()))
        with np.errstate(over="ignore"):  # the largest float32 is an infinity in float16
            return array.reshape(tuple(shape)).astype(DType.of(dtype).numpy)

    def tame(self, *shape: int) -> np.ndarray:
        """Floats around 1: scores that a softmax does not decide at once."""
        return self.rng.normal(size=shape).astype(np.float32)

    def positive(self, shape: Sequence[int], dtype: DType | str = "float32") -> np.ndarray:
        """Positive floats from 1/8 to 8."""
        return (2.0 ** self.rng.uniform(-3, 3, tuple(shape))).astype(DType.of(dtype).numpy)

    def powers_of_two(self, shape: Sequence[int], dtype: DType | str = "float32") -> np.ndarray:
        return (2.0 ** self.rng.integers(-4, 5, tuple(shape))).astype(DType.of(dtype).numpy)

    def scale(self, shape: Sequence[int] = (), dtype: DType | str = "float32") -> np.ndarray:
        """A scale: positive, a power of two, of mixed signs, or with zeros."""
        kind = self.integer(0, 3)
        if kind == 0:
            return self.positive(shape, dtype)
        if kind == 1:
            return self.powers_of_two(shape, dtype)
        signs = self.rng.choice([-1.0, 1.0] if kind == 2 else [-1.0, 1.0, 0.0], tuple(shape))
        return (self.positive(shape, "float64") * signs).astype(DType.of(dtype).numpy)

    def integers(
        self, shape: Sequence[int], dtype: DType | str = "int8", low: int | None = None, high: int | None = None
    ) -> np.ndarray:
        """Integers over the range of the element type (or from ``low`` to ``high``), its ends among them."""
        found = DType.of(dtype)
        if found is DType.BOOL:
            return self.booleans(shape)
        info = ml_dtypes.iinfo(found.numpy)
        first = max(int(info.min), -(2**40)) if low is None else low
        last = min(int(info.max), 2**40) if high is None else high
        array = self.rng.integers(first, last, tuple(shape), dtype=np.int64, endpoint=True)
        ends = self.rng.random(tuple(shape)) < 0.15
        return np.where(ends, self.rng.choice([first, last], tuple(shape)), array).astype(found.numpy)

    def booleans(self, shape: Sequence[int]) -> np.ndarray:
        return np.asarray(self.rng.random(tuple(shape)) < 0.5)

    def array(self, shape: Sequence[int], dtype: DType | str | None = None) -> np.ndarray:
        """An array of any plain element type: for rules that move elements without looking at them."""
        if dtype is None:
            dtype = self.choose(("float32", "float32", "float32", "float16", "int64", "int8", "bool"))
        found = DType.of(dtype)
        if found.is_float:
            return self.floats(shape, found, wild=found is DType.FLOAT, infinite=self.chance(0.2))
        return self.integers(shape, found)

    def either(self, array: np.ndarray, constant: float = 0.5) -> Value:
        """The array as a constant with the given probability, else as an input."""
        return Fixed(array) if self.chance(constant) else array


def draw_instance(rule: Rule | GroupRule, sampler: Sampler) -> Instance:
    """A random graph whose root is an instance of the left side of ``rule``."""
    assert rule.sample is not None, f"rule {rule.name!r} has no sample"
    drawn = rule.sample(sampler)
    if isinstance(rule, GroupRule):
        assert isinstance(drawn, Instance), f"rule {rule.name!r}: the sample of a group rule returns a finished Drawing"
        return drawn
    return _Builder(sampler, drawn).instance(rule.pattern)


class _Builder:
    """Builds a pattern with drawn values in place of its variables."""

    def __init__(self, sampler: Sampler, drawn: Mapping[str, Any]) -> None:
        self._sampler = sampler
        self._drawn = drawn
        self._drawing = Drawing()
        self._variables: dict[str, str | None] = {}
        self._nodes: dict[Apply, tuple[str, ...]] = {}
        # In one instance of four some extents are unknown at compile time.
        usual = sampler.subset(range(1, 8), 0.4) if sampler.chance(0.25) else ()
        self._symbolic = frozenset(drawn.get(SYMBOLIC, usual))

    def instance(self, pattern: Apply) -> Instance:
        root = self._values(pattern)
        inner = [value for values in self._nodes.values() for value in values if value not in root]
        shared = self._sampler.subset(inner, 0.2)  # a value that others read, too, must stay what it is
        return self._drawing.finish(*root, *shared)

    def _values(self, term: Term) -> tuple[str, ...]:
        assert isinstance(term, Apply)
        if term.op == PROJECTION:
            index = term.attributes["index"]
            assert isinstance(index, int)
            return (self._values(term.args[0])[index],)
        found = self._nodes.get(term)
        if found is None:
            inputs = [self._argument(a) for a in term.args]
            if defined(term.op).commutative and len(inputs) == 2 and self._sampler.chance():
                inputs.reverse()
            while inputs and inputs[-1] is None:
                inputs.pop()
            attributes = {**term.attributes, **self._drawn.get(term.name, {})} if term.name else dict(term.attributes)
            made = self._drawing.op(term.op, *inputs, outputs=term.outputs, **attributes)
            found = self._nodes[term] = (made,) if term.outputs == 1 else made
        return found

    def _argument(self, term: Term | None) -> str | None:
        if term is None:
            return None
        if not isinstance(term, Variable):
            return self._values(term)[0]
        if term.name not in self._variables:
            value = self._drawn[term.name] if not term.optional else self._drawn.get(term.name)
            self._variables[term.name] = None if value is None else self._drawing.value(value, self._symbolic)
        return self._variables[term.name]
