"""Cost models made of others: any Python function, weighted sums, and a price on large values."""

import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.cost.model import COST_MODELS, CostModel, FormulaModel, Rates, Work, find_cost_model
from eqsat.cost.target import Target
from eqsat.errors import OptionError

CostFunction = Callable[[Work], float] | Callable[[Work, Target], float]
"""A price for one kernel: a pure function of its `Work`, or of its `Work` and the `Target`."""


def as_cost_model(cost: str | CostModel | CostFunction | Rates) -> CostModel:
    """The cost model that ``cost`` names, is, computes, or states by its terms.

    A function and a model of one's own are checked at every call: a price is a number that is not negative, or infinite
    where the target has no such kernel. Raises `OptionError` for an unknown name or something that cannot price kernels.
    """
    if isinstance(cost, str):
        return find_cost_model(cost)
    if isinstance(cost, FormulaModel | CheckedModel | WeightedModel | LargeValueModel):
        return cost
    if isinstance(cost, Rates):
        _check_rates(cost)
        return FormulaModel("rates", "units", cost.price, str(cost), lambda target: cost)
    price: Callable[..., Any] | None = getattr(cost, "kernel_cost", None)
    if price is not None and isinstance(cost, type):
        raise OptionError(f"cost model {cost.__name__}: is a class; give an object of it, {cost.__name__}()")
    if price is not None:
        name = str(getattr(cost, "name", type(cost).__name__))
        return CheckedModel(name, str(getattr(cost, "unit", "units")), price)
    if not callable(cost):
        raise OptionError(
            f"cost model {cost!r} is neither a name ({', '.join(COST_MODELS)}), nor a function of a kernel's Work, nor an "
            "object with a method kernel_cost"
        )
    name = str(getattr(cost, "__name__", type(cost).__name__))
    function: Callable[..., Any] = cost
    if _arguments(function, name) == 1:
        return CheckedModel(name, "units", lambda work, target: function(work))
    return CheckedModel(name, "units", function)


def _check_rates(rates: Rates) -> None:
    """Raises `OptionError` for terms that are no price, or of which the bounds do not hold."""
    for name in ("launch", "operator", "byte", "view"):
        value = getattr(rates, name)
        if not (isinstance(value, numbers.Real) and 0 <= float(value) < math.inf):
            raise OptionError(f"{rates}: {name} is {value}; it must be a number >= 0")
    if rates.view > rates.operator:
        raise OptionError(f"{rates}: a view costs more than an operator; it must not")


def _arguments(function: Callable[..., Any], name: str) -> int:
    """How many arguments a cost function takes: 1 or 2. Raises `OptionError` if it can be called with neither."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return 1
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise OptionError(f"cost model {name!r} takes {signature}; expected (work) or (work, target)")


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A user's cost model. Raises `OptionError` when it fails or returns something that is no price."""

    name: str
    unit: str
    function: Callable[[Work, Target], float]

    def kernel_cost(self, work: Work, target: Target) -> float:
        kernel = f"the kernel {' + '.join(work.operators)} on {target.name}"
        try:
            price = self.function(work, target)
        except Exception as error:
            raise OptionError(
                f"cost model {self.name!r} failed with {type(error).__name__}: {error}; on {kernel}"
            ) from error
        if not isinstance(price, numbers.Real) or math.isnan(price) or price < 0:
            raise OptionError(
                f"cost model {self.name!r} returned {reprlib.repr(price)} for {kernel}; a price must be a number >= 0, or inf "
                "for a kernel that cannot be"
            )
        return float(price)


@dataclass(frozen=True, slots=True)
class WeightedModel:
    """A weighted sum of cost models; terms of weight 0 are left out, though infinite prices of any term stay infinite."""

    name: str
    terms: Sequence[tuple[float, CostModel]]
    unit: str = "weighted"

    def kernel_cost(self, work: Work, target: Target) -> float:
        prices = [(weight, model.kernel_cost(work, target)) for weight, model in self.terms]
        if any(math.isinf(price) for _, price in prices):
            return math.inf
        return math.fsum(weight * price for weight, price in prices)


@dataclass(frozen=True, slots=True)
class LargeValueModel:
    """A cost model plus ``weight * (bytes written / scale_bytes) ** 2``: values that fill much of the memory become dear."""

    base: CostModel
    weight: float
    scale_bytes: float

    @property
    def name(self) -> str:
        return f"{self.base.name}+large-values"

    @property
    def unit(self) -> str:
        return self.base.unit

    def kernel_cost(self, work: Work, target: Target) -> float:
        price = self.base.kernel_cost(work, target)
        if work.kind.value in target.free_kinds:
            return price
        return price + self.weight * (work.bytes_written / self.scale_bytes) ** 2
