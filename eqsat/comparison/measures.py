"""What is measured of every program, whatever it was chosen for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.cost.model import COST_MODELS, CostModel
from eqsat.cost.target import Target
from eqsat.fusion import kernel_works, price_works
from eqsat.lower.liveness import peak_memory_bytes
from eqsat.lower.program import Program
from eqsat.lower.schedule import with_least_memory

TIME_MODEL = COST_MODELS["roofline-launch"]
"""The cost model that predicts time."""


@dataclass(frozen=True)
class Measures:
    """``bytes`` cross the boundaries of kernels; ``flops`` are operations; ``predicted_time_s`` is the price under
    `TIME_MODEL`. ``peak_memory_bytes`` holds for the order of the program, ``least_peak_memory_bytes`` for the best order
    found. ``prices``: name of a cost model -> price under it."""

    kernels: int
    operators: int
    bytes: float
    flops: float
    predicted_time_s: float
    peak_memory_bytes: int
    least_peak_memory_bytes: int
    prices: dict[str, float]


def measure(program: Program, target: Target, models: Sequence[CostModel]) -> Measures:
    """Measures of a program on a target, and its price under each of ``models``."""
    works = kernel_works(program, target)
    reordered = with_least_memory(program)
    return Measures(
        kernels=program.kernel_count,
        operators=len(program.graph.nodes),
        bytes=price_works(works, target, COST_MODELS["bytes"]),
        flops=price_works(works, target, COST_MODELS["flops"]),
        predicted_time_s=price_works(works, target, TIME_MODEL),
        peak_memory_bytes=peak_memory_bytes(program.graph, program.kernels),
        least_peak_memory_bytes=peak_memory_bytes(reordered.graph, reordered.kernels),
        prices={model.name: price_works(works, target, model) for model in models},
    )


def finite(value: float) -> float | None:
    """The value for JSON, which has no infinity."""
    return value if math.isfinite(value) else None
