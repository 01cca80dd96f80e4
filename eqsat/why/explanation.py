"""`explain`: optimises a model and says which rules fired where, what the result owes them, and why others did not fire."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding
from eqsat.egraph.nearest import Miss, NearestMiss
from eqsat.egraph.unfused import Recorder, attempts
from eqsat.errors import OptionError
from eqsat.exactness import Exactness
from eqsat.growth import Progress
from eqsat.options import AllOptions, takes_options
from eqsat.pipeline import optimize
from eqsat.result import Result
from eqsat.rewrite import AnyRule, GroupRule, Unmet, find_rule
from eqsat.why.places import Places

_NEAREST = 5
"""Misses that an explanation lists where the user named no rule."""

_SHOWN = 3
"""Places of one rule that the text lists when there are several rules; the JSON has all."""


@dataclass(frozen=True)
class Firing:
    """A rule joined two spellings: ``place`` is the value's name in the original (or how it is computed there), ``found`` what
    the rule saw, ``added`` what it declared equal."""

    rule: str
    place: str
    found: str
    added: str


@dataclass(frozen=True)
class RuleUse:
    """What one rule did: where it fired, and the nodes of the result whose equality to the original rests on it."""

    rule: str
    equation: str
    exactness: str
    firings: tuple[Firing, ...]
    result: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """``uses``: rules that fired (all, or those asked about). ``near``: the node asked about; ``misses``: rules that did not
    fire there, nearest first, or with outcome ``holds`` those that did."""

    model: str
    stop_reason: str
    uses: tuple[RuleUse, ...]
    near: str = ""
    misses: tuple[Miss, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        fired = sum(len(use.firings) for use in self.uses)
        lines = [f"{self.model}: {len(self.uses)} rules fired at {fired} places; stop reason {self.stop_reason}"]
        for use in self.uses:
            lines.append(f"{use.rule}  [{use.exactness}]  {use.equation}")
            shown = use.firings if len(self.uses) == 1 else use.firings[:_SHOWN]
            lines += [f"    at {f.place}: {f.found} == {f.added}" for f in shown]
            if len(use.firings) > len(shown):
                lines.append(f"    and at {len(use.firings) - len(shown)} more places (--rule {use.rule} lists all)")
            made = (
                f"{len(use.result)} nodes rely on it: {', '.join(use.result[:_SHOWN])}"
                if use.result
                else "not relied on"
            )
            lines.append(f"    in the result: {made}{', ...' if len(use.result) > _SHOWN else ''}")
        if self.near or self.misses:
            lines.append(f"near {self.near}:" if self.near else "nowhere, nearest:")
            lines += ["  " + line for miss in self.misses for line in str(miss).split("\n")]
        return "\n".join(lines)


@takes_options(AllOptions)
def explain(
    source: Any, *, rule: str = "", near: str = "", progress: Progress | None = None, **options: Unpack[AllOptions]
) -> Explanation:
    """Optimises ``source`` without verification and explains what the rules did.

    ``rule``: explain this one only; where it fired nowhere, its nearest misses. ``near``: name of a node or value; rules that
    did not fire there are listed by how near they came (all but the nearest five are left out unless ``rule`` is given).
    Raises `OptionError` for a rule, node or value that does not exist.
    """
    options["verify"], options["keep_egraph"] = False, True
    result = optimize(source, progress=progress, **options)
    assert result.encoding is not None
    chosen = _chosen(result, rule)
    encoding = result.encoding
    places = Places(encoding)
    handle = places.find(near) if near else None
    fired = _firings(encoding, places, chosen)
    if handle is not None:
        cls = encoding.egraph.find(handle)
        fired = {name: [f for c, f in found if c == cls] for name, found in fired.items()}
        uses = _uses(chosen, fired, result)
        misses = _near(chosen, encoding, places, handle, {u.rule for u in uses})
        misses = misses if rule else [m for m in misses if m.matched][:_NEAREST]
        return Explanation(result.report.model, result.report.stop_reason, uses, near, tuple(misses))
    uses = _uses(chosen, {name: [f for _, f in found] for name, found in fired.items()}, result)
    misses = _anywhere(chosen[0], encoding, places) if rule and not uses else []
    return Explanation(result.report.model, result.report.stop_reason, uses, "", tuple(misses))


def _chosen(result: Result, name: str) -> Sequence[AnyRule]:
    if not name:
        return result.rules
    found = [r for r in result.rules if r.name == name]
    if found:
        return found
    raise OptionError(f"rule {name!r} took no part: it {_why_unused(find_rule(name), result)}")


def _why_unused(rule: AnyRule, result: Result) -> str:
    if rule.exactness > Exactness.parse(result.report.numerics):
        return f"is of class {rule.exactness.label} (--numerics)"
    if rule.legalizes:
        return f"spells out {rule.legalizes}, for targets that have no kernel for it (--target)"
    if rule.domain:
        return f"introduces operators of domain {rule.domain} (--target, --form)"
    if rule.outside:
        return f"is for programs without operators of domain {rule.outside} (--form flat)"
    return "was left out (--disable-rule, --only-rules, --for)"


def _firings(encoding: Encoding, places: Places, chosen: Sequence[AnyRule]) -> dict[str, list[tuple[int, Firing]]]:
    egraph = encoding.egraph
    found: dict[str, list[tuple[int, Firing]]] = {r.name: [] for r in chosen}
    for union in egraph.unions:
        if union.rule in found:
            cls = egraph.find(union.left)
            place = places.describe(cls)
            firing = Firing(union.rule, place, places.spell(union.left), places.spell(union.right))
            found[union.rule].append((cls, firing))
    return found


def _uses(chosen: Sequence[AnyRule], fired: Mapping[str, Sequence[Firing]], result: Result) -> tuple[RuleUse, ...]:
    owed: dict[str, list[str]] = {}
    for kernel in result.program.kernels:
        for name in kernel.rules:
            owed.setdefault(name, []).append(f"{kernel.name} ({kernel.template})")
    return tuple(
        RuleUse(r.name, r.equation, r.exactness.label, tuple(fired[r.name]), tuple(owed.get(r.name, ())))
        for r in chosen
        if fired[r.name]
    )


def _near(chosen: Sequence[AnyRule], encoding: Encoding, places: Places, handle: int, fired: set[str]) -> list[Miss]:
    search = NearestMiss(encoding.egraph, places)
    misses = [
        group_at(r, encoding.egraph, places, handle) if isinstance(r, GroupRule) else search.at(r, handle)
        for r in chosen
        if r.name not in fired
    ]
    return sorted(misses, key=lambda m: m.rank, reverse=True)


def _anywhere(rule: AnyRule, encoding: Encoding, places: Places) -> list[Miss]:
    """The nearest misses of a rule over all nodes of the model."""
    handles = dict.fromkeys(map(encoding.egraph.find, encoding.node_handles))
    misses = [miss for handle in handles for miss in _near([rule], encoding, places, handle, set())]
    distinct = {(m.place, m.reason): m for m in misses}
    return sorted(distinct.values(), key=lambda m: m.rank, reverse=True)[:_NEAREST]


# --- group rules -----------------------------------------------------------------------------------------------------


def group_at(rule: GroupRule, egraph: EGraph, places: Places, handle: int) -> Miss:
    """Whether a group rule offers a merge for the e-class of ``handle`` in the saturated e-graph; if not, what is known: the
    condition that failed, of matches whose value it is or that it has a part in."""
    cls = egraph.find(handle)
    recorder = Recorder(egraph)
    place = places.describe(cls)
    if rule.find is None:
        return _built_at(rule, egraph, places, cls, recorder)
    near: list[Miss] = []
    stopped = ""
    try:
        for match, _, reason in attempts(rule, recorder):
            root = egraph.find(match.root.handle)
            if root == cls and not reason:
                return Miss(rule.name, place, "holds", 1, 1, "")
            refs = match.refs()
            if reason and (root == cls or any(egraph.find(ref.handle) == cls for ref in refs.values())):
                values = {name: places.facts(ref) for name, ref in refs.items()}
                where = place if root == cls else places.describe(root)
                near.append(Miss(rule.name, where, "condition", 1, 1, f"condition {reason}", values, int(root == cls)))
    except Unmet as reason:
        stopped = f"; it went no further where {reason}"
    if near:
        return max(near, key=lambda miss: miss.rank)
    if (told := recorder.misses.get(cls)) is not None:
        return Miss(rule.name, place, "condition", 1, 1, told)
    return _nothing_at(rule, places, cls, recorder, f"found nothing to judge there{stopped}", stopped)


def _built_at(rule: GroupRule, egraph: EGraph, places: Places, cls: int, recorder: Recorder) -> Miss:
    """The same for a rule that is one function, which finds and builds at once."""
    place = places.describe(cls)
    offered = 0
    missed: Counter[str] = Counter()
    for ref, _ in rule.merges(recorder, lambda reason: missed.update([str(reason)])):
        offered += 1
        if egraph.find(ref.handle) == cls:
            return Miss(rule.name, place, "holds", 1, 1, "")
    stopped = "".join(f"; {count} x unmet: {reason}" for reason, count in missed.items())
    return _nothing_at(rule, places, cls, recorder, f"offered {offered} merges, none of them here{stopped}", stopped)


def _nothing_at(rule: GroupRule, places: Places, cls: int, recorder: Recorder, did: str, stopped: str) -> Miss:
    """That the rule did not look at an e-class, or what it ``did`` there that came to nothing."""
    place = places.describe(cls)
    looked = ", ".join(f"{count} {op}" for op, count in recorder.operators.items()) or "no operator"
    if cls in recorder.classes:
        return Miss(rule.name, place, "condition", 1, 1, f"it looked at the node (among {looked}) and {did}")
    reason = f"{place} ({places.operators(cls)}) is none of the nodes it looks at ({looked}){stopped}"
    return Miss(rule.name, place, "pattern", 0, 1, reason)
