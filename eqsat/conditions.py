"""Named side conditions, and what each asks of a random instance.

A condition is a predicate on matches with a name, so that reports can say why a rule did not fire and tests can drop it. What
cannot be established does not hold. `Hint`s tell the sampler how to draw values that meet it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, overload

import ml_dtypes

from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Condition, Hint, Match, Ref

F = TypeVar("F", bound=Callable[..., Any])


def condition(name: str, *hints: Hint) -> Callable[[Callable[[Match], bool]], Condition]:
    """Makes a named condition of a predicate on matches."""

    def make(holds: Callable[[Match], bool]) -> Condition:
        return Condition(name, holds, hints=hints)

    return make


def asks(**of_parameters: Mapping[str, Any]) -> Callable[[F], F]:
    """Says what a function asks of the values it is given where a condition in words calls it: as a `Hint`, by parameter."""

    def mark(function: F) -> F:
        function.__dict__["asks"] = of_parameters
        return function

    return mark


def varies(*names: str) -> Condition:
    """None of the values is constant: what is computed of constants alone is a constant anyway."""
    hints = tuple(Hint(n, constant=False) for n in names)
    return Condition(
        f"{', '.join(names)} not constant",
        lambda m: not any(m[n].is_constant for n in names),
        (),
        hints,
        worthwhile=True,
    )


def constant(*names: str) -> Condition:
    """The values bound to ``names`` are known at compile time (an absent optional one counts as known)."""
    return Condition(
        f"{', '.join(names)} constant",
        lambda m: all(m[n] is None or m[n].is_constant for n in names),
        names,
        tuple(Hint(n, constant=True) for n in names),
    )


def number(name: str, value: float) -> Condition:
    """The value bound to ``name`` is a constant, each element of which is ``value``."""
    return Condition(
        f"{name} is {value:g}",
        lambda m: m[name].is_constant and m[name].interval == (value, value),
        (name,),
        (Hint(name, constant=True, value=value),),
    )


def one_element(*names: str) -> Condition:
    """Each of the values has one element, whatever its rank."""
    return Condition(
        f"{', '.join(names)} of one element",
        lambda m: all(m[n].type.size == 1 for n in names),
        hints=tuple(Hint(n) for n in names),
    )


def every_element(name: str, value: float) -> Condition:
    """Each element of the value bound to ``name`` is ``value``."""
    hint = Hint(name, value=value)
    return Condition(f"{name} is {value:g}", lambda m: m[name].interval == (value, value), hints=(hint,))


def about(name: str, value: float) -> Condition:
    """Each element of the value bound to ``name`` is ``value``, rounded to its type once or twice.

    Twice: as a divisor, and once more as the reciprocal of that. Either is within half a unit in the last place.
    """

    def holds(m: Match) -> bool:
        if not m[name].dtype.is_float:
            return False
        tolerance = 2 * float(ml_dtypes.finfo(m[name].dtype.numpy).eps) * abs(value)
        return all(abs(bound - value) <= tolerance for bound in m[name].interval)

    return Condition(f"{name} is about {value:g}", holds, hints=(Hint(name, value=value),))


def finite(*names: str) -> Condition:
    """No element of the values is infinite or NaN, and their product stays finite in their element type."""

    def holds(m: Match) -> bool:
        product = 1.0
        for name in names:
            low, high = m[name].interval
            product *= max(abs(low), abs(high), 1e-30)
        floats = (m[name].dtype.numpy for name in names if m[name].dtype.is_float)
        return product < min((float(ml_dtypes.finfo(dtype).max) for dtype in floats), default=math.inf)

    return Condition(f"{' * '.join(names)} finite", holds, hints=tuple(Hint(n, constant=True) for n in names))


def same_type(name: str) -> Condition:
    """The result has the element type and, provably, the shape of the value bound to ``name``."""
    return Condition(
        f"the result has the type of {name}",
        lambda m: is_known(m.root) and m.root.type == m[name].type,
        hints=(Hint(name, whole=True),),
    )


def is_known(ref: Ref) -> bool:
    """Whether the element type and the rank are known."""
    return ref.type.dtype is not DType.UNDEFINED and ref.type.shape is not None


def signed(name: str) -> Condition:
    """Negation exists in the element type of the value."""
    return Condition(f"{name} signed", lambda m: m[name].dtype.is_signed, hints=(Hint(name),))


def _listed(dtypes: Iterable[DType]) -> str:
    return " or ".join(d.numpy.name for d in dtypes)


def dtype_in(name: str, *dtypes: DType) -> Condition:
    """The element type of the value is one of ``dtypes``."""
    hint = Hint(name, dtypes=frozenset(dtypes))
    return Condition(f"{name} is {_listed(dtypes)}", lambda m: m[name].dtype in dtypes, hints=(hint,))


def kernels(name: str, *dtypes: DType) -> Condition:
    """Kernels of the operators of the right side exist for the element type of the value, one of ``dtypes``."""
    return worthwhile(replace(dtype_in(name, *dtypes), name=f"kernels for {name}: {_listed(dtypes)}"))


def single_or_half(name: str) -> Condition:
    """Kernels exist for the elements of the value, which they compute with in single precision inside."""
    return kernels(name, DType.FLOAT, *HALVES)


class WorthwhileWords(str):
    """A condition in words that `worthwhile` marked."""


@overload
def worthwhile(condition: str) -> WorthwhileWords: ...


@overload
def worthwhile(condition: Condition, name: str = "") -> Condition: ...


def worthwhile(condition: Condition | str, name: str = "") -> Condition | WorthwhileWords:
    """A condition, as such or in words, without which the equation is as true, but leads nowhere, or to ever more e-nodes."""
    if isinstance(condition, str):
        return WorthwhileWords(condition)
    return replace(condition, name=name or condition.name, worthwhile=True)


def another_value(name: str) -> Condition:
    """The result is not known to be the value bound to ``name``: what leaves it as it is would enter it for ever."""
    return worthwhile(
        Condition(
            f"the result is another value than {name}", lambda m: m.root.handle != m[name].handle, hints=(Hint(name),)
        )
    )


def floating(name: str) -> Condition:
    """The elements of the value are floats, of any width."""
    floats = frozenset(d for d in DType if d.is_float)
    return Condition(f"{name} float", lambda m: m[name].dtype.is_float, hints=(Hint(name, dtypes=floats),))


def between(name: str, low: float = -math.inf, high: float = math.inf) -> Condition:
    """Every element of the value is provably from ``low`` to ``high``."""

    def holds(m: Match) -> bool:
        least, greatest = m[name].interval
        return least >= low and greatest <= high

    bounds = [f"at least {low:g}"] * (low != -math.inf) + [f"at most {high:g}"] * (high != math.inf)
    return Condition(f"{name} {' and '.join(bounds)}", holds, hints=(Hint(name, low=low, high=high),))
