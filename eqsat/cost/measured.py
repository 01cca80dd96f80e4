"""The measured cost model: what kernels took on a machine, and what others like them will take.

A kernel of one operator costs, in this order: the timing of the very same operator, element types, variant and shapes; the law of
its family (`eqsat.cost.families`) times a correction, the timings of the nearest kernels of the family over what the law says of
them; the law of a coarser family (the operator with any element types, then all operators of its kind); the target's roofline
and launch. The correction fades out where no kernel of about that size (a factor of four) was timed. What is in half
precision costs what it does in single precision unless it was timed.

Convolutions run on blocks of channels, on which kernels of quantisation do not: one of a dequantised image costs reordering that
and its result, too, and splitting the channels of an image costs several reorderings more. BatchNormalization runs on such blocks
and costs less than an addition to each channel, which does not. A value beside one number costs more if axes of extent 1 cut it
into stretches. An Einsum costs what it is made of.

A kernel of several operators costs one start, and the longer of its operations one after the other and the bytes that cross
its boundary; never more than its operators one by one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from eqsat.cost.families import ANY, MINIMUM, Family, Law, families_of, features, fit_law, is_on_blocks
from eqsat.cost.model import COST_MODELS, IMAGE, Work, leaves_blocks, static_shape, steps_inside, work_of
from eqsat.cost.plain import in_single, plain
from eqsat.cost.target import Target
from eqsat.cost.timings import Table, Timing, default_table, load_table
from eqsat.errors import OptionError
from eqsat.ir.einsum import Groups, Step, equation_of
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.operator import Application, Kind, operator
from eqsat.ir.operators.onnxruntime_products import LEAST_BLOCK
from eqsat.ir.types import DType, TensorType, Type

SLOWER = 1.3
"""Times as long as the operators inside an Einsum one by one (`eqsat.ir.einsum.steps`), about the middle of what was measured: in
ONNX Runtime 1.31 1.1 to 2.1 times (products of attention and of projections, sums, copies), and longer where it makes a product
of many small matrices of one of elements."""

EACH_S = 5e-8
"""Seconds for each matrix of a stack: 98,304 elements multiplied by one another took 7.5 times as long as a product of 128 x 768
by 768 x 768."""


def inside_einsum(work: Work) -> tuple[list[Work], int] | None:
    """The operators that a kernel of Einsum computes, and how many matrices its products have; ``None`` where the extents do not
    tell."""
    types = [t for t in work.types if isinstance(t, TensorType) and t.is_static]
    if len(types) < len(work.types):
        return None
    shapes = [tuple(d for d in t.shape or () if isinstance(d, int)) for t in types]
    found = steps_inside(work)
    equation = equation_of(work.attributes["equation"], tuple(map(len, shapes))) if found else None
    if equation is None:
        return None
    extents: dict[str, int] = {}
    for indices, shape in zip(equation.operands, shapes, strict=True):
        extents.update((i, d) for i, d in zip(indices, shape, strict=True) if extents.get(i, 1) == 1)
    stacks = [step.result[0] for step in found if step.op == "MatMul"]
    return (
        [_work(step, types[0].dtype, extents) for step in found],
        sum(math.prod(extents[i] for i in stack) for stack in stacks),
    )


def _work(step: Step, dtype: DType, extents: dict[str, int]) -> Work:
    def typed(groups: Groups) -> TensorType:
        return TensorType(dtype, tuple(math.prod(extents[i] for i in group) for group in groups))

    types, result = [typed(groups) for groups in step.operands], typed(step.result)
    if step.op == "ReduceSum":
        types.append(TensorType(DType.INT64, (len(step.operands[0]) - len(step.result),)))
    attributes = Attributes({"perm": step.perm} if step.perm else {"keepdims": 0} if step.op == "ReduceSum" else {})
    return work_of(Application(step.op, attributes, types), [result])


def einsum_seconds(seconds: Iterable[float], matrices: int) -> float:
    """What a kernel takes, by what the operators inside take one by one."""
    return SLOWER * math.fsum(seconds) + EACH_S * matrices


_REACH = math.log(4.0)
"""Distance, in logarithms of operations, bytes and innermost extent, at which a timing counts as much as the law alone."""
_NEAREST = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, and where they come from: ``timed``, ``family``, ``operator``, ``kind`` or ``roofline``."""

    seconds: float
    source: str
    law: Law | None = None


@dataclass(frozen=True, slots=True)
class _Point:
    """One timed kernel in the space in which its family is interpolated."""

    place: tuple[float, float, float]
    flops: float
    bytes: float
    seconds: float


@dataclass
class Fitted:
    """Timings with their work, and the laws of their families, each fitted when it is first asked for."""

    table: Table
    _timings: dict[str, list[Timing]] = field(default_factory=lambda: defaultdict(list))
    _timed: dict[tuple[object, ...], float] = field(default_factory=dict[tuple[object, ...], float])
    _members: dict[Family, list[_Point]] = field(default_factory=lambda: defaultdict(list))
    _laws: dict[Family, Law | None] = field(default_factory=dict[Family, Law | None])
    _estimates: dict[Work, Estimate | None] = field(default_factory=dict[Work, Estimate | None])

    def __post_init__(self) -> None:
        for timing in self.table.timings:
            self._timings[timing.key].append(timing)

    def _read(self, keys: Iterable[str]) -> None:
        """Sorts the timings of these operators into families, unless that is done: a program has few of all operators."""
        for key in keys:
            for timing in self._timings.pop(key, ()):
                work = plain(work_of_timing(timing))
                families = families_of(work)
                identity = _identity(work, families[0])
                self._timed[identity] = min(timing.seconds, self._timed.get(identity, math.inf))
                point = _Point(features(work), work.flops, work.bytes, timing.seconds)
                for family in families:
                    self._members[family].append(point)

    def law(self, family: Family) -> Law | None:
        """The law of a family; ``None`` if too few of its kernels were timed."""
        if family not in self._laws:
            kind = family[0].removeprefix(ANY)
            self._read((family[0],) if kind == family[0] else [k for k in self._timings if _kind_of(k) == kind])
            members = self._members.get(family, ())
            law = None
            if len({p.place for p in members}) >= MINIMUM:
                law = fit_law([p.flops for p in members], [p.bytes for p in members], [p.seconds for p in members])
            self._laws[family] = law
        return self._laws[family]

    def estimate(self, work: Work) -> Estimate | None:
        """What a kernel of one operator takes; ``None`` where no timing tells."""
        if work not in self._estimates:
            self._estimates[work] = self._estimated(plain(work))
        return self._estimates[work]

    def _estimated(self, work: Work) -> Estimate | None:
        families = families_of(work)
        self._read((work.operators[0],))
        timed = self._timed.get(_identity(work, families[0]))
        if timed is None and self.law(families[1]) is None and (single := in_single(work)) is not work:
            return self._estimated(single)
        for family, source in zip(families, ("family", "family", "operator", "kind", "kind"), strict=True):
            law = self.law(family)
            if law is None:
                continue
            if timed is not None:
                return Estimate(timed, "timed", law)
            seconds = law.seconds(work.flops, work.bytes)
            if source == "family":
                seconds *= self._correction(family, law, work)
            return Estimate(seconds, source, law)
        return None if timed is None else Estimate(timed, "timed")

    def _correction(self, family: Family, law: Law, work: Work) -> float:
        """Timings of the nearest kernels over what the law says of them: the weighted geometric mean, the law itself being
        one of the neighbours."""
        here = features(work)
        near = sorted(
            (math.dist(here, p.place), math.log(p.seconds / max(law.seconds(p.flops, p.bytes), 1e-12)))
            for p in self._members[family]
        )[:_NEAREST]
        total = logarithm = 0.0
        for distance, error in near:
            weight = (_REACH / max(distance, 1e-3)) ** 2
            total += weight
            logarithm += weight * error
        return math.exp(logarithm / (total + 1.0))


def _kind_of(key: str) -> str:
    definition = operator(key)
    return (definition.kind if definition is not None else Kind.OPAQUE).value


def work_of_timing(timing: Timing) -> Work:
    """The work of the kernel that was timed."""
    app = Application(timing.key, timing.attributes, timing.types, outputs=len(timing.results))
    return work_of(app, timing.results)


_REORDERINGS = 5
"""Of the image that is split: it before, its parts after, and what its parts are joined with, before and after. In inception_v3,
whose only Split has 1.5 MB reordered for an image of 0.3 MB."""


def _reordered(image: Type | None) -> Work:
    """A transpose of the image with the channels last: about what reordering takes."""
    assert isinstance(image, TensorType)
    perm = (0, 2, 3, 1)
    moved = TensorType(image.dtype, tuple((image.shape or ())[p] for p in perm))
    attributes = Attributes({"perm": perm})
    return work_of(Application("Transpose", attributes, [image]), [moved])


def _reordered_around(work: Work) -> Sequence[Type | None]:
    """Images reordered for a convolution on blocks of channels between kernels of quantisation: it reads a picture as it is."""
    shape = static_shape(work.types[0])
    return work.results if shape is not None and shape[1] < LEAST_BLOCK else (work.types[0], *work.results)


_KEPT_ON_BLOCKS = 0.9
"""Of what an addition to each channel takes: BatchNormalization takes 0.79 to 1.01 of it without blocks, and on them the addition
has the image reordered before and after."""


def _added_to_channels(work: Work) -> Work | None:
    """The addition of a number to each channel, for a BatchNormalization of an image that may be on blocks."""
    image = work.types[0] if work.operators == ("BatchNormalization",) else None
    shape = static_shape(image)
    if shape is None or len(shape) != IMAGE or shape[1] < LEAST_BLOCK or not isinstance(image, TensorType):
        return None
    numbers = TensorType(image.dtype, (shape[1], 1, 1))
    return work_of(Application("Add", NO_ATTRIBUTES, [image, numbers]), [image])


_STRETCH_S = 1.4e-8
"""What it takes to step from one stretch to the next: 29 us for 2,048 elements one by one, 4 us for 256 times 8."""


def _stretches(work: Work) -> int:
    """In how many stretches a value is run through beside one number that has fewer axes: ONNX Runtime takes them to be no longer
    than the axes behind the last one of extent 1."""
    if work.kind is not Kind.ELEMENTWISE or len(work.types) != 2:
        return 1
    shapes = [t.shape or () for t in work.types if isinstance(t, TensorType)]
    if len(shapes) != 2:
        return 1
    number, value = sorted(shapes, key=len)
    if set(number) - {1} or len(number) == len(value) or not all(isinstance(d, int) for d in value):
        return 1
    last = max((axis for axis, d in enumerate(value) if d == 1), default=-1)
    return max(math.prod(int(d) for d in value[: last + 1]), 1)


def _identity(work: Work, family: Family) -> tuple[object, ...]:
    return (family, work.types, work.results)


_FITS: dict[int, Fitted] = {}
"""What is known of a table, by its identity: models of the same timings share it, and its laws are fitted once."""


@dataclass
class MeasuredModel:
    """Seconds by timings in ``path``, by default those of this machine, or else those shipped for the target.

    Raises `OptionError` for a target that nobody has timed.
    """

    path: Path | None = None
    name: str = "measured"
    unit: str = "seconds"
    description: str = (
        "what kernels took on this machine (`eqsat calibrate`), or on the one the shipped timings are from"
    )
    _fitted: dict[str, Fitted] = field(default_factory=dict[str, Fitted], repr=False)

    def kernel_cost(self, work: Work, target: Target) -> float:
        return self.estimate(work, target).seconds

    def estimate(self, work: Work, target: Target) -> Estimate:
        """The price of a kernel and where it comes from. A view costs a launch of the target: it computes nothing, but the
        runtime steps over it."""
        fitted = self._of(target)
        if work.kind is Kind.VIEW or work.kind.value in target.free_kinds:
            return Estimate(target.launch_s, "roofline")
        if len(work.operators) > 1:
            return self._group(work, target)
        inside = inside_einsum(work) if work.operators == ("Einsum",) else None
        if inside is not None:
            parts = [self.estimate(part, target) for part in inside[0]]
            longest = max(parts, key=lambda part: part.seconds)
            return Estimate(einsum_seconds((part.seconds for part in parts), inside[1]), longest.source, longest.law)
        found = fitted.estimate(work)
        if found is None:
            return Estimate(COST_MODELS["roofline-launch"].kernel_cost(work, target), "roofline")
        more = (_stretches(work) - 1) * _STRETCH_S
        if leaves_blocks(work):
            more = _REORDERINGS * self._reordering(work.types[0], target)
        elif work.dequantised and is_on_blocks(work):
            more = math.fsum(self._reordering(image, target) for image in _reordered_around(work))
        elif (addition := _added_to_channels(work)) is not None:
            more = min(_KEPT_ON_BLOCKS * self.kernel_cost(addition, target) - found.seconds, 0.0)
        return replace(found, seconds=found.seconds + more) if more else found

    def _reordering(self, image: Type | None, target: Target) -> float:
        moved = self._of(target).estimate(_reordered(image))
        return moved.seconds if moved is not None else 0.0

    def _group(self, work: Work, target: Target) -> Estimate:
        """See the head of the module."""
        works = [part for part in work.parts if part.kind is not Kind.VIEW]
        parts = [self.estimate(part, target) for part in works]
        laws = [p.law for p in parts if p.law is not None]
        if not laws or len(laws) != len(parts):
            return Estimate(COST_MODELS["roofline-launch"].kernel_cost(work, target), "roofline")
        operations = math.fsum(law.s_per_operation * plain(w).flops for law, w in zip(laws, works, strict=True))
        moved = work.bytes / target.bandwidth_bytes_per_s
        together = max(law.start_s for law in laws) + max(operations, moved)
        return Estimate(min(together, math.fsum(p.seconds for p in parts)), "family")

    def _of(self, target: Target) -> Fitted:
        if target.name not in self._fitted:
            table = load_table(self.path) if self.path is not None else default_table(target.name)
            if table is None or table.target != target.name:
                found = "there are no timings of it" if table is None else f"{self.path} has timings of {table.target}"
                raise OptionError(
                    f"cost model measured, target {target.name!r}: {found}; choose another cost model; "
                    "`eqsat calibrate` makes timings of targets whose kernels run on this machine"
                )
            self._fitted[target.name] = _FITS.setdefault(id(table), Fitted(table))
        return self._fitted[target.name]
