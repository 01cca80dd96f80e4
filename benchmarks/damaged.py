"""Damaged models: small changes to the bytes and the messages of ONNX files, each of which may make them malformed.

Run as a program: optimises many of them. Each must be optimised or refused by an error of eqsat's own; any other exception is
a defect and is listed with the seed that makes the file again.

    python -m benchmarks.damaged --count 2000 [--seed 0] [--form onnxruntime] [FILE.onnx ...]

Without files, the conformance cases of the ONNX package are damaged.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import onnx

_INTEGERS = (0, 1, -1, 2, 7, -7, 64, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)
_FLOATS = (0.0, -1.0, 0.5, 1e30, float("nan"), float("inf"))
_STRINGS = (b"", b"SAME_UPPER", b"none", b"\xff\xfe", b"x" * 50)


def damaged(data: bytes, random: Random) -> bytes:
    """A model's bytes with one to three changes."""
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.25:
            data = _damaged_bytes(data, random)
            continue
        try:
            model = onnx.ModelProto.FromString(data)
        except Exception:  # an earlier change made it unreadable
            continue
        with suppress(UnicodeDecodeError):  # of a name that an earlier change made no text
            random.choice(_CHANGES)(model, random)
        data = model.SerializeToString()
    return data


def _damaged_bytes(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    kind = random.randrange(4)
    if kind == 0:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + random.randint(1, 4) :]
    return data[:at] + bytes([random.randrange(256)]) + data[at:]


def _node(model: onnx.ModelProto, random: Random) -> Any:
    return random.choice(model.graph.node) if model.graph.node else onnx.NodeProto()


def _attribute(model: onnx.ModelProto, random: Random) -> Any:
    found = [a for n in model.graph.node for a in n.attribute]
    return random.choice(found) if found else onnx.AttributeProto()


def _attribute_value(model: onnx.ModelProto, random: Random) -> None:
    a = _attribute(model, random)
    kind = random.randrange(6)
    if kind == 0 or (a.type == a.INT and kind < 5):
        a.i = random.choice(_INTEGERS)
    elif kind == 1 or (a.type == a.FLOAT and kind < 5):
        a.f = random.choice(_FLOATS)
    elif kind == 2 or (a.type == a.STRING and kind < 5):
        a.s = random.choice(_STRINGS)
    elif a.ints and kind == 3:
        a.ints[random.randrange(len(a.ints))] = random.choice(_INTEGERS)
    elif a.ints and kind == 4:
        a.ints.pop()
    else:
        a.ints.extend([random.choice(_INTEGERS)])


def _attribute_type(model: onnx.ModelProto, random: Random) -> None:
    _attribute(model, random).type = random.randrange(15)


def _attribute_kind(model: onnx.ModelProto, random: Random) -> None:
    """Another kind, with a value that fits it."""
    a = _attribute(model, random)
    values: list[Any] = [
        random.choice(_INTEGERS),
        random.choice(_FLOATS),
        random.choice(_STRINGS),
        [1, 2],
        [0.5],
        [b"s"],
    ]
    a.CopyFrom(onnx.helper.make_attribute(a.name if isinstance(a.name, str) else "a", random.choice(values)))


def _attribute_name(model: onnx.ModelProto, random: Random) -> None:
    _attribute(model, random).name = random.choice(
        ["axis", "perm", "value", "to", "axes", "epsilon", "mode", "alpha", ""]
    )


def _attribute_gone(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.attribute:
        node.attribute.pop(random.randrange(len(node.attribute)))


def _attribute_twice(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.attribute:
        node.attribute.append(random.choice(node.attribute))


def _values(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = [o for n in graph.node for o in n.output]
    return [*found, *(t.name for t in graph.initializer), *(i.name for i in graph.input), "", "nowhere"]


def _node_input(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    kind = random.randrange(4)
    if kind == 0 or not node.input:
        node.input.append(random.choice(_values(model)))
    elif kind == 1:
        node.input.pop(random.randrange(len(node.input)))
    else:
        node.input[random.randrange(len(node.input))] = random.choice(_values(model))


def _node_output(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if random.random() < 0.3 or not node.output:
        node.output.append(random.choice([*_values(model), "more"]))
    else:
        node.output[random.randrange(len(node.output))] = random.choice(_values(model))


def _node_operator(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    schemas = [s.name for s in onnx.defs.get_all_schemas() if not s.domain]
    node.op_type = random.choice([*schemas, *schemas, "Nobody", ""])
    if random.random() < 0.1:
        node.domain = random.choice(["com.microsoft", "ai.onnx", "ai.onnx.ml", "eqsat", "somebody"])


def _type(model: onnx.ModelProto, random: Random) -> None:
    infos = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not infos:
        return
    tensor = random.choice(infos).type.tensor_type
    if random.random() < 0.5 or not tensor.shape.dim:
        tensor.elem_type = random.choice([*range(27), 99])
    elif random.random() < 0.5:
        random.choice(tensor.shape.dim).dim_value = random.choice(_INTEGERS)
    else:
        random.choice(tensor.shape.dim).dim_param = random.choice(["n", "", "?7", "a b"])


def _tensor(model: onnx.ModelProto, random: Random) -> None:
    found = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t"))]
    if not found:
        return
    tensor = random.choice(found)
    kind = random.randrange(4)
    if kind == 0:
        tensor.data_type = random.choice([*range(27), 99])
    elif kind == 1 and tensor.dims:
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice(_INTEGERS)
    elif kind == 2:
        tensor.dims.append(random.choice([0, 1, 2, -1, 2**62]))
    else:
        size = len(tensor.raw_data)
        tensor.raw_data = bytes(random.randrange(256) for _ in range(size))


def _opset(model: onnx.ModelProto, random: Random) -> None:
    if model.opset_import:
        random.choice(model.opset_import).version = random.choice([*range(1, 27), 0, -1, 999])


_CHANGES: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _attribute_value, _attribute_value, _attribute_value, _attribute_type, _attribute_kind, _attribute_name, _attribute_gone,
    _attribute_twice, _node_input, _node_input, _node_output, _node_operator, _type, _tensor, _tensor, _opset,
)  # fmt: skip


def outcome(data: bytes, path: Path, **options: Any) -> str:
    """What becomes of a damaged model: ``optimised``, ``refused``, or the traceback of an exception that is a defect."""
    import eqsat
    from eqsat.errors import EqsatError

    path.write_bytes(data)
    try:
        result = eqsat.optimize(path, verify=False, time_limit_s=2, node_limit=3000, **options)
        result.save(path.with_name("optimised.onnx"))
    except EqsatError as error:
        return "refused" if str(error).count("\n") == 0 else f"more than a line: {error}"
    except Exception:
        return traceback.format_exc()
    return "optimised"


def sources(paths: Sequence[Path], limit_bytes: int = 20_000) -> list[bytes]:
    """Bytes of small models: of files, or of the conformance cases of the ONNX package."""
    if paths:
        return [p.read_bytes() for p in paths if p.stat().st_size <= limit_bytes]
    from benchmarks.onnx_backend_cases import cases

    found = (case.model.SerializeToString() for case in cases(("node", "simple")))
    return [data for data in dict.fromkeys(found) if len(data) <= limit_bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description="Optimises many damaged models.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", default="flat")
    parser.add_argument("--into", type=Path, default=Path("out"))
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    models = sources(given.files)
    tally: Counter[str] = Counter()
    defects = 0
    for i in range(given.count):
        random = Random(f"{given.seed}-{i}")
        data = damaged(random.choice(models), random)
        found = outcome(data, given.into / "damaged.onnx", form=given.form)
        if found in ("optimised", "refused"):
            tally[found] += 1
            continue
        defects += 1
        last = found.strip().splitlines()
        where = next((line.strip() for line in reversed(last) if "eqsat" in line and "line" in line), "")
        tally[f"{where}: {last[-1][:120]}"] += 1
        (given.into / f"defect_{given.seed}_{i}.onnx").write_bytes(data)
        print(f"{given.seed}-{i}: {found}", flush=True)
    for key, number in tally.most_common():
        print(f"{number:6} {key}")
    sys.exit(1 if defects else 0)


if __name__ == "__main__":
    main()
