"""Operators as functions on terms, to write rules with: ``ops.MatMul(x, w)``, ``ops.Transpose(x, perm=(1, 0))``.

Every operator that a pattern can name is here under its own name; `eqsat.apply` names those of other domains by key.
"""

from collections.abc import Callable
from functools import partial

from eqsat.ir.operator import operator
from eqsat.rewrite import Apply, apply


def __getattr__(name: str) -> Callable[..., Apply]:
    if name.startswith("_") or operator(name) is None:
        raise AttributeError(f"{name!r} is no operator")
    return partial(apply, name)
