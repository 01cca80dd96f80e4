"""Options of a run, and what values they may have."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from inspect import Parameter, cleandoc, signature
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from eqsat.backends.consumer import Consumer, check_opset, find_consumer, limit_file, operators_after
from eqsat.cost.custom import CostFunction, as_cost_model
from eqsat.cost.model import CostModel, Rates
from eqsat.cost.target import Target, as_target
from eqsat.errors import OptionError, choices
from eqsat.exactness import Exactness
from eqsat.extract import STEPS_PER_SECOND, Effort, WorkDone
from eqsat.ir.graph import Graph
from eqsat.ir.nominal import Assumed
from eqsat.ir.types import is_sequence

if TYPE_CHECKING:
    from eqsat.placement import Machine

DEFAULT_TARGET = "onnxruntime-cpu"

F = TypeVar("F", bound=Callable[..., Any])


VERIFICATION = ("quick", "full", "none")

ANSWER_STEPS, PROOF_STEPS = 60 * STEPS_PER_SECOND, 120 * STEPS_PER_SECOND
"""The work that an extraction may take for a good program, and for a proof of how good it is."""

FUSED_STEPS = 6 * STEPS_PER_SECOND
"""The work for a good program where kernels hold several operators: more comes to nothing but a proof, nearly always."""

ENOUGH = 1e-3
"""So much more than the best may a program cost, as a part of its cost, that is good enough unless a proof is asked for."""

_NONE = type(None)
_KINDS: Mapping[tuple[str, ...], tuple[tuple[type, ...], str]] = {
    ("target",): ((str, Path, Target, _NONE), "a name, the path of a file or a Target"),
    ("consumer",): ((str, _NONE), "NAME or NAME=VERSION"),
    ("form",): ((str, _NONE), "the name of a form"),
    ("only_rules",): ((Iterable, _NONE), "a list of names"),
    ("disabled_rules", "keep"): ((Iterable,), "a list of names"),
    ("dims", "assume", "devices"): ((Mapping,), "a mapping by name"),
    ("prove", "all_rules", "no_overrides", "keep_egraph"): ((bool, np.bool_), "True or False"),
    ("verify",): ((str, bool), "one of quick, full and none, or True or False"),
    ("feeds",): ((Sequence, _NONE), "a list of inputs, each a mapping or an .npz file"),
}
"""What an option has to be, and in words."""


@dataclass(frozen=True)
class Options:
    """How to optimise. The defaults are those of the command line.

    ``target``: what the program will run on, a name (`eqsat targets` lists them) or a `Target`, by default that of the
    ``consumer``, or else ``onnxruntime-cpu``. ``consumer``: what will read the file, ``NAME`` or ``NAME=VERSION``, which
    decides about the newest opset, the operators and the form of the file (docs/consumers.md); ``opset``: the newest that the
    file may have. With neither the file needs no newer opset than the model did or every supported release of ONNX Runtime
    loads. ``dims``: extents of symbolic dimensions by name, which become numbers, or other names, by which several become one;
    ``assume``: extents that programs are priced at while the dimensions stay symbolic (a batch of 1, one token where keys are
    stored, and extents of 128 unless stated), or the least and the largest, ``(1, 512)``: the program then costs least in sum
    over several extents between (`eqsat.ranges`). ``no_overrides``: inputs that have values in the file are constants, and
    the result does not take them; else callers may override them. ``verify``: run original and result and compare them,
    ``verification_runs`` times on random inputs drawn from ``seed``: ``quick``, ``full`` (at every level of ONNX
    Runtime that the form is for) or ``none``.

    ``cost`` and ``form``: what to minimise, and the form of the file to be written, which decides the operators that the program
    may use; saved in another form, fused operators are spelled out. Unless stated, a program for ``onnxruntime-cpu`` is the
    one that takes the least time by timings of its kernels (``measured``), in operators of ONNX Runtime (``onnxruntime``). Any
    other is in operators of ONNX (``flat``), and has the fewest ``kernels`` unless its target names another cost model.
    ``numerics``: weakest exactness class a rule may have. ``only_rules``/``disabled_rules``: names of rules. ``all_rules``: use
    those, too, that gain nothing in a part of a model that repeats itself (`eqsat.rehearsal`), as ``prove``, ``keep_egraph``, a
    range of extents and a budget of memory do anyway. ``keep``: values
    of the original that the result must still compute under their own names. ``node_limit`` and
    ``memory_limit_bytes`` bound saturation; reaching one is reported, not raised. So is ``time_limit_s``, of saturation and of
    extraction each, which is a ceiling: saturation and extraction end where a count of their work says, the same on every
    machine. ``prove``: spend more work on proving how good the program is. ``memory_budget_bytes``: most peak memory
    of the result (docs/compare.md). ``feeds``: inputs to verify on instead of
    random ones, each a mapping or an ``.npz`` file. ``devices``: device of nodes, values and inputs by name, ``"*"`` for all
    other nodes (docs/placement.md); ``machine``: the devices there are, with targets of their own, by default the host with
    ``target`` and one accelerator. ``keep_egraph``: the result holds the saturated e-graph, for `eqsat.why`.

    ``example_inputs``, ``dynamic_shapes``: what to call a module of PyTorch with to export it, and which extents may vary
    (docs/torch.md).
    """

    target: str | Path | Target | None = None
    consumer: str | None = None
    opset: int | None = None
    cost: str | CostModel | CostFunction | Rates | None = None
    numerics: str = "lsb"
    dims: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    assume: Mapping[str, Assumed] = field(default_factory=dict[str, Assumed])
    no_overrides: bool = False
    time_limit_s: float = 600.0
    prove: bool = False
    node_limit: int = 200_000
    memory_limit_bytes: int | None = None
    memory_budget_bytes: int | None = None
    all_rules: bool = False
    only_rules: Sequence[str] | None = None
    disabled_rules: Sequence[str] = ()
    keep: Sequence[str] = ()
    seed: int = 0
    verify: str | bool = "quick"
    verification_runs: int = 2
    feeds: Sequence[Mapping[str, np.ndarray] | str | Path] | None = None
    form: str | None = None
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Machine | str | Path | None = None
    keep_egraph: bool = False
    example_inputs: Any = None
    dynamic_shapes: Any = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """The options given by name, checked. Raises `OptionError` for one that does not exist or has a value out of range."""
        known = [f.name for f in fields(Options)]
        for name in given:
            if name not in known:
                raise OptionError(f"option {name!r} does not exist; {choices(name, known)}")
        given = {name: _plain(value) if name in ("opset", "assume") else value for name, value in given.items()}
        if "numerics" in given:
            given = {**given, "numerics": Exactness.parse(given["numerics"]).label}
        found = Options(**given)
        found.check()
        return found

    @property
    def reader(self) -> Consumer | None:
        """What will read the file, if that was said: by name, or by a form that only it has."""
        if self.consumer is None:
            return find_consumer(self.form) if self.form in ("openvino", "tensorrt") else None
        return find_consumer(self.consumer)

    @property
    def file_form(self) -> str:
        """The form of the file to be written."""
        if self.form is not None or self.reader is None:
            return self.form or ("onnxruntime" if self._for_runtime else "flat")
        return self.reader.form

    @property
    def program_target(self) -> Target:
        """What the program will run on."""
        return self.restricted(as_target(self._asked_target))

    def restricted(self, target: Target) -> Target:
        """``target`` without the operators that the consumer does not read, or that the file is too old for, and with those that
        its execution provider leaves to the CPU."""
        unread = self.reader.unsupported if self.reader is not None else frozenset[str]()
        newer = operators_after(self.opset) if self.opset is not None else frozenset[str]()
        left = self.reader.left_to_cpu if self.reader is not None else frozenset[str]()
        if not (unread or newer or left):
            return target
        return replace(
            target,
            unsupported=target.unsupported | unread | newer,
            left_to_cpu=target.left_to_cpu | left,
        )

    @property
    def rules_left_out(self) -> tuple[str, ...]:
        """Names of rules that are not used: those not wanted, and those that gain the consumer nothing."""
        return (*self.disabled_rules, *(self.reader.without_rules if self.reader is not None else ()))

    @property
    def rules_added(self) -> tuple[str, ...]:
        """Names of rules that are used though they are meant for others."""
        return self.reader.with_rules if self.reader is not None else ()

    @property
    def rehearses(self) -> bool:
        """Whether rules that gain nothing in a part of the model are left out of the whole. Not where kernels hold several
        operators: the choice of kernels takes most of the time there, and saturation little."""
        whole = self.all_rules or self.prove or self.keep_egraph or self.memory_budget_bytes is not None
        return not whole and self.only_rules is None and self.machine is None and not self.program_target.templates

    @property
    def limits_file(self) -> bool:
        """Whether something was said about the opset of the file."""
        return self.opset is not None or self.reader is not None

    def limited(self, graph: Graph) -> Graph:
        """``graph``, which the file of the result may not be newer than is allowed for."""
        return limit_file(graph, self.opset, self.reader)

    @property
    def cost_model(self) -> CostModel:
        """What to minimise. Raises `OptionError` for an unknown name or something that cannot price kernels."""
        if self.cost is not None:
            return as_cost_model(self.cost)
        if self._for_runtime and self.file_form == "onnxruntime":
            return as_cost_model("measured")
        return as_cost_model("kernels" if self.machine is not None or self.devices else self.program_target.cost)

    @property
    def reading(self) -> dict[str, Any]:
        """Those for the front end that reads the model."""
        names = ("dims", "no_overrides", "example_inputs", "dynamic_shapes")
        return {name: getattr(self, name) for name in names}

    @property
    def _for_runtime(self) -> bool:
        """Whether all of the program runs in ONNX Runtime on the CPU, whose kernels were timed."""
        target = self._asked_target
        name = target.name if isinstance(target, Target) else target
        return name == "onnxruntime-cpu" and self.machine is None and not self.devices

    @property
    def _asked_target(self) -> str | Path | Target:
        return self.target or (self.reader.target if self.reader is not None else DEFAULT_TARGET)

    @property
    def verification(self) -> str:
        """One of `VERIFICATION`."""
        return ("none", "quick")[self.verify] if isinstance(self.verify, bool) else self.verify

    def effort(self, work: WorkDone | None = None) -> Effort:
        """The limit on the work of an extraction, counted in ``work`` if given."""
        if self.prove:
            return Effort(PROOF_STEPS, self.time_limit_s, work)
        steps = FUSED_STEPS if self.machine is None and self.program_target.templates else ANSWER_STEPS
        return Effort(steps, self.time_limit_s, work, ENOUGH)

    def check(self) -> None:
        """Raises `OptionError` for a value out of range."""
        for name in ("time_limit_s", "node_limit", "memory_limit_bytes", "memory_budget_bytes"):
            value = getattr(self, name)
            unlimited = value is None and name.endswith("_bytes")
            if not unlimited and not (isinstance(value, int | float | np.number) and value > 0):  # as NaN is not
                raise OptionError(f"{name} is {value!r}; it must be a positive number")
        for name, least in (("seed", 0), ("verification_runs", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise OptionError(f"{name} is {value!r}; it must be a whole number from {least} on")
        for names, (kinds, expected) in _KINDS.items():
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kinds) or (str not in kinds and isinstance(value, str)):
                    shown = " ".join(reprlib.repr(value).split())  # arrays are long
                    raise OptionError(f"{name} is {shown}; expected {expected}")
        for name, extent in self.assume.items():
            ends = (extent, extent) if isinstance(extent, int) else extent
            if not (is_sequence(ends) and len(ends) == 2 and all(isinstance(end, int) for end in ends)):
                raise OptionError(f"assume: {name} = {extent!r}: expected a whole number, or the least and the largest")
        ranges = [name for name, extent in self.assume.items() if not isinstance(extent, int)]
        for name in ("memory_budget_bytes", "machine", "devices"):
            if ranges and getattr(self, name):
                raise OptionError(f"assume: {ranges[0]} is a range, which does not go with {name}; give one extent")
        check_opset(self.opset)
        if self.verification not in VERIFICATION:
            raise OptionError(f"verify is {self.verify!r}; {choices(str(self.verify), VERIFICATION)}")
        check_form(self.file_form)


def _plain(given: Any) -> Any:
    """Whole numbers of numpy as those of Python, also within a mapping and its ranges."""
    if isinstance(given, Mapping):
        return {name: _plain(value) for name, value in given.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(given, tuple):
        return tuple(map(_plain, given))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return int(given) if isinstance(given, np.integer) else given  # pyright: ignore[reportUnknownArgumentType]


def check_form(form: str) -> None:
    """Raises `OptionError` for a form of output that does not exist."""
    from eqsat.backends.onnx_form import FORMS

    if form not in FORMS:
        raise OptionError(f"form {form!r} does not exist; {choices(form, FORMS)}")


class SharedOptions(TypedDict, total=False):
    """Types of `Options` by name, for functions that take them as keywords, as far as they make sense for several programs."""

    numerics: str
    consumer: str | None
    opset: int | None
    dims: Mapping[str, int | str]
    assume: Mapping[str, Assumed]
    no_overrides: bool
    time_limit_s: float
    prove: bool
    node_limit: int
    memory_limit_bytes: int | None
    only_rules: Sequence[str] | None
    disabled_rules: Sequence[str]
    keep: Sequence[str]
    seed: int
    form: str | None
    devices: Mapping[str, str]
    machine: Machine | str | Path | None
    keep_egraph: bool
    example_inputs: Any
    dynamic_shapes: Any


class AllOptions(SharedOptions, total=False):
    """Types of `Options` by name, for functions that take them as keywords: type checkers and editors know them by this."""

    target: str | Path | Target | None
    cost: str | CostModel | CostFunction | Rates | None
    all_rules: bool
    memory_budget_bytes: int | None
    verify: str | bool
    verification_runs: int
    feeds: Sequence[Mapping[str, np.ndarray] | str | Path] | None


def takes_options(names: type) -> Callable[[F], F]:
    """Lets `help` show the options that a function takes as ``**options``, with their defaults and what they mean.

    ``names``: the `TypedDict` that it unpacks.
    """

    def documented(function: F) -> F:
        own = signature(function)
        before = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        options = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=_default(f), annotation=f.type)
            for f in fields(Options)
            if f.name in names.__annotations__
        ]
        function.__signature__ = own.replace(parameters=[*before, *options])  # pyright: ignore[reportFunctionMemberAccess]
        meaning = cleandoc(Options.__doc__ or "").partition("\n\n")[2]
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\nOptions:\n\n{meaning}"
        return function

    return documented


def _default(option: Field[Any]) -> Any:
    return option.default_factory() if option.default_factory is not MISSING else option.default
