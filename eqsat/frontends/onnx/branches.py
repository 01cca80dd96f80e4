"""The branch that an If takes whose condition is known, such as whether an extent is 1: its nodes stand for the If.

TorchScript's exporter writes such for ``squeeze``. ONNX Runtime takes the branch, too, when it loads a model, but by then nothing
around it can be fused with it, and of what an If makes not even the rank may be known.
"""

from eqsat.frontends.onnx.nodes import RawNode, raw_nodes, read_raw_node
from eqsat.frontends.onnx.subgraphs import copy_of, locals_of, rename
from eqsat.frontends.onnx.tensors import ExternalFiles, read_tensor
from eqsat.ir.constants import Constant
from eqsat.ir.graph import fresh_name

Opened = tuple[list[RawNode], dict[str, Constant]]
"""The nodes of a branch, with the constants that it holds."""


def taken_branch(raw: RawNode, condition: bool, names: set[str], files: ExternalFiles) -> Opened | None:
    """What stands for an If; its own names become such that are not in ``names``, which gets them. ``None`` for a node that is no
    such If."""
    wanted = "then_branch" if condition else "else_branch"
    branch = next((a.g for a in raw.proto.attribute if a.name == wanted), None)
    if branch is None or branch.input or branch.sparse_initializer or len(branch.output) != len(raw.outputs):
        return None
    branch = copy_of(branch)
    computed = {name for node in branch.node if node.op_type != "Constant" for name in node.output}
    results = [(inner.name, outer) for inner, outer in zip(branch.output, raw.outputs, strict=True) if outer]
    changes = {inner: outer for inner, outer in results if inner in computed}
    changes.update((name, fresh_name(name, names)) for name in sorted(locals_of(branch) - changes.keys()))
    rename(branch, changes)
    constants = {t.name: read_tensor(t, files) for t in branch.initializer}
    nodes = raw_nodes(branch, constants, {}, files)
    handed_on = [(changes.get(inner, inner), outer) for inner, outer in results]
    copies = [type(raw.proto)(op_type="Identity", input=[i], output=[o]) for i, o in handed_on if i != o]
    return [*nodes, *map(read_raw_node, copies)], constants
