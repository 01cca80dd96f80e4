"""Broadcasting: what an operator broadcasts anyway need not be expanded before."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, operators_with
from eqsat.ir.schema_operator import further_inputs
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply, for_each_operator, shared
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.extents import repeated
from eqsat.rules.views.movement import moves_elements
from eqsat.rules.views.transposes import is_broadcasting, is_elementwise, is_unary

equation = Equations(__name__, source="ONNX multidirectional broadcasting", functions=named(repeated))


def broadcasts_to(operands: Sequence[Sequence[Dim]], result: Sequence[Dim]) -> bool:
    """Whether operands of these shapes give exactly ``result``: on each axis, each extent is that of the result or 1."""
    columns = zip_longest(*(shape[::-1] for shape in (result, *operands)), fillvalue=1)
    alike = all(wanted in given and all(d in (1, wanted) for d in given) for wanted, *given in columns)
    return alike and max(map(len, operands)) == len(result)


def is_repeated(node: Ref, x: Ref) -> bool:
    """Whether ``x`` is repeated along axes of extent 1 only."""
    known = x.type.shape is not None and node.type.shape is not None
    return known and broadcasts_to([x.shape, node.shape], node.shape)


def _has_more_axes(node: Ref, x: Ref) -> bool:
    """Whether a view only adds leading axes to ``x``."""
    known = x.type.shape is not None and node.type.shape is not None
    return known and x.rank < node.rank and node.shape == (1,) * (node.rank - x.rank) + tuple(x.shape)


@shared
def _expanded(view: GroupView) -> Mapping[int, Sequence[Ref]]:
    """Class -> what it repeats along an axis."""
    expanded: dict[int, list[Ref]] = {}
    for is_expanded, repeating in ((is_repeated, ("Expand", "Tile")), (_has_more_axes, ("Reshape", "Unsqueeze"))):
        for node, (x, *_) in (found for op in repeating for found in view.nodes(op)):
            if x is not None and x.handle != node.handle and is_expanded(node, x):
                expanded.setdefault(node.handle, []).append(x)
    return expanded


def _expanded_operands(view: GroupView, ops: Sequence[str]) -> Iterator[Match]:
    """Each of the operators with an expanded operand, and its operands with ``x`` in place of that."""
    expanded = _expanded(view)
    for op in ops if expanded else ():
        for node, inputs in view.nodes(op):
            for i, operand in enumerate(inputs):
                for x in expanded.get(operand.handle, ()) if operand is not None else ():
                    operands = tuple(x if j == i else p for j, p in enumerate(inputs) if p is not None)
                    yield Match({"x": x, "expanded": operand, "operands": operands, "op": op}, node)


def _again(m: Match) -> Term:
    return Apply(m.op, m.operands, m.root.attributes)


@equation.over_groups(
    find=lambda view: _expanded_operands(view, operators_with(is_broadcasting)),
    where=["the result keeps its shape: broadcasts_to([p.shape for p in operands], root.shape)"],
    forms=[
        *("Expand(x, s) + y", "y - Tile(x, s)", "Where(c, Expand(x, s), y)"),
        *("Reshape(x, s) * y", "Unsqueeze(x, s) < y"),
    ],
)
def remove_expand_before_elementwise(m: Match) -> Term:
    """``f(Expand(x), y) == f(x, y)`` for a broadcasting ``f`` whose result keeps its shape; likewise for a Tile that repeats only
    axes of extent 1, and for a view that only adds leading axes."""
    return _again(m)


@equation.over_groups(
    find=partial(_expanded_operands, ops=("MatMul",)),
    where=[
        "only batch axes were expanded: x.rank >= 2 and x.shape[-2:] == expanded.shape[-2:]",
        "of no vectors: all(p.rank >= 2 for p in operands)",
        "the result keeps its batch axes: broadcasts_to([p.shape[:-2] for p in operands], root.shape[:-2])",
    ],
    exactness=Exactness.ROUNDING,
    forms=["Expand(x, s) @ y", "x @ Expand(y, s)", "x @ Unsqueeze(y, s)"],
)
def remove_expand_before_matmul(m: Match) -> Term:
    """``Expand(x) @ y == x @ y`` where only batch axes were expanded and the result keeps its shape."""
    return _again(m)


def _users_of_expanded(view: GroupView) -> Iterator[Match]:
    """Each elementwise operator that reads an Expand, with ``x`` in its place, and its other operands."""
    known = {node.handle for node, (x, _) in view.nodes("Expand") if x is not None and x.is_constant}
    for expand, (x, shape) in view.nodes("Expand"):
        if x is None or x.handle == expand.handle or (x.is_constant and x.type.size != 1):
            continue
        for op, node, inputs in view.users(expand):
            # Factors that undo one another but for rounding make ever new numbers.
            if x.is_constant and node.handle in known:
                continue
            # Where the operator changes nothing, its result is the Expand: that would sink again and again, without end.
            if op in operators_with(is_elementwise) and node.handle != expand.handle:
                operands = tuple(x if i is not None and i.handle == expand.handle else i for i in inputs)
                others = [i for i in inputs if i is None or i.handle != expand.handle]
                bound = {"x": x, "shape": shape, "expand": expand, "op": op, "operands": operands, "others": others}
                yield Match(bound, node)


@equation.over_groups(
    find=_users_of_expanded,
    where=[
        worthwhile("one operand is expanded: None not in others and len(others) == len(operands) - 1"),
        worthwhile("the others are numbers: all(o.is_constant and o.shape == () for o in others)"),
        worthwhile("the result keeps the expanded shape: root.shape == expand.shape"),
    ],
    forms=[
        "Relu(Expand(x, s))",
        *(form(text, constant("c")) for text in ("Expand(x, s) * c", "c - Expand(x, s)")),
    ],
)
def sink_expand_behind_elementwise(m: Match) -> Term:
    """``f(Expand(x), c) == Expand(f(x, c))`` for a number ``c``."""
    return apply("Expand", Apply(m.op, m.operands, m.root.attributes), m.shape)


def _reshapes(op: Operator) -> bool:
    return is_view(op) and moves_elements(op)


@for_each_operator(_reshapes)
def _of_number(op: str) -> None:
    """Masks of ones have axes added."""
    equation(
        f"expand_number_to_shape_of_{op.lower()}",
        f"{op}(Expand(c, s){further_inputs(op)}, **a) == repeated(c, (), root.shape, root)",
        constant("c"),
        "a number: c.shape == ()",
    )


def _functions_expanded(view: GroupView) -> Iterator[Match]:
    """Functions of each element of one value that are expanded alike."""
    expanded = by_class((y, (node, shape)) for node, (y, shape) in complete_nodes(view, "Expand") if not y.is_constant)
    found: dict[tuple[int, int], list[Match]] = {}
    for op in operators_with(is_unary) if len(expanded) > 1 else ():
        for f, (x, *numbers) in view.nodes(op):
            if x is None:
                continue
            for node, shape in expanded.get(f.handle, ()):
                match = Match({"op": op, "f": f, "x": x, "numbers": tuple(numbers), "shape": shape}, node)
                found.setdefault((x.handle, shape.handle), []).append(match)
    for alike in found.values():
        if len({m.root.handle for m in alike}) > 1:
            yield from alike


@equation.over_groups(
    find=_functions_expanded,
    forms=["Expand(Relu(x), s) + Expand(Neg(x), s)", "Expand(Clip(x, *a, *b), s) * Expand(Abs(x), s)"],
)
def expand_before_functions(m: Match) -> Term:
    """``Expand(f(x)) == f(Expand(x))`` where another function of ``x`` is expanded, too."""
    return Apply(m.op, (apply("Expand", m.x, m.shape), *m.numbers), m.f.attributes)
