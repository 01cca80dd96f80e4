"""Who changes the outputs of a model by how much, against ONNX Runtime without any optimisation.

    python -m benchmarks.output_errors --models FOLDER [--names a,b] [--inputs 2] [--cost measured] [--numerics lsb]
        [--results benchmarks/results/output_errors.json]

``FOLDER`` holds inflated models (`benchmarks.inflate`); small ones come first. Programs: ours (for ONNX Runtime, run as it
is and at its highest level), the original at each level of ONNX Runtime, OpenVINO in float32, and what onnxslim and onnxsim
make of the model, as far as they are installed. A figure is the largest difference of an output over the largest value
of that output, over all outputs and random inputs; beside it, for models with quantised tensors, stands the smallest cosine of
an output with the original's. The results are written after every model; models that are there are not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import eqsat
from eqsat.backends.onnxruntime import Session
from eqsat.options import Options
from eqsat.speed.bench import case_of
from eqsat.speed.worker import OpenVino
from eqsat.verification.compare import distance

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]
THREADS = 2
QUANTISERS = frozenset(("QuantizeLinear", "DynamicQuantizeLinear", "Round"))


def _onnxruntime(path: Path, level: str) -> Run:
    return Session(path, level, threads=THREADS, prepack=True).run


def _openvino(path: Path) -> Run:
    loaded = OpenVino(str(path), THREADS)

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        loaded.feed(feeds).run()
        return loaded.outputs()

    return run


def _simplified(path: Path, simplify: Callable[[str], onnx.ModelProto]) -> Run:
    """What another optimiser of files makes of the model, run without more optimisation."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        onnx.save(simplify(str(path)), written, save_as_external_data=True, location=path.stem + ".weights")
        return _onnxruntime(written, "disable")


def _slim(path: str) -> onnx.ModelProto:
    import onnxslim  # pyright: ignore[reportMissingImports]

    return onnxslim.slim(path)


def _sim(path: str) -> onnx.ModelProto:
    import onnxsim  # pyright: ignore[reportMissingImports]

    return onnxsim.simplify(path)[0]


def programs(path: Path, ours: Path) -> dict[str, Callable[[], Run]]:
    """Name -> how to load it."""
    found: dict[str, Callable[[], Run]] = {
        "ours": lambda: _onnxruntime(ours, "disable"),
        "ours, ALL": lambda: _onnxruntime(ours, "all"),
        "BASIC": lambda: _onnxruntime(path, "basic"),
        "EXTENDED": lambda: _onnxruntime(path, "extended"),
        "ALL": lambda: _onnxruntime(path, "all"),
        "OpenVINO": lambda: _openvino(path),
        "onnxslim": lambda: _simplified(path, _slim),
        "onnxsim": lambda: _simplified(path, _sim),
    }
    return {name: load for name, load in found.items() if name.lower() not in _MISSING}


_MISSING = frozenset(name for name in ("openvino", "onnxslim", "onnxsim") if find_spec(name) is None)


def change(reference: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[float, float]:
    """Largest difference over the largest value, and smallest cosine, over all outputs. Raises `ValueError` for misfits."""
    worst, cosine = 0.0, 1.0
    for name, right in reference.items():
        apart = distance(right, found[name])
        if apart.misfit:
            raise ValueError(f"{name}: {apart.misfit}")
        worst = max(worst, apart.max_rel)
        a, b = (np.asarray(v, np.float64).reshape(-1) for v in (right, found[name]))
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosine = min(cosine, float(a @ b) / norms if norms else 1.0)
    return worst, cosine


def run_model(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Program -> change and cosine over all inputs, or why there are none."""
    chosen = Options(cost=options.cost, numerics=options.numerics, form="onnxruntime", verify=False)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / path.name
        result = eqsat.optimize(path, **chosen.__dict__)
        result.save(ours)
        trials = [case_of(result.original, path, replace(chosen, seed=k))[0] for k in range(options.inputs)]
        original = _onnxruntime(path, "disable")
        references = [original(feeds) for feeds in trials]
        found["quantised"] = any(n.op in QUANTISERS for n in result.original.nodes)
        found["operators"] = len(result.program.graph.nodes)
        del original, result
        for name, load in programs(path, ours).items():
            gc.collect()
            try:
                run = load()
                changes = [change(right, run(feeds)) for right, feeds in zip(references, trials, strict=True)]
                found[name] = [max(c[0] for c in changes), min(c[1] for c in changes)]
            except Exception as error:  # runtimes and optimisers raise what they like
                found[name] = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return found


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table over all models."""
    names = [n for n in dict.fromkeys(k for row in rows.values() for k in row) if n not in ("quantised", "operators")]
    lines = [f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for model, row in rows.items():
        lines.append(f"| {model} | {' | '.join(_cell(row.get(n), row['quantised']) for n in names)} |")
    reasons = [f"- {model}, {n}: {row[n]}" for model, row in rows.items() for n in names if isinstance(row.get(n), str)]
    return "\n".join([*lines, *(["", "Does not run:", "", *reasons] if reasons else [])])


def _cell(found: Any, quantised: bool) -> str:
    if found is None:
        return ""
    if isinstance(found, str):
        return "-"
    return f"{found[0]:.1g} ({found[1]:.4f})" if quantised else f"{found[0]:.1g}"


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.parent.glob(f"{path.stem}.*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--inputs", type=int, default=2, help="random inputs")
    parser.add_argument("--cost", default="measured")
    parser.add_argument("--numerics", default="lsb")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/output_errors.json"))
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    paths = sorted(options.models.glob("*.onnx"), key=_size)
    wanted = options.names.split(",") if options.names else [p.stem for p in paths]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.stem in wanted and path.stem not in known:
            known[path.stem] = run_model(path, options)
            options.results.write_text(json.dumps(known, indent=1))
            print(markdown({path.stem: known[path.stem]}).split("\n", 2)[2], flush=True)
    print(markdown(known))


if __name__ == "__main__":
    main()
