"""Cost models of one's own: ``python examples/my_cost.py model.onnx``."""

import sys

import eqsat


def energy(work):
    """Joules: so many for an operation, so many for a byte to or from memory."""
    return 2e-12 * work.flops + 2e-11 * work.bytes


def slowest_part(work, target):
    """Seconds, where arithmetic and memory overlap, launches do not, and products run at half of the peak rate."""
    peak = target.peak(work.dtype) * (0.5 if work.kind.value == "anchor" else 1.0)
    return target.launch_s + max(work.flops / peak, work.bytes / target.bandwidth_bytes_per_s)


for cost in (energy, slowest_part):
    for target in ("onnxruntime-cpu", "h200"):
        report = eqsat.optimize(sys.argv[1], cost=cost, target=target, verify=False).report
        print(
            f"{cost.__name__} on {target}: {report.cost_before:.3g} -> {report.cost_after:.3g}, "
            f"at least {report.lower_bound:.3g} ({report.bound_scope})"
        )
