"""A model, ready to be run: by ONNX Runtime from its file, or from its graph, or by the reference interpreter."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.frontends.onnx.source import read_source
from eqsat.ir.graph import Graph, nodes_within
from eqsat.verification.halves import computes_in_half
from eqsat.verification.pieces import run_in_interpreter, session_of
from eqsat.verification.unsigned import saturates

Source = str | Path | onnx.ModelProto | None


LOOP_S = 120.0
"""What a run of a model with a Loop may take: on random inputs some have no end. All other operators have one."""

_MESSAGE_BYTES = 1 << 30
"""Weights of so many bytes at most are copied into a message, which holds 2 GiB and is held three times while it is loaded."""


def runnable(source: Any) -> Source:
    """What ONNX Runtime runs without us, if ``source`` is that, or can be made that."""
    if type(source).__module__.split(".")[0] == "onnx_ir":
        return _as_message(source)
    return source if isinstance(source, str | Path | onnx.ModelProto) else None


def _as_message(source: Any) -> onnx.ModelProto | None:
    """A model of onnx-ir with all its weights; ``None`` for one of too many."""
    weights = [v.const_value for v in source.graph.initializers.values() if v.const_value is not None]
    if sum(w.nbytes for w in weights) > _MESSAGE_BYTES:
        return None
    try:
        model, folders, _ = read_source(source)
        for folder in folders:
            onnx.load_external_data_for_model(model, str(folder))
    except Exception:  # of a file that is gone, say: then there is nothing to run
        return None
    return model


class Original:
    """Runs ``graph``, from ``source`` if that is given, without optimisation.

    Outputs come from the source where it has them: what the graph makes of it may be a misreading. Intermediate values come
    from it if it has all that are asked for, else from the graph: a front end may have split or renamed some.

    Half precision is rounded after every operator, which takes the graph (`eqsat.verification.halves`), as do products of
    bytes where the processor's kernels saturate (`eqsat.verification.unsigned`). ``extra``: intermediate
    values that will be asked for. ``notes`` says so where the graph stands in for the source, or the reference interpreter for
    ONNX Runtime, if ``stand_in`` lets it.
    ``interpreted``: it does from the start, as it does for the model to be compared with. Raises `ModelError`
    if nothing can run it.
    """

    def __init__(
        self,
        graph: Graph,
        source: Source = None,
        extra: Sequence[str] = (),
        *,
        stand_in: bool = True,
        interpreted: bool = False,
    ) -> None:
        self.graph = graph
        self.notes: list[str] = []
        self._extra = tuple(extra)
        self._limit_s = LOOP_S if any(node.op == "Loop" for node in nodes_within(graph.nodes)) else None
        self._read: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._file: Session | None = None
        self._inner: Session | None = None
        self._interpreted = interpreted
        if interpreted:
            return
        if source is not None and not computes_in_half(graph) and not saturates(graph):
            try:
                self._file = open_file(source, graph.outputs, extra)
                return
            except ModelError as error:
                self.notes.append(f"the original was compared as it was read, since its file does not run: {error}")
        try:
            self._inner = self._open(extra)
        except ModelError as error:
            if not stand_in:
                raise
            self._interpreted = True
            self.notes = [f"the reference interpreter runs the original, since ONNX Runtime does not: {error}"]

    @property
    def is_interpreted(self) -> bool:
        """Whether the reference interpreter stands in for ONNX Runtime."""
        return self._interpreted

    @property
    def runs_file(self) -> bool:
        """Whether the outputs are those of the source."""
        return self._file is not None

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Outputs by name."""
        return self._outputs(feeds, ())

    def run_with_extra(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The same and, if that takes no other run, the intermediate values announced as ``extra``."""
        session = self._file or self._inner
        return self._outputs(feeds, self._extra if session and set(session.outputs).issuperset(self._extra) else ())

    def fetcher(self, feeds: Mapping[str, np.ndarray]) -> Callable[[Sequence[str]], dict[str, Any]]:
        """A function from names of intermediate values to their values on ``feeds``."""

        def fetch(names: Sequence[str]) -> dict[str, Any]:
            if self._interpreted:
                return run_in_interpreter(self.graph, feeds, names)
            if not names:
                return {}
            if self._file is not None and set(self._file.outputs).issuperset(names):
                return self._file.run(feeds, names)
            found = self._session_for(names).run(feeds, dict.fromkeys((*self.graph.outputs, *names)))
            self._read[id(feeds)] = feeds, {name: found[name] for name in self.graph.outputs}
            return {name: found[name] for name in names}

        return fetch

    def as_read(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """The outputs that the graph computes of ``feeds``, if they were computed beside intermediate values."""
        return self._read[id(feeds)][1] if id(feeds) in self._read else None

    def _outputs(self, feeds: Mapping[str, np.ndarray], extra: Sequence[str]) -> dict[str, Any]:
        if self._interpreted:
            return run_in_interpreter(self.graph, feeds)
        wanted = dict.fromkeys((*self.graph.outputs, *extra))
        if self._file is None:
            return self._within_limit(self._session_for(extra), feeds, wanted)
        found = self._within_limit(self._file, feeds, [name for name in wanted if name in self._file.outputs])
        if missing := [name for name in wanted if name not in found]:
            found.update(self._session_for(missing).run(feeds, missing))
        return {name: found[name] for name in wanted}

    def _within_limit(self, session: Session, feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, Any]:
        return session.run(feeds, names) if self._limit_s is None else session.run(feeds, names, limit_s=self._limit_s)

    def _session_for(self, names: Sequence[str]) -> Session:
        """Runs the graph and hands out ``names``, too."""
        if not {*self.graph.outputs, *self._extra}.issuperset(names):
            return self._open(names)
        if self._inner is None:
            self._inner = self._open(self._extra)
        return self._inner

    def _open(self, extra: Sequence[str]) -> Session:
        return session_of(replace(self.graph, outputs=tuple(dict.fromkeys((*self.graph.outputs, *extra)))))


def open_file(
    source: str | Path | onnx.ModelProto,
    outputs: Sequence[str],
    extra: Sequence[str] = (),
    level: str = "disable",
    *,
    prepack: bool = False,
) -> Session:
    """``source``, loaded. It hands out those of ``outputs`` that it computes, and ``extra`` if it computes all of these.

    Raises `ModelError` if it does not load, as a pipe, which is empty once it was read.
    """
    if not isinstance(source, onnx.ModelProto) and not os.path.isfile(source):
        raise ModelError(f"{source}: no such file, or a pipe, which is read once")
    if not extra:
        session = Session(source, level, prepack=prepack, arena=False)
        if set(session.outputs).issuperset(outputs):
            return session
    try:
        model = source if isinstance(source, onnx.ModelProto) else onnx.load(str(source), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:
        raise ModelError(f"{source}: cannot read the model: {error}") from None
    computed = {v for node in model.graph.node for v in node.output}
    kept = tuple(o for o in outputs if o in computed)
    wanted = [(*kept, *extra)] if computed.issuperset(extra) else []
    if not {o.name for o in model.graph.output}.issuperset(kept):
        wanted.append(kept)
    del model  # as large as the file, beside what is loaded
    for names in dict.fromkeys(wanted):
        # With more outputs it is in memory, and ONNX Runtime before 1.21 looks for its weights elsewhere.
        with suppress(ModelError):
            return Session(source, level, extra_outputs=names, prepack=prepack, arena=False)
    return Session(source, level, prepack=prepack, arena=False)
