"""A model, ready to be run: by ONNX Runtime from its file, or from its graph, or by the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.ir.graph import Graph
from eqsat.verification.halves import computes_in_half
from eqsat.verification.pieces import run_in_interpreter, session_of
from eqsat.verification.unsigned import saturates

Source = str | Path | onnx.ModelProto | None


def runnable(source: Any) -> Source:
    """What ONNX Runtime runs without us, if ``source`` is that."""
    return source if isinstance(source, str | Path | onnx.ModelProto) else None


class Original:
    """Runs ``graph``, from ``source`` if that is given, without optimisation.

    Half precision is rounded after every operator, which takes the graph (`eqsat.verification.halves`), as do products of
    bytes where the processor's kernels saturate (`eqsat.verification.unsigned`). ``extra``: intermediate
    values that will be asked for. ``notes`` says so where the reference interpreter stands in, if ``stand_in`` lets it.
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
        self.source = None if computes_in_half(graph) or saturates(graph) else source
        self.notes: list[str] = []
        self._extra = tuple(extra)
        self._session: Session | None = None
        if interpreted:
            return
        try:
            self._session = self._open(extra)
        except ModelError as error:
            if not stand_in:
                raise
            self.notes.append(f"the reference interpreter runs the original, since ONNX Runtime does not: {error}")

    @property
    def is_interpreted(self) -> bool:
        """Whether the reference interpreter stands in for ONNX Runtime."""
        return self._session is None

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Outputs by name."""
        if self._session is not None:
            return self._session.run(feeds, self.graph.outputs)
        return run_in_interpreter(self.graph, feeds)

    def run_with_extra(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The same and, in one run, the intermediate values announced as ``extra``."""
        if self._session is None:
            return self.run(feeds)
        return self._session.run(feeds, dict.fromkeys((*self.graph.outputs, *self._extra)))

    def fetcher(self, feeds: Mapping[str, np.ndarray]) -> Callable[[Sequence[str]], dict[str, Any]]:
        """A function from names of intermediate values to their values on ``feeds``."""

        def fetch(names: Sequence[str]) -> dict[str, Any]:
            if self._session is None:
                return run_in_interpreter(self.graph, feeds, names)
            if not names:
                return {}
            session = self._session if set(self._extra).issuperset(names) else self._open(names)
            return session.run(feeds, names)

        return fetch

    def _open(self, extra: Sequence[str]) -> Session:
        source = self.source
        if source is not None and _computes(source, extra):
            try:
                return Session(source, "disable", extra_outputs=extra, arena=False)
            except ModelError:
                if not extra:  # else it is in memory, and ONNX Runtime before 1.21 looks for its weights elsewhere
                    raise
        return session_of(replace(self.graph, outputs=tuple(dict.fromkeys((*self.graph.outputs, *extra)))))


def _computes(source: str | Path | onnx.ModelProto, names: Sequence[str]) -> bool:
    """Whether the model computes values of these names (a front end may have split or renamed some)."""
    if not names:
        return True
    try:
        model = source if isinstance(source, onnx.ModelProto) else onnx.load(str(source), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    except Exception as error:
        raise ModelError(f"{source}: cannot read the model: {error}") from None
    return {v for node in model.graph.node for v in node.output}.issuperset(names)
