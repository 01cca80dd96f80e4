"""Lists of extents that are computed at run time, followed symbol by symbol.

Exporters spell the reshape of a model with symbolic dimensions as Shape, Gather, Unsqueeze, Concat, Reshape, and masks by Range,
Equal, Where, Expand. Where some extents are symbols, constant folding gives up on the whole list; here an operator is evaluated
by its own definition on arrays whose elements are extents (`eqsat.ir.extents`). What cannot be told of an element ends the
evaluation: nothing is guessed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir import extents
from eqsat.ir.extent_arrays import Extent, Undecided, as_array, dim_of
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Operator
from eqsat.ir.types import DType, TensorType, Type

MOST = 64
"""Elements of longer lists are not followed."""

_EXTREMES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Max": np.frompyfunc(lambda a, b: Extent(extents.maximum(dim_of(a), dim_of(b))), 2, 1),
    "Min": np.frompyfunc(lambda a, b: Extent(extents.minimum(dim_of(a), dim_of(b))), 2, 1),
}
"""What numpy asks of two numbers, which is larger, may be open: an extent is the larger all the same."""

_WHOLE = frozenset((DType.INT64, DType.INT32))


def shape_value(
    definition: Operator,
    attributes: Attributes,
    types: Sequence[Type | None],
    values: Sequence[np.ndarray | None],
    lists: Sequence[np.ndarray | None] = (),
    output: int = 0,
) -> np.ndarray | None:
    """What an operator makes of lists of extents at one of its outputs, ``None`` where it cannot be told.

    ``values``: elements of the inputs where known, and else ``lists``: arrays of numbers, or of extents (`as_array`).
    """
    operands = [a if a is not None else b for a, b in zip(values, lists, strict=True)] if lists else values
    if definition.name in ("Shape", "Size"):
        return _of_shape(definition.name, attributes, types)
    if not (definition.bit_exact or definition.traits.keeps_whole) or not definition.deterministic:
        return None
    decided = _decided(definition, types, operands)
    if decided is not None:
        return decided
    told = [o for o in lists or values if o is not None]  # constants alone are folded elsewhere
    if not told or (all(o.size > MOST for o in told) and not any(o.dtype == object for o in told)):
        return None
    if any(o is None and t is not None for o, t in zip(operands, types, strict=True)):
        return None
    if definition.traits.converts:
        return _converted(operands[0], attributes.get("to"))
    counted = {*definition.traits.counts, *definition.traits.indices, *definition.traits.truths}
    try:
        with np.errstate(all="ignore"):
            raised = [o if o is None or i in counted else _raised(o) for i, o in enumerate(operands)]
            among = _EXTREMES.get(definition.name)
            found = np.asarray(reduce(among, raised) if among else definition.evaluate(attributes, raised)[output])
            return _lowered(found) if found.size <= MOST else None
    except (Undecided, EqsatError, ArithmeticError, ValueError, TypeError, IndexError, AttributeError):
        return None


def shape_range(attributes: Attributes, rank: int) -> slice:
    """The axes whose extents Shape gives: from ``start`` to ``end``, both clamped."""
    start: Any = attributes.get("start", 0)
    end: Any = attributes.get("end")
    first, last, _ = slice(start, end).indices(rank)
    return slice(first, max(first, last))


def _of_shape(name: str, attributes: Attributes, types: Sequence[Type | None]) -> np.ndarray | None:
    first = types[0] if types else None
    if not isinstance(first, TensorType) or first.shape is None:
        return None
    if name == "Size":
        return as_array([extents.product(first.shape)]).reshape(())
    return as_array(first.shape[shape_range(attributes, len(first.shape))])


def _decided(
    definition: Operator, types: Sequence[Type | None], operands: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    """A conjunction of which one truth value is false, whatever the other one: divisions that round down ask whether the sign
    differs, and a remainder is left."""
    facts = definition.traits
    if not (facts.truth and facts.idempotent and facts.operands == len(types) == 2) or any(
        not isinstance(t, TensorType) or t.shape != () for t in types
    ):
        return None
    deciding = (o for o in operands if o is not None and o.dtype == bool and bool(o) != facts.neutral)
    return next(deciding, None)


def _converted(value: np.ndarray | None, to: Any) -> np.ndarray | None:
    """As integers, for sums of truth values are not sums of the numbers that they become; numbers as truth values."""
    if to == DType.BOOL and value is not None and value.dtype.kind in "iu":
        return value != 0
    if value is None or to not in _WHOLE:
        return None
    if value.dtype == object:
        return value
    if value.dtype.kind not in "iub" and not bool((np.abs(value.astype(np.float64)) < 2.0**63).all()):
        return None  # an integer that is undefined
    return value.astype(np.int64)


def _raised(value: np.ndarray) -> np.ndarray:
    """Whole numbers as extents, so that division knows them from floats."""
    if value.dtype.kind not in "iu":
        return value
    if value.size > MOST:
        raise Undecided
    found = np.empty(value.shape, object)
    found.reshape(-1)[:] = [Extent(int(e)) for e in value.reshape(-1).tolist()]
    return found


def _lowered(value: np.ndarray) -> np.ndarray | None:
    """As numbers, if all are."""
    if value.dtype != object:
        return value
    dims = [dim_of(e) for e in value.reshape(-1).tolist()]
    if all(isinstance(d, int) for d in dims):
        return np.array(dims, np.int64).reshape(value.shape)
    return as_array(dims).reshape(value.shape)
