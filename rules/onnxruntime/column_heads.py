"""How the columns of the parts of a value are laid out as attention heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.rewrite import GroupView, Ref
from eqsat.rules.terms import heads_and_rows_exchanged, permutation_of


@dataclass(frozen=True)
class Heads:
    """How the columns of parts are laid out as heads: ``viewed`` (..., rows, heads, size), then rows and heads exchanged by
    ``perm``; ``counts`` are the heads of each part. ``laid``: for each part the results and the permutation of each."""

    viewed: tuple[int, ...]
    perm: tuple[int, ...]
    counts: tuple[int, ...]
    laid: tuple[tuple[tuple[Ref, tuple[int, ...]], ...], ...]


def heads_of_parts(view: GroupView, roots: Sequence[Ref], sizes: Sequence[int]) -> Heads | None:
    """The heads that all of ``roots`` are cut into, if they are of one size and most are laid out head by head."""
    laid: list[tuple[tuple[Ref, tuple[int, ...]], ...]] = []
    kinds: set[tuple[int, ...]] = set()
    for root, columns in zip(roots, sizes, strict=True):
        found: list[tuple[Ref, tuple[int, ...]]] = []
        for op, viewed, _ in view.users(root):
            if op != "Reshape" or not viewed.type.is_static or viewed.rank < 3:
                continue
            *lead, rows, heads, size = viewed.static_shape
            turned = [(node, permutation_of(node)) for op, node, _ in view.users(viewed) if op == "Transpose"]
            if turned and heads * size == columns and math.prod(lead) == 1 and rows == root.static_shape[-2]:
                kinds.add((*lead, rows, size))
                found += turned
        laid.append(tuple(found))
    if len(kinds) != 1 or not all(laid):
        return None
    *lead, rows, size = next(iter(kinds))
    perm = heads_and_rows_exchanged(len(lead) + 3)
    if sum(any(own == perm for _, own in found) for found in laid) < 2:
        return None
    counts = tuple(n // size for n in sizes)
    return Heads((*lead, rows, sum(counts), size), perm, counts, tuple(laid))
