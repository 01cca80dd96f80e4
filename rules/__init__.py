"""The shipped rules, in rooms: each package says what its equations have in common. Importing this one finds and registers all.

| room | subject |
|---|---|
| `algebra` | what holds of numbers: neutral elements, chains of constants, bounds, choices, reductions |
| `views` | what only moves elements: reshapes, transposes, slices, concatenations |
| `linear` | scales, shifts and borders through operators that are linear in their input |
| `quantised` | quantisation, and the operators that run on integers because of it |
| `attention` | attention and rotary positions, read back from what exporters spell out |
| `recognise` | activations and norms read back, and spelled out where a target has no kernel |
| `recurrence` | loops over sequences as recurrent operators |
| `parallel` | products and convolutions of one input side by side |
| `onnxruntime` | the fused operators that ONNX Runtime has kernels for |
"""

if __name__ != "eqsat.rules":
    raise ImportError("import this package as eqsat.rules")

from importlib import import_module
from pkgutil import walk_packages

for _found in sorted(module.name for module in walk_packages(__path__, "eqsat.rules.")):
    import_module(_found)
