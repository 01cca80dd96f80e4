"""Why what a program still computes step by step is no structure: what rules found in the saturated e-graph, and which of their
conditions failed there."""

import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.group_view import EGraphView, Inputs
from eqsat.egraph.nearest import NearestMiss, conditions_held
from eqsat.ir.operator import traits_of
from eqsat.ir.types import TensorType
from eqsat.rewrite import AnyRule, GroupRule, GroupView, Match, Ref, Rule, Unmet, Variable, terms_of

T = TypeVar("T")

NORM, INTEGERS = "norm", "product on integers"
"""What rules with a pattern say that their left side is (`eqsat.rewrite.Rule.structure`)."""

_DEPTH = 6
"""Operators between a softmax and the product that reads what it gives, at most."""


class Recorder(EGraphView):
    """A view of the e-graph that remembers which e-nodes were handed out, and where a finder gave up."""

    def __init__(self, egraph: EGraph) -> None:
        super().__init__(egraph)
        self.classes: set[int] = set()
        self.operators: dict[str, int] = {}
        self.misses: dict[int, str] = {}

    def nodes(self, op: str) -> Iterator[tuple[Ref, Inputs]]:
        self.operators.setdefault(op, 0)
        for ref, inputs in super().nodes(op):
            self.operators[op] += 1
            self.classes.add(ref.handle)
            yield ref, inputs

    def missed(self, ref: Ref, reason: Unmet) -> None:
        self.misses[ref.handle] = str(reason)


def attempts(rule: GroupRule, view: GroupView) -> Iterator[tuple[Match, int, str]]:
    """What a group rule finds, how many of its conditions held, and in words why that is no match: empty where it is one.

    Raises `Unmet` where the finder can go no further.
    """
    assert rule.find is not None
    for match in rule.find(view):
        held, reason = conditions_held(rule, match)
        if not reason:
            try:
                rule.build(match)
            except Unmet as unmet:
                reason = str(unmet)
        yield match, held, reason


def why_unfused(
    egraph: EGraph,
    rules: Sequence[AnyRule],
    chosen: Collection[int],
    writable: Callable[[int], bool],
    in_vain: Sequence[AnyRule] = (),
) -> dict[str, dict[str, int]]:
    """Structure -> why what is left of one in the program is none -> how many of them. ``chosen``: e-nodes of the program,
    ``writable``: whether the file may have the operator of an e-node, ``in_vain``: rules that gained nothing in a part of the
    model, which the e-graph does without.

    A softmax is what is left of attention, a root of a norm, and a product that reads dequantised values of one on integers.
    """
    left = [h for h in sorted(chosen) if not egraph.is_constant(h)]
    products = [
        h for h in left if any(egraph.has_operator(cls, "DequantizeLinear") for cls in _factors(egraph, h).values())
    ]
    softmaxes = [h for h in left if egraph.nodes[h].key == "Softmax"]
    found = {
        "attention": _why_no_attention(egraph, rules, softmaxes, lambda cls: _why_left(egraph, cls, writable, in_vain)),
        NORM: _conditions_failed(egraph, rules, NORM, [h for h in left if egraph.nodes[h].key == "Sqrt"]),
        INTEGERS: [*_conditions_failed(egraph, rules, INTEGERS, products), *_half_quantised(egraph, products)],
    }
    counts = {structure: dict(Counter(reasons)) for structure, reasons in found.items()}
    return {structure: reasons for structure, reasons in counts.items() if reasons}


def _why_no_attention(
    egraph: EGraph, rules: Sequence[AnyRule], softmaxes: Sequence[int], why_left: Callable[[int], str]
) -> list[str]:
    structures = [r for r in rules if isinstance(r, GroupRule) and r.structure == "attention" and r.find is not None]
    if not softmaxes or not structures:
        return []
    told: dict[int, str] = {}
    for rule in structures:
        told |= _reasons(egraph, rule, why_left)
    return [reason for handle in softmaxes if (reason := _reason_of(egraph, handle, told))]


class _Types:
    """E-classes by their types alone: equal reasons of several layers are one."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph

    def describe(self, handle: int) -> str:
        return str(self._egraph.full_type_of(handle))

    def operators(self, handle: int) -> str:
        return self._egraph.nodes[self._egraph.members(handle)[0]].key

    def facts(self, ref: Ref | None) -> str:
        """Nothing of single numbers."""
        return "" if ref is None or ref.type.size == 1 else self.describe(ref.handle)


def _conditions_failed(
    egraph: EGraph, rules: Sequence[AnyRule], structure: str, handles: Sequence[int]
) -> Iterator[str]:
    """Where the left side of a rule for the structure is there with one of ``handles`` in it: the condition that fails."""
    named = [r for r in rules if isinstance(r, Rule) and r.structure == structure] if handles else []
    variables = {term.name for rule in named for term in terms_of(rule.pattern) if isinstance(term, Variable)}
    search = NearestMiss(egraph, _Types(egraph))
    for handle in handles if named else ():
        miss = max((search.at(rule, handle) for rule in named), key=lambda m: m.rank)
        if miss.outcome == "condition":
            values = ", ".join(f"{name} {text}" for name, text in miss.values.items() if text and name in variables)
            yield f"{miss.reason.removeprefix('condition ')} ({values})"


def _half_quantised(egraph: EGraph, products: Sequence[int]) -> Iterator[str]:
    """Of products with one operand that is dequantised: which one is not."""
    for handle in products:
        key = egraph.nodes[handle].key
        missing = [
            (what, cls)
            for what, cls in _factors(egraph, handle).items()
            if not egraph.has_operator(cls, "DequantizeLinear")
        ]
        yield from (f"{what} {egraph.full_type_of(cls)} of {key} are not quantised" for what, cls in missing)


def _factors(egraph: EGraph, handle: int) -> dict[str, int]:
    product = traits_of(egraph.nodes[handle].key).product
    children = egraph.canonical_children(handle)
    return {} if product is None else {"data": children[product.data], "weights": children[product.weights]}


def _looks_up(egraph: EGraph, handle: int, cls: int) -> bool:
    """Whether a class is no more to an operator than places: of experts, which a router chooses."""
    indices = traits_of(egraph.nodes[handle].key).indices
    return bool(indices) and all(i in indices for i, c in enumerate(egraph.canonical_children(handle)) if c == cls)


def _has_constant_factor(egraph: EGraph, handle: int) -> bool:
    return any(map(egraph.is_constant, _factors(egraph, handle).values()))


def _why_left(egraph: EGraph, cls: int, writable: Callable[[int], bool], in_vain: Sequence[AnyRule]) -> str:
    """Why the program does not have the attention that a class has, what moves it, or what that is moved from: as rows a
    runtime may have an operator."""
    places, fused = [egraph.find(cls)], list[int]()
    for place in places:
        fused += (h for h in egraph.members(place) if traits_of(egraph.nodes[h].key).structure == "attention")
        ends = {
            (egraph.find(egraph.canonical_children(h)[0]), egraph.find(h))
            for h in (*egraph.uses(place), *egraph.members(place))
            if traits_of(egraph.nodes[h].key).sources == (0,)
        }
        places += sorted({end for pair in ends if place in pair for end in pair}.difference(places))
    if not fused or any(map(writable, fused)):
        return "it was found, and its steps cost less"
    if any(_makes_runtimes_attention(egraph, rule) for rule in in_vain):
        return "it was found, and in a part of the model its steps cost less (--all-rules)"
    listed = " or ".join(sorted({egraph.nodes[h].key for h in fused}))
    return f"it was found, but at its opset, or for its reader, the file may not have {listed} of these types (--opset, --for)"


def _makes_runtimes_attention(egraph: EGraph, rule: AnyRule) -> bool:
    """Whether a rule looks for attention to make an operator of a runtime of it."""
    if not rule.domain or not isinstance(rule, GroupRule) or rule.find is None:
        return False
    recorder = Recorder(egraph)
    with suppress(Unmet):
        deque(rule.find(recorder), maxlen=0)
    return any(traits_of(op).structure == "attention" for op in recorder.operators)


def _reasons(egraph: EGraph, rule: GroupRule, why_left: Callable[[int], str]) -> dict[int, str]:
    """Why a rule does not hold where it found something, by class; of several matches there the last condition that failed.
    ``why_left``: why what it makes is not in the program."""
    recorder = Recorder(egraph)
    best: dict[int, tuple[int, str]] = {}
    try:
        for match, held, reason in attempts(rule, recorder):
            place = egraph.find(match.root.handle)
            reason = reason + _about(egraph, match) if reason else why_left(place)
            best[place] = max(best.get(place, (-1, "")), (held, reason))
    except Unmet as unmet:
        recorder.misses[-1] = str(unmet)
    return recorder.misses | {place: reason for place, (_, reason) in best.items()}


def _about(egraph: EGraph, match: Match) -> str:
    """The values that a match is about, and what helps where their extents are not known to be equal."""
    types = {name: egraph.full_type_of(ref.handle) for name, ref in match.refs().items()}
    known = {name: t for name, t in types.items() if isinstance(t, TensorType)}
    if not known:
        return ""
    computed = [d for t in known.values() for d in t.shape or () if isinstance(d, str) and "(" in d]
    advice = _advice(egraph, frozenset(re.findall(r"[?\w.]+", " ".join(computed)))) if computed else ""
    return f" ({', '.join(f'{name} {type}' for name, type in known.items())}){advice}"


def _advice(egraph: EGraph, concerned: frozenset[str]) -> str:
    """Which extents of the inputs may be one, though they have several names; example and all, of those ``concerned`` if there
    are any. Or, where the model computes extents that nothing is known of, which to make numbers."""
    types = {str(egraph.nodes[h].attributes["name"]): egraph.full_type_of(h) for h in egraph.inputs()}
    shapes = {name: t.shape for name, t in types.items() if isinstance(t, TensorType) and t.shape}
    own = dict.fromkeys(d for shape in shapes.values() for d in shape if isinstance(d, str))
    if any(d.startswith("?") and d not in own for d in concerned):
        numbers = " ".join(f"--dim {d}=N" for d in own if d in concerned)
        unknown = "; extents that the model computes (?) are not known: numbers for its inputs may help"
        return f"{unknown} ({numbers})" if numbers else ""
    pairs = [
        (a, b)
        for first, second in itertools.combinations(shapes.values(), 2)
        for a, b in zip(first, second, strict=False)
        if isinstance(a, str) and isinstance(b, str) and a != b
    ]
    chosen = [pair for pair in pairs if concerned.issuperset(pair)] or pairs[:1]
    example = " ".join(
        f"--dim {a}=n{k or ''},{b}=n{k or ''}" if "." in b else f"--dim {b}={a}"
        for k, (a, b) in enumerate(dict.fromkeys(chosen))
    )
    listed = ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())
    return f"; say which extents of the inputs are equal ({listed}), for example {example}" if example else ""


def _reason_of(egraph: EGraph, softmax: int, told: Mapping[int, str]) -> str:
    """What was said of the nearest value that is made of a softmax; else what the first product of it is about. Empty where
    there is none, or none but with constants: probabilities that a classifier ends with are no attention, nor are those whose
    mean is taken of numbers, as detectors find distances."""
    level, seen = [egraph.find(softmax)], {egraph.find(softmax)}
    readers: dict[str, int] = {}
    for _ in range(_DEPTH):
        found = [c for c in level if c in told]
        if found:
            fixed = any(_has_constant_factor(egraph, h) for c in found for h in egraph.members(c))
            return "" if fixed else told[found[0]]
        users = [(u, egraph.find(u)) for cls in level for u in egraph.uses(cls) if not _looks_up(egraph, u, cls)]
        for user, _ in users:
            readers.setdefault(egraph.nodes[user].key, user)
        level = [c for u, c in users if c not in seen and (c in told or traits_of(egraph.nodes[u].key).product is None)]
        seen.update(level)
    if "MatMul" not in readers:
        products = any(
            traits_of(key).product is not None and not _has_constant_factor(egraph, h) for key, h in readers.items()
        )
        return f"no product with values reads the softmax: only {', '.join(sorted(readers))}" if products else ""
    product = egraph.ref(readers["MatMul"])
    operands = map(egraph.ref, egraph.canonical_children(readers["MatMul"]))  # of that spelling, not of the oldest one
    names: dict[str, Ref] = dict(zip(("probabilities", "values"), operands, strict=True))
    direct = ", ".join(sorted({egraph.nodes[u].key for u in egraph.uses(egraph.find(softmax))}))
    return f"queries and keys were not found above the softmax, which {direct} reads{_about(egraph, Match(names, product))}"
