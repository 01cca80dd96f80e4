"""Targets: what a machine can do and how fast, and which groups of operators it runs as one kernel; ``targets/*.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eqsat.cost.target_file import check_target, read_target_file
from eqsat.errors import OptionError, choices
from eqsat.ir.operator import Kind
from eqsat.ir.types import is_sequence

_FOLDER = Path(__file__).parent / "targets"

FUSIONS = ("cones", "post-dominator")
"""How a target forms kernels: any cone that fits a template, or exactly the groups of TVM's post-dominator algorithm."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a template: the operators that it takes.

    ``accepts``: names of operators and labels (`eqsat.fusion.graph`). ``once``: at most one operator. ``required``: at
    least one. ``entry``: reads nothing that the same kernel computes, views aside. ``same_size``: what it reads from an
    anchor of the kernel has as many elements as what it computes. ``row_fits``: a row of the operator must fit on the chip.
    ``from_input``: the single operator of a later stage reads its values as inputs from this one on only: 3 for what the mask
    of an attention is computed from.
    """

    accepts: frozenset[str]
    once: bool = False
    required: bool = False
    entry: bool = False
    same_size: bool = False
    row_fits: bool = False
    from_input: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """A family of kernels: stages in the order of data flow. Operators of a later stage may read those of an earlier one or
    of their own, never the other way round. Views go anywhere. ``several``: its kernels may write several values."""

    name: str
    source: str
    stages: tuple[Stage, ...]
    several: bool = False

    @property
    def required(self) -> tuple[int, ...]:
        """Numbers of the stages that its kernels must fill."""
        return tuple(k for k, s in enumerate(self.stages) if s.required)

    @property
    def is_anchored(self) -> bool:
        """Whether its kernels are built around one operator: the first stage that they require takes one only."""
        return next((s.once for s in self.stages if s.required), False)

    def accepts(self, stages: slice = slice(None)) -> frozenset[str]:
        """The labels of operators that some of its stages take."""
        return frozenset[str]().union(*(s.accepts for s in self.stages[stages]))


@dataclass(frozen=True)
class Target:
    """Rates of a machine and its software stack, and its kernels.

    ``peak_ops`` gives operations per second (a multiply-add is two) by element type name, ``"default"`` for the rest; products
    of 8-bit integers may have rates by the types of both operands.
    ``free_kinds`` names the kinds of operator that launch nothing, ``free_operators`` further operators that do not, because
    the next kernel reads their input in place. ``templates``: kernels of several operators, beside every single operator.
    ``recompute``: kinds of operator that several kernels may compute, each for itself. ``argument_limit``: most tensors a kernel
    reads and writes. ``domains``: domains beside the default one whose operators are kernels here. ``from_pairs``: operators of
    those that the software stack makes of others between pairs of quantisation, or DynamicQuantizeLinear and its scales, so that
    programs have them in any form of file. ``unsupported``: operators with no kernel at all: spelled out where a rule knows how.
    ``expanded``: operators that the software stack spells out itself, and that are not introduced where a program has none.
    ``slices``: a Split is run as one Slice for each output, which may join other kernels. ``kept_at_load``: operators that are
    run on every call even if they read constants only; others that do are computed when a program is loaded. ``packed_products``:
    whether a product by weights that are dequantised becomes one of packed weights then (`eqsat.lower.rounded_products`).
    ``left_to_cpu``:
    operators that run on the host, in ``copies_s`` more than others, for what they read and write is copied. ``cost``: name of
    the cost model that programs are chosen by unless another is asked for.
    """

    name: str
    description: str
    source: str
    launch_s: float
    bandwidth_bytes_per_s: float
    peak_ops: Mapping[str, float]
    free_kinds: frozenset[str]
    templates: tuple[Template, ...] = ()
    fusion: str = "cones"
    recompute: frozenset[str] = frozenset()
    free_operators: frozenset[str] = frozenset()
    unsupported: frozenset[str] = frozenset()
    expanded: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    from_pairs: frozenset[str] = frozenset()
    slices: bool = False
    kept_at_load: frozenset[str] = frozenset()
    packed_products: bool = False
    left_to_cpu: frozenset[str] = frozenset()
    copies_s: float = 0.0
    on_chip_bytes: float = float("inf")
    argument_limit: int = 64
    cost: str = "kernels"

    def peak(self, dtype: str) -> float:
        """Peak rate for an element type, operations per second; of a product such as ``uint8*int8`` that of the first operand,
        unless there is one for both."""
        first = dtype.partition("*")[0]
        return self.peak_ops.get(dtype, self.peak_ops.get(first, self.peak_ops["default"]))

    def recomputes(self, kind: Kind) -> bool:
        """Whether several kernels may compute an operator of this kind, each for itself."""
        return kind.value in self.recompute

    def has_kernels_of(self, other: Target) -> bool:
        """Whether every program in kernels of ``other`` is one in kernels of this target."""
        same = all(getattr(self, name) == getattr(other, name) for name in _SAME_KERNELS)
        return (
            same
            and set(other.templates) <= set(self.templates)
            and other.unsupported >= self.unsupported
            and other.on_chip_bytes <= self.on_chip_bytes
            and other.argument_limit <= self.argument_limit
        )


_SAME_KERNELS = (
    "free_kinds",
    "fusion",
    "recompute",
    "free_operators",
    "expanded",
    "domains",
    "from_pairs",
    "slices",
    "kept_at_load",
    "packed_products",
    "left_to_cpu",
    "copies_s",
)


@cache
def load_target(name: str) -> Target:
    """The shipped target called ``name``. Raises `OptionError` with the names there are."""
    path = _FOLDER / f"{name}.toml"
    if name not in target_names():
        raise OptionError(f"target {name!r} does not exist; {choices(name, target_names())}, or a PATH.toml")
    return parse_target(name, read_target_file(path))


def as_target(target: str | Path | Target) -> Target:
    """The target that ``target`` names or is; a name that ends in ``.toml`` is the path of a file (docs/targets.md).

    Raises `OptionError` for an unknown name, or a file that describes no target.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str) and not target.endswith(".toml"):
        return load_target(target)
    return parse_target(str(target), read_target_file(Path(target)))


def parse_target(name: str, data: Mapping[str, Any]) -> Target:
    """A target from the data of its TOML file. Raises `OptionError` for data that describe none.

    ``extends`` names a shipped target whose keys hold where the file has none.
    """
    data = _extended(name, data)
    check_target(name, data)
    read: dict[str, Any] = {k: frozenset(v) if is_sequence(v) else v for k, v in data.items() if k not in _READ_APART}
    numbers = {
        k: float(read[k]) for k in ("launch_s", "bandwidth_bytes_per_s", "on_chip_bytes", "copies_s") if k in read
    }
    peaks = MappingProxyType({k: float(v) for k, v in data["peak_ops"].items()})
    templates = tuple(_template(t) for t in (*data.get("templates", ()), *data.get("more_templates", ())))
    read |= {**numbers, "peak_ops": peaks, "templates": templates}
    return Target(name, **read)


def _extended(name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """``data`` with the keys of the target that it extends, which may extend another."""
    base = data.get("extends")
    if base is None:
        return data
    if base not in target_names():
        raise OptionError(f"target {name!r}: extends: target {base!r} does not exist; {choices(base, target_names())}")
    below = dict(_extended(base, read_target_file(_FOLDER / f"{base}.toml")))
    if "more_templates" in below:
        below["templates"] = [*below.get("templates", ()), *below.pop("more_templates")]
    return {**below, **data}


_READ_APART = ("extends", "templates", "more_templates")


def _template(data: Mapping[str, Any]) -> Template:
    stated: list[dict[str, Any]] = [{**stage, "accepts": frozenset(stage["accepts"])} for stage in data["stages"]]
    stages = tuple(Stage(**stage) for stage in stated)
    return Template(data["name"], data["source"], stages, bool(data.get("several", False)))


def target_names() -> tuple[str, ...]:
    """Names of the shipped targets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
