"""The order of a program's kernels: the one of least peak memory that a few deterministic searches find.

Finding the best order is NP-hard (register sufficiency; Sethi, Complete register allocation problems, 1975). Tried are the
given order, and list scheduling and a beam search over prefixes, from the inputs on and from the outputs back; the best of
them is kept, so the result never needs more memory than the given order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eqsat.ir.graph import Node
from eqsat.lower.liveness import Buffers, buffers_of
from eqsat.lower.program import Kernel, Program

BEAM = 16
"""Prefixes that the beam search keeps at each length."""


def with_least_memory(program: Program) -> Program:
    """The same kernels in an order of lower peak memory; the program itself if none is found."""
    buffers = buffers_of(program.graph, program.kernels)
    order = least_memory_order(buffers)
    return program if list(order) == list(range(len(program.kernels))) else _reordered(program, order)


def least_memory_order(buffers: Buffers) -> tuple[int, ...]:
    """An order of the steps with a low peak; the given order if nothing better is found."""
    best = tuple(range(len(buffers.made)))
    least = buffers.peak(best)
    forward = _forward(buffers)
    backward = _backward(forward, buffers)
    for width in (1, BEAM):
        for order in (_search(forward, width), _search(backward, width)[::-1]):
            peak = buffers.peak(order)
            if peak < least:
                best, least = order, peak
    return best


@dataclass(frozen=True)
class _Problem:
    """Steps in one direction of time. A buffer is alive from the first to the last step that touches it; one that is ``born``
    from the start, one that is ``immortal`` to the end. ``after[s]``: steps that must come before step ``s``."""

    bytes: tuple[int, ...]
    born: frozenset[int]
    immortal: frozenset[int]
    touched: tuple[tuple[int, ...], ...]
    after: tuple[frozenset[int], ...]


def _forward(buffers: Buffers) -> _Problem:
    touched = tuple(tuple(sorted({*m, *r})) for m, r in zip(buffers.made, buffers.read, strict=True))
    return _Problem(buffers.bytes, buffers.given, buffers.kept, touched, buffers.after)


def _backward(forward: _Problem, buffers: Buffers) -> _Problem:
    """From the outputs to the inputs: what only feeds one step is then placed right before it."""
    return replace(forward, born=buffers.kept, immortal=buffers.given, after=_turned(forward.after))


def _turned(after: Sequence[frozenset[int]]) -> tuple[frozenset[int], ...]:
    turned: list[set[int]] = [set() for _ in after]
    for step, earlier in enumerate(after):
        for e in earlier:
            turned[e].add(step)
    return tuple(map(frozenset, turned))


@dataclass(slots=True)
class _Prefix:
    """A prefix of an order. ``waiting``: how many predecessors a step still waits for; ``uses``: how many steps will still
    touch a buffer; ``live``: buffers alive."""

    peak: int
    alive: int
    steps: tuple[int, ...]
    done: int
    ready: tuple[int, ...]
    waiting: dict[int, int]
    uses: dict[int, int]
    live: frozenset[int]


def _search(problem: _Problem, width: int) -> tuple[int, ...]:
    """Extends the ``width`` best prefixes step by step: least peak first, then least alive, then the given order."""
    size = problem.bytes
    count = len(problem.touched)
    followers = _turned(problem.after)
    uses: dict[int, int] = {}
    for buffers in problem.touched:
        for b in buffers:
            uses[b] = uses.get(b, 0) + 1
    start = sum(size[b] for b in problem.born)
    ready = tuple(s for s in range(count) if not problem.after[s])
    waiting = {s: len(problem.after[s]) for s in range(count)}
    front = [_Prefix(start, start, (), 0, ready, waiting, uses, problem.born)]
    for _ in range(count):
        offers: list[tuple[int, int, int, int, int]] = []
        for number, prefix in enumerate(front):
            for step in prefix.ready:
                touched = problem.touched[step]
                high = prefix.alive + sum(size[b] for b in touched if b not in prefix.live)
                freed = sum(size[b] for b in touched if prefix.uses[b] == 1 and b not in problem.immortal)
                offers.append((max(prefix.peak, high), high - freed, step, number, prefix.done | 1 << step))
        offers.sort(key=lambda offer: offer[:4])
        seen: set[int] = set()
        following: list[_Prefix] = []
        for peak, alive, step, number, done in offers:
            if done in seen:
                continue
            seen.add(done)
            following.append(_extended(front[number], peak, alive, step, done, problem, followers[step]))
            if len(following) == width:
                break
        front = following
    return front[0].steps


def _extended(
    prefix: _Prefix, peak: int, alive: int, step: int, done: int, problem: _Problem, followers: frozenset[int]
) -> _Prefix:
    uses = dict(prefix.uses)
    live = set(prefix.live)
    for b in problem.touched[step]:
        uses[b] -= 1
        if uses[b] or b in problem.immortal:
            live.add(b)
        else:
            live.discard(b)
    waiting = dict(prefix.waiting)
    ready = [s for s in prefix.ready if s != step]
    for follower in followers:
        waiting[follower] -= 1
        if not waiting[follower]:
            ready.append(follower)
    return _Prefix(peak, alive, (*prefix.steps, step), done, tuple(sorted(ready)), waiting, uses, frozenset(live))


def _reordered(program: Program, order: Sequence[int]) -> Program:
    nodes: list[Node] = []
    kernels: list[Kernel] = []
    for index in order:
        kernel = program.kernels[index]
        placed = tuple(range(len(nodes), len(nodes) + len(kernel.nodes)))
        nodes.extend(program.graph.nodes[i] for i in kernel.nodes)
        kernels.append(replace(kernel, nodes=placed))
    return replace(program, graph=program.graph.with_nodes(nodes), kernels=tuple(kernels))
