"""Gives a model skeleton its weights: ``python -m benchmarks.inflate benchmarks/models/NAME.onnx [...] --into FOLDER``.

The skeletons in ``benchmarks/models`` are real exports whose large tensors are external data that is not shipped. Their
metadata entry ``inflate`` holds a recipe per tensor; each tensor is drawn from a generator seeded by its name, so the
result depends on nothing else:

- ``["n", mean, std]``: normal,
- ``["u", low, high]``: uniform floats (positive vectors: variances, quantisation scales),
- ``["i", low, high]``: uniform integers (quantised weights).

Random tables are no rotation. With ``--rotary``, those whose mean and deviation are those of the cosines or sines of a rotary
embedding are written as such; weights are then other ones than without.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

_SEED = 20240
_ROTARY_BASE = 10000.0
_DTYPES = {1: np.float32, 10: np.float16, 11: np.float64, 3: np.int8, 2: np.uint8}
MODELS = Path(__file__).parent / "models"


def inflate(skeleton: Path, folder: Path, *, rotary: bool = False) -> Path:
    """Copies ``skeleton`` into ``folder`` and writes its weights beside it. Returns the path of the copy.

    Weights that are there already, with the right length, are kept. ``rotary``: tables of rotary embeddings are what they
    were before the export, not random.
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
                table = rotary_table(tensor.dims, recipe[tensor.name]) if rotary else None
                values = (
                    _draw(tensor, recipe[tensor.name]) if table is None else table.astype(_DTYPES[tensor.data_type])
                )
                file.write(values.tobytes())
        partial.replace(path)
    return target


def rotary_table(shape: Sequence[int], recipe: list[object]) -> np.ndarray | None:
    """Cosines or sines of the angles of a rotary embedding, a row for each place, each angle in both halves of the row.

    ``None`` unless one of the two has the mean and the deviation of the recipe.
    """
    if recipe[0] != "n" or len(shape) < 2 or shape[-1] % 2:
        return None
    rates = _ROTARY_BASE ** -(np.arange(0, shape[-1], 2) / shape[-1])
    angles = np.arange(shape[-2])[:, None] * np.concatenate((rates, rates))
    for table in (np.cos(angles), np.sin(angles)):
        if np.allclose((table.mean(), table.std()), [float(str(x)) for x in recipe[1:]], rtol=0, atol=1e-6):
            return np.broadcast_to(table, shape)
    return None


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
    parser.add_argument("--rotary", action="store_true", help="tables of rotary embeddings as they were, not random")
    options = parser.parse_args()
    for model in options.models:
        print(inflate(model, options.into, rotary=options.rotary))


if __name__ == "__main__":
    main()
