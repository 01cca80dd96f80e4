"""Quantisation and data movement commute: movement happens on the integers.

Directed: DequantizeLinear moves behind movement, QuantizeLinear before it. Neither direction adds an operator, and a value
that is dequantised, moved and quantised again meets itself as plain integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Rule, Term, apply, present, rule, variables
from eqsat.rules.quantised.pairs import BYTES, dequantize, like, per_tensor, q, quantize, unblocked, x
from eqsat.samples import Sampler, fixed
from eqsat.samples.quantised import parameters, ties, values

SOURCE = "each element is quantised by itself"

MOVEMENT = (
    ("Reshape", "shape"),
    ("Flatten", ""),
    ("Squeeze", "axes?"),
    ("Unsqueeze", "axes"),
    ("Transpose", ""),
    ("Slice", "starts ends axes? steps?"),
    ("Gather", "indices"),
    ("Expand", "shape"),
    ("Tile", "repeats"),
    ("GatherElements", "indices"),
    ("GatherND", "indices"),
    ("DepthToSpace", ""),
    ("SpaceToDepth", ""),
    ("Resize", "roi? scales? sizes?"),
)
"""Operators that move elements of one value, and the names of their further inputs; of Resize only the form that picks."""


def require_movement(m: Match, op: str) -> None:
    """Raises `Unmet` where a Resize does more than pick elements of its input."""
    if op == "Resize":
        m.require(m.moved.attr("mode", "nearest") == "nearest", "it interpolates")
        cropped = m.moved.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        m.require(not cropped, "elements from outside have a value of their own")


def _moved(op: str, node: Ref, value: Term, m: Match, names: tuple[str, ...]) -> Apply:
    """``op`` on another value, with the other inputs and the attributes of ``node``."""
    return Apply(op, present(value, *(m[n] for n in names)), node.attributes)


def _check(m: Match, node: Ref, dtype: Any) -> None:
    m.require(dtype in BYTES, "no 8-bit type")
    m.require(unblocked(node.attributes), "blocks or another precision")


def _permutation(m: Match) -> tuple[int, ...]:
    return tuple(m.moved.attr("perm") or reversed(range(m.moved.rank)))


def draw_shape(d: Sampler, op: str) -> tuple[int, ...]:
    """A shape that the operator takes."""
    if op != "Resize" and not op.endswith(("Space", "Depth")):
        return d.shape(2, 4, ones=0.3)
    batch, channels, height, width = d.extents(4)
    if op == "Resize":
        return batch, channels, height, width
    return (batch, 4 * channels, height, width) if op == "DepthToSpace" else (batch, channels, 2 * height, 2 * width)


def draw_others(d: Sampler, op: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The further inputs of a movement operator on a value of ``shape``, and its attributes as ``moved``."""
    rank, size = len(shape), int(np.prod(shape))
    axis = d.integer(0, rank - 1)
    if op == "Reshape":
        return {"shape": fixed(d.choose(((size,), (-1, 1), (1, size, 1), shape[::-1])), "int64")}
    if op == "Flatten":
        return {"moved": {"axis": d.integer(0, rank)}}
    if op == "Squeeze":
        ones = [i for i, n in enumerate(shape) if n == 1]
        return {"axes": fixed(ones, "int64")} if d.chance(0.7) else {}
    if op == "Unsqueeze":
        return {"axes": fixed([d.integer(0, rank)], "int64")}
    if op == "Transpose":
        return {"moved": {"perm": d.permutation(rank)} if d.chance(0.8) else {}}
    if op == "Slice":
        ends, steps = fixed([shape[axis]], "int64"), fixed([d.integer(1, 2)], "int64")
        return {"starts": fixed([0], "int64"), "ends": ends, "axes": fixed([axis], "int64"), "steps": steps}
    if op == "Gather":
        return {"indices": d.integers(d.shape(0, 2), "int64", 0, shape[axis] - 1), "moved": {"axis": axis}}
    if op == "Expand":
        return {"shape": fixed([3 if n == 1 else n for n in (1, *shape)], "int64")}
    if op == "GatherElements":
        picked = tuple(d.integer(1, 4) if i == axis else n for i, n in enumerate(shape))
        return {"indices": d.integers(picked, "int64", -shape[axis], shape[axis] - 1), "moved": {"axis": axis}}
    if op == "GatherND":
        depth = d.integer(1, rank)
        return {"indices": np.stack([d.integers((3,), "int64", -n, n - 1) for n in shape[:depth]], axis=-1)}
    if op.endswith(("Space", "Depth")):
        return {"moved": {"blocksize": 2} | ({"mode": d.choose(("CRD", "DCR"))} if op.startswith("Depth") else {})}
    if op == "Resize":
        how = {"mode": d.choose(("nearest", "nearest", "nearest", "linear"))}
        how |= {"coordinate_transformation_mode": d.choose(("asymmetric", "half_pixel")), "nearest_mode": "floor"}
        if d.chance(0.1):
            how |= {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.25}
            return {
                "roi": fixed([0, 0, 0, 0, 1, 1, 2, 2], "float32"),
                "scales": fixed([1, 1, 1, 2], "float32"),
                "moved": how,
            }
        return {"scales": fixed([1, 1, d.choose((1, 2)), 2], "float32"), "moved": how}
    return {"repeats": fixed([d.integer(1, 2) for _ in shape], "int64")}


def _behind_sample(op: str) -> Callable[[Sampler], dict[str, Any]]:
    def sample(d: Sampler) -> dict[str, Any]:
        shape = draw_shape(d, op)
        drawn = parameters(d, shape, per_axis=0.6 if op == "Transpose" else 0.2)
        found = {"q": d.integers(shape, drawn["dtype"]), **values(drawn), "dq": drawn["attributes"]}
        return found | draw_others(d, op, shape)

    return sample


def _before_sample(op: str) -> Callable[[Sampler], dict[str, Any]]:
    def sample(d: Sampler) -> dict[str, Any]:
        shape = draw_shape(d, op)
        others = draw_others(d, op, shape)
        drawn = parameters(d, (), per_axis=0)
        if op == "Transpose" and d.chance(0.6):
            result = np.empty(shape).transpose(others["moved"].get("perm")).shape
            drawn = parameters(d, result, per_axis=1)
        return {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]} | others

    return sample


def _define(op: str, inputs: str = "") -> tuple[Rule, Rule]:
    """The two rules for a movement operator whose further inputs are ``inputs``."""
    names = tuple(n.rstrip("?") for n in inputs.split())
    others = variables(inputs) if inputs else ()
    listed = "".join(f", {n}" for n in names)
    pattern = apply(op, dequantize(q), *others).named("moved")

    def behind(m: Match) -> Term:
        _check(m, m.dq, m.q.dtype)
        require_movement(m, op)
        changes: dict[str, Any] = {}
        if not per_tensor(m.s, m.z):
            m.require(op == "Transpose", "a scale for each index of an axis")
            changes["axis"] = _permutation(m).index(m.dq.attr("axis", 1) % m.q.rank)
        return like(m.dq, "DequantizeLinear", _moved(op, m.moved, m.q, m, names), m.s, m.z, **changes)

    behind.__name__ = f"move_dequantize_behind_{op.lower()}"
    behind.__doc__ = f"""``{op}(DQ(q, s, z){listed}) == DQ({op}(q{listed}), s, z)``; scales for each index of an axis only
    where the axis can be followed."""
    first = rule(pattern, exactness=Exactness.EXACT, source=SOURCE, sample=_behind_sample(op))(behind)

    def before(m: Match) -> Term:
        _check(m, m.quantized, m.root.dtype)
        require_movement(m, op)
        changes: dict[str, Any] = {}
        if not per_tensor(m.s, m.z):
            m.require(op == "Transpose", "a scale for each index of an axis")
            changes["axis"] = _permutation(m)[m.quantized.attr("axis", 1) % m.moved.rank]
        quantized = like(m.quantized, "QuantizeLinear", m.x, m.s, m.z, **changes)
        return _moved(op, m.moved, quantized, m, names)

    before.__name__ = f"move_quantize_before_{op.lower()}"
    before.__doc__ = f"""``Q({op}(x{listed}), s, z) == {op}(Q(x, s, z){listed})``; scales for each index of an axis only
    where the axis can be followed."""
    pattern = quantize(apply(op, x, *others).named("moved"))
    second = rule(pattern, exactness=Exactness.EXACT, source=SOURCE, sample=_before_sample(op))(before)
    return first, second


for _op, _inputs in MOVEMENT:
    _define(_op, _inputs)


# --- bounds that follow a quantisation at once are part of it ----------------------------------------------------------------

low, high = variables("low? high?")


def _clipped_sample(op: str) -> Callable[[Sampler], dict[str, Any]]:
    def sample(d: Sampler) -> dict[str, Any]:
        shape = draw_shape(d, op)
        drawn = parameters(d, (), per_axis=0, dtype="uint8" if d.chance(0.9) else "int8")
        bounds = {"low": fixed(1, drawn["dtype"]), "high": fixed(100, drawn["dtype"])}
        found = {name: bounds[name] for name in d.choose((("low",), ("high",), ("low", "high")))}
        found |= {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}
        if drawn["dtype"] == "uint8" and "z" not in found:
            found["z"] = fixed(0, "uint8")
        return found | draw_others(d, op, shape)

    return sample


def _define_clipped(op: str, inputs: str = "") -> Rule:
    names = tuple(n.rstrip("?") for n in inputs.split())
    others = variables(inputs) if inputs else ()
    listed = "".join(f", {n}" for n in names)

    def clip_first(m: Match) -> Term:
        m.require(m.root.dtype is DType.UINT8, "no unsigned bytes: signed ones have an unsigned twin")
        m.require(per_tensor(m.s, m.z), "several scales")
        quantized = like(m.quantized, "QuantizeLinear", m.x, m.s, m.z)
        return _moved(op, m.moved, apply("Clip", quantized, m.low, m.high), m, names)

    clip_first.__name__ = f"clip_before_{op.lower()}"
    clip_first.__doc__ = (
        f"""``Clip({op}(Q(x, s, z){listed}), low, high) == {op}(Clip(Q(x, s, z), low, high){listed})``."""
    )
    pattern = apply("Clip", apply(op, quantize(x), *others).named("moved"), low, high)
    return rule(pattern, exactness=Exactness.EXACT, source=SOURCE, sample=_clipped_sample(op))(clip_first)


_define_clipped("Reshape", "shape")
_define_clipped("Transpose")
