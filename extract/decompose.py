"""Independent parts of a core: connected components, and which of them are equal."""

from collections import Counter

from eqsat.extract.components import strong_components
from eqsat.extract.core import Core


def split_components(core: Core) -> list[Core]:
    """Return the connected components as cores, smallest first; their ``parts`` are node numbers of ``core``.

    The reductions have removed the edges to mandatory classes, so components share no cost and no cycle.
    """
    links: list[list[int]] = [[] for _ in core.nodes]  # both ways, so that what is connected is strongly connected
    for current, members in enumerate(core.nodes):
        for node in members:
            for child in core.children[node]:
                links[current].append(child)
                links[child].append(current)
    parts: list[Core] = []
    number = [0] * len(core.nodes)
    for members in sorted(map(sorted, strong_components(links))):
        for position, current in enumerate(members):
            number[current] = position
        part = core.renumbered(members, core.nodes, number, range(len(core.owner)))
        part.group = [core.group[c] for c in members]
        part.cyclic = bytearray(core.cyclic[c] for c in members)
        parts.append(part)
    parts.sort(key=lambda part: len(part.owner))
    return parts


def equal_parts(parts: list[Core]) -> list[tuple[object, list[int]]]:
    """Return for each core a key and an order of its nodes: cores of equal keys are isomorphic in these orders.

    Isomorphic cores usually, not always, get equal keys: repeated layers are solved once. Costs count to 12 digits.
    """
    sizes = [(len(part.nodes), len(part.owner), sum(map(len, part.children))) for part in parts]
    count = Counter(sizes)
    result: list[tuple[object, list[int]]] = []
    for position, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if count[size] > 1:
            result.append(canonical(part))
        else:
            result.append((position, list(range(len(part.owner)))))
    return result


def canonical(core: Core) -> tuple[object, list[int]]:
    """Number classes and nodes by their colours, and return the core written in these numbers, and the nodes in order."""
    price = [float(f"{cost:.12g}") for cost in core.cost]
    colour = _colours(core, price)
    node_colour = [
        hash((price[node], tuple(sorted([colour[k] for k in children])))) for node, children in enumerate(core.children)
    ]
    number: dict[int, int] = {}
    order: list[int] = []
    nodes: list[int] = []
    waiting = sorted(core.roots, key=lambda c: (colour[c], c), reverse=True)
    while waiting:
        current = waiting.pop()
        if current in number:
            continue
        number[current] = len(order)
        order.append(current)
        below: list[int] = []
        for node in sorted(core.nodes[current], key=lambda n: (node_colour[n], n)):
            nodes.append(node)
            below.extend(sorted(core.children[node], key=lambda k: (colour[k], k)))
        waiting.extend(reversed(below))
    rows = tuple((number[core.owner[n]], price[n], tuple(sorted([number[k] for k in core.children[n]]))) for n in nodes)
    return (len(order), tuple(sorted([number[r] for r in core.roots])), rows), nodes


def _colours(core: Core, price: list[float]) -> list[int]:
    """Refine a colour per class by the costs and colours around it until no more colours appear.

    Hashes of numbers, unlike those of strings, are the same in every process.
    """
    colour = [int(current in core.roots) for current in range(len(core.nodes))]
    seen = 0
    while len(set(colour)) > seen:
        seen = len(set(colour))
        users: list[list[int]] = [[] for _ in core.nodes]
        inner: list[int] = []
        for current, members in enumerate(core.nodes):
            own: list[int] = []
            for node in members:
                own.append(hash((price[node], tuple(sorted([colour[k] for k in core.children[node]])))))
                seen_from_child = hash((price[node], colour[current]))
                for child in core.children[node]:
                    users[child].append(seen_from_child)
            inner.append(hash(tuple(sorted(own))))
        colour = [hash((c, i, tuple(sorted(u)))) for c, i, u in zip(colour, inner, users, strict=True)]
    return colour
