"""Where a model comes from: a path, a message or an object of onnx-ir; and whether it is a model at all."""

import os
from pathlib import Path
from typing import Any

from eqsat.errors import ModelError
from eqsat.frontends.onnx.subgraphs import bodies_in, nodes_in
from eqsat.ir.operator import DEFAULT_DOMAIN, OPSET

_OTHER_FORMATS = (
    (4, b"ORTM", "is in ONNX Runtime's own format; give the ONNX model that it was converted from"),
    (4, b"TFL3", "is a model of TensorFlow Lite; convert it with tf2onnx"),
    (
        0,
        b"PK\x03\x04",
        "is a zip archive, as PyTorch and Keras write; load it there, and give the model to eqsat.optimize or export it",
    ),
    (0, b"\x89HDF", "is in the format HDF5, as Keras writes; export it to ONNX"),
    (0, b"<?xml", "is XML, as OpenVINO writes; give the ONNX model that it was converted from"),
    (0, b"GGUF", "is a model of llama.cpp; it has weights and no graph"),
    (8, b'{"', "is a file of safetensors, which has weights and no graph; export the model that reads it to ONNX"),
    (0, b"version https://git-lfs", "is a pointer of Git LFS in place of the model; fetch it with git lfs pull"),
    (0, b"\x1f\x8b", "is compressed; unpack it first"),
)
"""Where what files of other formats begin with stands, those bytes, and what to tell."""


def read_source(source: Any) -> tuple[Any, tuple[Path, ...], str]:
    """The ``ModelProto``, the folders in which its external data may lie, and what to call it in messages.

    Names of external data are relative to the first folder. Where the model is a link, data may lie beside what it leads to:
    in the cache of the Hugging Face Hub all files of a model are links to one folder.

    Raises `ModelError` for anything that is no ONNX model.
    """
    import onnx

    if isinstance(source, str | Path):
        path = Path(source)
        model = _read_file(path)
        _check(model, str(path))
        return model, (path.parent, Path(os.path.realpath(path)).parent), str(path)
    if isinstance(source, onnx.ModelProto):
        _check(source, "model")
        copy = onnx.ModelProto()
        copy.CopyFrom(source)  # reading fixes dimensions and moves weights of bodies
        return copy, (), "model"
    if type(source).__module__.split(".")[0] == "onnx_ir":
        import onnx_ir

        folders: set[Any] = {
            t.base_dir  # pyright: ignore[reportUnknownMemberType]
            for v in source.graph.initializers.values()
            if isinstance(t := v.const_value, onnx_ir.ExternalTensor)
        }
        if len(folders) > 1:
            raise ModelError(f"model: its external data lie in {len(folders)} folders; save it to one first")
        model = onnx_ir.serde.serialize_model(source)
        _check(model, "model")
        return model, tuple(map(Path, folders)), "model"
    raise ModelError(
        "model: expected a path, an onnx.ModelProto, an onnx_ir.Model or an object of PyTorch (docs/torch.md), got "
        f"{type(source).__name__}"
    )


def _read_file(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        if path.is_char_device():
            raise ModelError(f"{path}: is a device, which may never end; give a file or a pipe")
        data = path.read_bytes()
    except IsADirectoryError:
        raise ModelError(f"{path}: is a folder; give the .onnx file in it") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model: {error.strerror or error}") from None
    except ValueError:  # of a null character
        raise ModelError(f"{str(path)!r}: is the name of no file") from None
    if not data:
        raise ModelError(f"{path}: the file is empty")
    for offset, magic, told in _OTHER_FORMATS:
        if data.startswith(magic, offset):
            raise ModelError(f"{path}: {told}")
    try:
        if path.suffix in (".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson", ".onnxtext", ".onnxtxt"):
            return onnx.load(path, load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError(f"{path}: no ONNX model, or truncated: {len(data)} bytes cannot be decoded") from None
    except Exception as error:  # the parsers of the text forms each have their own errors
        raise ModelError(f"{path}: no ONNX model: {' '.join(str(error).split())[:200]}") from None


def _check(model: Any, label: str) -> None:
    import onnx

    if not model.HasField("graph"):
        raise ModelError(f"{label}: no ONNX model, or truncated: it holds no graph")
    if not (model.graph.node or model.graph.output):
        raise ModelError(f"{label}: its graph is empty: it has neither nodes nor outputs")
    _check_names(model.graph, label)
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{label}: IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest that the onnx package knows"
        )
    newest = onnx.defs.onnx_opset_version()
    if (opset := default_opset(model)) > newest or opset < 1:
        raise ModelError(f"{label}: opset {opset} is unknown; this onnx package knows 1 to {newest}")


def _check_names(graph: Any, label: str) -> None:
    """Raises `ModelError` for names that are no UTF-8 text: protobuf hands them out as bytes."""
    try:
        for node in nodes_in(graph):
            "".join(
                (node.op_type, node.domain, node.name, *node.input, *node.output, *[a.name for a in node.attribute])
            )
        for part in (graph, *bodies_in(graph)):
            "".join(v.name for v in (*part.input, *part.output, *part.value_info, *part.initializer))
            "".join(t.values.name for t in part.sparse_initializer)
    except TypeError:
        raise ModelError(f"{label}: a name in the model is no UTF-8 text; is the file damaged?") from None


def default_opset(model: Any) -> int:
    """Opset of the default domain. A file that imports only other domains means the newest one."""
    found = [i.version for i in model.opset_import if i.domain in DEFAULT_DOMAIN]
    if found:
        return found[0]
    return OPSET if len(model.opset_import) else 1


def text(value: str | bytes) -> str:
    """A string field of a message, which is bytes where it is no UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
