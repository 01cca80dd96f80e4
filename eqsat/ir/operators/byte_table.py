"""``eqsat::ByteTable(q, table)``: a function of one 8-bit integer as the table of its 256 values.

Element ``q`` of ``table`` (256,) is the result, a negative ``q`` counts from the end as in Gather. Compilers for accelerators
keep such a table in registers or shared memory; ONNX Runtime's Gather takes ten times as long as what it stands for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.types import DType, TensorType, Type

BYTE_TABLE = "eqsat::ByteTable"


def _infer(app: Application) -> tuple[Type, ...]:
    integers, table = app.tensor(0), app.tensor(1)
    if integers.dtype not in (DType.INT8, DType.UINT8) or table.shape != (256,):
        raise ShapeError(f"ByteTable takes 8-bit integers and a table of 256 elements, got {integers} and {table}")
    return (TensorType(table.dtype, integers.shape),)


def _evaluate(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    integers, table = (np.asarray(x) for x in inputs)
    return (table[integers.view(np.uint8)],)


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    return [b.op("Gather", inputs[1], b.op("Cast", inputs[0], to=int(DType.INT32)), axis=0)]


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    return float(count(outputs[0]))


define_composite(BYTE_TABLE, _expand, Kind.ELEMENTWISE, infer=_infer, evaluate=_evaluate, flops=_flops)
