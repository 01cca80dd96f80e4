"""Splits as what is done to all parts of a value sees them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, shared
from eqsat.rules.terms import outputs_of, sizes_of_parts, split


class Cut(NamedTuple):
    """A Split: the value that is cut, extents of the parts, the parts in order, axis counted from the front."""

    value: Ref
    sizes: tuple[int, ...]
    parts: tuple[Ref, ...]
    axis: int

    def parts_of(self, view: GroupView, whole: Term, readers: Sequence[Ref]) -> Iterator[Merge]:
        """``readers``, one of each part, are the parts of ``whole`` cut likewise."""
        yield from ((known, self.result(whole, index)) for known, index in self.results(view, readers))

    def results(self, view: GroupView, readers: Sequence[Ref]) -> Iterator[tuple[Ref, int | None]]:
        """What a whole that is cut into ``readers`` shows: the value that has these parts, cut likewise, and no number; else each
        reader and its number. Were that value not told that it is the whole, there would be no end of values with parts that are
        each other's negatives."""
        known = _values(view).get((self.axis, tuple(reader.handle for reader in readers)))
        yield from ((reader, index) for index, reader in enumerate(readers)) if known is None else ((known, None),)

    def result(self, whole: Term, index: int | None) -> Term:
        """``whole``, or its part with that number."""
        return whole if index is None else split(whole, self.sizes, self.axis).output(index)


@shared
def _values(view: GroupView) -> Mapping[tuple[int, tuple[int, ...]], Ref]:
    """Values by the axis along which they are cut, and their parts."""
    found: dict[tuple[int, tuple[int, ...]], Ref] = {}
    for cut in cuts(view):
        found.setdefault((cut.axis, tuple(part.handle for part in cut.parts)), cut.value)
    return found


@shared
def cuts(view: GroupView) -> Sequence[Cut]:
    """Every Split whose sizes are known and whose parts all exist."""
    found: list[Cut] = []
    for node, inputs in view.nodes("Split"):
        value, sizes = (*inputs, None)[:2]
        if value is None:
            continue
        parts = outputs_of(view, node)
        try:
            extents = sizes_of_parts(node, value, sizes)
            if len(parts) == len(extents) > 1:
                axis = node.attr("axis", 0) % value.rank
                found.append(Cut(value, extents, tuple(parts[i] for i in range(len(parts))), axis))
        except Unmet:
            continue
    return found


@shared
def cuts_of_bytes(view: GroupView) -> Sequence[Cut]:
    """Each Split of a static shape whose parts all exist.

    Of unsigned bytes only: signed ones have an unsigned twin, and attention on floats needs no heads laid out.
    """
    unsigned = (cut for cut in cuts(view) if cut.value.dtype is DType.UINT8)
    return [cut for cut in unsigned if cut.value.type.is_static and not cut.value.is_constant]
