"""How batch and heads are grouped: leading axes of scores under other ones, and operands that broadcast beside them.

Exporters put windows and heads into the batch and take them out again. Where the products of the first extents of two such lists
are the same, axes begin and end at one place, whatever the symbols are: what lies between two places has as many elements in one
list as in the other, none included.
"""

from collections.abc import Sequence
from itertools import accumulate

from eqsat.ir.extents import multiply, product
from eqsat.ir.types import Dim, Shape
from eqsat.rewrite import Ref, Term, Unmet
from eqsat.rules.views.extents import repeated, viewed


def batch_and_heads(lead: Sequence[Dim]) -> tuple[Dim, Dim]:
    """Leading extents of the scores as two."""
    return (product(lead[:-1]), lead[-1]) if lead else (1, 1)


def grouped(value: Ref, lead: Sequence[Dim], term: Term | None = None) -> Term:
    """``value`` (..., rows, columns) as (batch, heads, rows, columns), where ``lead`` are the leading extents of the scores.

    ``term``: what to take in its place, of the same shape.
    """
    term = value if term is None else term
    if len(lead) == 2 and value.shape[:-2] == tuple(lead):
        return term
    return viewed(term, value.shape, (*batch_and_heads(lead), *value.shape[-2:]), value)


def result_of(term: Term, root: Ref, lead: Sequence[Dim]) -> Term:
    """The operator's result, regrouped as the original's; ``lead``: the leading extents of the scores."""
    if len(lead) == 2 and root.shape[:-2] == tuple(lead):
        return term
    return viewed(term, (*batch_and_heads(lead), *root.shape[-2:]), root.shape, root)


def is_finer(fine: Sequence[Dim], coarse: Sequence[Dim]) -> bool:
    """Whether some axes of ``coarse`` are several in ``fine``, and all others the same."""
    return _places(coarse).keys() < _places(fine).keys()


def regrouped(term: Term, shape: Shape, source: Sequence[Dim], target: Sequence[Dim], known: Ref) -> tuple[Term, Shape]:
    """An operand of ``shape`` beside a value whose axes before the last two are ``source``, as one beside the same elements with
    ``target`` in their place, and its shape; ``known``: some value of the program.
    """
    if tuple(source) == tuple(target):
        return term, shape
    whole, found = regrouped_shape(shape, source, target)
    if whole != _with_all_axes(shape, source):
        term, shape = repeated(term, shape, whole, known), whole
    return viewed(term, shape, found, known), found


def regrouped_shape(shape: Shape, source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Shape, Shape]:
    """The shape that `regrouped` repeats an operand to, and the one behind: as it was along axes that stay, 1 along others where
    it is 1 along all that they are made of.
    """
    full = _with_all_axes(shape, source)
    if 0 in (*source, *target, *full):
        raise Unmet("an extent is 0")
    before, behind = _places(source), _places(target)
    whole: Shape = ()
    found: Shape = ()
    for elements in before:
        if elements in behind:
            own = full[len(whole) : before[elements]]
            here, there = source[len(whole) : before[elements]], target[len(found) : behind[elements]]
            stays = tuple(here) == tuple(there)
            varies = any(d != 1 for d in own)
            whole += own if stays else tuple(here) if varies else (1,) * len(here)
            found += own if stays else tuple(there) if varies else (1,) * len(there)
    if (len(whole), len(found)) != (len(source), len(target)):
        raise Unmet("scores are grouped by extents of which it is not known that they are as many elements")
    return (*whole, *full[-2:]), (*found, *full[-2:])


def _with_all_axes(shape: Shape, lead: Sequence[Dim]) -> Shape:
    return (1,) * (len(lead) + 2 - len(shape)) + shape


def _places(dims: Sequence[Dim]) -> dict[Dim, int]:
    """How many axes hold as many elements, the most that do."""
    return {elements: i for i, elements in enumerate(accumulate(dims, multiply, initial=1))}
