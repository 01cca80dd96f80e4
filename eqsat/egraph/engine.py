"""The egglog side: hash-consing, congruence and matching.

Every e-node has an integer *handle*, given by the host; ``(N handle)`` names its e-class inside egglog. New rows travel in
files (`input`), matches travel back through `freeze`: one round trip an iteration, whatever the number of rules. Egglog
finds the matches of all patterns, semi-naively; conditions and right sides are evaluated on the host, where types,
attributes and constants live, so there is one source of truth for them.

Encoding: one constructor per operator and number of inputs, ``(Add_2 attributes x y)``, whose first column is the interned
attributes. Leaves are operators without inputs. ``(Constant_ x)`` marks the e-classes whose value is known at compile time. Of an
e-node with more inputs than any pattern has egglog knows the e-class alone: a constructor of thousands of columns takes seconds.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.egraph.patterns import Query, is_attribute_column, is_commutative, is_wide

if TYPE_CHECKING:
    from egglog.bindings import EGraph

_LOAD_WIDTH = 8
"""E-nodes with at most this many inputs travel in one relation, padded; wider ones have a relation for each width."""

_MATCH_CLASSES, _MATCH_ATTRIBUTES = 8, 4
"""The same for the columns of a match: e-classes, numbers of attributes."""

_PRELUDE = """
(sort T)
(constructor N (i64) T :unextractable)
(function id (T) i64 :merge (min old new))
(function canon (i64) i64 :merge (min old new))
(relation Constant_ (T))
(relation load_constant (i64))
(relation load_union (i64 i64))
(relation load_wide (i64))
(ruleset load)
(ruleset rename)
(ruleset clear)
(ruleset forget)
(rule ((load_union a b)) ((union (N a) (N b))) :ruleset load)
(rule ((load_constant a)) ((Constant_ (N a))) :ruleset load)
(rule ((load_wide a)) ((set (id (N a)) a)) :ruleset load)
(rule ((= c (N h)) (= m (id c)) (!= h m)) ((set (canon h) m)) :ruleset rename)
(rule ((= m (canon h))) ((delete (canon h))) :ruleset clear)
(rule ((load_union a b)) ((delete (load_union a b))) :ruleset clear)
(rule ((load_constant a)) ((delete (load_constant a))) :ruleset clear)
(rule ((load_wide a)) ((delete (load_wide a))) :ruleset clear)
(rule ((= c (N h))) ((delete (N h))) :ruleset forget)
(rule ((= m (id c))) ((delete (id c))) :ruleset forget)
(rule ((Constant_ c)) ((delete (Constant_ c))) :ruleset forget)
"""


class EngineError(Exception):
    """Egglog refused a program: a bug here, never the user's fault."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Rows to load: e-nodes by constructor, unions, classes that became constant."""

    nodes: dict[str, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    unions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    constants: list[int] = field(default_factory=list[int])

    def __bool__(self) -> bool:
        return bool(self.nodes or self.unions or self.constants)


def _bindings() -> Any:
    """The compiled part of egglog, alone: the package around it, of which nothing is needed, takes 0.3 s to load."""
    name = "egglog.bindings"
    if name not in sys.modules:
        package = importlib.util.find_spec("egglog")
        places = None if package is None else package.submodule_search_locations
        spec = importlib.machinery.PathFinder.find_spec(name, places)
        if spec is None or spec.loader is None:
            raise ImportError("the compiled part of egglog was not found: install the package egglog again")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


class Engine:
    """One egglog e-graph, with the ``queries`` that run on it, whose keys are their places. ``loaded``: rows so far, in all.

    A query is compiled once all its constructors are declared, and runs where the e-graph has all of them: there is a ruleset for
    each set of constructors. Rows go to egglog in temporary files, each of which is gone once it is read.
    """

    def __init__(self, queries: Sequence[Query]) -> None:
        self._place = tempfile.gettempdir()
        self._egraph: EGraph = _bindings().EGraph(fact_directory=self._place)
        self.queries = queries
        self.loaded = 0
        self._constructors: dict[str, int] = {}
        self._widths: set[str] = set()
        self._waiting = list(enumerate(queries))
        self._rulesets: dict[frozenset[str], str] = {}
        self._present: set[str] = set()
        self._schedule = "(run-schedule load rename)"
        self._keys: dict[int, tuple[int, tuple[tuple[int, bool], ...]]] = {}
        self._matches: dict[str, None] = {}
        self._integers: dict[Any, int] = {}
        self._handles: dict[Any, int] = {}
        self._merges: dict[int, int] = {}
        self._command(_PRELUDE)
        _living.add(self)
        _Process.had_threads = True
        if _Process.lost_threads:
            _keep_for_ever(self._egraph)

    def forget(self) -> None:
        """Forgets the e-graph, so that another can be begun. Declarations stay: they take longer than all else does for a small
        e-graph."""
        self._command("(run forget 1)")
        self._present.clear()
        self._handles.clear()
        self._merges.clear()

    def close(self) -> None:
        """Drops the e-graph here: an error that refers to this object may end its life in another thread."""
        del self._egraph

    def leave(self) -> None:
        """Leaves the e-graph to the process that this one was forked from."""
        if hasattr(self, "_egraph"):
            _keep_for_ever(self._egraph)

    def step(self, pending: Pending) -> tuple[dict[int, int], dict[int, list[tuple[int, ...]]]]:
        """Loads rows, restores congruence and matches every query against what is new.

        Returns merges (handle -> smaller handle of its class) and, by key, the rows of new matches: the query's columns,
        as handles and attribute numbers, sorted.
        """
        declarations: list[str] = []
        batches: dict[str, list[tuple[int, ...]]] = {}
        wide = batches["load_wide"] = []
        for constructor, rows in sorted(pending.nodes.items()):
            arity = len(rows[0]) - 2
            self.loaded += len(rows)
            if is_wide(arity):
                wide.extend((row[0],) for row in rows)
                continue
            width = max(arity, _LOAD_WIDTH)
            padding = width - arity
            relation = self._relation(f"load_{width}", ["i64"] * (width + 3), declarations)
            number = self._constructors.get(constructor)
            if number is None:
                number = self._constructors[constructor] = len(self._constructors)
                declarations.append(_declare(constructor, number, arity, relation, padding))
            batches.setdefault(relation, []).extend((number, *row, *(0,) * padding) for row in rows)
        batches["load_union"] = list(pending.unions)
        batches["load_constant"] = [(h,) for h in pending.constants]
        declarations.extend(self._compile_ready())
        self._command(*declarations)
        for relation, rows in batches.items():
            if rows:
                self._load(relation, rows)
        if declarations or not self._present.issuperset(pending.nodes):
            self._present.update(pending.nodes)
            found = " ".join(name for needed, name in self._rulesets.items() if needed <= self._present)
            self._schedule = f"(run-schedule load rename {found})"
        self._command(self._schedule)
        frozen = self._freeze()
        decode = self._int
        merges = {decode(r.inputs[0]): decode(r.output) for r in frozen["canon"].rows}
        matches: dict[int, list[tuple[int, ...]]] = {}
        self._merges.update(merges)
        handle_of = self._handle
        for relation in self._matches:
            for row in frozen[relation].rows:
                values = row.inputs
                key, columns = self._keys[decode(values[0])]
                found = tuple([decode(values[i]) if attribute else handle_of(values[i]) for i, attribute in columns])
                matches.setdefault(key, []).append(found)
        self._command("(run clear 1)")
        for rows_of_key in matches.values():
            rows_of_key.sort()
        return merges, matches

    def _relation(self, name: str, columns: Sequence[str], commands: list[str]) -> str:
        """Declares a relation whose rows are deleted after each step, on first use."""
        if name not in self._widths:
            self._widths.add(name)
            row = " ".join(f"x{i}" for i in range(len(columns)))
            commands.append(
                f"(relation {name} ({' '.join(columns)}))\n(rule (({name} {row})) ((delete ({name} {row}))) :ruleset clear)"
            )
        return name

    def _compile_ready(self) -> list[str]:
        ready: list[tuple[int, Query]] = []
        waiting: list[tuple[int, Query]] = []
        known = self._constructors.keys()
        for key, query in self._waiting:
            (ready if known >= query.constructors else waiting).append((key, query))
        self._waiting = waiting
        commands: list[str] = []
        for key, query in ready:
            classes = [c for c in query.columns if not is_attribute_column(c)]
            attributes = [c for c in query.columns if is_attribute_column(c)]
            n, m = max(len(classes), _MATCH_CLASSES), max(len(attributes), _MATCH_ATTRIBUTES)
            relation = self._relation(f"match_{n}_{m}", ["i64", *["T"] * n, *["i64"] * m], commands)
            self._matches.setdefault(relation)
            place = {c: 1 + i for i, c in enumerate(classes)} | {c: 1 + n + i for i, c in enumerate(attributes)}
            number = len(self._keys)
            self._keys[number] = (key, tuple((place[c], is_attribute_column(c)) for c in query.columns))
            padded = [*classes, *["(N 0)"] * (n - len(classes)), *attributes, *["0"] * (m - len(attributes))]
            ruleset = self._rulesets.get(query.constructors)
            if ruleset is None:
                ruleset = self._rulesets[query.constructors] = f"find_{len(self._rulesets)}"
                commands.append(f"(ruleset {ruleset})")
            commands.append(
                f"(rule ({' '.join(query.facts)}) (({relation} {number} {' '.join(padded)})) :ruleset {ruleset})"
            )
        return commands

    def _load(self, relation: str, rows: Sequence[tuple[int, ...]]) -> None:
        # No folder is kept for it: a process that multiprocessing forked ends without a word to those who would remove it.
        descriptor, path = tempfile.mkstemp(prefix="eqsat-", suffix=".tsv", dir=self._place)
        try:
            with open(descriptor, "w", encoding="ascii", newline="\n") as file:
                file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
            self._command(f'(input {relation} "{Path(path).name}")')
        finally:
            Path(path).unlink(missing_ok=True)

    def _int(self, value: Any) -> int:
        found = self._integers.get(value)
        if found is None:
            found = self._integers[value] = self._egraph.value_to_i64(value)
        return found

    def _handle(self, value: Any) -> int:
        """The smallest handle of an e-class by egglog's name for it, which egglog is asked once."""
        found = self._handles.get(value)
        if found is None:
            found = self._handles[value] = self._int(self._egraph.lookup_function("id", [value]))
        while (smaller := self._merges.get(found)) is not None:
            found = self._handles[value] = smaller
        return found

    def _command(self, *texts: str) -> None:
        """Runs commands, each parsed and run alone: every term of a parsed command holds a copy of the whole text it was in."""
        for text in texts:
            try:
                for command in self._egraph.parse_program(text):
                    self._egraph.run_program(command)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a Rust panic arrives as a BaseException
                raise EngineError(f"egglog: {error}\nin: {text[:2000]}") from error

    def _freeze(self) -> Any:
        return self._egraph.freeze().functions


_MOST_IDLE = 2
"""Engines that wait to be asked the same again: that of the last model, and that of the part of it that was tried before."""

_WORN = 50_000
"""An engine that has loaded so many rows is not used again: what it forgot takes memory still."""

_idle: dict[tuple[int, ...], Engine] = {}
"""Those of the main thread: egglog's e-graphs may not be touched by another, nor dropped, as at a fork threads are."""


_living: weakref.WeakSet[Engine] = weakref.WeakSet()


class _Process:
    """``had_threads``: egglog has started threads, here or in the process that this one was forked from. ``lost_threads``: there,
    so it would wait for them for ever where an e-graph is dropped, be it one made here."""

    had_threads = False
    lost_threads = False


def _keep_for_ever(egraph: EGraph) -> None:
    """At the end of a process modules let go of what they refer to, so one more reference is not enough."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(egraph))


def _leave_all() -> None:
    """In a process that was forked."""
    _Process.lost_threads = _Process.had_threads
    for engine in list(_living):
        engine.leave()
    _living.clear()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


@contextmanager
def engine_for(queries: Sequence[Query]) -> Generator[Engine]:
    """An engine for an e-graph with these queries, each by its place; if there is one, one that served the same before: most of
    what a small e-graph takes is done then."""
    # By identity, as hashing hundreds of patterns takes longer than matching some of them.
    key = tuple(map(id, queries))
    main = threading.current_thread() is threading.main_thread()
    engine = (main and _idle.pop(key, None)) or Engine(queries)
    try:
        yield engine
    except BaseException:
        engine.close()
        raise
    if not main:
        return
    if engine.loaded < _WORN:
        engine.forget()
        _idle[key] = engine
    while len(_idle) > _MOST_IDLE:
        _idle.pop(next(iter(_idle)), None)


def _declare(constructor: str, number: int, arity: int, relation: str, padding: int) -> str:
    """A constructor, and the rule that makes its e-nodes out of loaded rows; both orders of a commutative operator."""
    inputs = [f"x{i}" for i in range(arity)]
    children = " ".join(f"(N {x})" for x in inputs)
    exchanged = ""
    if is_commutative(constructor):
        exchanged = f"(union (N h) ({constructor} a (N x1) (N x0)))"
    row = " ".join((str(number), "h", "a", *inputs, *("0",) * padding))
    return (
        f"(constructor {constructor} (i64 {' '.join(['T'] * arity)}) T)\n"
        f"(rule (({relation} {row})) "
        f"((union (N h) ({constructor} a {children})) {exchanged} (set (id (N h)) h)) :ruleset load)\n"
        f"(rule ((= c ({constructor} a {' '.join(inputs)}))) ((delete ({constructor} a {' '.join(inputs)}))) :ruleset forget)"
    )
