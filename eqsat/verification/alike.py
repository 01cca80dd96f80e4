"""Equal regions, as of equal layers: noise is run in the one that is furthest off, and excuses the others if it can."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from eqsat.ir.graph import Graph, Node
from eqsat.verification.compare import Yardstick
from eqsat.verification.counterparts import Counterpart
from eqsat.verification.regions import Region


def most_telling(
    program: Graph,
    original: Graph,
    regions: Mapping[Region, Counterpart],
    yardsticks: Mapping[tuple[Region, str], Yardstick],
    results: Mapping[str, Any],
) -> dict[Region, Region]:
    """For each of some regions of a program, with what corresponds to them in the original, the one of those equal to it whose
    results are furthest off, as a part of their size."""
    alike: dict[object, list[tuple[float, Region]]] = {}
    for region, counterpart in regions.items():
        off = [
            yardsticks[region, v].judge(results[v]).distance.max_rel
            for v in region.outputs
            if (region, v) in yardsticks
        ]
        key = (
            _described(program, (program.nodes[i] for i in region.nodes)),
            _described(original, counterpart.nodes),
        )
        alike.setdefault(key, []).append((max(off), region))
    found: dict[Region, Region] = {}
    for members in alike.values():
        _, worst = max(members, key=lambda member: member[0])
        found.update((region, worst) for _, region in members)
    return found


def excused(
    region: Region,
    telling: Region,
    yardsticks: MutableMapping[tuple[Region, str], Yardstick],
    results: Mapping[str, Any],
) -> bool:
    """Whether what noise did to an equal region excuses this one, too; its tolerances are that one's then."""
    found: dict[tuple[Region, str], Yardstick] = {}
    for own, other in zip(region.outputs, telling.outputs, strict=True):
        if (region, own) in yardsticks:
            known = yardsticks.get((telling, other))
            borrowed = None if known is None else known.borrowed(yardsticks[region, own].reference)
            if borrowed is None or borrowed.judge(results[own]).message:
                return False
            found[region, own] = borrowed
    yardsticks.update(found)
    return True


def _described(graph: Graph, nodes: Iterable[Node]) -> tuple[object, ...]:
    """What nodes compute, whatever their values are called, and whichever of its constants are one."""
    numbers: dict[str, int] = {}
    rows: list[object] = []
    for node in nodes:
        computed = [v for v in (*node.inputs, *node.outputs) if v not in graph.constants]
        which = tuple(numbers.setdefault(v, len(numbers)) for v in computed)
        rows.append((node.key, node.attributes, which, tuple(map(graph.type_of, (*node.inputs, *node.outputs)))))
    return tuple(rows)
