"""Numbers of windows, counted with a division that rounds towards zero.

PyTorch's exporter computes the extents of what a convolution makes, ``floor((height - 1) / 4) + 1``, with Div, which rounds down
except below zero: of a height of 0 there would be one window in place of none, so that the extents, which are compared by their
text, would differ from those of the convolution itself. But a convolution fails where its window is larger than the image:
heights have a least number. From that on ``x / n == (x + k * n) / n - k``, and what is divided on the right is never negative.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from eqsat.frontends.onnx.versions.steps import Values
from eqsat.ir.extent_arrays import dims_of
from eqsat.ir.extents import add, at_least, evaluate, is_nameless, multiply, substitute, symbols
from eqsat.ir.graph import Node
from eqsat.ir.operator import definition_of
from eqsat.ir.types import Dim, TensorType, Type

LARGEST = 4096
"""Least extents are looked for below this."""

Least = Mapping[str, int]
"""The least number that each of some symbols stands for where the program runs; of others that is 0."""


def least_extents(nodes: Iterable[Node], types: Mapping[str, Type]) -> Least:
    """What the convolutions among ``nodes`` say of symbols: each makes one element of an image at least."""
    made = {d for node in nodes if _slides(node) for d in _places(types.get(node.outputs[0])) if len(symbols(d)) == 1}
    least: dict[str, int] = {}
    for extent in made:
        (symbol,) = symbols(extent)
        fits = (n for n in range(LARGEST) if evaluate(extent, lambda _, n=n: n) > 0)
        least[symbol] = max(next(fits, 0), least.get(symbol, 0))
    return {symbol: n for symbol, n in least.items() if n and not is_nameless(symbol)}


def _slides(node: Node) -> bool:
    definition = definition_of(node)
    product = definition.traits.product if definition is not None else None
    return product is not None and product.slides and not product.scatters


def _places(made: Type | None) -> Iterable[Dim]:
    shape = made.shape if isinstance(made, TensorType) else None
    return shape[2:] if shape else ()


class Counts:
    """What becomes of the divisions of extents in a program that runs from the ``least`` ones on.

    ``undecided``: whether one of them may be of negative extents, for all that is known.
    """

    def __init__(self, least: Least) -> None:
        self.least = least
        self.undecided = False

    def read(self, node: Node, lists: Mapping[str, np.ndarray], values: Values) -> Sequence[Node]:
        """A node, or what stands for it if it is such a division; ``lists``: extents by the value that they are."""
        dividend = lists.get(node.inputs[0]) if node.key == "Div" else None
        dims = None if dividend is None else dims_of(dividend)
        if dividend is None or dims is None or all(at_least(d, 0) for d in dims):
            return [node]
        found = _rounded_down(node, dims, dividend.shape, self.least, values)
        self.undecided |= found is None
        return found or [node]


def _rounded_down(
    node: Node, dims: Sequence[Dim], shape: tuple[int, ...], least: Least, values: Values
) -> Sequence[Node] | None:
    """The nodes that stand for a division of ``dims``, if these are not negative because of ``least``."""
    by = values.constant(node.inputs[1])
    if by is None or by.size != 1 or by.dtype.kind != "i" or by.item() <= 0:
        return None
    n, more = int(by.item()), {s: add(s, number) for s, number in least.items()}
    times = [max(0, -(evaluate(d, lambda _: 0) // n)) for d in dims]
    shifted = [add(d, multiply(n, k)) for d, k in zip(dims, times, strict=True)]
    if not all(at_least(substitute(d, more), 0) for d in dims) or not all(at_least(d, 0) for d in shifted):
        return None
    counts = np.array(times, by.dtype).reshape(shape)
    above, quotient = values.fresh_name("shifted"), values.fresh_name("windows")
    return [
        Node("Add", (node.inputs[0], values.add_constant(counts * n, "shift")), (above,)),
        Node("Div", (above, node.inputs[1]), (quotient,), name=node.name),
        Node("Sub", (quotient, values.add_constant(counts, "shift")), node.outputs),
    ]
