"""Names that the user knows for e-classes: nodes and values of the original graph."""

from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import CONSTANT, INPUT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.errors import OptionError, nearest
from eqsat.ir.constants import Constant
from eqsat.rewrite import PROJECTION, Ref

_DEPTH = 3


class Places:
    """Which original nodes and values each e-class of a saturated e-graph holds."""

    def __init__(self, encoding: Encoding) -> None:
        self._egraph = egraph = encoding.egraph
        self._classes: dict[str, int] = {}
        self._names: dict[int, str] = {}
        for node, handle in zip(encoding.graph.nodes, encoding.node_handles, strict=True):
            name = node.name or next((v for v in node.outputs if v), node.key)
            self._classes.setdefault(name, handle)
            self._names.setdefault(egraph.find(handle), name)
        for value, handle in encoding.handles.items():
            if value:
                self._classes.setdefault(value, handle)
                self._names.setdefault(egraph.find(handle), value)

    def find(self, name: str) -> int:
        """Handle of the e-node of a node, or of the value, called ``name``. Raises `OptionError` if there is none."""
        found = self._classes.get(name)
        if found is None:
            hint = f"{nearest(name, self._classes)}`eqsat inspect --nodes` lists them"
            raise OptionError(f"the model has no node or value {name!r}; {hint}")
        return found

    def name_of(self, handle: int) -> str:
        """Name of the first original node or value of an e-class; empty if only rules made it."""
        return self._names.get(self._egraph.find(handle), "")

    def describe(self, handle: int, depth: int = _DEPTH) -> str:
        """The name of an e-class, or how its oldest e-node computes it."""
        if handle == ABSENT_INPUT:
            return "_"
        egraph = self._egraph
        value = egraph.value_of(handle)
        name = self.name_of(handle)
        if value is not None and value.size <= 4 and not name:
            return str(value.tolist())
        return name or self.spell(egraph.members(handle)[0], depth)

    def spell(self, handle: int, depth: int = _DEPTH) -> str:
        """One e-node: its operator and its operands."""
        node = self._egraph.nodes[handle]
        if node.key in (INPUT, CONSTANT):
            held = node.attributes.get("value")
            return f"constant {held.type}" if isinstance(held, Constant) else str(node.attributes["name"])
        if depth == 0:
            return f"{node.key}(...)"
        operands = ", ".join(self.describe(c, depth - 1) for c in self._egraph.canonical_children(handle))
        return f"{operands}.{node.attribute_number}" if node.op == PROJECTION else f"{node.key}({operands})"

    def operators(self, handle: int) -> str:
        """The operators in which an e-class is spelled."""
        nodes = self._egraph.nodes
        return ", ".join(
            dict.fromkeys(
                nodes[m].key.lower() if nodes[m].op in (INPUT, CONSTANT) else nodes[m].key
                for m in self._egraph.members(handle)
            )
        )

    def facts(self, ref: Ref | None) -> str:
        """What is known of a matched value: its name, type, attributes, elements if few, bounds."""
        if ref is None:
            return "absent"
        egraph = self._egraph
        full = egraph.full_type_of(ref.handle)
        text = f"{self.describe(ref.handle)}: {full}"
        if ref.attributes:
            text += f", attributes {ref.attributes!r}"
        value = egraph.value_of(ref.handle)
        if value is not None and value.size <= 8:
            return f"{text} = {value.tolist()}"
        if egraph.is_constant(ref.handle):
            return f"{text}, constant"
        low, high = egraph.interval_of(ref.handle)
        return text if (low, high) == (float("-inf"), float("inf")) else f"{text}, within [{low:g}, {high:g}]"
