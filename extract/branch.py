"""Exact branch and bound for cores with a handful of choices, where building a MILP would cost more than solving."""

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort
from eqsat.extract.required import required_by, requirements_of_nodes


def branch_and_bound(
    core: Core, required: list[int], start: list[int], start_cost: float, step_limit: int, effort: Effort
) -> tuple[list[int], float, bool]:
    """Return the best choice found for all classes, its cost (without ``base``) and whether it is proved optimal.

    ``start`` is an acyclic choice of all classes of cost ``start_cost``. Branches on the highest undecided needed
    class; the bound pays each required undecided class its cheapest node. Stops unproved after ``step_limit`` nodes.
    """
    cheapest = [min(core.cost[n] for n in members) for members in core.nodes]
    below = requirements_of_nodes(core, required)
    options = [sorted(members, key=lambda n: (core.cost[n], n)) for members in core.nodes]
    needed = required_by(required, core.roots)
    bound = sum(cheapest[current] for current in _bits(needed))
    best, best_cost = list(start), start_cost
    steps = 0
    partial = list(start)
    # Each entry: needed bitset, undecided bitset, bound, class to decide, position in its options.
    stack: list[tuple[int, int, float, int, int]] = [(needed, needed, bound, needed.bit_length() - 1, 0)]
    while stack:
        needed, undecided, bound, current, position = stack.pop()
        if position >= len(options[current]):
            continue
        node = options[current][position]
        extra = core.cost[node] - cheapest[current]
        if bound + extra >= best_cost * (1 - 1e-12):
            continue  # options are sorted: the later ones are no better
        stack.append((needed, undecided, bound, current, position + 1))
        steps += 1
        effort.spend(20 + len(core.nodes) // 16)
        if steps > step_limit:
            return best, best_cost, False
        if below[node] >> current & 1:
            continue
        fresh = below[node] & ~needed
        value = bound + extra
        for target in _bits(fresh):
            value += cheapest[target]
        if value >= best_cost * (1 - 1e-12):
            continue
        partial[current] = node
        remaining = (undecided | fresh) & ~(1 << current)
        if remaining:
            stack.append((needed | fresh, remaining, value, remaining.bit_length() - 1, 0))
        elif core.is_acyclic(partial):
            best, best_cost = list(partial), value
    return best, best_cost, True


def _bits(mask: int) -> list[int]:
    """Return the positions of the set bits, highest first."""
    found: list[int] = []
    while mask:
        top = mask.bit_length() - 1
        found.append(top)
        mask ^= 1 << top
    return found
