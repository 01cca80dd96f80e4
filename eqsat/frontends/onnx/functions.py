"""Functions of a model: inlined, except those that call themselves."""

from typing import Any

from eqsat.errors import ModelError
from eqsat.frontends.onnx.subgraphs import copy_of, nodes_in
from eqsat.frontends.onnx.versions.steps import means_the_same

FunctionId = tuple[str, str]

MOST_NODES = 10_000_000
"""Functions are not inlined beyond: where each calls another twice there are twice as many nodes at every level."""


def inline_functions(model: Any) -> Any:
    """``model`` with calls of its non-recursive functions replaced by their bodies, and unused functions dropped."""
    if not model.functions:
        return model
    _name_overloads(model)
    called = {_id(f): calls_of(f) for f in model.functions}
    reached = _reached(called)
    recursive = {f for f in called if f in reached[f]}
    all_functions = list(model.functions)
    if len(recursive) < len(called):
        from onnx import inliner

        others = [f for f in all_functions if _id(f) not in recursive]
        _expect_to_end(model, sorted(others, key=lambda f: len(reached[_id(f)])))
        try:
            # The inliner refuses a model with any recursion, so it sees only the others.
            model = _in_one_version(_with_functions(model, others))
            if any(f.attribute_proto for f in model.functions):
                model = _inlined_from_outside(model, called)
            else:
                model = inliner.inline_local_functions(model)
        except Exception as error:  # the inliner raises bare RuntimeErrors
            raise ModelError(f"functions of the model cannot be inlined: {' '.join(str(error).split())}") from None
    used = calls_of(model.graph)
    used = used.union(*(reached[f] for f in used & called.keys()))
    return _with_functions(model, [f for f in all_functions if _id(f) in used])


def _expect_to_end(model: Any, functions: list[Any]) -> None:
    """Raises `ModelError` where the model would be too large. Each of the functions stands behind those that it calls."""
    sizes: dict[FunctionId, int] = {}
    for part in (*functions, model.graph):
        size = sum(sizes.get((node.domain, node.op_type), 1) for node in nodes_in(part))
        if part is not model.graph:
            sizes[_id(part)] = size
        elif size > MOST_NODES:
            raise ModelError(
                f"its functions call one another so often that it has {size:,} nodes, more than {MOST_NODES:,}"
            )


def _name_overloads(model: Any) -> None:
    """Gives overloads names of their own, in place: a node of a graph has one name."""
    taken = {_id(f) for f in model.functions}
    names: dict[tuple[str, str, str], str] = {}
    for function in model.functions:
        if function.overload:
            name = f"{function.name}_{function.overload}"
            while (function.domain, name) in taken:
                name += "_"
            taken.add((function.domain, name))
            names[function.domain, function.name, function.overload] = name
    if not names:
        return
    for owner in (model.graph, *model.functions):
        for node in nodes_in(owner):
            if name := names.get((node.domain, node.op_type, node.overload)):
                node.op_type, node.overload = name, ""
    for function in model.functions:
        if function.overload:
            function.name, function.overload = names[function.domain, function.name, function.overload], ""


def _inlined_from_outside(model: Any, called: dict[FunctionId, set[FunctionId]]) -> Any:
    """``model``, changed: functions inlined, outermost first.

    The inliner knows nothing of defaults of attributes, so calls get those that they lack. What a call lacks is known once what
    it stands in is inlined: a reference to an attribute that was not given is no attribute.
    """
    from onnx import inliner

    while model.functions:
        here = {_id(f) for f in model.functions}
        inner = {f for other in here for f in called[other]}
        defaults = {_id(f): list(f.attribute_proto) for f in model.functions if f.attribute_proto}
        for node in nodes_in(model.graph):
            given = {attribute.name for attribute in node.attribute}
            lacking = [a for a in defaults.get((node.domain, node.op_type), ()) if a.name not in given]
            node.attribute.extend(lacking)
        left = [copy_of(f) for f in model.functions if _id(f) in inner]
        model = inliner.inline_selected_functions(model, sorted(here - inner))
        model = _with_functions(model, left)
    return model


def _with_functions(model: Any, functions: list[Any]) -> Any:
    kept = [copy_of(f) for f in functions]
    changed = type(model)()
    changed.CopyFrom(model)
    del changed.functions[:]
    changed.functions.extend(kept)
    return changed


def _in_one_version(model: Any) -> Any:
    """``model``, changed: functions import what they only call functions of as the model does, and ONNX where their operators
    mean the same at either opset.

    The inliner leaves alone what imports another version of any domain, but a version says nothing of the model's own functions,
    and libraries write theirs at an opset of their own.
    """
    versions = {imported.domain: imported.version for imported in model.opset_import}
    own = {_id(f) for f in model.functions}
    domains = {domain for domain, _ in own}
    for function in model.functions:
        operators = calls_of(function) - own
        shipped = [op for domain, op in operators if not domain]
        free = domains - {domain for domain, _ in operators}
        for imported in function.opset_import:
            ours = versions.get(imported.domain, imported.version)
            alike = not imported.domain and all(means_the_same(op, imported.version, ours) for op in shipped)
            if alike or imported.domain in free:
                imported.version = ours
    return model


def _id(function: Any) -> FunctionId:
    return (function.domain, function.name)


def calls_of(graph: Any) -> set[FunctionId]:
    """Domain and type of every node of a graph or function, those in bodies included."""
    return {(node.domain, node.op_type) for node in nodes_in(graph)}


def _reached(called: dict[FunctionId, set[FunctionId]]) -> dict[FunctionId, set[FunctionId]]:
    """The functions that each function calls, directly or through others: itself, too, if it is recursive."""
    import networkx as nx

    direct: nx.DiGraph[FunctionId] = nx.DiGraph((f, other) for f in called for other in called[f] & called.keys())
    direct.add_nodes_from(called)
    closure = nx.transitive_closure(direct)
    return {f: set(closure[f]) for f in called}
