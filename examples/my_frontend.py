"""A front end of one's own: models written as a list of layers, ``[("dense", weights), "relu", ...]``."""

import numpy as np

import eqsat
from eqsat.frontends import register


class Layers:
    """Reads lists of layers."""

    name = "layers"
    takes = ("rows",)

    def accepts(self, source):
        return isinstance(source, list) and all(isinstance(layer, str | tuple) for layer in source)

    def read(self, source, rows="n"):
        b = eqsat.GraphBuilder("layers")
        value = b.input("x", "float32", (rows, len(source[0][1])))  # the first layer is dense
        for number, layer in enumerate(source):
            match layer:
                case ("dense", weights):
                    value = b.op("MatMul", value, b.constant(weights))
                case ("scale", factor):
                    value = b.op("Mul", value, b.constant(np.float32(factor)))
                case "relu":
                    value = b.op("Relu", value)
                case _:
                    raise eqsat.ModelError(f"layer {number}: {layer!r} is neither dense, scale nor relu")
        return b.finish({"y": value})


register(Layers())

rng = np.random.default_rng(0)
model = [
    ("dense", rng.standard_normal((16, 32), np.float32)),
    ("scale", 0.5),
    "relu",
    ("dense", rng.standard_normal((32, 8), np.float32)),
]
result = eqsat.optimize(model, cost="kernels")
print(result.report)
print(result(rng.standard_normal((4, 16), np.float32))["y"].shape)
