"""Independent parts of a core: connected components, and a key that equal components share."""

from eqsat.extract.core import Core


def split_components(core: Core) -> list[Core]:
    """Return the connected components as cores, smallest first; their ``parts`` are node numbers of ``core``.

    The reductions have removed the edges to mandatory classes, so components share no cost and no cycle.
    """
    parent = list(range(len(core.nodes)))

    def find(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for members in core.nodes:
        for node in members:
            for child in core.children[node]:
                first, second = find(core.owner[node]), find(child)
                if first != second:
                    parent[max(first, second)] = min(first, second)
    classes: dict[int, list[int]] = {}
    for current in range(len(core.nodes)):
        classes.setdefault(find(current), []).append(current)
    parts: list[Core] = []
    for members in classes.values():
        number = {current: position for position, current in enumerate(members)}
        nodes: list[list[int]] = []
        owner: list[int] = []
        children: list[tuple[int, ...]] = []
        cost: list[float] = []
        node_numbers: list[int] = []
        for current in members:
            own: list[int] = []
            for node in core.nodes[current]:
                own.append(len(owner))
                owner.append(number[current])
                children.append(tuple([number[k] for k in core.children[node]]))
                cost.append(core.cost[node])
                node_numbers.append(node)
            nodes.append(own)
        part = Core(nodes, owner, children, cost, node_numbers, [number[c] for c in members if c in core.roots])
        part.group = [core.group[c] for c in members]
        part.cyclic = bytearray(core.cyclic[c] for c in members)
        parts.append(part)
    parts.sort(key=lambda part: len(part.owner))
    return parts


def canonical_order(core: Core) -> tuple[tuple[object, ...], list[int]]:
    """Return a key and the order of the classes behind it: equal keys mean isomorphic cores in these orders.

    Isomorphic cores usually, not always, get equal keys. Costs are compared to 12 digits.
    """
    colour = [0] * len(core.nodes)
    price = [float(f"{c:.12g}") for c in core.cost]
    for _ in range(3):
        colour = [
            hash((current in core.roots, tuple(sorted(
                (price[n], len(core.children[n]), *sorted(colour[k] for k in core.children[n]))
                for n in members
            ))))
            for current, members in enumerate(core.nodes)
        ]
    order: list[int] = []
    number: dict[int, int] = {}

    def visit(start: int) -> None:
        if start not in number:
            number[start] = len(order)
            order.append(start)

    node_order: dict[int, list[int]] = {}
    for root in sorted(core.roots, key=lambda c: (colour[c], c)):
        visit(root)
        for current in order[number[root] :]:
            _expand(core, current, colour, price, node_order, visit)
    position = 0
    while position < len(order):
        current = order[position]
        if current not in node_order:
            _expand(core, current, colour, price, node_order, visit)
        position += 1
    key: list[object] = []
    for current in order:
        entry = [
            (price[n], tuple(sorted(number[k] for k in core.children[n])))
            for n in node_order[current]
        ]
        key.append((current in core.roots, tuple(entry)))
    return tuple(key), [n for c in order for n in node_order[c]]


def _expand(core, current, colour, price, node_order, visit) -> None:
    nodes = sorted(
        core.nodes[current],
        key=lambda n: (price[n], len(core.children[n]), sorted(colour[k] for k in core.children[n]), n),
    )
    node_order[current] = nodes
    for node in nodes:
        for child in sorted(core.children[node], key=lambda k: (colour[k], k)):
            visit(child)
