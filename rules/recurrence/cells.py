"""Which recurrent operator computes what an iteration does of its states, and by which weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eqsat.rules.recurrence.steps import Affine, Atom, is_identity

Terms = Mapping[tuple[Atom, ...], float]
"""A sum of products of atoms, element by element, each times a number."""


@dataclass(frozen=True)
class Gate:
    """``x @ w + h @ r + c + d``; ``d`` is what is added to ``h @ r``."""

    w: np.ndarray
    r: np.ndarray
    c: np.ndarray
    d: np.ndarray


@dataclass(frozen=True)
class Cell:
    """A recurrent operator whose step an iteration is, its gates in the operator's order, and the places of its ``states``."""

    op: str
    gates: tuple[Gate, ...]
    states: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def weights(self) -> tuple[np.ndarray, ...]:
        """Those of one direction: for what is given, for the state, and what is added."""
        w, r = (np.concatenate([getattr(g, n).T for g in self.gates]) for n in ("w", "r"))
        b = np.concatenate([getattr(g, n) for n in ("c", "d") for g in self.gates])
        with np.errstate(over="ignore"):
            return tuple(m[None].astype(np.float32) for m in (w, r, b))


def cells_of(x: Atom, states: Sequence[Atom | None], results: Sequence[Affine | None]) -> Iterator[Cell]:
    """Operators that make the same ``results`` of the sequence ``x`` and of the states before; ``None`` for those that are of
    another kind."""
    found = [(i, h, y) for i, (h, y) in enumerate(zip(states, results, strict=True)) if h is not None and y is not None]
    for i, h, y in found:
        made = _simple(x, h, y, i) or _gated(x, h, y, i)
        if made is not None:
            yield made
        for j, c, z in found:
            made = _with_memory(x, h, y, c, z, (i, j)) if i != j else None
            if made is not None:
                yield made


def _simple(x: Atom, h: Atom, y: Affine, place: int) -> Cell | None:
    """``Tanh(x @ w + h @ r + b)``."""
    atom = y.atom
    gate = _gate(atom.operands[0], x, h) if atom is not None and atom.op == "Tanh" else None
    return gate and Cell("RNN", (gate,), (place,))


def _gated(x: Atom, h: Atom, y: Affine, place: int) -> Cell | None:
    """``z * h + (1 - z) * n``, however it is multiplied out."""
    terms = _terms(y)
    alone = [key[0] for key in terms or () if len(key) == 1]
    pairs = {other for key in terms or () if len(key) == 2 and h in key for other in key if other != h}
    if terms is None or len(alone) != 1 or len(pairs) != 1:
        return None
    (z,) = pairs
    if alone[0] == h:  # h - z * h + z * n: the other way round
        news = [a for key in terms if h not in key and z in key for a in key if a != z]
        n, sign = news[0] if len(news) == 1 else h, -1.0
    else:
        n, sign = alone[0], 1.0
    first, second = (n, h) if sign > 0 else (h, n)
    if terms != {(first,): 1.0, _product(z, second): 1.0, _product(z, first): -1.0}:
        return None
    if (z.op, n.op) != ("Sigmoid", "Tanh"):
        return None
    update = _gate(z.operands[0].scaled(sign), x, h)
    found = _reset(n.operands[0], x, h)
    if update is None or found is None:
        return None
    reset, new, before = found
    return Cell("GRU", (update, reset, new), (place,), {"linear_before_reset": before})


def _reset(q: Affine, x: Atom, h: Atom) -> tuple[Gate, Gate, int] | None:
    """The gates ``r`` and ``n`` of ``x @ w + c + r * (h @ u + d)`` or ``x @ w + c + (r * h) @ u``, and 1 for the former."""
    products = [a for a in q.parts if a.op == "Mul"]
    if len(products) != 1:
        return None
    (product,) = products
    for given, other in (product.operands, product.operands[::-1]):
        r = given.atom
        gate = _gate(r.operands[0], x, h) if r is not None and r.op == "Sigmoid" else None
        own = Affine({a: m for a, m in q.parts.items() if a != product}, q.bias)
        new, matrix = _gate(own, x, h), q.parts[product]
        if gate is None or new is None or h in own.parts:
            continue
        if is_identity(matrix) and set(other.parts) <= {h}:
            inner = _gate(other, x, h)
            return inner and (gate, Gate(new.w, inner.r, new.c, inner.c), 1)
        if other.atom == h:
            return gate, Gate(new.w, matrix, new.c, new.d), 0
    return None


def _with_memory(x: Atom, h: Atom, y: Affine, c: Atom, z: Affine, places: tuple[int, int]) -> Cell | None:
    """``o * Tanh(z)`` where ``z == f * c + i * n``."""
    out, memory = _pairs(y), _pairs(z)
    kept = [key for key in memory if c in key]
    added = [key for key in memory if c not in key]
    if (len(out), len(kept), len(added)) != (1, 1, 1):
        return None
    (forget,) = [a for a in kept[0] if a != c] or [c]
    i, n = sorted(added[0], key=lambda a: a.op)
    o, t = sorted(out[0], key=lambda a: a.op)
    if {i.op, o.op, forget.op} != {"Sigmoid"} or {n.op, t.op} != {"Tanh"}:
        return None
    gates = [_gate(a.operands[0], x, h) for a in (i, o, forget, n)]
    read = tuple(g for g in gates if g is not None)
    return Cell("LSTM", read, places) if len(read) == 4 and t.operands[0].key == z.key else None


def _pairs(y: Affine) -> Sequence[tuple[Atom, ...]]:
    """The products of two of which a sum consists, each once, or none."""
    terms = _terms(y) or {}
    return list(terms) if all(len(key) == 2 and value == 1 for key, value in terms.items()) else []


def _product(*atoms: Atom) -> tuple[Atom, ...]:
    return tuple(sorted(atoms, key=lambda a: a.key))


def _gate(p: Affine, x: Atom, h: Atom) -> Gate | None:
    """A sum of products of what is given and of the state."""
    if not p.parts.keys() <= {x, h}:
        return None
    w, r = (p.parts.get(a, np.zeros((a.columns, p.columns))) for a in (x, h))
    return Gate(w, r, p.bias, np.zeros(p.columns))


def _terms(y: Affine) -> Terms | None:
    """``y`` multiplied out; ``None`` where elements of other columns are in it."""
    if (y.bias != y.bias[:1]).any():
        return None
    found: dict[tuple[Atom, ...], float] = {(): float(y.bias[0])} if y.bias.any() else {}
    for atom, matrix in y.parts.items():
        factor = float(matrix[0, 0])
        if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, factor * np.eye(len(matrix))):
            return None
        inner: Terms | None = {(atom,): 1.0}
        if atom.op == "Mul":
            a, b = map(_terms, atom.operands)
            inner = None if a is None or b is None else _multiplied(a, b)
        if inner is None:
            return None
        for key, value in inner.items():
            found[key] = found.get(key, 0.0) + factor * value
    return {key: value for key, value in found.items() if value}


def _multiplied(a: Terms, b: Terms) -> Terms:
    found: dict[tuple[Atom, ...], float] = {}
    for one, m in a.items():
        for other, n in b.items():
            key = _product(*one, *other)
            found[key] = found.get(key, 0.0) + m * n
    return found
