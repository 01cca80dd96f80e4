"""The egglog side: hash-consing, congruence and matching.

Every e-node has an integer *handle*, given by the host; ``(N handle)`` names its e-class inside egglog. New rows travel in
files (`input`), matches travel back through `freeze`: one round trip an iteration, whatever the number of rules. Egglog
finds the matches of all patterns, semi-naively; conditions and right sides are evaluated on the host, where types,
attributes and constants live, so there is one source of truth for them.

Encoding: one constructor per operator and number of inputs, ``(Add_2 attributes x y)``, whose first column is the interned
attributes. Leaves are operators without inputs. ``(Constant_ x)`` marks the e-classes whose value is known at compile time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eqsat.egraph.patterns import Query

_PRELUDE = """
(sort T)
(constructor N (i64) T :unextractable)
(function id (T) i64 :merge (min old new))
(function canon (i64) i64 :merge (min old new))
(relation Constant_ (T))
(relation load_constant (i64))
(relation load_union (i64 i64))
(ruleset load)
(ruleset rename)
(ruleset clear)
(rule ((load_union a b)) ((union (N a) (N b))) :ruleset load)
(rule ((load_constant a)) ((Constant_ (N a))) :ruleset load)
(rule ((= c (N h)) (= m (id c)) (!= h m)) ((set (canon h) m)) :ruleset rename)
"""


class EngineError(Exception):
    """Egglog refused a program: a bug here, never the user's fault."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Rows to load: e-nodes by constructor, unions, classes that became constant."""

    nodes: dict[str, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    unions: list[tuple[int, int]] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.unions or self.constants)


class Engine:
    """One egglog e-graph, with the queries that run on it. Use as a context manager: it owns a temporary folder."""

    def __init__(self) -> None:
        from egglog.bindings import EGraph  # 0.2 s: only who saturates pays for it

        self._folder = Path(tempfile.mkdtemp(prefix="eqsat-"))
        self._egraph = EGraph(fact_directory=str(self._folder))
        self._arity: dict[str, int] = {}
        self._waiting: list[tuple[int, Query]] = []
        self._relations: dict[str, int] = {}
        self._rulesets: list[str] = []
        self._integers: dict[Any, int] = {}
        self._command(_PRELUDE)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add_queries(self, queries: Sequence[tuple[int, Query]]) -> None:
        """Registers (key, query) pairs; a query is compiled once all its constructors exist."""
        self._waiting.extend(queries)

    def step(self, pending: Pending) -> tuple[dict[int, int], dict[int, list[tuple[int, ...]]]]:
        """Loads rows, restores congruence and matches every query against what is new.

        Returns merges (handle -> smaller handle of its class) and, by key, the rows of new matches: the query's columns,
        as handles and attribute numbers, sorted.
        """
        commands: list[str] = []
        for constructor, rows in sorted(pending.nodes.items()):
            if constructor not in self._arity:
                self._arity[constructor] = len(rows[0]) - 2
                commands.append(_declare(constructor, self._arity[constructor]))
            commands.append(self._input(f"load_{constructor}", rows))
        if pending.unions:
            commands.append(self._input("load_union", pending.unions))
        if pending.constants:
            commands.append(self._input("load_constant", [(h,) for h in pending.constants]))
        commands.extend(self._compile_ready())
        commands.append("(run load 1) (run rename 1)")
        commands.extend(f"(run {name} 1)" for name in self._rulesets)
        self._command("\n".join(commands))
        frozen = self._freeze()
        merges = {self._int(r.inputs[0]): self._int(r.output) for r in frozen["canon"].rows}
        matches: dict[int, list[tuple[int, ...]]] = {}
        decode = self._int
        for relation, key in self._relations.items():
            rows = frozen[relation].rows
            if rows:
                matches.setdefault(key, []).extend(tuple(map(decode, row.inputs)) for row in rows)
        self._command("(run clear 1)")
        for rows_of_key in matches.values():
            rows_of_key.sort()
        return merges, matches

    def _compile_ready(self) -> list[str]:
        ready = [(key, q) for key, q in self._waiting if all(c in self._arity for c in q.constructors)]
        self._waiting = [(key, q) for key, q in self._waiting if not all(c in self._arity for c in q.constructors)]
        commands: list[str] = []
        for key, query in ready:
            relation = f"match_{len(self._relations)}"
            ruleset = f"find_{len(self._relations)}"
            self._relations[relation] = key
            self._rulesets.append(ruleset)
            columns = " ".join(["i64"] * len(query.columns))
            variables = " ".join(query.columns)
            commands.append(
                f"(relation {relation} ({columns})) (ruleset {ruleset})\n"
                f"(rule ({' '.join(query.facts)}) (({relation} {variables})) :ruleset {ruleset})\n"
                f"(rule (({relation} {variables})) ((delete ({relation} {variables}))) :ruleset clear)"
            )
        return commands

    def _input(self, relation: str, rows: Sequence[tuple[int, ...]]) -> str:
        name = f"{relation}.tsv"
        with (self._folder / name).open("w") as file:
            file.writelines("\t".join(map(str, row)) + "\n" for row in rows)
        return f'(input {relation} "{name}")'

    def _int(self, value: Any) -> int:
        found = self._integers.get(value)
        if found is None:
            found = self._integers[value] = self._egraph.value_to_i64(value)
        return found

    def _command(self, text: str) -> None:
        try:
            self._egraph.run_program(*self._egraph.parse_program(text))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a Rust panic arrives as a BaseException
            raise EngineError(f"egglog: {error}\nin: {text[:2000]}") from error

    def _freeze(self) -> Any:
        return self._egraph.freeze().functions


def _declare(constructor: str, arity: int) -> str:
    inputs = [f"x{i}" for i in range(arity)]
    columns = " ".join(["T"] * arity)
    children = " ".join(f"(N {x})" for x in inputs)
    return (
        f"(constructor {constructor} (i64 {columns}) T) "
        f"(relation load_{constructor} ({' '.join(['i64'] * (arity + 2))}))\n"
        f"(rule ((load_{constructor} h a {' '.join(inputs)})) "
        f"((union (N h) ({constructor} a {children})) (set (id (N h)) h)) :ruleset load)\n"
        f"(rule ((load_{constructor} h a {' '.join(inputs)})) "
        f"((delete (load_{constructor} h a {' '.join(inputs)}))) :ruleset clear)"
    )
