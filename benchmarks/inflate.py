"""Gives a model skeleton its weights: ``python -m benchmarks.inflate benchmarks/models/NAME.onnx [...] --into FOLDER``.

The skeletons in ``benchmarks/models`` are real exports whose large tensors are external data that is not shipped. Their
metadata entry ``inflate`` holds a recipe per tensor; each tensor is drawn from a generator seeded by its name, so the
result depends on nothing else:

- ``["n", mean, std]``: normal,
- ``["u", low, high]``: uniform floats (positive vectors: variances, quantisation scales),
- ``["i", low, high]``: uniform integers (quantised weights).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zlib
from pathlib import Path

import numpy as np
import onnx

_SEED = 20240
_DTYPES = {1: np.float32, 10: np.float16, 11: np.float64, 3: np.int8, 2: np.uint8}
MODELS = Path(__file__).parent / "models"


def inflate(skeleton: Path, folder: Path) -> Path:
    """Copies ``skeleton`` into ``folder`` and writes its weights beside it. Returns the path of the copy.

    Weights that are there already, with the right length, are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / skeleton.name
    if target.resolve() != skeleton.resolve():
        shutil.copyfile(skeleton, target)
    model = onnx.load(str(target), load_external_data=False)
    recipe = json.loads({p.key: p.value for p in model.metadata_props}.get("inflate", "{}"))
    tensors: dict[str, list[tuple[int, int, onnx.TensorProto]]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {e.key: e.value for e in tensor.external_data}
            tensors.setdefault(where["location"], []).append((int(where["offset"]), int(where["length"]), tensor))
    for location, entries in tensors.items():
        path = folder / location
        if path.exists() and path.stat().st_size >= max(offset + length for offset, length, _ in entries):
            continue
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        with partial.open("wb") as file:
            for offset, _, tensor in entries:
                file.seek(offset)
                file.write(_draw(tensor, recipe[tensor.name]).tobytes())
        partial.replace(path)
    return target


def _draw(tensor: onnx.TensorProto, recipe: list[object]) -> np.ndarray:
    kind, a, b = str(recipe[0]), float(str(recipe[1])), float(str(recipe[2]))
    count = int(np.prod(tensor.dims))
    random = np.random.default_rng([_SEED, zlib.crc32(tensor.name.encode())])
    if kind == "n":
        values = random.standard_normal(count, dtype=np.float32) * np.float32(b) + np.float32(a)
    elif kind == "u":
        values = random.random(count, dtype=np.float32) * np.float32(b - a) + np.float32(a)
    else:
        values = random.integers(int(a), int(b) + 1, count)
    return values.astype(_DTYPES[tensor.data_type])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=Path("out"))
    options = parser.parse_args()
    for model in options.models:
        print(inflate(model, options.into))


if __name__ == "__main__":
    main()
