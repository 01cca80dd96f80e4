"""Cost models of one's own: ``python examples/my_cost.py model.onnx``."""

import sys

import eqsat
from eqsat.cost.model import Rates


def energy(work):
    """Joules: so many for an operation, so many for a byte to or from memory."""
    return 2e-12 * work.flops + 2e-11 * work.bytes


def overlapping(work, target):
    """Seconds, where arithmetic and memory overlap, launches do not, and products run at half of the peak rate."""
    peak = target.peak(work.dtype) * (0.5 if work.kind.value == "anchor" else 1.0)
    return target.launch_s + max(work.flops / peak, work.bytes / target.bandwidth_bytes_per_s)


dear_launches = Rates(launch=2e-5, byte=1e-12, counts_operations=True)  # seconds, by the terms of the price

for name, cost in {"energy": energy, "overlapping": overlapping, "dear_launches": dear_launches}.items():
    for target in ("onnxruntime-cpu", "h200"):
        report = eqsat.optimize(sys.argv[1], cost=cost, target=target, verify=False).report
        print(
            f"{name} on {target}: {report.cost_before:.3g} -> {report.cost_after:.3g}, "
            f"at least {report.lower_bound:.3g} ({report.bound_scope})"
        )
