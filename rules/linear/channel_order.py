"""Channels that are looked up in another order in front of a linear operator, as of images that are stored as BGR: the weights
are stored in that order instead, once."""

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import Equations, named, spelled
from eqsat.exactness import Exactness
from eqsat.ir.operator import defined
from eqsat.ir.traits import ProductAxes
from eqsat.rewrite import Ref, for_each_operator
from eqsat.rules.linear.operators import axes_of, is_linear, is_of_matrices, is_unbiased, slides
from eqsat.rules.terms import int64s


def is_order(i: Ref, x: Ref, axis: int) -> bool:
    """Whether every place along an axis of ``x`` is looked up once."""
    size = i.value.size
    return i.rank == 1 and x.shape[axis] == size and sorted(i.value % size) == list(range(size))


def back(i: Ref) -> list[int]:
    """Where in an order each place is."""
    return np.argsort(i.value % i.value.size).tolist()


_ORDER = "i = [*d.permutation(C)] | [n - C for n in d.permutation(C)] | [0] * C;"
_MATRICES = f"{_ORDER} x: [N, C] | [C, C] | [N, C + 1]; w: [C, M] | [C]; b: [M] | [1]; g.axis = 1 | 0"
_IMAGES = f"C = 4 | 6; {_ORDER} x: [N, C, 5, C]; w: [C, C, 2, 1] | [C, C // 2, 2, 1]; l.group = 1 | 2; g.axis = 1 | 3"
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
        drawn=_IMAGES if slides(op) else _MATRICES,
    )
