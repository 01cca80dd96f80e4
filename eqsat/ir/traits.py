"""What is true of an operator whatever its operands are: the facts that rules, bounds, verification and costs ask for.

A fact stands once, where the operator is defined (``define(..., traits=Traits(...))``), and whoever asks about operators of a
kind asks for the trait (`eqsat.ir.operator.traits_of`, `operators_with`) and so learns of new operators by itself. Nothing is
assumed of an operator that states nothing. ``tests/ir/test_traits.py`` evaluates each stated trait on random operands.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from eqsat.ir.graph import Attributes

VARIADIC = sys.maxsize
"""As a number of inputs: any number."""

EVERY = range(VARIADIC)
"""As positions of inputs: all of them."""

Holds = Callable[[Attributes], bool]


def whatever(attributes: Attributes) -> bool:
    """With any attributes."""
    return True


class Rows(Enum):
    """Which elements a normalisation takes together."""

    ALONG = "along"  # those along the attribute ``axis``
    FROM = "from"  # those of all axes from the attribute ``axis`` on


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """Where the channels of a product lie.

    ``data``: the axis of the data over which is summed. ``inner``, ``outer``: the axes of the weights over which is summed, and
    along which the channels of the result lie, ``result`` in the result. With ``groups`` the channels of data and result fall
    into as many runs, each of which has to do with its own weights only: the weights have an axis of all channels, and behind
    it one as long as a run; ``outer`` is the former if ``grouped_inside``, else ``inner`` is.
    """

    data: int
    inner: int
    outer: int
    result: int
    groups: int = 1
    grouped_inside: bool = True


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of elements of two inputs: a matrix product, or a convolution if ``slides``, with windows of the result,
    not of the data, if ``scatters``.

    ``data``, ``weights``, ``bias``: which inputs these are; the bias is added to every position of a channel. ``axes``: where the
    channels lie, by the attributes, for operands that are no vectors. An operator that is such a sum and nothing more is affine
    in each of them (`Traits.affine`); others quantise the result or apply a function.

    ``columns``: further inputs that hold something for each channel of the result, along that axis, and have to do with this
    channel only; ``scales``: that of them by which weights are multiplied. ``counted``: the attribute that says how many channels
    there are. ``packed``: the weights hold several elements in a byte along what is summed over, and kernels read all that is
    constant when they are loaded.
    """

    data: int = 0
    weights: int = 1
    bias: int | None = None
    slides: bool = False
    scatters: bool = False
    axes: Callable[[Attributes], ProductAxes] | None = None
    columns: Mapping[int, int] = field(default_factory=dict[int, int])
    scales: int | None = None
    counted: str = ""
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about an operator, each false or empty unless stated. Inputs are named by position.

    What an element is computed from:

    - ``operands``: so many leading inputs (`VARIADIC`: all) are broadcast against each other, and an element of the result
      follows from their elements at its own index; further inputs are single numbers. 0: it is not so.
    - ``vectors``: inputs that hold one number, or one for each slice of one axis (attribute ``axis`` or the channels).
    - ``spatial``: an element follows from elements of the same batch and channel (axes 0 and 1) of the first input.
    - ``reduces``: over the axes that input 1 names, all without it; ``keepdims`` keeps them with extent 1.
    - ``folds``: a reduction that is one loop over what it reduces, and nothing after it. ``repeats``: the operator that makes of
      any number of values what the reduction makes of their elements; of a single element it makes that.
    - ``rows``: a normalisation: which elements depend on each other.
    - ``product``: a sum of products.

    What the elements are:

    - ``sources``: an element of the (first) result is an element of one of these inputs, or zero if ``or_zero``.
    - ``moves``: and which one, shapes, attributes and the other inputs say, not the elements: it commutes with every function
      of elements (that keeps zero if ``or_zero``). ``permutes``: each element of the first input occurs exactly once.
    - ``converts``: an element is that of the first input at its index, in another element type.
    - ``widens``: the result may have more bytes than all operands.
    - ``whole``: whole numbers. ``keeps_whole``: whole numbers if those of all operands are.
    - ``exact``: floats that need no rounding (see `unrounded`).
    - ``bounds``: no element that is a number lies outside. ``truth``: results are truth values.

    Laws of the function, ``f(x)`` in the first input with the others fixed:

    - ``orders``: truth of an order of two operands, which does not change if both grow by the same number.
    - ``rising``: never falls. ``value``: the rising function itself, of one without attributes.
    - ``continuous``: where it is finite, a small change of the operands is a small change of the result.
    - ``homogeneous``: ``f(s * x) == s * f(x)`` for every positive number ``s``.
    - ``idempotent``: ``f(f(x)) == f(x)``.
    - ``neutral``: of two operands, the second that leaves the first as it is.
    - ``affine``: inputs in each of which it is affine, the others fixed.
    - ``differences``: of two inputs, integers and their zero point, only the difference counts.
    - ``zero_if_absent``: optional inputs that are zeros where they are absent.

    What the inputs are for: ``counts`` (sizes, axes, bounds, numbers of repetitions), ``extents`` (the one that lists the extents
    of the result), ``indices`` (what to look up along the attribute ``axis`` or ``batch_dims`` of the first input), ``truths``
    (truth values), ``lengths`` (of the sequences, less one), ``divisors`` (none of them 0, where they are integers).
    ``quantises``: real numbers are rounded to integers. ``structure``: what reports call it.

    All of this only where ``holds`` of the attributes.
    """

    operands: int = 0
    vectors: Sequence[int] = ()
    spatial: bool = False
    reduces: bool = False
    folds: bool = False
    repeats: str = ""
    rows: Rows | None = None
    product: Product | None = None

    sources: Sequence[int] = ()
    or_zero: bool = False
    moves: bool = False
    converts: bool = False
    permutes: bool = False
    widens: bool = False
    whole: bool = False
    keeps_whole: bool = False
    exact: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    truth: bool = False
    orders: bool = False

    rising: bool = False
    value: Callable[[float], float] | None = None
    continuous: bool = False
    homogeneous: bool = False
    idempotent: bool = False
    neutral: Any = None
    affine: Sequence[int] = ()
    differences: Sequence[tuple[int, int]] = ()
    zero_if_absent: Sequence[int] = ()

    counts: Sequence[int] = ()
    extents: int | None = None
    indices: Sequence[int] = ()
    truths: Sequence[int] = ()
    lengths: Sequence[int] = ()
    divisors: Sequence[int] = ()
    quantises: bool = False
    structure: str = ""
    holds: Holds = whatever

    @property
    def unrounded(self) -> bool:
        """Whether float results need no rounding: they are elements of operands, whole, or exact otherwise."""
        return self.exact or self.whole or bool(self.sources)

    @property
    def clamps(self) -> bool:
        """Whether the other operands bound the first: it is taken, or else one of them."""
        return self.idempotent and self.rising and not self.moves and len(self.sources) > 1


NO_TRAITS = Traits()


def moving(*sources: int, **traits: Any) -> Traits:
    """Traits of an operator whose results are copies of elements of ``sources``, the first input unless given."""
    return Traits(sources=sources or (0,), moves=True, **traits)
