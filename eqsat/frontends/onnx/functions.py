"""Functions of a model: inlined, except those that call themselves."""

from typing import Any

from eqsat.errors import ModelError
from eqsat.frontends.onnx.subgraphs import copy_of, graphs_of

FunctionId = tuple[str, str]


def inline_functions(model: Any) -> Any:
    """``model`` with calls of its non-recursive functions replaced by their bodies, and unused functions dropped."""
    if not model.functions:
        return model
    called = {_id(f): calls_of(f.node) for f in model.functions}
    recursive = {f for f in called if f in _reachable(f, called)}
    all_functions = list(model.functions)
    if len(recursive) < len(called):
        from onnx import inliner

        try:
            # The inliner refuses a model with any recursion, so it sees only the others.
            model = inliner.inline_local_functions(
                _in_one_version(_with_functions(model, [f for f in all_functions if _id(f) not in recursive]))
            )
        except Exception as error:  # the inliner raises bare RuntimeErrors
            raise ModelError(f"functions of the model cannot be inlined: {' '.join(str(error).split())}") from None
    used = set(calls_of(model.graph.node))
    for function in list(used):
        used |= _reachable(function, called)
    return _with_functions(model, [f for f in all_functions if _id(f) in used])


def _with_functions(model: Any, functions: list[Any]) -> Any:
    """``model`` with other functions."""
    kept = [copy_of(f) for f in functions]
    changed = type(model)()
    changed.CopyFrom(model)
    del changed.functions[:]
    changed.functions.extend(kept)
    return changed


def _in_one_version(model: Any) -> Any:
    """``model``, changed: functions import what they only call functions of as the model does.

    The inliner leaves alone what imports another version of any domain, but a version says nothing of the model's own functions.
    """
    versions = {imported.domain: imported.version for imported in model.opset_import}
    own = {_id(f) for f in model.functions}
    domains = {domain for domain, _ in own}
    for function in model.functions:
        domains_of_operators = {domain for domain, _ in calls_of(function.node) - own}
        for imported in function.opset_import:
            if imported.domain in domains - domains_of_operators:
                imported.version = versions.get(imported.domain, imported.version)
    return model


def _id(function: Any) -> FunctionId:
    return (function.domain, function.name)


def calls_of(nodes: Any) -> set[FunctionId]:
    """Domain and type of every node, those in bodies included."""
    found: set[tuple[str, str]] = set()
    for node in nodes:
        found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            for body in graphs_of(attribute):
                found |= calls_of(body.node)
    return found


def _reachable(start: FunctionId, called: dict[FunctionId, set[FunctionId]]) -> set[FunctionId]:
    found: set[FunctionId] = set()
    pending = list(called.get(start, ()))
    while pending:
        function = pending.pop()
        if function in called and function not in found:
            found.add(function)
            pending.extend(called[function])
    return found
