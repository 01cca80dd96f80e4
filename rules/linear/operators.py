"""Operators that are linear in data and weights, by their traits."""

from collections.abc import Callable

from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.operator import Operator
from eqsat.ir.traits import Product, ProductAxes, whatever


def is_linear(op: Operator) -> bool:
    """Whether it is affine in data, weights and bias, its inputs in this order, and says where the channels lie, whatever its
    attributes are."""
    product = op.traits.product
    if product is None or product.axes is None or product.bias not in (None, 2) or op.traits.holds is not whatever:
        return False
    return (product.data, product.weights) == (0, 1) and {0, 1} <= set(op.traits.affine)


def is_unbiased(op: Operator) -> bool:
    """Whether it is linear and has no bias of its own."""
    return is_linear(op) and product_of(op).bias is None


def has_bias_by_channel(op: Operator) -> bool:
    """Whether its bias is one number for each channel, and it is affine in that, whatever it does with the data."""
    product = op.traits.product
    if product is None or product.axes is None or op.traits.holds is not whatever:
        return False
    by_channel = product.bias in op.traits.vectors and product.bias in op.traits.affine
    return (product.data, product.weights) == (0, 1) and by_channel


def multiplies_integers(op: Operator) -> bool:
    """Whether it is the exact sum of products of integers, each without its zero point."""
    product = op.traits.product
    return op.bit_exact and bool(op.traits.differences) and product is not None and product.axes is not None


def scales_weights(op: Operator) -> bool:
    """Whether its weights have scales of their own, in which it is affine, and a bias that is one number for each channel."""
    return has_bias_by_channel(op) and product_of(op).scales in op.traits.affine


def others(op: Operator) -> range:
    """The inputs between the weights and the bias."""
    return range(2, product_of(op).bias or 2)


def slides(op: Operator) -> bool:
    """Whether it is a convolution."""
    return is_linear(op) and product_of(op).slides


def takes_shifts(op: Operator) -> bool:
    """Whether each element of the result is a sum over all weights of its channel, borders aside."""
    return is_linear(op) and not product_of(op).scatters


def is_of_matrices(op: Operator) -> bool:
    """Whether it takes stacks of matrices, and vectors, of which its traits do not speak."""
    return axes_of(op)(NO_ATTRIBUTES).data < 0


def product_of(op: Operator) -> Product:
    assert op.traits.product is not None
    return op.traits.product


def axes_of(op: Operator) -> Callable[[Attributes], ProductAxes]:
    """Where its channels lie, by its attributes."""
    found = product_of(op).axes
    assert found is not None
    return found
