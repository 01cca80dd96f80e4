"""Extents that are known by symbols: lists of them, read from the shapes of the program's inputs, and views that they describe.

Exporters compute a shape from whatever value is at hand, five times in every layer. Two lists are the same if their extents are
equal (`eqsat.ir.extents`), so each is spelled once, in terms of what the program is given: then equal lists are one value, and
what computed them from elsewhere is dead.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from eqsat.conditions import worthwhile
from eqsat.equations import group_rule
from eqsat.ir import extents
from eqsat.ir.normal_form import Dim
from eqsat.ir.operator import Operator, having, operators_with, traits_of
from eqsat.ir.types import TensorType
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, Unmet, apply
from eqsat.rules.terms import add, int64s, mul, reshape
from eqsat.samples import Drawing, Instance, Sampler, fixed

Block = tuple[Sequence[int], Sequence[int]]


@lru_cache(maxsize=10_000)
def blocks(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[Block, ...] | None:
    """Axes of a value and of a view of it, in the smallest blocks that hold the same elements; ``None`` where symbolic extents do
    not tell which axes go together."""
    found: list[Block] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first = i, j
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while (here := extents.product(source[first[0] : i])) != (there := extents.product(target[first[1] : j])):
            if i < len(source) and extents.quotient(there, here) is not None:
                i += 1
            elif j < len(target) and extents.quotient(here, there) is not None:
                j += 1
            elif isinstance(here, int) and isinstance(there, int) and (i < len(source) or j < len(target)):
                i, j = (i + 1, j) if here < there else (i, j + 1)
            else:
                return None
        found.append((range(first[0], i), range(first[1], j)))
    return tuple(found)


def listed(dims: Sequence[Dim], known: Ref, more: Sequence[Ref] = ()) -> Term:
    """A vector of extents, as numbers and as extents of the inputs of the program that ``known`` is a value of, and of ``more``.

    Raises `Unmet` for an extent that the inputs do not have.
    """
    parts: list[Term] = []
    left = list(dims)
    while left:
        numbers = next((i for i, d in enumerate(left) if not isinstance(d, int)), len(left))
        if numbers:
            parts.append(int64s(d for d in left[:numbers] if isinstance(d, int)))
            left = left[numbers:]
            continue
        run, part = _longest_run(left, known, more)
        parts.append(_computed(left[0], known) if part is None else part)
        left = left[max(run, 1) :]
    return parts[0] if len(parts) == 1 else apply("Concat", *parts, axis=0)


def _longest_run(dims: Sequence[Dim], known: Ref, more: Sequence[Ref] = ()) -> tuple[int, Apply | None]:
    """How many of the first extents some input, or one of ``more``, has side by side, and these."""
    best, found = 0, None
    for value in (*_inputs(known), *more):
        run, start = _run_of(dims, value)
        if run > best:
            best, found = run, apply("Shape", value, start=start, end=start + run)
    return best, found


def _inputs(known: Ref) -> list[Ref]:
    """The inputs of the program that ``known`` is a value of."""
    return [Ref(handle, known.values) for handle in known.values.inputs()]


def _run_of(dims: Sequence[Dim], value: Ref) -> tuple[int, int]:
    """How many of the first extents a value has side by side, and from which axis on."""
    shape = _shape_of(value)
    longest, first = 0, 0
    for start in [i for i, extent in enumerate(shape) if extent in dims[:1]]:
        pairs = zip(shape[start:], dims, strict=False)
        run = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        if run > longest:
            longest, first = run, start
    return longest, first


def _shape_of(value: Ref) -> tuple[Dim, ...]:
    found = value.values.full_type_of(value.handle)
    return (found.shape or ()) if isinstance(found, TensorType) else ()


def _computed(dim: Dim, known: Ref) -> Term:
    """A vector of one extent that no input has, by the symbols that it is made of."""
    total: Term | None = None
    for number, factors in extents.terms(dim):
        part: Term | None = None if number != 1 and factors else int64s((number,))
        for factor in factors:
            found = _factor(factor, known)
            part = found if part is None and number == 1 else mul(int64s((number,)) if part is None else part, found)
        assert part is not None
        total = part if total is None else add(total, part)
    if total is None:
        return int64s((0,))
    return total


_COMPUTED = {"floordiv": "Div", "max": "Max", "min": "Min"}
"""Functions of extents as operators on integers. Div rounds towards 0, which is down: extents are not negative."""


def _factor(factor: str, known: Ref) -> Term:
    """A vector of one extent: one of an input, or a function of such."""
    _, found = _longest_run([factor], known)
    if found is not None:
        return found
    function, operands = extents.function_of(factor) or ("", ())
    if function not in _COMPUTED or not all(extents.at_least(d, 0) for d in operands):
        raise Unmet(f"no input has the extent {factor}")
    return apply(_COMPUTED[function], *(int64s((d,)) if isinstance(d, int) else _computed(d, known) for d in operands))


def viewed(term: Term, shape: Sequence[Dim], target: Sequence[Dim], known: Ref) -> Term:
    """``term``, which has ``shape``, under another shape with as many elements; ``known``: some value of the program.

    With a constant target where one says it: 0 copies the extent of the same axis, a single -1 takes what is left. Not both, for
    where a copied extent is 0 nothing tells what is left; then axes of 1 are added or dropped, or the extents are listed.
    """
    if tuple(target) == tuple(shape):
        return term
    copied = [0 if not isinstance(d, int) and i < len(shape) and shape[i] == d else d for i, d in enumerate(target)]
    open_axes = [i for i, d in enumerate(copied) if not isinstance(d, int)]
    if any(d == 0 for d in (*target, *shape)):
        raise Unmet("an extent is 0")
    if not open_axes:
        return reshape(term, (d for d in copied if isinstance(d, int)))
    if len(open_axes) == 1 and all(isinstance(d, int) for i, d in enumerate(target) if i not in open_axes):
        return reshape(term, (d if isinstance(d, int) else -1 for d in target))
    for op, few, many in (("Unsqueeze", shape, target), ("Squeeze", target, shape)):
        axes = _ones_between(few, many)
        if axes is not None:
            return apply(op, term, int64s(axes))
    without = [d for d in shape if d != 1]
    if without == [d for d in target if d != 1]:
        dropped, added = (int64s(i for i, d in enumerate(dims) if d == 1) for dims in (shape, target))
        return apply("Unsqueeze", apply("Squeeze", term, dropped), added)
    return apply("Reshape", term, listed(target, known), allowzero=1)


def repeated(term: Term, shape: Sequence[Dim], target: Sequence[Dim], known: Ref) -> Term:
    """``term``, which has ``shape``, repeated along the axes where that is 1 and ``target`` is not; ``known`` as in `viewed`.

    The other extents are listed as 1, which is known, and where only leading axes stay they are not listed.
    """
    if tuple(shape) == tuple(target):
        return term
    added = len(target) - len(shape)
    wanted = [d if d != g else 1 for d, g in zip(target, (1,) * added + tuple(shape), strict=True)]
    kept = 0 if added else next(i for i, d in enumerate(wanted) if d != 1)
    return apply("Expand", term, listed(wanted[kept:], known))


def expanded(x: Ref, like: Ref) -> Term:
    """``x`` in the shape that broadcasting gives."""
    return repeated(x, x.shape, like.shape, x)


def _ones_between(few: Sequence[Dim], many: Sequence[Dim]) -> list[int] | None:
    """The axes of ``many`` that are 1 and not in ``few``, which has all others."""
    axes: list[int] = []
    for i, d in enumerate(many):
        at = i - len(axes)
        if at >= len(few) or few[at] != d:
            if d != 1:
                return None
            axes.append(i)
    return axes if len(many) - len(axes) == len(few) else None


def _draw_list(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, columns, depth = d.extents(3, ones=0)
    if d.chance(0.3):  # what windows leave
        image = drawing.value(d.floats((1, 1, rows, columns)), {rows, columns})
        y = drawing.op("MaxPool", image, kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1, pads=(0, 0, 1, 1))
        whole = drawing.op("Shape", y, start=2)
    elif d.chance(0.3):  # what rows have that are looked up
        at = drawing.value(d.integers((rows, columns), "int64", 0, 3), {rows, columns})
        near = drawing.op("Gather", fixed(d.floats((4, depth, *d.choose(((), (2,)))))), at)
        known = drawing.op("Shape", drawing.op("Relu", near), start=d.integer(0, 1), end=2)
        whole = drawing.op("Concat", known, [depth if d.chance(0.8) else 1], axis=0)
    else:
        y = drawing.op("Relu", drawing.value(d.floats((rows, columns, depth)), {rows, columns}))
        extent = drawing.op("Gather", drawing.op("Shape", y), [d.integer(0, 2)])
        if d.chance():
            start = d.integer(1, 2)
            other = drawing.op("Shape", y, start=start, end=start + 1)
            extent = drawing.op(d.choose(("Mul", "Add")), extent, other)
        whole = drawing.op("Concat", [2], extent, axis=0)
    return drawing.finish(whole, drawing.op("Expand", drawing.value(d.floats((1,))), whole))


def _takes_windows(op: Operator) -> bool:
    return op.traits.spatial or (op.traits.product is not None and op.traits.product.slides)


def _lists(view: GroupView) -> Sequence[Ref]:
    """What tells an operator extents, each value once."""
    read = (
        inputs[i]
        for op in operators_with(having("counts"))
        for _, inputs in view.nodes(op)
        for i in traits_of(op).counts
        if i < len(inputs)
    )
    return tuple({x.handle: x for x in read if x is not None}.values())


_NEAR = 2
"""Operators between an input and a value that is at hand before anything else is computed."""


def _near(view: GroupView, inputs: Sequence[Ref]) -> list[Ref]:
    """Values that a few operators on their way make of inputs of the program, and of constants."""
    found = {x.handle: x for x in inputs}
    level = inputs
    for _ in range(_NEAR):
        users = [user for x in level for user in view.users(x)]
        level = [
            node
            for _, node, operands in users
            if node.handle not in found
            and len(_shape_of(node)) > 1
            and all(y is None or y.is_constant or y.handle in found for y in operands)
        ]
        found |= {x.handle: x for x in level}
    return list(found.values())[len(inputs) :]


def _lists_that_are_read(view: GroupView) -> Iterator[Match]:
    """What tells an operator extents, by the inputs alone, and by other values that have what no input has: windows leave
    extents, and a value at hand may have all of a list side by side, as rows have that are looked up."""
    lists = [(x, _several(x)) for x in _lists(view)]
    windows = tuple(node for op in operators_with(_takes_windows) for node, _ in view.nodes(op))
    near = _near(view, _inputs(lists[0][0])) if any(dims for _, dims in lists) else []
    for x, dims in lists:
        yield Match({"x": x, "more": ()}, x)
        if windows and any("(" in d for d in dims if isinstance(d, str)):
            yield Match({"x": x, "more": windows}, x)
        if _longest_run(dims, x)[0] < len(dims):
            yield from (Match({"x": x, "more": (y,)}, x) for y in near if _run_of(dims, y)[0] == len(dims))


def _several(x: Ref) -> Sequence[Dim]:
    """A list of extents of which some are symbols; none where they are not known, or it is one."""
    try:
        dims = x.dims if x.rank == 1 and not x.is_constant else ()
    except Unmet:
        return ()
    return dims if any(isinstance(d, str) for d in dims) else ()


@group_rule(
    find=_lists_that_are_read,
    where=[
        worthwhile("not a constant: not x.is_constant"),
        "a list of integers, or one: x.dtype is int64 and x.rank < 2",
        worthwhile("a list, or an extent by a symbol: x.rank == 1 or not isinstance(x.dims[0], int)"),
    ],
    source="ONNX Shape",
    sample=_draw_list,
)
def read_extents_from_inputs(m: Match) -> Term:
    """``a list of extents == Concat(numbers, Shape(input, start, end), ...)`` where what reads it is told extents by it.

    Extents that windows leave of those of the inputs may be read where they are, too, and all of a list where one value has them.
    """
    term = listed(m.x.dims, m.x, m.more)
    return term if m.x.rank else apply("Squeeze", term)
