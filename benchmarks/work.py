"""What optimising each model takes, counted (docs/report.md, `work`): the same on every machine.

    python -m benchmarks.work --models FOLDER [--names a,b] [--targets a,b] [--write]

One line for each model and target. ``--write`` puts them into `work.json`, which the tests compare with: a change that makes the
optimiser do more shows there, and in the difference of that file. Verification is counted for the smallest models.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import eqsat

TABLE = Path(__file__).with_name("work.json")
TARGETS = {"onnxruntime-cpu": {}, "h200": {"cost": "roofline"}}
VERIFIED = ("squeezenet", "tensat_bert")

Counts = dict[str, int]


def work_of(path: Path, target: str) -> Counts:
    """All that is counted when a model is optimised, and verified if it is small, by stage and name."""
    options: dict[str, Any] = TARGETS[target]
    report = eqsat.optimize(path, target=target, verify=path.stem in VERIFIED, **options).report
    return {
        f"{stage} {name}": count
        for stage, counts in report.work.items()
        for name, count in counts.items()
        if not isinstance(count, bool)
    }


def known() -> dict[str, dict[str, Counts]]:
    """The table: model -> target -> counts."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = sorted(p.relative_to(options.models).with_suffix("").as_posix() for p in options.models.rglob("*.onnx"))
    names = options.names.split(",") if options.names else found
    table = known()
    for name in names:
        for target in options.targets.split(","):
            counts = work_of(options.models / f"{name}.onnx", target)
            print(f"{name}, {target}: " + ", ".join(f"{key} {count:,}" for key, count in counts.items()), flush=True)
            table.setdefault(name, {})[target] = counts
            if options.write:
                TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
