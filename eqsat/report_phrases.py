"""What a report says of bodies, devices, engines, readers and verification, each from its data."""

from collections.abc import Mapping, Sequence
from typing import Any

_GROWN, _LEAST_BYTES = 1.02, 10_000
"""So many times the bytes of its constants a file may take without a word, and so many more."""

_MANY_SUBNORMAL = 2e-3


def of_better(entry: Mapping[str, Any]) -> str:
    """By how much another program is cheaper at a size."""
    regret = entry["cost"] / entry["least"] - 1 if entry["least"] else 0.0
    return f"; another program would cost {100 * regret / (1 + regret):.1f} % less" if regret > 1e-3 else ""


def of_engines(data: Mapping[str, Any]) -> str:
    if not data:
        return ""
    taken = sorted(data["median_s"].items(), key=lambda item: item[1])
    listed = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in taken)
    left = "".join(f"; {name} {why}" for name, why in data["not_run"].items())
    return f"{data['name']} is the fastest, with {data['program']}; milliseconds: {listed}{left}"


def of_growth(before: int, after: int) -> str:
    """Bytes of constants, where there are more than a few more of them."""
    if after <= _GROWN * before + _LEAST_BYTES:
        return ""
    return (
        f"constants take {after / 1e6:.1f} MB instead of {before / 1e6:.1f}: what is computed of them alone is stored"
    )


def of_overridable(inputs: int) -> str:
    """``inputs``: how many have values in the file."""
    if not inputs:
        return ""
    several = inputs > 1
    what, them, consts = (
        ("inputs have values", "them", "constants") if several else ("input has a value", "it", "a constant")
    )
    return (
        f"{inputs} {what} in the file that callers may override, so nothing is computed of {them} ahead, and no integers are made"
        f" of {them}: if nobody does, --no-overrides makes {them} {consts}, and the result may be faster"
    )


def of_subnormal(part: float) -> str:
    """``part``: of the float32 constants."""
    if part < _MANY_SUBNORMAL:
        return ""
    return (
        f"{100 * part:.2g} % of the weights are subnormal numbers (below 1.2e-38), which may take processors many times as long"
        " as others: ONNX Runtime counts them as zero where the first session of a process is created with"
        ' add_session_config_entry("session.set_denormal_as_zero", "1")'
    )


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} x{n}" for name, n in counts.items())


def of_untouched(opaque: Mapping[str, int]) -> str:
    """``opaque``: operators that pass through, and how many there are of each."""
    blocked = any(key.startswith("com.microsoft.nchwc::") for key in opaque)
    advice = "; ONNX Runtime laid this file out for one kind of processor: start from the file that it made it from"
    return counted(opaque) + advice * blocked


def in_short(items: Sequence[str]) -> str:
    return (items[0] if items else "") + (f"; and {len(items) - 1} more" if len(items) > 1 else "")


def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e-2 else f"{value:,.3f}".rstrip("0").rstrip(".")


def cost(value: float, unit: str) -> str:
    """A cost as text. Programs with operators that the target has no kernel for cost more than any other (`NO_KERNEL` of
    `eqsat.lower.selection`); what the number is says nothing."""
    return "no kernels" if unit in ("seconds", "kernels") and value >= 1e9 else number(value)


def of_bodies(data: Mapping[str, Any], *, reasons: bool = True) -> str:
    if not data:
        return ""
    text = (
        f"{data['count']} of control flow, {data['optimised']} optimised: "
        f"{data['operators_before']} -> {data['operators_after']} operators"
    )
    if data["verdicts"]:
        text += "; verified by themselves: " + ", ".join(f"{n} {verdict}" for verdict, n in data["verdicts"].items())
    if data.get("alike"):
        text += (
            f"; of {data['alike']} weights that others read, too, they make the same or nothing, as the file would grow"
        )
    if passed := data.get("passed_opset"):
        now, then = number(data["cost_after"]), number(passed["cost"])
        text += f"; they cost {now}, and {then} with --opset {int(passed['opset'])}, for older readers"
    if not reasons:
        kept = sum(data["kept"].values())
        return text + (f", {kept} untouched" if kept else "")
    text += "".join(
        f"\n    {n} compared only where the model runs {'it' if n == 1 else 'them'}: {reason}"
        for reason, n in data["not_run"].items()
    )
    return text + "".join(f"\n    {n} untouched: {reason}" for reason, n in data["kept"].items())


def of_left_out(data: Sequence[Mapping[str, Any]]) -> str:
    names = [name for wrong in data for name in wrong["rules"] or (f"classes above {wrong['numerics']}",)]
    return f"without {', '.join(names)}, left out after an error, which is a bug: please report it" if names else ""


def of_placement(data: Mapping[str, Any]) -> str:
    if not data:
        return ""
    parts = [f"{d} ({e['target']}) {e['kernels']} kernels" for d, e in data["devices"].items()]
    return ", ".join([*parts, f"{data['copies']} copies of {data['copied_bytes']:,} bytes"])


def of_needs(data: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if "opset" in data:
        release = f": ONNX Runtime {data['onnxruntime']} or newer" if data["onnxruntime"] else ""
        parts.append(f"opset {data['opset']} (the model had {data['opset_before']}){release}")
    if "operators" in data:
        parts = [p.partition(": ONNX Runtime")[0] for p in parts]
        parts.append(f"ONNX Runtime {data['onnxruntime']} or newer for {', '.join(data['operators'])}")
    if "domains" in data:
        parts.append(f"domain {', '.join(data['domains'])}: ONNX Runtime (--form flat for others)")
    if "vnni" in data:
        parts.append(
            f"a processor with VNNI, if x86, for exact sums of {', '.join(data['vnni'])} (--for onnxruntime-avx2 for others)"
        )
    if "cpu_kernels" in data:
        first, *more = data["cpu_kernels"]
        listed = f"{first} and {len(more)} more" if more else first
        parts.append(f"the CPU: other execution providers leave {listed} to it (--for onnxruntime-cuda and the like)")
    if "left_to_cpu" in data:
        listed = ", ".join(f"{n} x {op}" for op, n in data["left_to_cpu"].items())
        before = sum(data["left_to_cpu_before"].values())
        parts.append(
            f"the CPU beside its execution provider, with copies, for {listed} (the model: for {before} operators)"
        )
    parts += [f"{engine} does not read {', '.join(ops)}" for engine, ops in data.get("unread", {}).items()]
    return "; ".join(parts)


def of_verification(data: Mapping[str, Any]) -> str:
    text = str(data.get("verdict", "not run"))
    if text == "not run":
        text += ": nothing is known about the result, because"
    if runs := data.get("runs"):
        text += f" in {runs} run{'s' * (runs != 1)}"
    if kernels := data.get("kernels_checked"):
        text += f", {kernels} kernel{'s' * (kernels != 1)} checked one by one"
    errors = [
        o for o in data.get("outputs", {}).values() if isinstance(o["max_rel_error"], float) and o["max_rel_error"]
    ]
    if errors:
        worst = max(errors, key=lambda o: o["max_rel_error"])
        scale = worst["max_abs_error"] / worst["max_rel_error"]
        text += (
            f", largest error {worst['max_rel_error']:.2g} of the largest element of its output "
            f"(tolerance {worst['tolerance'] / scale:.2g})"
        )
    return text
