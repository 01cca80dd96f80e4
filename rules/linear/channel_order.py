"""Channels that are looked up in another order in front of a linear operator, as of images that are stored as BGR: the weights
are stored in that order instead, once."""

from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import Equations, named, spelled
from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Operator, defined
from eqsat.ir.traits import ProductAxes
from eqsat.rewrite import Ref, for_each_operator
from eqsat.rules.linear.operators import axes_of, is_linear, is_of_matrices, is_unbiased, slides
from eqsat.rules.terms import int64s
from eqsat.samples import SYMBOLIC, Sampler, fixed


def is_order(i: Ref, x: Ref, axis: int) -> bool:
    """Whether every place along an axis of ``x`` is looked up once."""
    size = i.value.size
    return i.rank == 1 and x.shape[axis] == size and sorted(i.value % size) == list(range(size))


def back(i: Ref) -> list[int]:
    """Where in an order each place is."""
    return np.argsort(i.value % i.value.size).tolist()


def _draw(d: Sampler, op: Operator) -> dict[str, Any]:
    images = slides(op)
    groups = 2 if images and d.chance(0.15) else 1
    attributes = {"group": groups} if groups > 1 else {}
    axes = axes_of(op)(Attributes(attributes))
    channels, outputs, rows = (groups * n for n in d.extents(3))
    whole = channels + d.chance(0.1)  # at times one is left out
    sizes = {axes.inner: channels, axes.outer: outputs}
    sizes[axes.inner if axes.grouped_inside else axes.outer] //= groups
    matrix = [sizes[axis] for axis in sorted(sizes)]
    order = np.array(d.permutation(whole))[:channels] - d.choose((0, 0, whole))
    others = (rows, channels, 4, whole) if images else (whole, channels)  # looked up along another axis
    axis = 1 if d.chance(0.85) else (3 if images else 0)
    x = d.floats(((rows, whole, 4, 5) if images else (rows, whole)) if axis == 1 else others)
    vector = is_of_matrices(op) and is_unbiased(op) and d.chance(0.15)
    w = fixed(d.floats((*matrix, 2, 1) if images else (channels,) if vector else matrix))
    bias = {} if is_unbiased(op) else {"b": fixed(d.floats((outputs,)))}
    symbolic = {SYMBOLIC: d.subset((rows,), 0.3)}
    return {"x": x, "i": fixed(order, "int64"), "w": w, **bias, "g": {"axis": axis}, "l": attributes, **symbolic}


_equation = Equations(__name__, exactness=Exactness.ROUNDING, source="sums in another order")


@for_each_operator(is_linear)
def reorder_weights(key: str) -> None:
    """Weights in another order, instead of what they are multiplied by."""
    op = defined(key)

    def axes(node: Ref) -> ProductAxes:
        return axes_of(op)(node.attributes)

    name = spelled(op.name)
    bias, b = ("", "") if is_unbiased(op) else (", *b", ", b")
    _equation(
        f"reorder_weights_of_{name.lower().replace('.', '_')}",
        f"{name}(Gather(x, i, axis=a, **g), w{bias}, **l) == {name}(x, Gather(w, int64s(back(i)), axis=axes(l).inner){b}, **l)",
        constant("i", "w"),
        "the channels summed over are looked up: a % x.rank == axes(l).data % x.rank",
        "each once: is_order(i, x, a)",
        *(["they are in one group: axes(l).groups == 1"] if slides(op) else []),
        *(["the weights are no vector: w.rank >= 2"] if is_of_matrices(op) else []),
        functions=named(axes, int64s),
        sample=partial(_draw, op=op),
    )
