"""The kernels that are timed for a target: one table, from which everything else follows."""

from eqsat.backends.consumer import find_consumer
from eqsat.calibrate.case import Case, Cases
from eqsat.errors import OptionError
from eqsat.ir.operator import split_key

TARGETS = ("onnxruntime-cpu", "openvino-cpu")
"""Targets that can be calibrated: those whose kernels run on this machine, in ONNX Runtime or OpenVINO."""


def grid_of(target: str) -> tuple[Case, ...]:
    """Every kernel to time for a target, each once. Raises `OptionError` for a target that does not run here."""
    if target not in TARGETS:
        raise OptionError(f"target {target!r} cannot be calibrated on this machine; choose one of {', '.join(TARGETS)}")
    from eqsat.calibrate.grid_attention import ATTENTION
    from eqsat.calibrate.grid_convolutions import CONVOLUTIONS
    from eqsat.calibrate.grid_movement import MOVEMENT
    from eqsat.calibrate.grid_others import OTHERS
    from eqsat.calibrate.grid_products import PRODUCTS

    cases = cases_of((*PRODUCTS, *CONVOLUTIONS, *ATTENTION, *OTHERS, *MOVEMENT))
    if target == "openvino-cpu":
        reader = find_consumer("openvino")
        return tuple(c for c in cases if not split_key(c.key)[0] and reader.takes(c.key, c.types))
    return cases


def cases_of(kernels: tuple[Cases, ...]) -> tuple[Case, ...]:
    """The cases of a table of kernels; of two that are the same the first."""
    found: dict[str, Case] = {}
    for entry in kernels:
        for case in entry.cases():
            found.setdefault(case.name, case)
    return tuple(found.values())
