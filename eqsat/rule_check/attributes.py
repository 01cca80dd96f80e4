"""Random attributes of operators."""

from typing import Any

from eqsat.ir.operator import traits_of
from eqsat.ir.operators.onnxruntime_products import FUSED_CONV, FUSED_MATMUL
from eqsat.ir.schema_operator import attributes_of_schema
from eqsat.ir.traits import Rows
from eqsat.samples import Sampler

_WORDS = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "mode": ("constant", "edge", "reflect", "linear", "nearest", "DCR", "CRD"),
}


def draw_attributes(op: str, d: Sampler) -> dict[str, Any]:
    """Attributes of an operator: mostly the defaults, at times others; required ones always."""
    if op == "Cast":
        return {"to": d.choose([1, 6, 7, 10, 11])}
    if op in ("Gemm", FUSED_MATMUL):
        factors = {"alpha": d.choose([1.0, 1.0, 0.5, 3.0])}
        factors |= {"beta": d.choose([1.0, 1.0, 0.5])} if op == "Gemm" else {}
        return factors | {name: 1 for name in ("transA", "transB") if d.chance(0.4)}
    if op == FUSED_CONV and d.chance(0.3):
        return {"activation": "Tanh"}
    if traits_of(op).reduces or traits_of(op).folds:
        return {"keepdims": d.choose((1, 1, 1, 0))}
    if traits_of(op).rows is Rows.ALONG:
        return {"axis": d.choose([-1, -1, 0])}
    if "group" in (attributes_of_schema(op) or {}) and d.chance(0.3):
        return {"group": 2}
    if op == "Pad":
        return {"mode": d.choose(("edge", "reflect"))} if d.chance(0.25) else {}
    if op == "BatchNormalization":
        return {"epsilon": d.choose((1e-5, 0.5)), "training_mode": int(d.chance(0.15))}
    if op == "Gather":
        return {"axis": d.choose([0, -1])}
    if op == "Gelu":
        return {"approximate": d.choose(("none", "tanh"))}
    stated = attributes_of_schema(op) or {}
    return {name: d.choose((0.25, 0.5, 1.5)) for name, v in stated.items() if isinstance(v, float) and d.chance(0.4)}


def another_attribute(name: str, value: Any, d: Sampler) -> dict[str, Any]:
    """An attribute with another value, for what conditions ask for when it is not to be met."""
    if isinstance(value, float):
        return {name: value + d.choose((-0.5, 0.5, 2.0))}
    if isinstance(value, int):
        options = (-2, -1, 0, 1, 2) if "axis" in name else (0, 1) if value in (0, 1) else (value + 1, 2 * value)
        return {name: d.choose([v for v in options if v != value])}
    others = [word for word in _WORDS.get(name, ()) if word != value]
    return {name: d.choose(others)} if others else {}
