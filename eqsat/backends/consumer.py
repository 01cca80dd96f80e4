"""Consumers: what reads the file that is written, and what it takes; `consumers/*.toml` say so, with sources.

What a release does not say is as in the one before it. A release between two that are listed is taken for the earlier one. One
that is ``like`` another has its releases, from the ``first`` on if it says so, and computes more ``wrong``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from eqsat.backends.onnxruntime_kernels import CPU, left_to_cpu, runs_on
from eqsat.errors import OptionError, choices, nearest
from eqsat.frontends.onnx.envelope import NO_LIMIT, Envelope, envelope_of
from eqsat.frontends.onnx.versions.steps import OLDEST, first_version
from eqsat.ir.graph import Graph
from eqsat.ir.operator import OPSET, operator, split_key, traits_of
from eqsat.ir.types import TensorType, Type, is_sequence

_FOLDER = Path(__file__).parent / "consumers"
_BYTES = frozenset(("int8", "uint8"))


@dataclass(frozen=True, eq=False)
class Consumer:
    """One release of what reads the file. ``form`` and ``target`` are those of its files unless others are asked for.

    ``opset``, ``ir_version``: the newest that it loads. ``reads``: the operators of ONNX that it reads, if they are listed, and
    ``refuses`` those that it does not. ``bytes``: what it computes on 8-bit integers, beside moving them, if that is little.
    ``avoids``: operators that it reads, and runs slower than what they are made of. ``fuses_slowly``: operators that it fuses
    others into when it loads a file, and runs slower than these. ``lacks``: operator, or operator and number of the input, to
    the element types that it has no kernel for; ``wrong``: to those that it may compute wrong; ``as_wide``: to two inputs, or it
    may be wrong where their last extents differ. ``slow``: to those for which an operator takes longer than what it is made of.
    ``without_rules``: rules that make what it computes no faster. ``with_rules``: rules of which it gains though it lacks the
    domain they are written for. ``provider``: the execution provider of ONNX Runtime whose kernels programs are made of
    (`eqsat.backends.onnxruntime_kernels`); what it has none for it leaves to the CPU, with copies before and after.
    """

    name: str
    version: str
    description: str
    source: str
    form: str
    target: str
    opset: int
    ir_version: int
    reads: frozenset[str] | None = None
    refuses: frozenset[str] = frozenset()
    avoids: frozenset[str] = frozenset()
    fuses_slowly: frozenset[str] = frozenset()
    bytes: frozenset[str] | None = None
    lacks: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    wrong: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    as_wide: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    slow: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    without_rules: tuple[str, ...] = ()
    with_rules: tuple[str, ...] = ()
    provider: str = CPU

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def reads_operator(self, key: str) -> bool:
        """Whether it reads an operator. Which domains beside the default one there are is decided by its form."""
        domain, op = split_key(key)
        if domain:
            return key not in self.refuses
        return op not in self.refuses and (self.reads is None or op in self.reads) and first_version(op) <= self.opset

    def takes(self, key: str, types: Sequence[Type | None]) -> bool:
        """Whether it runs an operator on inputs of these types (``None``: absent), and should be given it."""
        return (
            key not in self.avoids
            and self.reads_operator(key)
            and self.is_right(key, types)
            and self.runs(key, types)
            and not _lists(self.slow, key, types)
            and (self.bytes is None or _BYTES.isdisjoint(_names(types)) or key in self.bytes or _moves(key))
        )

    def has(self, key: str, types: Sequence[Type | None]) -> bool:
        """Whether it has an operator for inputs of these types, if it reads files of that opset."""
        return key not in self.refuses and not _lists(self.lacks, key, types)

    def runs(self, key: str, types: Sequence[Type | None]) -> bool:
        """Whether its execution provider runs an operator on inputs of these types, and does not leave it to the CPU."""
        return self.provider == CPU or runs_on(self.provider, key, types)

    @property
    def left_to_cpu(self) -> frozenset[str]:
        """Operators that its execution provider leaves to the CPU, whatever the types."""
        return frozenset[str]() if self.provider == CPU else left_to_cpu(self.provider)

    def is_right(self, key: str, types: Sequence[Type | None]) -> bool:
        """Whether it has an operator for inputs of these types, and computes it right."""
        shapes = [getattr(types[i], "shape", None) for i in self.as_wide.get(key, ())]
        alike = len({shape[-1] if shape else None for shape in shapes}) <= 1
        return self.has(key, types) and not _lists(self.wrong, key, types) and alike

    @property
    def unsupported(self) -> frozenset[str]:
        """Operators of ONNX that it does not read, or avoids."""
        return _unread(self)


def _names(types: Sequence[Type | None]) -> list[str]:
    return [t.dtype.name.lower() if isinstance(t, TensorType) else "" for t in types]


def _lists(table: Mapping[str, frozenset[str]], key: str, types: Sequence[Type | None]) -> bool:
    names = _names(types)
    if not table.get(key, frozenset()).isdisjoint(names):
        return True
    return any(name in table.get(f"{key}:{i}", ()) for i, name in enumerate(names))


@cache
def _unread(consumer: Consumer) -> frozenset[str]:
    return frozenset(name for name in _operators() if not consumer.reads_operator(name)) | consumer.avoids


@cache
def operators_after(opset: int) -> frozenset[str]:
    """Operators of ONNX that an opset does not have yet."""
    return frozenset(name for name in _operators() if first_version(name) > opset)


def _operators() -> set[str]:
    import onnx

    return {s.name for s in onnx.defs.get_all_schemas() if not s.domain}


@cache
def _moves(key: str) -> bool:
    return operator(key) is not None and traits_of(key).moves


def consumer_names() -> tuple[str, ...]:
    """Names of the consumers, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def releases_of(name: str) -> tuple[Consumer, ...]:
    """The releases of a consumer that are known, oldest first."""
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8"))
    if (other := data.pop("like", None)) is not None:
        own = _values(data)
        wrong, first = own.pop("wrong", {}), _numbers(own.pop("first", ""))
        releases = (r for r in releases_of(other) if _numbers(r.version) >= first)
        return tuple(replace(r, **own, name=name, wrong=_both(r.wrong, wrong)) for r in releases)
    found: list[Consumer] = []
    for release in data.pop("releases"):
        data |= release
        found.append(Consumer(name, **_values(data)))
    return tuple(found)


def _both(some: Mapping[str, frozenset[str]], others: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {key: some.get(key, frozenset()) | others.get(key, frozenset()) for key in (*some, *others)}


def _values(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says, as fields of a `Consumer`."""
    values = dict(data)
    for key, value in data.items():
        if key in ("lacks", "wrong", "slow"):
            values[key] = {op: frozenset(types) for op, types in value.items()}
        elif is_sequence(value):
            values[key] = tuple(value) if key.endswith("_rules") else frozenset(value)
    return values


@cache
def find_consumer(text: str) -> Consumer:
    """The consumer that ``NAME`` or ``NAME=VERSION`` names; without a version the installed ONNX Runtime, else the newest
    release known. Raises `OptionError` for an unknown name, or a release older or newer than all that are known."""
    name, given, version = text.partition("=")
    if name not in consumer_names():
        raise OptionError(f"consumer {name!r} does not exist; {choices(name, consumer_names())}")
    releases = releases_of(name)
    if not given:
        version = releases[-1].version
        if name.startswith("onnxruntime"):
            import onnxruntime

            version = onnxruntime.__version__
        return _at_most(releases, _numbers(version)) or releases[0]
    listed = ", ".join(r.version for r in releases)
    if not version or not all(part.isdigit() for part in version.split(".")):
        raise OptionError(
            f"consumer {text!r}: {version!r} is no version; {nearest(version, [r.version for r in releases])}"
            f"releases known: {listed}"
        )
    asked = _numbers(version)
    found = _at_most(releases, asked)
    if found is None or asked > _numbers(releases[-1].version):
        edge = releases[0] if found is None else releases[-1]
        age = "oldest" if found is None else "newest"
        raise OptionError(
            f"consumer {text!r}: the {age} release known is {edge.version}; did you mean {name}={edge.version}? "
            f"releases known: {listed}"
        )
    return found


def _at_most(releases: Sequence[Consumer], version: tuple[int, ...]) -> Consumer | None:
    return next((r for r in reversed(releases) if _numbers(r.version) <= version), None)


def _numbers(version: str) -> tuple[int, ...]:
    """Year or major release, and minor one: what follows mends only."""
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return (*parts, *[0] * (2 - len(parts)))


@cache
def settled_opset() -> int:
    """The newest opset that every supported release of ONNX Runtime loads: results stay below it unless more is asked for."""
    return releases_of("onnxruntime")[0].opset


@cache
def newest_opset() -> int:
    """The newest opset, at most `OPSET`, that the installed ONNX Runtime and ONNX package take."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    limit = min(OPSET, onnx.defs.onnx_opset_version())
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for opset in range(limit, OLDEST, -1):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=False
            )
        except Exception:  # the binding raises bare RuntimeErrors; any refusal is the answer
            continue
        return opset
    return min(limit, find_consumer("onnxruntime").opset)


def check_opset(opset: int | None) -> None:
    """Raises `OptionError` for an opset that nothing can be written at."""
    if opset is not None and not (isinstance(opset, int) and OLDEST <= opset <= OPSET):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"opset is {opset!r}; it must be from {OLDEST} to {OPSET}")


def limit_file(graph: Graph, opset: int | None, reader: Consumer | None) -> Graph:
    """``graph``, whose file may have ``opset`` at most and must be one that ``reader`` loads; without either, one that every
    supported release of ONNX Runtime loads, if they load the model. A graph that comes from no file has what is asked for."""
    known = isinstance(graph.envelope, Envelope)
    asked = [n for n in (opset, reader.opset if reader is not None else None) if n is not None]
    if not asked and not known:
        return graph
    envelope = graph.envelope if isinstance(graph.envelope, Envelope) else Envelope(newest_opset())
    most = min(asked, default=max(envelope.opset, settled_opset()))
    own = envelope.opset if known else min(envelope.opset, most)
    newest = reader.ir_version if reader is not None else NO_LIMIT
    provider = reader.provider if reader is not None else CPU
    changed = replace(envelope, opset=own, most_opset=most, most_ir_version=newest, provider=provider)
    return replace(graph, envelope=changed)


def most_opset(graph: Graph) -> int:
    """The newest opset that the file of a graph may have."""
    return envelope_of(graph).most_opset


def at_any_opset(graph: Graph) -> Graph:
    """The graph, whose file may have any opset that the installed ONNX Runtime takes."""
    if not isinstance(graph.envelope, Envelope):
        return graph
    return replace(graph, envelope=replace(graph.envelope, most_opset=OPSET))


_WORTH_AN_OPSET = 0.05
"""How much more a program must cost, as a part of what it costs at a newer opset, before the file gets that opset unasked."""


def worth_an_opset(cost: float, settled: float) -> bool:
    """Whether the file gets a newer opset than every supported release of ONNX Runtime loads, for it costs so much there."""
    return cost * (1 + _WORTH_AN_OPSET) <= settled
