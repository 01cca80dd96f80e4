"""Lists of extents that are computed at run time, followed symbol by symbol from Shape to Reshape.

Exporters spell a reshape of a model with symbolic dimensions as Shape, Gather, Unsqueeze, Concat, Reshape. Where some of
the extents are symbols, constant folding gives up on the whole list; here each of its elements is an integer, a symbol
that also occurs in some shape, or ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqsat.ir.graph import Attributes, Node
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Kind, Operator, definition_of, operator
from eqsat.ir.operators.generator import shape_range
from eqsat.ir.types import Dim, DType, TensorType, Type

Extents = tuple[Dim | None, ...]
"""The elements of an integer vector or scalar."""


def extents_of_array(array: np.ndarray | None) -> Extents | None:
    """A known integer vector or scalar as extents."""
    if array is None or array.ndim > 1 or array.dtype != np.int64:
        return None
    return tuple(array.reshape(-1).tolist())


def array_of_extents(extents: Extents, type: Type) -> np.ndarray | None:
    """Extents that are all known, as the integer vector or scalar ``type`` says they are."""
    if (
        not isinstance(type, TensorType)
        or type.dtype is not DType.INT64
        or not type.is_static
        or type.size != len(extents)
    ):
        return None
    if not all(isinstance(e, int) for e in extents):
        return None
    return np.array(extents, np.int64).reshape(tuple(d for d in type.shape or () if isinstance(d, int)))


def follow(node: Node, types: Sequence[Type | None], operands: Sequence[Extents | None]) -> Extents | None:
    """The elements of the output of a node, if it is a list of extents of which something is known."""
    found = _follow(node, types, operands)
    if found is None or len(found) > VALUE_SIZE_LIMIT or all(e is None for e in found):
        return None
    return found


def _follow(node: Node, types: Sequence[Type | None], operands: Sequence[Extents | None]) -> Extents | None:
    definition, first = definition_of(node), types[0] if types else None
    if definition is None or not isinstance(first, TensorType):
        return None
    if node.op == "Shape":
        return None if first.shape is None else first.shape[shape_range(node.attributes, len(first.shape))]
    if node.op == "Concat":
        parts = [o if o is not None else _unknown(t) for o, t in zip(operands, types, strict=True)]
        if any(p is None for p in parts) or any(not isinstance(t, TensorType) or t.rank != 1 for t in types):
            return None
        return tuple(e for p in parts if p is not None for e in p)
    data = operands[0]
    if data is None:
        return None
    if node.op == "Cast":
        return data if node.attributes.get("to") == DType.INT64 else None
    if definition.kind is Kind.VIEW and definition.traits.moves:
        return data  # the same elements; of a list of one, or one element as a list
    if node.op == "Gather":
        indices = operands[1]
        if indices is None or first.rank != 1:
            return None
        inside = [i for i in indices if isinstance(i, int) and -len(data) <= i < len(data)]
        return tuple(data[i] for i in inside) if len(inside) == len(indices) else None
    if node.op == "Slice":
        return _slice(data, operands)
    return _arithmetic(node.op, data, operands[1]) if _computes(definition) else None


def _computes(definition: Operator) -> bool:
    """Whether an operator adds, subtracts, multiplies or divides."""
    return definition.traits.operands == 2 and bool(definition.traits.affine)


def _unknown(type: Type | None) -> Extents | None:
    size = type.size if isinstance(type, TensorType) else None
    return None if size is None or size > 16 else (None,) * size


def _slice(data: Extents | None, operands: Sequence[Extents | None]) -> Extents | None:
    given = [operands[i] if i < len(operands) else default for i, default in ((1, None), (2, None), (4, (1,)))]
    starts, ends, steps = (g[0] if g is not None and len(g) == 1 else None for g in given)
    if data is None or not (isinstance(starts, int) and isinstance(ends, int) and isinstance(steps, int) and steps > 0):
        return None
    return data[starts:ends:steps]


def _arithmetic(op: str, a: Extents | None, b: Extents | None) -> Extents | None:
    if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    count = max(len(a), len(b))
    pairs = zip(a * count if len(a) == 1 else a, b * count if len(b) == 1 else b, strict=False)
    return tuple(_element(op, x, y) for x, y in list(pairs)[:count])


def _element(op: str, x: Dim | None, y: Dim | None) -> Dim | None:
    definition = operator(op)
    assert definition is not None
    if isinstance(x, int) and isinstance(y, int):
        if op == "Div" and (x < 0 or y <= 0):
            return None
        return int(evaluate_operator(op, Attributes(), [np.array(x, np.int64), np.array(y, np.int64)])[0])
    if y == definition.traits.neutral:
        return x
    return y if definition.commutative and x == definition.traits.neutral else None


def refine(node: Node, found: Type, types: Sequence[Type | None], target: Extents) -> Type:
    """The output type of a node with a list of extents (`Traits.extents`): those that ``target`` tells in place of unknown
    ones."""
    data = types[0]
    if not isinstance(found, TensorType) or not isinstance(data, TensorType):
        return found
    shape = found.shape
    if shape is None:
        shape = (None,) * len(target) if node.op != "Expand" else None
    if shape is None or (len(shape) != len(target) and node.op != "Expand"):
        return found
    told: list[Dim | None] = list(target)
    if node.op == "Reshape":
        told = _reshaped(target, data, bool(node.attributes.get("allowzero", 0)))
    if node.op == "Expand" and (data.shape is None or set(data.shape) - {1} or len(data.shape) > len(target)):
        return found
    return TensorType(found.dtype, tuple(_better(old, new) for old, new in zip(shape, told, strict=True)))


def _better(old: Dim | None, new: Dim | None) -> Dim:
    from eqsat.ir.infer import fresh_symbol

    if old is None or (isinstance(old, str) and old.startswith("?") and new is not None):
        return new if new is not None else fresh_symbol()
    return old


def _reshaped(target: Extents, data: TensorType, allow_zero: bool) -> list[Dim | None]:
    """The extents a Reshape to ``target`` gives: zeros are copied, and -1 is what remains after cancelling symbols."""
    told: list[Dim | None] = list(target)
    for i, extent in enumerate(target):
        if extent == 0 and not allow_zero:
            told[i] = data.shape[i] if data.shape is not None and i < len(data.shape) else None
    if -1 not in told:
        return told
    hole = told.index(-1)
    rest = told[:hole] + told[hole + 1 :]
    told[hole] = None
    if data.shape is None or any(e is None or e == -1 for e in rest):
        return told
    remaining = list(data.shape)
    for symbol in (e for e in rest if isinstance(e, str)):
        if symbol not in remaining:
            return told
        remaining.remove(symbol)
    above = int(np.prod([e for e in remaining if isinstance(e, int)], dtype=np.int64))
    below = int(np.prod([e for e in rest if isinstance(e, int)], dtype=np.int64))
    symbols = [e for e in remaining if isinstance(e, str)]
    if below <= 0 or above % below:
        return told
    if not symbols:
        told[hole] = above // below
    elif len(symbols) == 1 and above == below:
        told[hole] = symbols[0]
    return told
