"""What the inputs of a model mean, by what the model does with them: token ids, masks, positions, images, codes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind, kind_of, traits_of
from eqsat.ir.outlines import as_in_file
from eqsat.ir.types import DType
from eqsat.verification.values import copied, holds_whole_numbers

_KEYS = (
    "cats_int64s",
    "cats_strings",
    "int64_vocabulary",
    "keys_int64s",
    "keys_strings",
    "pool_int64s",
    "pool_strings",
    "string_vocabulary",
)
"""The attributes of operators of ``ai.onnx.ml`` and of TfIdfVectorizer that say what is looked up: categories, labels, words."""

_ROWS = {0: 2, 1: 4, 8: 3}
"""Operands of EmbedLayerNormalization that say which rows, and the tables that these are of: words, segments, positions."""


class Role(Enum):
    """What an input means."""

    INDEX = "index"  # looks something up: an integer below a limit
    MASK = "mask"  # 1 where there is something, 0 for padding
    ADDITIVE_MASK = "additive mask"  # 0 where there is something, a large negative number for padding
    POSITION = "position"  # 0, 1, 2, ... along the last axis, below a limit
    COUNT = "count"  # a size, a bound of a slice, a number of steps: a small positive integer
    POSITIVE = "positive"  # goes to a root or a logarithm
    CODE = "code"  # a quantised value: the whole range of its dtype
    NUMERAL = "numeral"  # text that is read as a number
    KEY = "key"  # one of those that an operator has in its attributes
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The role of an input, and the limit its elements stay below (``None`` if there is none). ``signed``: integers may be
    negative as well. ``divides``: integers are divided by it, or by what is made of it element by element. ``keys``: what is
    looked up; ``only_keys``: and nothing else may be."""

    role: Role
    limit: int | None = None
    signed: bool = False
    divides: bool = False
    keys: tuple[str | int, ...] = ()
    only_keys: bool = False


def keys_of(node: Node) -> tuple[str | int, ...]:
    """What an operator has in its attributes and looks its input up in."""
    read = (value for value in map(node.attributes.get, _KEYS) if value is not None)
    return tuple(key.decode() if isinstance(key, bytes) else key for value in read for key in as_in_file(value))


def meaning_of(graph: Graph, name: str, sizes: Mapping[str, int]) -> Meaning:
    """What input ``name`` means. ``sizes``: extents of the symbolic dimensions."""
    return replace(_meaning_by_uses(graph, name, sizes), divides=_divides(graph, name))


def _divides(graph: Graph, name: str) -> bool:
    reached = {name}
    for node in graph.nodes:
        reading = [i for i, value in enumerate(node.inputs) if value in reached]
        if not reading:
            continue
        traits = traits_of(node.key, node.attributes)
        if any(i in traits.divisors and graph.type_of(node.inputs[i]).dtype.is_integer for i in reading):
            return True
        factors = range(traits.operands) if traits.converts or traits.homogeneous else ()
        if any(i in kept for i in reading for kept in (copied(node), traits.sources, factors)):
            reached.update(v for v in node.outputs if v)
    return False


def _meaning_by_uses(graph: Graph, name: str, sizes: Mapping[str, int]) -> Meaning:
    dtype = graph.type_of(name).dtype
    uses = _uses(graph, name, sizes)
    limits = [u.limit for u in uses if u.role is Role.INDEX and u.limit is not None]
    roles = {u.role for u in uses}
    lowered = name.lower()
    found = [u for u in uses if u.keys and (u.only_keys or not dtype.is_float)]
    if found:
        return max(found, key=lambda use: use.only_keys)
    if dtype is DType.STRING:
        return Meaning(Role.NUMERAL if Role.NUMERAL in roles else Role.NUMBER)
    if dtype.is_float:
        if "mask" in lowered:
            return Meaning(Role.ADDITIVE_MASK if Role.ADDITIVE_MASK in roles else Role.MASK)
        return Meaning(Role.POSITIVE if Role.POSITIVE in roles else Role.NUMBER)
    if Role.COUNT in roles:
        return Meaning(Role.COUNT)
    if limits:
        return Meaning(Role.POSITION if "position" in lowered else Role.INDEX, min(limits))
    if Role.INDEX in roles:
        return Meaning(Role.INDEX)
    if "mask" in lowered:
        return Meaning(Role.MASK)
    if "position" in lowered:
        return Meaning(Role.POSITION)
    if dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16):
        return Meaning(Role.CODE)
    if Role.MASK in roles and dtype is not DType.BOOL:
        return Meaning(Role.MASK)
    return Meaning(Role.NUMBER, signed=dtype.is_signed and not _wants_counted(graph, name, sizes))


def _wants_counted(graph: Graph, name: str, sizes: Mapping[str, int]) -> bool:
    """Whether something that is computed of an input, however, may have to be no less than zero: what is looked up or counted,
    roots, exponents of integers, and whatever is read by an operator that is none of sums, copies and single elements."""
    reached = {name}
    for node in graph.nodes:
        reading = [i for i, value in enumerate(node.inputs) if value in reached]
        if not reading or node.key in ("Shape", "Size"):
            continue
        uses = (_use(graph, node, i, 0, sizes) for i in reading)
        wanted = any(use is not None and use.role in (Role.COUNT, Role.INDEX, Role.POSITIVE) for use in uses)
        if wanted or not _takes_any_integer(node) or (node.key == "Pow" and 1 in reading):
            return True
        reached.update(v for v in node.outputs if v)
    return False


def _takes_any_integer(node: Node) -> bool:
    """Whether a node is known to be a sum of products, or to copy, reduce or compute single elements."""
    kind = kind_of(node)
    return traits_of(node.key, node.attributes).product is not None if kind is Kind.ANCHOR else kind is not Kind.OPAQUE


def _uses(graph: Graph, name: str, sizes: Mapping[str, int]) -> list[Meaning]:
    """Follows an input through operators that keep its elements; an added constant shifts the limit."""
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for i, value in enumerate(node.inputs):
            readers.setdefault(value, []).append((node, i))
    found: list[Meaning] = []
    seen = {name}
    queue: list[tuple[str, int]] = [(name, 0)]
    while queue:
        value, offset = queue.pop(0)
        for node, i in readers.get(value, ()):
            use = _use(graph, node, i, offset, sizes)
            if node.key == "ReduceSum" and _are_lengths(node.outputs[0], readers):
                use = Meaning(Role.COUNT)
            if use is not None:
                found.append(use)
                continue
            shifted = offset + _shift(graph, node, i)
            traits = traits_of(node.key, node.attributes)
            kept = i in copied(node) or i in traits.sources or (i == 0 and traits.converts)
            follows = kept or node.key in ("Add", "Sub")
            if follows and len(seen) < 256:
                fresh = [v for v in node.outputs if v and v not in seen]
                seen.update(fresh)
                queue.extend((v, shifted) for v in fresh)
    return found


def _are_lengths(value: str, readers: Mapping[str, list[tuple[Node, int]]]) -> bool:
    """Whether a sum says how long the sequences are of which attention reads the new keys: a mask that leaves out some of these
    is none that it takes."""
    for node, i in readers.get(value, ()):
        if i in traits_of(node.key).lengths:
            return True
        if node.key in ("Sub", "Cast") and _are_lengths(node.outputs[0], readers):
            return True
    return False


def _use(graph: Graph, node: Node, i: int, offset: int, sizes: Mapping[str, int]) -> Meaning | None:
    traits = traits_of(node.key)
    if keys := keys_of(node):
        return Meaning(Role.KEY, keys=keys, only_keys=as_in_file(node.attributes.get("zeros", 1)) == 0)
    if i in traits.counts or (node.key == "Loop" and i == 0):
        return Meaning(Role.COUNT)
    if node.key == "Cast" and graph.type_of(node.inputs[0]).dtype is DType.STRING:
        return Meaning(Role.NUMERAL)
    if i in traits.indices:
        axis = node.attributes.get("axis", node.attributes.get("batch_dims", 0))
        extent = _extent(graph, node.inputs[0], int(axis), sizes)  # type: ignore[arg-type]
        return Meaning(Role.INDEX, None if extent is None else max(1, extent - offset))
    if node.key.startswith("Sequence") and i and graph.type_of(node.inputs[i]).shape == ():
        return Meaning(Role.INDEX)  # a place in a sequence
    if node.key == "OneHot" and i == 0:
        depth = graph.constants.get(node.inputs[1])
        return Meaning(Role.INDEX, None if depth is None else max(1, int(depth.numpy().reshape(-1)[0]) - offset))
    if (
        node.key in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss") and i == 1
    ):  # classes lie along axis 1 of scores
        return Meaning(Role.INDEX, _extent(graph, node.inputs[0], 1, sizes))
    if node.key == "com.microsoft::EmbedLayerNormalization" and i in _ROWS and not node.opaque:
        return Meaning(Role.INDEX, _extent(graph, node.inputs[_ROWS[i]], 0, sizes))
    if i in traits.truths or traits.truth or (node.key == "Sub" and i == 1):
        return Meaning(Role.MASK)
    if node.key in ("Sqrt", "Log") or (node.key, i) == ("Resize", 2):  # by which factors an image is resized
        return Meaning(Role.POSITIVE)
    if node.key == "Pow" and i == 0 and _may_be_fractional(graph, node.inputs[1]):
        return Meaning(Role.POSITIVE)
    if node.key == "Add":
        other = node.inputs[1 - i]
        is_mask = other not in graph.constants and graph.type_of(other).dtype.is_float
        return Meaning(Role.ADDITIVE_MASK) if is_mask else None
    return None


def _shift(graph: Graph, node: Node, i: int) -> int:
    if node.key not in ("Add", "Sub"):
        return 0
    constant = graph.constants.get(node.inputs[1 - i])
    if constant is None or constant.size == 0 or constant.size > 4096 or not constant.dtype.is_integer:
        return 0
    array = constant.numpy()
    return int(array.max()) if node.key == "Add" else -int(array.min())


def _extent(graph: Graph, value: str, axis: int, sizes: Mapping[str, int]) -> int | None:
    shape = graph.type_of(value).shape or ()
    if not -len(shape) <= axis < len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) else sizes.get(extent)


def _may_be_fractional(graph: Graph, value: str) -> bool:
    constant = graph.constants.get(value)
    return constant is None or not holds_whole_numbers(constant)
