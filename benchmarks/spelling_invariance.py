"""How many spellings of a block each optimiser recognises: ours, ONNX Runtime's, onnxscript's and onnxsim.

    python -m benchmarks.spelling_invariance [--variants 40] [--first-seed 0] [--blocks attention,norm] [--symbols]
        [--dtype float16|bfloat16] [--ours-only]

One table: block by optimiser, recognised / variants. What counts is the same for all, read off the operators that are left:

- attention: one fused attention operator, of any domain, and no softmax beside it
- norm: one (skip) layer normalisation, and no reduction
- activation: one Gelu operator, of any name, without Erf or Tanh; for SiLU a Sigmoid or one operator, without Exp or Tanh
- QKV: a single matrix product
- conv-BN: a single convolution, with nothing beside it but the activation
- QDQ: no rounding or clipping outside a quantise operator

Fused operators are searched in the file that the optimiser writes. The variants are written at an opset that the fusions of
all of them know. For ours three stricter columns follow: no more kernels than the plain spelling needs; the same operators up
to names that cost the same (`ALIKE`: of two that tie, the one in the file stays); and the very same operators. Seeds that no
rule was mended for (`--first-seed`) say how far recognition generalises.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import eqsat
from benchmarks.spelling_blocks import BLOCKS, Types, variant
from eqsat.backends.onnx_file import to_model
from eqsat.ir.graph import Graph

Counts = Mapping[str, int]
ATTENTION = ("Attention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "SDPA")
GELU = ("Gelu", "FastGelu", "BiasGelu", "FusedGelu")
SILU = ("Swish", "Silu", "QuickGelu", "Sigmoid")
NORM = ("LayerNormalization", "SkipLayerNormalization")
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "TransposeMatMul")
CONVOLUTIONS = ("Conv", "FusedConv", "NhwcFusedConv", "NhwcConv")
BESIDE_CONVOLUTION = ("BatchNormalization", "Mul", "Add", "Sub", "Div", "Pad", "Transpose")


def _sum(counts: Counts, *names: str) -> int:
    return sum(counts.get(name, 0) for name in names)


def _activation(counts: Counts, kind: int) -> bool:
    if _sum(counts, "Erf", "Tanh", "Exp"):
        return False
    return _sum(counts, *(SILU if kind == 2 else GELU)) == 1


FOUND: dict[str, Callable[[Counts, int], bool]] = {
    "attention": lambda c, _: _sum(c, *ATTENTION) == 1 and not _sum(c, "Softmax", "Exp"),
    "norm": lambda c, _: _sum(c, *NORM) == 1 and not _sum(c, "ReduceMean", "ReduceSum"),
    "activation": _activation,
    "QKV": lambda c, _: _sum(c, *PRODUCTS) == 1,
    "conv-BN": lambda c, _: _sum(c, *CONVOLUTIONS) == 1 and not _sum(c, *BESIDE_CONVOLUTION),
    "QDQ": lambda c, _: not _sum(c, "Round", "Clip", "Min", "Max"),
}
"""Block -> whether it is recognised, from the operators (without their domains) and the kind of the block."""


ALIKE: Mapping[str, tuple[str, ...]] = {
    "Clip": ("Relu",),
    "Max": ("Relu",),
    "Sub": ("Add",),
    "Div": ("Mul",),
    "Cast": ("DequantizeLinear",),
    "Gemm": ("MatMul", "Add"),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Identity"), ()),
}
"""Operator -> what computes the same at the same price: a sum and the difference with a negated constant, no launch at all."""


def _alike(counts: Counts) -> Counts:
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found.update(dict.fromkeys(ALIKE.get(name, (name,)), count))
    return found


def _counted(model: Any) -> Counts:
    return Counter(node.op_type for node in model.graph.node)


# --- the optimisers ------------------------------------------------------------------------------------------------------


def _onnxruntime(level: str) -> Callable[[Any], Counts]:
    def optimise(model: Any) -> Counts:
        import onnx
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "optimised.onnx")
            options.optimized_model_filepath = path
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return _counted(onnx.load(path))

    return optimise


def _onnxscript(model: Any) -> Counts:
    optimizer, rewriter = (import_module(f"onnxscript.{name}") for name in ("optimizer", "rewriter"))
    return _counted(rewriter.rewrite(optimizer.optimize(model)))


def _onnxscript_for_onnxruntime(model: Any) -> Counts:
    import onnx_ir

    found = import_module("onnxscript.rewriter.ort_fusions").optimize_for_ort(onnx_ir.from_proto(model))
    return _counted(onnx_ir.to_proto(found[0] if isinstance(found, tuple) else found))


def _onnxsim(model: Any) -> Counts:
    import onnxsim  # pyright: ignore[reportMissingImports]  # optional

    return _counted(onnxsim.simplify(model)[0])


PEERS: dict[str, Callable[[Any], Counts]] = {
    "ONNX Runtime basic": _onnxruntime("BASIC"),
    "extended": _onnxruntime("EXTENDED"),
    "all": _onnxruntime("ALL"),
    "onnxscript": _onnxscript,
    "onnxscript for ONNX Runtime": _onnxscript_for_onnxruntime,
    "onnxsim": _onnxsim,
}


class Tally:
    """What was found in the variants of one block."""

    def __init__(self, block: str, types: Types) -> None:
        self.block, self._types = block, types
        self.found: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.missing: set[str] = set()
        self.misses: list[str] = []
        self._plain: dict[int, Any] = {}

    def add(self, seed: int, *, peers: bool) -> None:
        """Optimises one variant with everything."""
        kind = seed % BLOCKS[self.block][1]
        plain, graph = variant(self.block, seed, self._types)
        self._add_ours(seed, kind, plain, graph)
        for name, optimise in PEERS.items() if peers else ():
            try:
                self.found[name] += FOUND[self.block](optimise(to_model(graph)), kind)
            except ImportError:
                self.missing.add(name)
            except Exception:  # an optimiser that fails has not recognised anything
                self.failed[name] += 1

    def _add_ours(self, seed: int, kind: int, plain: Graph, graph: Graph) -> None:
        if kind not in self._plain:
            self._plain[kind] = eqsat.optimize(plain, verify=False, form="flat")
        best, result = self._plain[kind], eqsat.optimize(graph, verify=False, form="flat")
        counts = Counter(node.op for node in result.program.graph.nodes)
        recognised = FOUND[self.block](counts, kind)
        lean = result.report.kernels_after <= best.report.kernels_after
        self.found["ours"] += recognised
        self.found["no more kernels"] += lean
        ours, plain_ones = (r.program.graph.operator_counts() for r in (result, best))
        self.found["alike"] += _alike(ours) == _alike(plain_ones)
        self.found["same operators"] += ours == plain_ones
        if not recognised or not lean:
            more = result.report.kernels_after - best.report.kernels_after
            self.misses.append(f"{self.block} {seed}: {'' if recognised else 'not recognised, '}{more:+d} kernels")

    def cell(self, column: str, variants: int) -> str:
        if column in self.missing:
            return "not installed"
        failed = f" ({self.failed[column]} failed)" if self.failed[column] else ""
        return f"{self.found[column]} / {variants}{failed}"


def main() -> None:
    """Prints the table and our misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=40, help="of each block")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--blocks", default=",".join(BLOCKS))
    parser.add_argument("--symbols", action="store_true", help="batch and rows by symbols")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--ours-only", action="store_true")
    options = parser.parse_args()
    columns = ["ours", "no more kernels", "alike", "same operators", *([] if options.ours_only else PEERS)]
    print(f"| block | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    misses: list[str] = []
    for block in options.blocks.split(","):
        tally = Tally(block, Types(options.dtype, options.symbols))
        for seed in range(options.first_seed, options.first_seed + options.variants):
            tally.add(seed, peers=not options.ours_only)
        print(f"| {block} | {' | '.join(tally.cell(c, options.variants) for c in columns)} |", flush=True)
        misses += tally.misses
    print("\nOur misses:", *(misses or ["none"]), sep="\n- ")


if __name__ == "__main__":
    main()
