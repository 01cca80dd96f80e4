"""In which way a Transpose moves elements: ONNX Runtime has loops for most, and takes many times as long for others."""

from collections.abc import Sequence


def way_of(perm: Sequence[int], shape: Sequence[int]) -> str:
    """Whether elements stay in their order, rows of them stay together, a matrix or several are transposed, or none of this."""
    if not perm or len(perm) != len(shape):
        return "last moves"
    long = [p for p in perm if shape[p] > 1]
    if long == sorted(long):
        return "copy"
    if long[-1] == max(long):
        return "rows"
    there = {p: k for k, p in enumerate(sorted(long))}
    breaks = sum(there[q] != there.get(p, -1) + 1 for p, q in zip((-1, *long), long, strict=False))
    return "last moves" if breaks == 2 else "scattered"
