"""What each field of `Traits` says, as a check on one application of an operator: ``LAWS[field](traits, instance, rng)``.

A law returns whether the instance could show anything: an operator of which no instance can is as good as unchecked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import operator
from eqsat.ir.traits import Rows, Traits
from tests.ir.operator_drawing import Instance

Law = Callable[[Traits, Instance, np.random.Generator], bool]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    LAWS[check.__name__.removeprefix("_")] = check
    return check


def results(instance: Instance) -> list[np.ndarray]:
    found = evaluate_operator(instance.op, Attributes(instance.attributes), instance.inputs, instance.outputs)
    return [np.asarray(y) for y in found]


def _result(instance: Instance, **inputs: np.ndarray | None) -> np.ndarray:
    """The first result, with other inputs (``i0=...``) in place of those of the instance."""
    operands = list(instance.inputs)
    for name, value in inputs.items():
        operands[int(name[1:])] = value
    return results(replace(instance, inputs=operands))[0]


def _first(instance: Instance) -> np.ndarray:
    x = instance.inputs[0]
    assert x is not None
    return x


def _is_float(x: np.ndarray | None) -> bool:
    return x is not None and x.dtype.kind == "f"


def _in_double(instance: Instance) -> list[np.ndarray | None]:
    return [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in instance.inputs]


def _close(a: np.ndarray, b: np.ndarray, relative: float = 1e-5) -> None:
    assert a.shape == b.shape
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=1.0))
    np.testing.assert_allclose(a, b, relative, relative * scale)


def _present(instance: Instance, positions: Any) -> list[int]:
    return [i for i, x in enumerate(instance.inputs) if i in positions and x is not None]


# --- what an element is computed from


@law
def _operands(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    leading = [x for x in instance.inputs[: traits.operands] if x is not None]
    others = instance.inputs[traits.operands :]
    if any(x is not None and x.size != 1 for x in others):
        return False
    full = np.broadcast_arrays(*leading)
    order = rng.permutation(full[0].size)
    straight = [x.reshape(-1)[order] for x in full]
    numbers = [None if x is None else x.reshape(()) for x in others]
    shuffled = _evaluate(instance, [*straight, *numbers])
    expected = results(instance)[0]
    assert expected.shape == full[0].shape
    np.testing.assert_array_equal(shuffled, expected.reshape(-1)[order])
    return order.size > 1


def _evaluate(instance: Instance, operands: list[Any]) -> np.ndarray:
    return results(replace(instance, inputs=operands))[0]


@law
def _vectors(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    in_blocks = traits.product is None and instance.attributes.get("block_size", 0)
    if in_blocks or instance.attributes.get("training_mode", 0):
        return False
    before, shown = results(instance)[0], False
    for i in _present(instance, traits.vectors):
        vector = instance.inputs[i]
        assert vector is not None
        if vector.size < 2:
            continue
        k = int(rng.integers(vector.size))
        changed = vector.copy()
        changed[k] = vector[k] + 1
        after = _result(instance, **{f"i{i}": changed})
        axis: Any = instance.attributes.get("axis", 1)
        kept = np.arange(before.shape[axis]) != k
        np.testing.assert_array_equal(np.compress(kept, after, axis), np.compress(kept, before, axis))
        shown = True
    return shown


@law
def _spatial(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x = _first(instance)
    if x.dtype.kind != "f":
        return False
    changed = x.copy()
    changed[0, 0] += 1
    before, after = results(instance)[0], _result(instance, i0=changed)
    same = np.ones(before.shape[:2], np.bool_)
    same[0, 0] = False
    np.testing.assert_array_equal(after[same], before[same])
    return bool(same.any())


@law
def _reduces(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x, axes = _first(instance), instance.inputs[1] if len(instance.inputs) > 1 else None
    if x.ndim < 2 or axes is None or not axes.size or x.dtype.kind != "f":
        return False
    kept = replace(instance, attributes={**instance.attributes, "keepdims": 1})
    chosen = {int(a) % x.ndim for a in axes}
    expected = tuple(1 if i in chosen else d for i, d in enumerate(x.shape))
    assert results(kept)[0].shape == expected
    turned = np.flip(x, tuple(chosen))
    _close(_result(kept, i0=turned), results(kept)[0], 1e-3)
    return True


@law
def _folds(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Of a list in two parts: one operation on the results of both parts."""
    parts = [rng.normal(size=n) for n in (4, 3)]
    whole = np.concatenate(parts)
    if instance.op.startswith("Arg"):
        a, b, c = (int(_evaluate(replace(instance, attributes={"keepdims": 0}), [p])) for p in (*parts, whole))
        assert c in (a, 4 + b)
        return True
    plain = replace(instance, attributes={"keepdims": 0})
    a, b, c = (_evaluate(plain, [p]) for p in (*parts, whole))
    assert any(np.isclose(c, f(a, b)) for f in (np.add, np.multiply, np.maximum, np.minimum))
    return True


@law
def _repeats(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Of two elements: the operator of both; of one: that."""
    plain = replace(instance, attributes={"keepdims": 0})
    a, b = rng.normal(size=(2, 1))
    step = replace(instance, op=traits.repeats, attributes={})
    assert np.isclose(_evaluate(plain, [np.concatenate([a, b])]), _evaluate(step, [a, b]))
    assert _evaluate(plain, [a]) == a
    return True


@law
def _rows(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x = _first(instance)
    axis: Any = instance.attributes.get("axis", -1)
    if (
        x.dtype.kind != "f"
        or not x.size
        or any(y is not None and y.ndim > x.ndim - axis % x.ndim for y in instance.inputs[1:])
    ):
        return False
    axis %= x.ndim
    together = {axis} if traits.rows is Rows.ALONG else set(range(axis, x.ndim))
    where = tuple(slice(None) if i in together else 0 for i in range(x.ndim))
    changed = x.copy()
    changed[where] = rng.normal(size=changed[where].shape)
    kept = np.ones(x.shape, np.bool_)
    kept[where] = False
    np.testing.assert_array_equal(_result(instance, i0=changed)[kept], results(instance)[0][kept])
    return bool(kept.any())


@law
def _product(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    product = traits.product
    assert product is not None
    data, weights = instance.inputs[product.data], instance.inputs[product.weights]
    assert data is not None
    assert weights is not None
    if product.axes is None or data.ndim < 2 or weights.ndim < 2:
        return False
    axes = product.axes(Attributes(instance.attributes))
    result = results(instance)[0]
    outer, inner = weights.shape[axes.outer], weights.shape[axes.inner]
    runs = (1, axes.groups) if axes.grouped_inside else (axes.groups, 1)
    assert result.shape[axes.result] == outer * runs[0]
    assert product.packed or data.shape[axes.data] == inner * runs[1]
    # Other weights of one channel of the result change nothing but that channel (in each group), and so do its scales.
    k = int(rng.integers(outer))
    kept = np.arange(result.shape[axes.result]) % outer != k
    for index, axis in {product.weights: axes.outer, **product.columns}.items():
        operand = instance.inputs[index] if index < len(instance.inputs) else None
        if operand is None or operand.ndim < 2:
            continue
        where: list[Any] = [slice(None)] * operand.ndim
        where[axis] = k
        changed = operand.copy()
        changed[tuple(where)] = rng.permutation(changed[tuple(where)].reshape(-1)).reshape(changed[tuple(where)].shape)
        after = _result(instance, **{f"i{index}": changed})
        np.testing.assert_array_equal(np.compress(kept, after, axes.result), np.compress(kept, result, axes.result))
    if {product.data, product.weights} <= set(traits.affine):
        _inner_axis(instance, axes, data, weights)
    return True


def _inner_axis(instance: Instance, axes: Any, data: np.ndarray, weights: np.ndarray) -> None:
    """A scale of each channel of the data may as well scale the weights that it meets."""
    if axes.groups > 1:
        return
    scale = np.arange(1, data.shape[axes.data] + 1).astype(data.dtype)

    def along(x: np.ndarray, axis: int) -> np.ndarray:
        return x * scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])

    _close(_result(instance, i0=along(data, axes.data)), _result(instance, i1=along(weights, axes.inner)), 2e-2)


# --- what the elements are


@law
def _sources(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    found = np.concatenate([results(instance)[0].reshape(-1)])
    operands = [instance.inputs[i] for i in _present(instance, traits.sources)]
    dtype = found.dtype
    offered = np.concatenate([x.reshape(-1).astype(dtype) for x in operands if x is not None])
    if traits.or_zero:
        offered = np.append(offered, np.zeros(1, dtype))
    assert np.isin(found, offered).all()
    return found.size > 0


@law
def _or_zero(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    return _sources(traits, instance, rng)


@law
def _moves(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    operands = list(instance.inputs)
    for i in _present(instance, traits.sources):
        operands[i] = _function(operands[i], traits.or_zero)
    moved = results(replace(instance, inputs=operands))
    for after, before in zip(moved, results(instance), strict=True):
        np.testing.assert_array_equal(after, _function(before, traits.or_zero))
    return any(y.size for y in moved)


def _function(x: Any, keeps_zero: bool) -> np.ndarray:
    return (x * -3 + (0 if keeps_zero else 7)).astype(x.dtype) if x.dtype != np.bool_ else x


@law
def _converts(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Where both types hold the numbers."""
    x = rng.integers(0, 2, _first(instance).shape).astype(_first(instance).dtype)
    found = _result(instance, i0=x)
    np.testing.assert_array_equal(found.astype(np.float64), x.astype(np.float64))
    return found.size > 0


@law
def _permutes(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    size = _first(instance).size
    x = (np.arange(size) - size // 2).reshape(_first(instance).shape)
    found = np.concatenate([y.reshape(-1) for y in results(replace(instance, inputs=[x, *instance.inputs[1:]]))])
    np.testing.assert_array_equal(np.sort(found), x.reshape(-1))
    return x.size > 1


@law
def _widens(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    return results(instance)[0].nbytes > sum(x.nbytes for x in instance.inputs if x is not None)


@law
def _whole(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    found = results(instance)[0]
    np.testing.assert_array_equal(found, np.rint(found))
    return _is_float(found)


@law
def _keeps_whole(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    if any(instance.attributes.get(k, 1.0) != 1.0 for k in ("alpha", "beta")):
        return False
    inputs = [np.rint(x) if x is not None and x.dtype.kind == "f" else x for x in instance.inputs]
    return _whole(traits, replace(instance, inputs=inputs), rng)


@law
def _exact(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    if not _is_float(results(instance)[0]):
        return False
    wide = _in_double(instance)
    np.testing.assert_array_equal(results(replace(instance, inputs=wide))[0], results(instance)[0])
    return True


@law
def _bounds(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    found = results(instance)[0]
    if found.dtype.kind != "f":
        return False
    assert not np.any((found < traits.bounds[0]) | (found > traits.bounds[1]))
    return found.size > 0


@law
def _truth(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    assert results(instance)[0].dtype == np.bool_
    return True


# --- laws of the function


@law
def _orders(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Truth follows from the distance of the operands, and turns at most once as that grows."""
    if _first(instance).dtype.kind != "i":
        return False
    base = rng.integers(-9, 9, 40)
    rows = [
        results(replace(instance, inputs=(base + far, base)))[0].astype(np.int8) for far in (-20, -2, -1, 0, 1, 2, 20)
    ]
    assert all(row.min() == row.max() for row in rows)
    turns = {int(after[0]) - int(before[0]) for before, after in pairwise(rows)} - {0}
    assert len(turns) == 1
    return True


@law
def _rising(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x = _first(instance)
    if x.dtype.kind != "f":
        return False
    before = results(instance)[0].astype(np.float64)
    after = _result(instance, i0=(x + rng.exponential(size=x.shape) * rng.integers(0, 2, x.shape)).astype(x.dtype))
    with np.errstate(invalid="ignore"):
        assert not np.any(after < before - 1e-5 * np.abs(before))
    return before.size > 0


@law
def _value(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    assert traits.value is not None
    assert not instance.attributes
    xs = np.array([-800.0, -30.0, -1.5, 0.0, 0.2, 3.0, 800.0])
    np.testing.assert_allclose(_evaluate(instance, [xs]), [traits.value(float(x)) for x in xs], 1e-12, 1e-12)
    assert traits.rising
    return True


@law
def _continuous(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Steps of 1e-7 around whole numbers, halves and attributes, where functions jump that do."""
    if any(x is not None and not _is_float(x) for x in instance.inputs):
        return False
    shape = tuple(np.broadcast_shapes(*(x.shape for x in instance.inputs if x is not None)))
    near = [*np.arange(-3, 3.5, 0.5), *(v for v in instance.attributes.values() if isinstance(v, float))]
    operands: list[Any] = [None if x is None else x.astype(np.float64) for x in instance.inputs]
    for i in _present(instance, range(traits.operands)):
        operands[i] = rng.choice(near if i == 0 else [1.0, 1.5, 2.5], shape) - 5e-8
    before = _evaluate(instance, operands)
    for i in _present(instance, range(traits.operands)):
        moved = _evaluate(instance, [x + 1e-7 if j == i else x for j, x in enumerate(operands)])
        both = np.isfinite(before) & np.isfinite(moved) & (np.abs(before) < 1e3) & (np.abs(moved) < 1e3)
        assert np.all(np.abs(moved - before)[both] < 1e-3 * (1 + before[both] ** 2))
    return before.size > 0


@law
def _homogeneous(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x = _first(instance)
    if x.dtype.kind != "f":
        return False
    before = results(instance)[0]
    _close(_result(instance, i0=x * x.dtype.type(4)), before * before.dtype.type(4), 1e-3 if x.itemsize == 2 else 1e-5)
    return before.size > 0


@law
def _idempotent(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    once = results(instance)[0]
    np.testing.assert_array_equal(_result(instance, i0=once), once)
    return once.size > 0


@law
def _neutral(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    x, other = instance.inputs[:2]
    assert x is not None
    assert other is not None
    np.testing.assert_array_equal(_result(instance, i1=np.array(traits.neutral, other.dtype)), x)
    return x.size > 0


@law
def _affine(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    shown = False
    wide = _in_double(instance)
    for i in _present(instance, traits.affine):
        a = wide[i]
        if a is None or a.dtype.kind != "f":
            continue
        b = rng.normal(size=a.shape)
        at = replace(instance, inputs=[x if j == i else _away_from_zero(x) for j, x in enumerate(wide)])
        both = (_result(at, **{f"i{i}": a}) + _result(at, **{f"i{i}": b})) / 2
        _close(_result(at, **{f"i{i}": (a + b) / 2}), both, 1e-9)
        shown = True
    return shown


def _away_from_zero(x: Any) -> Any:
    """Divisors that leave room for tolerances."""
    return x if x is None or x.dtype.kind != "f" else np.where(np.abs(x) < 0.1, 0.7, x)


# --- what the inputs are for


def _has_kind(positions: Any, kinds: str, instance: Instance) -> bool:
    found = [instance.inputs[i] for i in _present(instance, positions)]
    assert all(x is not None and x.dtype.kind in kinds for x in found)
    return bool(found)


@law
def _counts(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    return _has_kind(traits.counts, "if" if instance.op == "Range" else "i", instance)


@law
def _extents(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """All but those that are copied, inferred or larger already."""
    assert traits.extents is not None
    listed = instance.inputs[traits.extents]
    assert listed is not None
    pairs = list(zip(listed[::-1], results(instance)[0].shape[::-1], strict=False))
    assert all(d == n for d, n in pairs if d > 1)
    return any(d > 1 for d, _ in pairs)


@law
def _lengths(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    return _has_kind(traits.lengths, "i", instance)


@law
def _divisors(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """An integer divided by 0 is no number."""
    definition = operator(instance.op)
    ones = [np.ones_like(x, np.int64) for x in instance.inputs if x is not None]
    assert definition is not None
    for i in traits.divisors:
        try:
            with np.errstate(divide="raise"):
                zero = [np.zeros_like(x) if k == i else x for k, x in enumerate(ones)]
                definition.evaluate(Attributes(instance.attributes), zero)
        except FloatingPointError:
            continue
        return False
    return all(x.size for x in ones)


@law
def _truths(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    return _has_kind(traits.truths, "b", instance)


@law
def _indices(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    """Nothing of the first input but what they name is looked up: an index beyond the extent has no meaning."""
    axis: Any = instance.attributes.get("axis", instance.attributes.get("batch_dims", 0))
    extent = _first(instance).shape[axis]
    for i in _present(instance, traits.indices):
        x = instance.inputs[i]
        assert x is not None
        heads = x if "axis" in instance.attributes or instance.op in ("Gather", "GatherElements") else x[..., 0]
        assert np.all((-extent <= heads) & (heads < extent))
    return _has_kind(traits.indices, "i", instance)


@law
def _quantises(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    assert results(instance)[0].dtype.kind in "iuV"
    return True


@law
def _structure(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    definition = operator(instance.op)
    return definition is not None and traits.structure.replace("_", "").isalpha() and traits.structure.islower()


@law
def _differences(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    before = results(instance)[0]
    pairs = [(i, zero) for i, zero in traits.differences if _present(instance, (i,)) and _present(instance, (zero,))]
    for pair in pairs:
        other = {f"i{k}": _of_other_sign(instance.inputs[k]) for k in pair}
        np.testing.assert_array_equal(_result(instance, **other), before)
    return bool(pairs)


@law
def _zero_if_absent(traits: Traits, instance: Instance, rng: np.random.Generator) -> bool:
    positions = _present(instance, traits.zero_if_absent)
    for i in positions:
        operands = list(instance.inputs)
        absent, operands[i] = [*operands[:i], None, *operands[i + 1 :]], np.zeros_like(operands[i])
        for left_out, zero in zip(*(results(replace(instance, inputs=x)) for x in (absent, operands)), strict=True):
            np.testing.assert_array_equal(left_out, zero)
    return bool(positions)


def _of_other_sign(x: np.ndarray | None) -> np.ndarray:
    assert x is not None
    return (x.astype(np.int16) + (128 if x.dtype == np.int8 else -128)).astype(
        {"b": "uint8", "B": "int8"}[x.dtype.char]
    )
