"""Applying rules: conditions and right sides, evaluated on the host for the matches that egglog found."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from eqsat.egraph.changes import Shown
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.engine import Pending
from eqsat.egraph.enode import Pairs
from eqsat.egraph.group_view import EGraphView, Look
from eqsat.egraph.patterns import ABSENT_INPUT, Query, constructor_name, is_commutative
from eqsat.egraph.premises import Leaves, premises_of
from eqsat.egraph.respelling import Respelling
from eqsat.errors import FailedRuleError, RuleError
from eqsat.exactness import Exactness
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.types import DType, TensorType, may_differ
from eqsat.rewrite import NOT_ESTABLISHED, PROJECTION, AnyRule, Apply, GroupRule, Match, Ref, Rule, Term, Unmet

TYPE_NOT_KNOWN = "an element type is not known"
"""Why a right side is not merged of which nothing says that it is of the left side's type."""

EXTENT_MAY_DIFFER = "an extent may differ: a symbol may be 1"
"""Why a right side is not merged whose type is that of the left side for some values of the symbols at most."""

CONSTANTS_OVERFLOW = "constants overflow on the way to the value"
"""Why a right side is not merged that rounds in another way, and may overflow elsewhere."""

ONLY_CONSTANTS_DIFFER = "but for its constants the value is spelled like that already"
"""Why a right side is not merged that differs from a spelling of the left side by rounding at most."""


class _Whole:
    """What a right side is, or is an output of: added once, and its leaves collected once, however many outputs are merged."""

    def __init__(self, egraph: EGraph, term: Term, rule: str) -> None:
        self._egraph = egraph
        self._term = term
        self.handle = egraph.add_term(term, rule)

    def output(self, term: Term) -> Apply:
        """The output that ``term`` is, of the operator that is there by now."""
        assert isinstance(term, Apply)
        return replace(term, args=(Ref(self.handle, self._egraph),))

    @cached_property
    def leaves(self) -> Leaves:
        return Leaves(self._egraph, self._term)


class RuleApplier:
    """Applies matches to an e-graph, each distinct match once."""

    def __init__(self, egraph: EGraph, *, literals: bool = False) -> None:
        self._egraph = egraph
        self._literals = literals
        self._seen: defaultdict[tuple[str, tuple[str, ...]], set[tuple[object, ...]]] = defaultdict(set)
        self._joined: set[tuple[str | int, ...]] = set()
        """The `_ends` of matches at which rules held."""
        self._found: dict[str, set[Hashable]] = {}
        self.reasons: dict[tuple[str, str], int] = {}
        self.work = {"offered": 0, "tried": 0, "built": 0}
        """Matches that egglog found, those whose conditions were evaluated, and right sides built, those of group rules too."""
        self._waiting: dict[int, list[tuple[Rule, Query, tuple[int, ...]]]] = {}
        self._heard = 0
        self._view = EGraphView(egraph)
        self._shown: dict[str, Shown] = {}
        self._lively: set[str] = set()

    def apply(self, rule: Rule, query: Query, row: tuple[int, ...], *, again: bool = False) -> bool:
        """Whether the rule held at this match and told the e-graph something new. ``again``: if it was tried before, too."""
        self.work["offered"] += 1
        egraph = self._egraph
        find = egraph.find
        bound = [find(row[column]) for _, column in query.bindings]
        if ABSENT_INPUT in bound:
            return False  # the query in which that variable is absent matches, too
        nodes = [(find(row[column]), row[attributes]) for _, column, attributes in query.nodes]
        root = find(row[query.root_column])
        if self._needs_none(root):
            return False
        seen = self._seen[rule.name, query.absent]
        key = (root, *bound, *nodes)
        if key in seen and not again:
            return False
        seen.add(key)
        bindings: dict[str, Ref | None] = dict.fromkeys(query.absent)
        for (name, _), handle in zip(query.bindings, bound, strict=True):
            bindings[name] = Ref(handle, egraph)
        for (name, _, _), (handle, number) in zip(query.nodes, nodes, strict=True):
            bindings[name] = Ref(handle, egraph, egraph.attributes_by_number(number))
        try:
            return self._rewrite(rule, Match(bindings, Ref(root, egraph), rule.attributes), query, row)
        except Exception as error:
            raise FailedRuleError(rule.name, error) from error

    def leave_out(self, pending: Pending) -> None:
        """Takes out of what is loaded for patterns the e-nodes that tell them nothing.

        A literal may have thousands, as the zeros have with which norms start, and there are patterns that match pairs of them.
        """
        for constructor, rows in list(pending.nodes.items()):
            pending.nodes[constructor] = [row for row in rows if not self._tells_nothing(row[0], row[2:])]
            if not pending.nodes[constructor]:
                del pending.nodes[constructor]

    def _tells_nothing(self, handle: int, children: Sequence[int]) -> bool:
        """Whether an e-node is computed, and in an e-class that needs no patterns, or zero without any conversion."""
        if not children or self._literals:
            return False
        egraph, cls = self._egraph, self._egraph.find(handle)
        value = egraph.known.small_value(cls)
        if value is None or self._needs_none(cls):
            return value is not None
        dtype = egraph.full_type_of(handle).dtype
        alike = all(c and egraph.full_type_of(c).dtype is dtype for c in children)
        return alike and not value.any()

    def _needs_none(self, root: int) -> bool:
        """Whether an e-class is a literal of which no other spelling tells anything: what is equal to it is the same literal.
        Only what it was converted from, from another element type, is not to be seen in it.

        Where literals are to be spelled, too, those are left at which overflow and underflow end. They have ever more spellings:
        ``Exp(100) * Exp(60)``, ``Exp(160) * Exp(60)``, ...
        """
        value = self._egraph.known.small_value(root)
        if value is None:
            return False
        if not self._literals:
            return root not in self._egraph.known.converted
        if not DType.of(value.dtype).is_float:
            return False
        wide = value.astype(np.float64)
        return not np.any(np.isfinite(wide) & (wide != 0))

    def _rewrite(self, rule: Rule, match: Match, query: Query, row: tuple[int, ...]) -> bool:
        egraph = self._egraph
        ends = self._ends(rule, match)
        if ends in self._joined:
            return False
        self.work["tried"] += 1
        before = len(egraph.nodes)
        try:
            match.check(rule.conditions)
            term = rule.build(match)
        except NOT_ESTABLISHED as reason:
            _count(self.reasons, rule.name, reason)
            for value in match.refs().values():
                if self._may_be_told(value.handle):
                    self._waiting.setdefault(value.handle, []).append((rule, query, row))
            return False
        if term is None:
            return False
        self.work["built"] += 1
        if self._overflows(rule, match.root.handle):
            return False
        rounds = rule.exactness is Exactness.ROUNDING
        if rounds and Respelling(egraph, rule.name).says_nothing_new(match.root.handle, term):
            _count(self.reasons, rule.name, Unmet(ONLY_CONSTANTS_DIFFER))
            return False
        handle = egraph.add_term(term, rule.name)
        known = egraph.find(handle) == egraph.find(match.root.handle)
        if not known and not self._may_merge(rule.name, match.root.handle, handle):
            return False
        if ends:
            self._joined.add(ends)
        if known:
            return len(egraph.nodes) > before
        left, premises = self._matched(query, row, match.root.handle)
        return egraph.union(left, handle, rule.name, premises) or len(egraph.nodes) > before

    def _ends(self, rule: Rule, match: Match) -> tuple[str | int, ...]:
        """The rule, the root and the ends of a match; nothing for a rule that names no ends."""
        if not rule.ends:
            return ()
        return (rule.name, *[self._egraph.find(x.handle) for x in (match.root, *map(match.__getitem__, rule.ends))])

    def _overflows(self, rule: AnyRule, root: int) -> bool:
        """Whether constants overflow on the way to a value: what rounds in another way does so elsewhere, or not at all."""
        found = rule.exactness is not Exactness.EXACT and self._egraph.find(root) in self._egraph.known.overflown
        if found:
            _count(self.reasons, rule.name, Unmet(CONSTANTS_OVERFLOW))
        return found

    def _may_be_told(self, handle: int) -> bool:
        """Whether a value is no constant, but has few elements, of which rules ask once it turns out to be one."""
        size = self._egraph.full_type_of(handle).size
        return size is not None and size <= VALUE_SIZE_LIMIT and not self._egraph.is_constant(handle)

    def apply_again(self) -> list[Rule]:
        """Tries once more what did not hold at matches with values that have turned out to be constant since; the rules that then
        told the e-graph something new."""
        told, found = self._egraph.changes.constants, list[Rule]()
        while self._heard < len(told):
            members = list(self._egraph.members(told[self._heard]))
            self._heard += 1
            for rule, query, row in (each for member in members for each in self._waiting.pop(member, ())):
                if self.apply(rule, query, row, again=True):
                    found.append(rule)
        return found

    def _matched(self, query: Query, row: tuple[int, ...], root: int) -> tuple[int, Pairs]:
        """The e-node that matched the root of the pattern, and what must be equal for the whole pattern to match it: each
        child of a matched e-node, and the e-node matched in its class or the handle bound to the variable."""
        egraph = self._egraph
        found: list[int] = []
        order: list[int] = []
        for spot in query.enodes:
            number = row[spot.attributes] if spot.attributes >= 0 else -1 - spot.attributes
            children = [ABSENT_INPUT if c is None else row[c] for c in spot.children]
            parts = (spot.op, spot.domain, number, spot.outputs)
            handle, step = egraph.enode_of(*parts, children), 1
            if handle is None and is_commutative(constructor_name(spot.op, spot.domain, len(children), spot.outputs)):
                handle, step = egraph.enode_of(*parts, children[::-1]), -1
            if handle is None:
                return root, ()
            found.append(handle)
            order.append(step)
        premises: list[tuple[int, int]] = []
        for handle, step, spot in zip(found, order, query.enodes, strict=True):
            targets = [
                ABSENT_INPUT if c is None else found[i] if i is not None else egraph.find(row[c])
                for c, i in zip(spot.children, spot.inner, strict=True)
            ]
            own = egraph.nodes[handle].children
            premises.extend((a, b) for a, b in zip(own, targets[::step], strict=True) if a != b)
        return found[query.root], tuple(premises)

    def apply_groups(self, rules: Sequence[GroupRule], matches: dict[str, int]) -> bool:
        """Applies group rules to the e-graph as it is now; counts what was news by rule, and says whether anything was.

        Rules for which nothing that they looked at has changed are left out. Those that had news the last time come first, alone:
        often they lead on from there, and the others then look at the e-graph once, not at each step.
        """
        shown, since = self._shown, self._egraph.changes.since
        stale = [rule for rule in rules if rule.name not in shown or since(shown[rule.name])]
        lively = [rule for rule in stale if rule.name in self._lively]
        return (bool(lively) and self._apply_stale(lively, matches)) or self._apply_stale(stale, matches)

    def _apply_stale(self, rules: Sequence[GroupRule], matches: dict[str, int]) -> bool:
        self._lively.clear()
        view = self._view
        view.refresh()
        looks = {rule.name: Look(view, rule.conditions, partial(_count, self.reasons, rule.name)) for rule in rules}
        found: list[tuple[GroupRule, Ref, Term, Look]] = []
        for rule, look in zip(rules, looks.values(), strict=True):
            missed, seen = partial(_count, self.reasons, rule.name), self._found.setdefault(rule.name, set())
            try:
                found += [(rule, ref, term, look) for ref, term in rule.merges(look, missed, seen)]
            except Exception as error:
                raise FailedRuleError(rule.name, error) from error
        self.work["built"] += len(found)
        self._shown.update((name, look.showed) for name, look in looks.items())
        changed = False
        wholes: dict[int, _Whole] = {}
        for rule, ref, term, look in found:
            try:
                if not self._merged(rule, ref, term, look, wholes):
                    continue
            except Exception as error:
                raise FailedRuleError(rule.name, error) from error
            matches[rule.name] += 1
            self._lively.add(rule.name)
            changed = True
        return changed

    def _merged(self, rule: GroupRule, ref: Ref, term: Term, look: Look, wholes: dict[int, _Whole]) -> bool:
        """Whether a value was not known to be what a group rule says. ``wholes``: what terms are outputs of, by identity."""
        egraph = self._egraph
        if self._overflows(rule, ref.handle):
            return False
        of = term.args[0] if isinstance(term, Apply) and term.op == PROJECTION else term
        whole = wholes.get(id(of))
        if whole is None:
            whole = wholes[id(of)] = _Whole(egraph, of, rule.name)
        handle = whole.handle if of is term else egraph.add_term(whole.output(term), rule.name)
        if egraph.find(handle) == egraph.find(ref.handle):
            return False
        if not self._may_merge(rule.name, ref.handle, handle, raises=rule.raises):
            return False
        left = ref.handle if ref.enode < 0 else ref.enode
        return egraph.union(left, handle, rule.name, premises_of(egraph, look, left, whole.leaves))

    def _may_merge(self, name: str, left: int, right: int, *, raises: bool = False) -> bool:
        """Whether the right side provably has the extents of the left, for all values of the symbols for which that has a value.

        Raises `RuleError` where all are known and differ: the rule is wrong.
        """
        a, b = self._egraph.full_type_of(left), self._egraph.full_type_of(right)
        if a == b or not isinstance(a, TensorType) or not isinstance(b, TensorType):
            return True
        if DType.UNDEFINED in (a.dtype, b.dtype):
            _count(self.reasons, name, Unmet(TYPE_NOT_KNOWN))
            return False
        if a.is_static and b.is_static:
            raise RuleError(f"rule {name!r}: the right side has type {b}, the left side {a}")
        if not raises and may_differ(a, b):
            _count(self.reasons, name, Unmet(EXTENT_MAY_DIFFER))
            return False
        return True


def _count(reasons: dict[tuple[str, str], int], name: str, reason: Exception) -> None:
    key = (name, str(reason))
    reasons[key] = reasons.get(key, 0) + 1
