"""Front ends: anything that is a model -> `Graph`.

A front end is an object with three facts: what it is called and the options it takes, whether it reads an object, and how
(`Frontend`). What it returns is a `Graph`, usually from a `eqsat.GraphBuilder`, or a model of ONNX, which is read in its place.
`register` makes it known; from then on everything that takes a model, `eqsat.optimize` too, takes what it accepts.

>>> import eqsat
>>> from eqsat.frontends import load, register, unregister
>>> class Chains:
...     name = "chains"
...     takes = ("width",)
...
...     def accepts(self, source):
...         return isinstance(source, list) and all(isinstance(op, str) for op in source)
...
...     def read(self, source, width=4):
...         b = eqsat.GraphBuilder("chain")
...         value = b.input("x", "float32", ("n", width))
...         for op in source:
...             value = b.op(op, value)
...         return b.finish({"y": value})
>>> chains = register(Chains())
>>> load(["Relu", "Neg", "Neg"]).operator_counts()
{'Neg': 2, 'Relu': 1}
>>> eqsat.optimize(["Relu", "Neg", "Neg"], verify=False).report.operators_after
{'Relu': 1}
>>> unregister("chains")

Front ends that come later are asked first. Shipped are `eqsat.Graph` itself, ONNX (paths, ``onnx.ModelProto``,
``onnx_ir.Model``), objects of PyTorch by way of their export, and modules of TVM Relax. A graph is checked where it is built:
operators against their shape rules, names against each other. A front end raises `ModelError` for what it cannot read, naming
the place, and keeps what it does not understand as opaque nodes (`GraphBuilder.opaque`) where it can.
"""

from eqsat.frontends.registry import Frontend, frontends, load, register, resolve, unregister

__all__ = ["Frontend", "frontends", "load", "register", "resolve", "unregister"]
