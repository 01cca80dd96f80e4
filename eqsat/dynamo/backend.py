"""The backend: graphs that Dynamo captures, exported, optimised, verified and run in ONNX Runtime."""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor, fx

from eqsat.dynamo.captured import (
    Captured,
    KernelError,
    NodeError,
    UnsupportedError,
    read_captured,
    refuse_training,
    with_tensors_as_inputs,
)
from eqsat.dynamo.extents import as_extent, with_counts_as_extents
from eqsat.dynamo.pieces import Pieces, count_apart, cut
from eqsat.dynamo.program import Settings, compile_captured
from eqsat.dynamo.weights import Weights, watched
from eqsat.errors import EqsatError, ModelError, OptionError

Run = Callable[..., Any]

MOST_SIZES = 8
"""Programs for single sizes, where one for all sizes cannot be exported."""

MOST_WEIGHTS = 64
"""Sets of weights that a graph is compiled for: modules of the same code share one."""

MOST_CHANGES = 4
"""Times that a graph is compiled again because weights of one module were written to."""


SECONDS_OF_TRIAL, LEAST_RUNS = 0.5, 3
"""How long runtimes are compared, and in how many runs at least."""


class FallbackWarning(UserWarning):
    """A graph runs in PyTorch or Inductor as it is; the message says in which, and why."""


def eqsat(
    module: fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Run:
    """The backend ``eqsat`` of ``torch.compile``, for inference.

    ``options`` are those of `eqsat.optimize`; ``runtime``, one of ``onnxruntime`` (unless stated, on the CPU), ``inductor``
    (elsewhere), ``eager`` and ``fastest``, which tries the first two on graphs of fixed sizes; and those of ONNX Runtime's
    session: ``level``, how far it rewrites the program itself, and ``threads``, by default as many as PyTorch uses. ``form`` is
    ``onnxruntime`` there and ``flat`` elsewhere unless stated.
    ``mode`` is that of ``torch.compile``: what it says of CUDA graphs and of trying out kernels is done where Inductor runs.
    Raises `OptionError` for an option that does not exist and for a model in training. Whatever else is in the way, the graph
    runs as it is, in Inductor if that is the runtime and else in PyTorch, and a `FallbackWarning` says why.
    """
    settings = Settings.of(options or {}, mode)
    graph, held = with_tensors_as_inputs(module)
    inputs = [*examples, *held]
    try:
        graph, counts = with_counts_as_extents(graph, inputs)
        for i in counts:
            inputs[i] = as_extent(inputs[i].node.hint)
        refuse_training(graph, inputs)
        runner = _compiled(graph, inputs, len(held), settings)
    except OptionError:
        raise
    except Exception as error:  # whatever it is, the graph can still run
        device = next((str(x.device) for x in inputs if isinstance(x, Tensor)), "cpu")
        inductor = settings.runtime_on(device) == "inductor"
        _warn_of_fallback(module, error, "Inductor" if inductor else "PyTorch")
        return _in_inductor(module, examples) if inductor else module.forward
    if not held and not counts:
        return runner

    def run(*given: Any) -> Any:
        known = [*given, *held]
        for i in counts:
            known[i] = as_extent(known[i])
        return runner(*known)

    return run


def _compiled(graph: fx.GraphModule, inputs: Sequence[Any], held: int, settings: Settings) -> Run:
    """What runs a graph, the last ``held`` of whose inputs are tensors that it held itself. Raises whatever is in the way."""
    captured = read_captured(graph, inputs, held)
    known = [e.node.hint if isinstance(e, SymInt) else e for e in inputs]
    try:
        return _fastest(captured, settings, known)
    except NodeError as error:
        if settings.runtime_on(captured.device) == "inductor":  # fuses over all of it
            raise
        found = _in_pieces(captured, settings, known, error)
        if found is None:
            raise
        return found


def _in_pieces(captured: Captured, settings: Settings, inputs: Sequence[Any], error: NodeError) -> Run | None:
    """The graph with what is in the way, and others of its kind, in PyTorch, and what lies between them in programs; ``None``
    where none can be had."""
    found = cut(captured.module, error.node)
    if found is None:
        return None
    made: list[Run] = []

    def compiled(piece: fx.GraphModule, given: Sequence[Any]) -> Run:
        try:
            made.append(_compiled(piece, given, 0, settings))
        except OptionError:
            raise
        except Exception as reason:  # whatever it is, the piece can still run
            _warn_of_fallback(piece, reason)
            return piece.forward
        return made[-1]

    graph = Pieces(*found, compiled).replaced(captured.apart(inputs))
    if not made:
        return None
    count = sum(n.op.startswith("call") for n in captured.module.graph.nodes)
    away = count_apart(captured.module, error.node)
    warnings.warn(
        f"eqsat: of a graph of {count} operators {away} run in PyTorch as they are, {len(made)} pieces between them in programs: "
        f"{error.node}: {error}",
        FallbackWarning,
        stacklevel=4,
    )
    return lambda *given: graph(*given)[: captured.returned]


def _in_inductor(module: fx.GraphModule, examples: Sequence[Any]) -> Run:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, list(examples))


def _warn_of_fallback(module: fx.GraphModule, error: Exception, place: str = "PyTorch") -> None:
    count = sum(n.op.startswith("call") for n in module.graph.nodes)
    kind = "" if isinstance(error, EqsatError) else f"{type(error).__name__}: "
    message = f"eqsat: a graph of {count} operators runs in {place} as it is: {kind}{error}"
    warnings.warn(message, FallbackWarning, stacklevel=3)


def _fastest(captured: Captured, settings: Settings, inputs: Sequence[Any]) -> _Runner:
    """The runner that takes the least time for ``inputs``, of those that the settings ask for and that can be had. Raises what
    `compile_captured` does where none can."""
    symbolic = any(captured.symbols)
    runners: list[_Runner] = []
    errors: list[tuple[str, Exception]] = []
    waiting = settings.each_on(captured.device, symbolic=symbolic)
    for own in waiting:  # grows
        runner = _Runner(captured, own)
        try:
            runner.compile(inputs)
        except OptionError:
            raise
        except KernelError as error:
            if (instead := own.instead_on(captured.device, symbolic=symbolic)) is None:
                errors.append((own.runtime_on(captured.device), error))
            else:
                waiting.append(instead)
        except Exception as error:  # whatever it is, the other may run
            errors.append((own.runtime_on(captured.device), error))
        else:
            runners.append(runner)
    if not runners:
        raise errors[0][1]
    for name, error in errors:
        warnings.warn(f"eqsat: a graph was not tried in {name}: {type(error).__name__}: {error}", stacklevel=3)
    taken = _seconds(runners, captured.apart(inputs)) if len(runners) > 1 else [0.0]
    return runners[taken.index(min(taken))]


def _seconds(runs: Sequence[Run], inputs: Sequence[Any]) -> list[float]:
    """The least that each takes of many runs in turn."""
    taken, count, end = [math.inf] * len(runs), 0, time.perf_counter() + SECONDS_OF_TRIAL
    with torch.no_grad():
        while count < LEAST_RUNS or time.perf_counter() < end:
            for i, run in enumerate(runs):
                start = time.perf_counter()
                run(*inputs)
                taken[i] = min(taken[i], time.perf_counter() - start)
            count += 1
    return taken


class _Call(NamedTuple):
    """The weights of a call and the sizes of its inputs, and the program that served it."""

    weights: Weights
    sizes: Any
    program: Run


def _forget(runner: weakref.ref[_Runner], owners: tuple[int, ...]) -> None:
    if (found := runner()) is not None:
        found.forget(owners)


class _Runner:
    """A captured graph and its programs, each for certain weights and, where one for all cannot be had, sizes."""

    def __init__(self, captured: Captured, settings: Settings) -> None:
        self._captured = captured.with_floats_fixed(captured.attributes)
        self._general = captured if captured.attributes else None
        self._attributes: tuple[float, ...] | None = None
        self._settings = settings
        self._symbolic = any(captured.symbols) and settings.runtime_on(captured.device) != "inductor"
        self._programs: dict[tuple[Any, ...], Run] = {}
        self._weights: dict[tuple[int, ...], Weights] = {}  # while they live, so that their ids are theirs
        self._changes = Counter[tuple[int, ...]]()
        self._ended: set[tuple[int, ...]] = set()
        self._last: _Call | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._captured.overlaps(inputs):
            error = UnsupportedError("it writes to an input that shares memory with another")
            _warn_of_fallback(self._captured.module, error)
            return self._captured.in_pytorch(*inputs)
        weights, sizes, last = [inputs[i] for i in self._captured.weights], self._sizes(inputs), self._last
        if last is None or sizes != last.sizes or not last.weights.are(weights):  # most calls are like the last one
            program = self._programs.get(self._key(inputs)) or self._late(inputs)
            last = self._last = _Call(self._watched(inputs), self._sizes(inputs), program)
        try:
            return last.program(*inputs)
        except ModelError as error:  # of kernels, at the sizes or values of this call
            if self._captured.written:  # perhaps they have written to its inputs
                raise
            _warn_of_fallback(self._captured.module, error)
            return self._captured.in_pytorch(*inputs)

    def compile(self, inputs: Sequence[Any]) -> Run:
        """The program for these inputs. Raises what `compile_captured` does."""
        self._generalise(inputs)
        if self._symbolic:
            try:
                return self._keep(inputs, compile_captured(self._captured, inputs, self._settings, symbolic=True))
            except OptionError:
                raise
            except Exception:  # the same may work for each size
                self._symbolic = False
        try:
            return self._keep(inputs, compile_captured(self._captured, inputs, self._settings, symbolic=False))
        except OptionError:
            raise
        except Exception:  # the same may work for each value of the numbers
            if not self._captured.floats:
                raise
        self._captured = self._captured.with_floats_fixed(self._captured.floats)
        return self.compile(inputs)

    def _generalise(self, inputs: Sequence[Any]) -> None:
        """Numbers that a module holds, as that of a norm beside zero, are constants until one of them changes. With
        ``dynamic=True`` Dynamo hands in all of them."""
        if self._general is None:
            return
        values = tuple(self._general.number(inputs, i) for i in self._general.attributes)
        if self._attributes not in (None, values):
            self._captured, self._general, self._last = self._general, None, None
        self._attributes = values

    def _late(self, inputs: Sequence[Any]) -> Run:
        """The program for inputs that none was made for so far."""
        try:
            self._read_state_from_inputs(inputs)
            if not self._is_over(inputs):
                return self.compile(inputs)
        except Exception as error:  # whatever it is, the graph can still run
            _warn_of_fallback(self._captured.module, error)
            return self._keep(inputs, self._captured.in_pytorch)
        return self._captured.in_pytorch

    def _keep(self, inputs: Sequence[Any], program: Run) -> Run:
        owners, weights = self._owners(inputs), self._watched(inputs)
        self._weights[owners] = weights
        self._programs[owners, weights.state, self._sizes(inputs)] = program
        return program

    def _key(self, inputs: Sequence[Any]) -> tuple[tuple[int, ...], Any, Any]:
        return self._owners(inputs), self._watched(inputs).state, self._sizes(inputs)

    def _owners(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(id(inputs[i]) for i in self._captured.weights)

    def _watched(self, inputs: Sequence[Any]) -> Weights:
        owners, weights = self._owners(inputs), [inputs[i] for i in self._captured.weights]
        known = self._weights.get(owners)
        found = None if known is None else known.now(weights)
        return found or watched(weights, partial(_forget, weakref.ref(self), owners))

    def forget(self, owners: tuple[int, ...]) -> None:
        """One of these weights is gone: so is what was made for them."""
        self._weights.pop(owners, None)
        self._ended.discard(owners)
        self._changes.pop(owners, None)
        for key in [*self._programs]:
            if key[0] == owners:
                self._programs.pop(key, None)
        self._last = None

    def _sizes(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        fixed = tuple(self._captured.number(inputs, i) for i in self._captured.fixed)
        return fixed if self._symbolic else fixed + tuple(inputs[i].shape for i in self._captured.tensors)

    def _read_state_from_inputs(self, inputs: Sequence[Any]) -> None:
        """Buffers that change alone, as the length of a cache does, are inputs from then on. Where parameters change, too, other
        weights were loaded."""
        numbers = self._captured.weights
        known = self._weights.get(self._owners(inputs))
        if known is None:
            return
        old, new = zip(*known.state, strict=True), zip(*self._watched(inputs).state, strict=True)
        changed = [i for i, a, b in zip(numbers, old, new, strict=True) if a != b]
        if changed and not any(isinstance(inputs[i], torch.nn.Parameter) for i in changed):
            self._captured = self._captured.with_inputs(changed)
            self._programs, self._weights, self._last = {}, {}, None

    def _is_over(self, inputs: Sequence[Any]) -> bool:
        """Whether no more programs are to be made for these weights. Says so once."""
        owners, state, _ = self._key(inputs)
        if owners in self._ended:
            return True
        reason = ""
        if owners not in self._weights:
            if len(self._weights) == MOST_WEIGHTS:
                reason = f"it was compiled for {MOST_WEIGHTS} sets of weights already"
        elif self._weights[owners].state != state:
            self._changes[owners] += 1
            if self._changes[owners] > MOST_CHANGES:
                reason = f"its weights were written to {self._changes[owners]} times"
            else:
                self._programs = {key: run for key, run in self._programs.items() if key[0] != owners}
                warnings.warn("eqsat: the weights of a graph have changed; it is optimised again", stacklevel=4)
        elif sum(key[0] == owners for key in self._programs) >= MOST_SIZES:
            reason = f"it was compiled for {MOST_SIZES} sizes already, and one program for all does not exist"
        if reason:
            self._ended.add(owners)
            _warn_of_fallback(self._captured.module, UnsupportedError(reason))
        return bool(reason)
