"""The check of an operator that a file defines: its form, whether its parts agree, and its traits, on random operands.

Rules that follow from traits are tried as rules are. But bounds, say, are believed by what follows values through the e-graph
without any rule of the operator's own, so what can be told from results alone is tried here.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from eqsat.errors import ModelError, RuleError, ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import expanded
from eqsat.ir.graph import NO_ATTRIBUTES, Graph
from eqsat.ir.interpret import evaluate_operator, run
from eqsat.ir.operator import Application, Kind, Operator, defined, split_key
from eqsat.ir.schema_operator import is_in_schema
from eqsat.ir.traits import VARIADIC, Traits
from eqsat.ir.types import DType, Type, compatible, type_of_array

Arrays = list[np.ndarray]
Evaluated = Callable[[Sequence[np.ndarray]], np.ndarray]

_SHAPES = ((3, 5), (2, 3, 4, 5))
_TYPES = (np.float32, np.int64, np.int8, np.bool_)
_MOST_INPUTS = 3
_TRIALS = 4


def check_operator(key: str) -> None:
    """Raises `RuleError` for an operator that is named or declared wrongly, or whose parts or traits random operands refute.

    Operands are tried that an operator may take: one to three of one type and shape, without attributes. Of one that takes
    none of them its form alone is checked.
    """
    made = defined(key)
    _check_form(made)
    taken, failure = False, None
    for operands in _operands(made):
        try:
            types = made.infer(
                Application(key, NO_ATTRIBUTES, [type_of_array(x) for x in operands], [None] * len(operands))
            )
            with np.errstate(all="ignore"):
                results = made.evaluate(NO_ATTRIBUTES, operands)
        except ShapeError:  # it takes other operands
            continue
        except (ModelError, RecursionError, NameError) as error:  # not for the operands
            failure = error
            continue
        except AttributeError as error:  # so, if it is one of ours
            failure = error if isinstance(error.obj, GraphBuilder | Application) else failure
            continue
        except Exception:  # so, too, if less clearly
            continue
        taken = True
        told = ", ".join(str(type_of_array(x)) for x in operands)
        _check_parts(made, operands, types, results, told)
        if made.traits.holds(NO_ATTRIBUTES):
            _check_traits(made, operands, told)
    if failure is not None and not taken:
        raise RuleError(f"operator {key!r}: its definition fails: {failure}") from failure


def _check_form(made: Operator) -> None:
    domain, name = split_key(made.name)
    if not (domain and name) and not is_in_schema(made.name):
        before, _, last = name.rpartition(".")
        asked = f"{before or 'my.kernels'}::{last or 'Name'}"
        raise RuleError(f"operator {made.name!r}: an operator of one's own has a domain; call it {asked!r}")
    stated: list[tuple[str, object, type]] = [("kind", made.kind, Kind), ("traits", made.traits, Traits)]
    for what, value, wanted in stated:
        if not isinstance(value, wanted):
            raise RuleError(
                f"operator {made.name!r}: {what} is {value!r}; expected one of {wanted.__module__}.{wanted.__name__}"
            )
    if made.expand is not None:
        signature = inspect.signature(made.expand)
        try:
            signature.bind(None, None, None)
        except TypeError:
            raise RuleError(
                f"operator {made.name!r}: what builds it takes {signature}; expected (builder, attributes, inputs)"
            ) from None


def _operands(made: Operator) -> Iterator[Arrays]:
    stated = made.traits.operands
    numbers = range(1, _MOST_INPUTS + 1) if stated in (0, VARIADIC) else (stated,)
    rng = np.random.default_rng(0)
    for number, shape, dtype, _ in product(numbers, _SHAPES, _TYPES, range(_TRIALS)):
        yield [(rng.normal(0, 3, shape) * rng.choice([1, 1, 10], shape)).astype(dtype) for _ in range(number)]


def _check_parts(made: Operator, operands: Arrays, types: Sequence[Type], results: Sequence[Any], told: str) -> None:
    """That shape rule, function and what it is built from agree."""
    if not isinstance(types, tuple) or not isinstance(results, tuple):
        raise RuleError(f"operator {made.name!r}: infer and evaluate return a tuple, of one entry for each output")
    for declared, result in zip(types, results, strict=False):
        found = type_of_array(np.asarray(result))
        if not compatible(declared, found):
            raise RuleError(f"operator {made.name!r}: of {told} infer makes {declared}, evaluate {found}")
    result: np.ndarray = np.asarray(results[0])
    if made.commutative and len(operands) > 1:
        turned: np.ndarray = np.asarray(
            evaluate_operator(made.name, NO_ATTRIBUTES, [operands[1], operands[0], *operands[2:]])[0]
        )
        if not np.array_equal(turned, result, equal_nan=result.dtype.kind == "f"):
            raise RuleError(f"operator {made.name!r} is refused: it is not commutative for {told}")
    if made.expand is None:
        return
    meant = run(expanded(_graph_of(made, operands)), {f"x{i}": x for i, x in enumerate(operands)})["y"]
    if result.dtype.kind in "fiu" and not _close(result, meant):
        raise RuleError(f"operator {made.name!r}: of {told} evaluate and what it is built from make different values")


def _check_traits(made: Operator, operands: Arrays, told: str) -> None:
    def evaluated(inputs: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(evaluate_operator(made.name, NO_ATTRIBUTES, list(inputs))[0])

    for trait, law in _LAWS.items():
        stated = getattr(made.traits, trait)
        if stated == getattr(Traits(), trait):
            continue
        try:
            holds = law(made.traits, evaluated, operands)
        except Exception:  # the law asks for operands that it does not take
            continue
        if not holds:
            raise RuleError(f"operator {made.name!r} is refused: its trait {trait}={stated!r} does not hold for {told}")


def _graph_of(made: Operator, operands: Arrays) -> Graph:
    b = GraphBuilder()
    inputs = [b.input(f"x{i}", DType.of(x.dtype), x.shape) for i, x in enumerate(operands)]
    domain, name = split_key(made.name)
    return b.finish({"y": b.op(name, *inputs, domain=domain)})


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    """Up to rounding, where both are numbers."""
    a, b = (x.astype(np.float64) for x in (a, b))
    told = np.isfinite(a) & np.isfinite(b)
    scale = float(np.max(np.abs(b[told]), initial=1.0))
    return a.shape == b.shape and bool(np.all(np.abs(a - b)[told] <= 1e-3 * scale))


# --- laws: whether a trait holds of operands, as far as they can show it


def _is_bounded(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    y = f(operands)
    return y.dtype.kind != "f" or not np.any((y < traits.bounds[0]) | (y > traits.bounds[1]))


def _is_whole(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    y = f(operands)
    return y.dtype.kind != "f" or bool(np.all((y == np.rint(y)) | ~np.isfinite(y)))


def _keeps_whole(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    return _is_whole(traits, f, [np.rint(x).astype(x.dtype) for x in operands])


def _is_truth(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    return f(operands).dtype == np.bool_


def _has_sources(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    y = f(operands).reshape(-1)
    offered = [x.reshape(-1).astype(y.dtype) for i, x in enumerate(operands) if i in traits.sources]
    return bool(np.isin(y, np.concatenate([*offered, np.zeros(int(traits.or_zero), y.dtype)])).all())


def _moves(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    def changed(x: np.ndarray) -> np.ndarray:
        return x if x.dtype == np.bool_ else (x * -3 + (0 if traits.or_zero else 7)).astype(x.dtype)

    moved = f([changed(x) if i in traits.sources else x for i, x in enumerate(operands)])
    return np.array_equal(moved, changed(f(operands)))


def _is_elementwise(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    order = np.random.default_rng(1).permutation(operands[0].size)
    flat = f([x.reshape(-1)[order] for x in operands])
    return _close(flat, f(operands).reshape(-1)[order])


def _is_rising(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    if operands[0].dtype.kind != "f":
        return True
    step = np.random.default_rng(1).exponential(1, operands[0].shape).astype(operands[0].dtype)
    before, after = (f([x, *operands[1:]]).astype(np.float64) for x in (operands[0], operands[0] + step))
    with np.errstate(invalid="ignore"):
        return not np.any(after < before - 1e-5 * np.abs(before))


def _is_homogeneous(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    return operands[0].dtype.kind != "f" or _close(f([operands[0] * 4, *operands[1:]]), f(operands) * 4)


def _is_idempotent(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    once = f(operands)
    return np.array_equal(f([once, *operands[1:]]), once, equal_nan=once.dtype.kind == "f")


def _is_affine(traits: Traits, f: Evaluated, operands: Arrays) -> bool:
    if operands[0].dtype.kind != "f":
        return True
    for i in (i for i in traits.affine if i < len(operands)):
        other = np.random.default_rng(1).normal(size=operands[i].shape).astype(operands[i].dtype)
        ends, middle = (operands[i], other), (operands[i] + other) / 2
        a, b, c = (f([x if j == i else y for j, y in enumerate(operands)]) for x in (*ends, middle))
        if not _close(c, (a + b) / 2):
            return False
    return True


_LAWS: dict[str, Callable[[Traits, Evaluated, Arrays], bool]] = {
    "bounds": _is_bounded,
    "whole": _is_whole,
    "keeps_whole": _keeps_whole,
    "truth": _is_truth,
    "operands": _is_elementwise,
    "sources": _has_sources,
    "moves": _moves,
    "rising": _is_rising,
    "homogeneous": _is_homogeneous,
    "idempotent": _is_idempotent,
    "affine": _is_affine,
}
