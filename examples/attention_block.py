"""One attention block of BERT, as PyTorch exports it, before and after: ``python examples/attention_block.py [FOLDER]``.

The block is cut out of a shipped model of two layers with symbolic batch and sequence, written to ``FOLDER/attention.onnx`` and
optimised. Both graphs are drawn side by side in ``FOLDER/attention.svg``; that of the documentation is made by
``python examples/attention_block.py docs``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto, helper, utils

import eqsat
from eqsat.ir.operator import Kind, kind_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.inflate import MODELS, inflate

HIDDEN = "/m/embeddings/LayerNorm/LayerNormalization_output_0"
MASK = "/m/Expand_output_0"
RESULT = "/m/encoder/layer.0/attention/output/LayerNorm/LayerNormalization_output_0"

COLOURS = {
    Kind.ANCHOR: ("#f4b183", "products, attention"),
    Kind.REDUCTION: ("#ffe699", "reductions"),
    Kind.ELEMENTWISE: ("#c5e0b4", "elementwise"),
    Kind.INJECTIVE: ("#bdd7ee", "moves elements"),
    Kind.VIEW: ("#e7e6e6", "views, extents"),
}
ROW, COLUMN, WIDTH, HEIGHT, TITLE = 27, 92, 86, 18, 44


def attention_block(folder: Path) -> Path:
    """Cuts the first attention block out of the model and writes it to a file."""
    with tempfile.TemporaryDirectory() as models:
        model = onnx.load(inflate(MODELS / "dynamic" / "bert.legacy.onnx", Path(models)))
    inputs = {
        HIDDEN: (TensorProto.FLOAT, ["batch", "seq", 64]),
        MASK: (TensorProto.BOOL, ["batch", 1, "seq", "seq"]),
        "input_ids": (TensorProto.INT64, ["batch", "seq"]),  # the exporter reads the extents from these two
        "token_type_ids": (TensorProto.INT64, ["batch", "seq"]),
    }
    inner = {**inputs, RESULT: inputs[HIDDEN]}
    del model.graph.input[:]
    model.graph.value_info.extend(helper.make_tensor_value_info(name, *of) for name, of in inner.items())
    path = folder / "attention.onnx"
    onnx.save(utils.Extractor(model).extract_model(list(inputs), [RESULT]), path)
    return path


def levels(graph: eqsat.Graph) -> list[list[eqsat.Node]]:
    """The nodes by their distance from the result, those that belong together near each other."""
    readers: dict[str, list[eqsat.Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    depth: dict[str, int] = {}
    for node in reversed(graph.nodes):
        depth[node.outputs[0]] = 1 + max(
            (depth[r.outputs[0]] for o in node.outputs for r in readers.get(o, ())), default=-1
        )
    rows: list[list[eqsat.Node]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in graph.nodes:
        rows[depth[node.outputs[0]]].append(node)
    place: dict[str, float] = {}
    for row in rows:
        below = {n.outputs[0]: [place[r.outputs[0]] for o in n.outputs for r in readers.get(o, ())] for n in row}
        row.sort(key=lambda n: sum(below[n.outputs[0]]) / len(below[n.outputs[0]]) if below[n.outputs[0]] else 0.0)
        place.update((node.outputs[0], i - (len(row) - 1) / 2) for i, node in enumerate(row))
    return rows[::-1]


def drawing(graph: eqsat.Graph, title: str, left: float, width: float) -> Iterator[str]:
    """The elements of a picture of one graph, inputs on top."""
    centre: dict[str, tuple[float, float]] = {}
    for y, row in enumerate(levels(graph)):
        for x, node in enumerate(row):
            where = left + width / 2 + (x - (len(row) - 1) / 2) * COLUMN, TITLE + y * ROW
            centre.update((value, where) for value in node.outputs)
    yield f'<text x="{left + width / 2:.0f}" y="20" style="font-size:15px;font-weight:bold">{title}</text>'
    for node in graph.nodes:
        x, y = centre[node.outputs[0]]
        for a, b in sorted({centre[value] for value in node.inputs if value in centre}):
            start, end, bend = b + HEIGHT / 2, y - HEIGHT / 2, (y - b) / 2
            yield f'<path d="M{a:.0f} {start:.0f}C{a:.0f} {b + bend:.0f} {x:.0f} {y - bend:.0f} {x:.0f} {end:.0f}"/>'
    for node in graph.nodes:
        x, y = centre[node.outputs[0]]
        width = max(WIDTH, 6.5 * len(node.op))
        box = f'x="{x - width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{width:.0f}" height="{HEIGHT}"'
        yield f'<rect {box} rx="4" fill="{COLOURS[kind_of(node)][0]}"/><text x="{x:.0f}" y="{y + 4:.0f}">{node.op}</text>'


def legend(left: float, bottom: float) -> Iterator[str]:
    for i, (colour, meaning) in enumerate(reversed(COLOURS.values())):
        y = bottom - 30 - i * 20
        yield f'<rect x="{left:.0f}" y="{y:.0f}" width="14" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 22:.0f}" y="{y + 10:.0f}" style="text-anchor:start">{meaning}</text>'


def picture(before: eqsat.Graph, after: eqsat.Graph) -> str:
    """Both graphs side by side, as SVG."""
    rows = [levels(graph) for graph in (before, after)]
    widths = [max(map(len, each)) * COLUMN + 24 for each in rows]
    widths[1] = max(widths[1], 200)
    height = TITLE + max(map(len, rows)) * ROW
    titles = [f"{name}: {len(graph.nodes)} operators" for name, graph in (("before", before), ("after", after))]
    parts = [*drawing(before, titles[0], 0, widths[0]), *drawing(after, titles[1], widths[0], widths[1])]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sum(widths)} {height}" font-family="sans-serif"'
    parts += legend(widths[0] + 30, height)
    style = "<style>path{fill:none;stroke:#a6a6a6}rect{stroke:#7f7f7f}text{font-size:11px;text-anchor:middle}</style>"
    ground = f'<rect width="{sum(widths)}" height="{height}" fill="white" style="stroke:none"/>'
    return "\n".join([f'{head} width="{sum(widths)}" height="{height}">', style, ground, *parts, "</svg>\n"])


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model = attention_block(Path(scratch))
        before, result = eqsat.load(model), eqsat.optimize(model)
    (folder / "attention.svg").write_text(picture(before, result.program.graph))
    print(result.report)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
