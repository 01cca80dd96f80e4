"""A program loaded: what is called with tensors, in ONNX Runtime, in PyTorch, in Inductor, on a GPU as a CUDA graph."""

import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from eqsat.backends.calling import load_graph
from eqsat.backends.onnxruntime import Placed
from eqsat.backends.torch_tensors import to_tensor
from eqsat.errors import ModelError
from eqsat.fx import compiled_for, to_module
from eqsat.ir.graph import Graph
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType, TensorType, Type

Compute = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""A loaded program: inputs in order -> outputs in order. An output that was written to an input is that input."""

Written = Mapping[int, int]
"""Number of an output -> that of the input that it is to be written to."""


def replacing(graph: Graph, written: Written) -> dict[int, int]:
    """Of ``written``, outputs that are their input with some elements replaced, where nothing else reads that: they can be
    computed in its memory."""
    producers, reads = graph.producers(), graph.reads()

    def replaces(output: str, source: str) -> bool:
        node = producers.get(output)
        if node is None or node.inputs[0] != source or reads[source] > 1:
            return False
        traits = traits_of(node.key, node.attributes)
        return bool(traits.indices) and len(traits.sources) > 1

    return {o: i for o, i in written.items() if replaces(graph.outputs[o], graph.inputs[i])}


_SUBNORMAL, _ONE = np.float32(1e-40), np.float32(1.0)


@contextmanager
def _flushing() -> Generator[None]:
    """Subnormal numbers are zero in this thread. ONNX Runtime's softmax makes them of what a mask leaves out, and processors of
    Intel take seven times as long for rows half of which is masked."""
    flushed = _SUBNORMAL * _ONE == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(bool(flushed))


def in_onnxruntime(graph: Graph, written: Written, level: str, threads: int | None) -> Compute:
    """In a session that rewrites up to ``level`` and runs in ``threads``, as many as PyTorch's unless stated."""
    with _flushing():  # the first session of a process sets its own thread as well
        session = load_graph(graph, level, threads=threads or torch.get_num_threads(), flush=True, spin=True)
    in_place, of_thread = replacing(graph, written), threading.local()

    def compute(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        run = getattr(of_thread, "run", None)
        if run is None:
            run = of_thread.run = _InPlace(session.placed(), graph, in_place)
        return run(inputs)

    return compute


class _Place:
    """Where an input or output lies, as the runtime knows. ``shape``: if all its extents are."""

    def __init__(self, name: str, kind: Type) -> None:
        assert isinstance(kind, TensorType)
        self.name = name
        self.dtype: torch.dtype = getattr(torch, kind.dtype.numpy.name)
        self._element_type = kind.dtype
        self.shape = torch.Size(map(int, kind.shape)) if kind.is_static and kind.shape is not None else None
        self._where: tuple[int, torch.Size] | None = None

    def take(self, x: Tensor, put: Callable[[str, DType, Sequence[int], int], None]) -> None:
        """Says where ``x`` lies, unless the tensor of the last call lay there."""
        where = x.data_ptr(), x.shape
        if where != self._where:
            if x.dtype is not self.dtype:
                raise ModelError(f"{self.name} is {x.dtype} instead of {self.dtype}")
            self._where = None
            put(self.name, self._element_type, x.shape, where[0])
            self._where = where


class _InPlace:
    """A program in ONNX Runtime that reads the tensors themselves, and writes those that it returns. Where one lies is said to
    the runtime if it has moved since the last call, as weights and caches do not: small programs take no longer to run than that
    takes for each of their tensors."""

    def __init__(self, placed: Placed, graph: Graph, in_place: Written) -> None:
        self._placed = placed
        self._read = [_Place(name, graph.type_of(name)) for name in graph.inputs]
        self._write = [(_Place(n, graph.type_of(n)), in_place.get(o)) for o, n in enumerate(graph.outputs)]

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        values = [x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous() for x in inputs]
        for place, x in zip(self._read, values, strict=True):
            place.take(x, self._placed.put_input)
        found: list[Tensor | None] = []
        changed: list[Tensor] = []
        for place, source in self._write:
            if source is not None and values[source] is inputs[source]:
                x = inputs[source]
                changed.append(x)
            else:
                x = None if place.shape is None else torch.empty(place.shape, dtype=place.dtype)
            if x is None:
                self._placed.leave_output(place.name)
            else:
                place.take(x, self._placed.put_output)
            found.append(x)
        with _flushing():
            self._placed.run()
        if changed:
            torch.autograd.graph.increment_version(changed)
        left = self._placed.outputs([p.name for (p, _), x in zip(self._write, found, strict=True) if x is None])
        return [to_tensor(left[p.name]) if x is None else x for (p, _), x in zip(self._write, found, strict=True)]


def in_torch(graph: Graph, written: Written, device: str, examples: Sequence[Tensor] | None, mode: str) -> Compute:
    """As a module of PyTorch, compiled by Inductor for the sizes of ``examples`` if there are any, in a ``mode`` of
    ``torch.compile``.

    Outputs that share memory with an input, a constant or one another are copied, as a graph of Dynamo's has no such outputs, and
    so are those that do not lie in rows, as programs' do in ONNX Runtime."""
    module = to_module(graph).to(device)
    in_place = replacing(graph, written)
    _write(module.graph, in_place)
    module.recompile()
    call: Callable[..., Any] = module
    if examples is not None:
        call = _outside_autocast(compiled_for)(module, examples, tuned=mode.startswith("max-autotune"))
    call = _outside_autocast(call)
    if examples is not None and device.startswith("cuda") and mode in ("reduce-overhead", "max-autotune"):
        return _Replayed(call, in_place)
    constants = {b.untyped_storage().data_ptr() for b in module.buffers()}
    constant = [name in graph.constants for name in graph.outputs]

    def compute(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            found = list(call(*inputs))
        taken = {x.untyped_storage().data_ptr() for x in inputs}
        for i, value in enumerate(found):
            if i in in_place:
                found[i] = inputs[in_place[i]]
                continue
            place = value.untyped_storage().data_ptr()
            shared = constant[i] or place in taken or place in constants
            found[i] = value.clone(memory_format=torch.contiguous_format) if shared else value.contiguous()
            taken.add(place)
        return found

    return compute


def _outside_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, in which types stay as they are: what is around a graph has converted those of its program."""

    def found(*given: Any, **named: Any) -> Any:
        with torch._C._DisableAutocast():
            return function(*given, **named)

    return found


def _write(graph: fx.Graph, in_place: Written) -> None:
    """Makes a graph write outputs to inputs, where Inductor sees that they can be computed there."""
    inputs, output = graph.find_nodes(op="placeholder"), graph.output_node()
    returned = list(output.args[0])
    with graph.inserting_before(output):
        for number, source in in_place.items():
            returned[number] = graph.call_method("copy_", (inputs[source], returned[number]))
    output.args = (tuple(returned),)


MOST_CAPTURES = 4
"""Times that a program is captured because tensors that it writes to lie elsewhere, before they are copied as well."""


class _Replayed:
    """A compiled program as a CUDA graph, for which Python does not launch every kernel: inputs are copied to where they were
    when it was captured, and results are copies. Tensors that it writes outputs to, ``in_place``, are to stay where they are."""

    def __init__(self, call: Callable[..., Sequence[Tensor]], in_place: Written) -> None:
        self._call = call
        self._in_place = in_place
        self._fixed: frozenset[int] = frozenset(in_place.values())
        self._captures = 0
        self._replay: Callable[[], None] | None = None
        self._inputs: list[Tensor] = []
        self._outputs: Sequence[Tensor] = ()
        self._fails = False

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self._fails and (self._replay is None or self._have_moved(inputs)):
            try:
                self._replay = self._captured(inputs)
            except Exception as error:  # torch raises what it likes
                self._fails = True
                warnings.warn(f"eqsat: a program runs without a CUDA graph: {error}", stacklevel=2)
        found = self._call(*inputs) if self._fails or self._replay is None else self._replayed(self._replay, inputs)
        return [inputs[self._in_place[o]] if o in self._in_place else value.clone() for o, value in enumerate(found)]

    def _replayed(self, replay: Callable[[], None], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for i, (place, value) in enumerate(zip(self._inputs, inputs, strict=True)):
            if i not in self._fixed:
                place.copy_(value)
        replay()
        for i in self._in_place.values():
            if i not in self._fixed:
                inputs[i].copy_(self._inputs[i])
        return self._outputs

    def _have_moved(self, inputs: Sequence[Tensor]) -> bool:
        return any(inputs[i].data_ptr() != self._inputs[i].data_ptr() for i in self._fixed)

    def _captured(self, inputs: Sequence[Tensor]) -> Callable[[], None]:
        """The program, captured after runs on a stream of their own and on copies of what it writes to."""
        self._outputs = ()
        self._captures += 1
        if self._captures > MOST_CAPTURES:
            self._fixed = frozenset()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._call(*(x.clone() for x in inputs))
        torch.cuda.current_stream().wait_stream(side)
        self._inputs = [x if i in self._fixed else x.clone() for i, x in enumerate(inputs)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._outputs = self._call(*self._inputs)
        return graph.replay
