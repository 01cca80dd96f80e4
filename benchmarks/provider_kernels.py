"""The kernels that an execution provider of ONNX Runtime registers, as `eqsat/backends/providers/*.json` holds them.

    python -m benchmarks.provider_kernels CUDAExecutionProvider > eqsat/backends/providers/cuda.json
    python -m benchmarks.provider_kernels onnxruntime_ep_webgpu > eqsat/backends/providers/webgpu.json

asks the ONNX Runtime of this Python, which must have been built with the provider (``onnxruntime-gpu``) and able to load it, or
the package of a provider that plugs in, which must find a device. A kernel is the first and the last version of its operator
(``null``: none was newer), and the element types of each type parameter; kernels that differ in one parameter are one.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from itertools import combinations
from typing import Any

Kernel = tuple[int, int | None, dict[str, frozenset[str]]]

_OPEN = 2**31 - 1
_DOMAINS = ("", "com.microsoft")


def asked(provider: str) -> tuple[str, str, Iterable[Any]]:
    """Name, release and kernels of a provider that is built in, or of a package with one."""
    import onnxruntime
    import onnxruntime.capi.onnxruntime_pybind11_state as state

    if provider.endswith("ExecutionProvider"):
        found = (kernel for kernel in state.get_all_opkernel_def() if kernel.provider == provider)
        return provider, onnxruntime.__version__, found
    package = import_module(provider)
    name = package.get_ep_name()
    onnxruntime.register_execution_provider_library(name, package.get_library_path())
    return name, version(provider.replace("_", "-")), state.get_registered_ep_kernel_defs(name)


def kernels_of(provider: str, kernels: Iterable[Any]) -> dict[str, list[Kernel]]:
    """Operators by name, with their domain if it is not the default one, and their kernels. Raises `SystemExit` without any."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.domain in _DOMAINS:
            first, last = kernel.version_range
            types = {
                name: frozenset(str(t).removeprefix("tensor(").removesuffix(")") for t in allowed)
                for name, allowed in kernel.type_constraints.items()
            }
            key = f"{kernel.domain}::{kernel.op_name}" if kernel.domain else kernel.op_name
            found[key].append((first, None if last == _OPEN else last, types))
    if not found:
        raise SystemExit(f"the installed ONNX Runtime has no kernels of {provider!r}")
    return {key: _joined(found[key]) for key in sorted(found)}


def _joined(kernels: list[Kernel]) -> list[Kernel]:
    """The kernels, those that differ in the types of one parameter only as one."""
    left = list(kernels)
    while pair := next((p for p in combinations(left, 2) if _may_join(*p)), None):
        (first, last, some), (_, _, others) = pair
        left = [k for k in left if k is not pair[0] and k is not pair[1]]
        left.append((first, last, {name: types | others[name] for name, types in some.items()}))
    return sorted(left, key=lambda k: (k[0], k[1] or _OPEN, sorted((n, sorted(t)) for n, t in k[2].items())))


def _may_join(one: Kernel, other: Kernel) -> bool:
    same = one[:2] == other[:2] and one[2].keys() == other[2].keys()
    return same and sum(types != other[2][name] for name, types in one[2].items()) <= 1


def row(kernel: Kernel) -> list[object]:
    """What a table holds of a kernel."""
    first, last, types = kernel
    return [first, last, {name: " ".join(sorted(allowed)) for name, allowed in sorted(types.items())}]


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.provider_kernels PROVIDER, such as CUDAExecutionProvider")
    provider, release, kernels = asked(sys.argv[1])
    rows = [
        f"  {json.dumps(key)}: {json.dumps(list(map(row, found)))}"
        for key, found in kernels_of(provider, kernels).items()
    ]
    head = f' "provider": {json.dumps(provider)},\n "release": {json.dumps(release)},'
    print("{\n" + head + '\n "kernels": {\n' + ",\n".join(rows) + "\n }\n}")


if __name__ == "__main__":
    main()
