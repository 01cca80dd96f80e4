"""Recurrent networks of torch: one layer, forwards, backwards or both, with the gates in its order."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from eqsat.fx.site import Site, Unwritten, writes

_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1), "RNN": (0,)}
"""Where the gates of torch are among those of ONNX: ``rzn`` among ``zrh``, ``ifgo`` among ``iofc``."""

_FUNCTIONS: Mapping[str, Mapping[tuple[str, ...], Any]] = {
    "GRU": {("sigmoid", "tanh"): torch.gru},
    "LSTM": {("sigmoid", "tanh", "tanh"): torch.lstm},
    "RNN": {("tanh",): torch.rnn_tanh, ("relu",): torch.rnn_relu},
}
"""By activations of a direction, those of nodes without the attribute first."""


@writes("GRU", "LSTM", "RNN")
def _recurrent(site: Site) -> Any:
    """All steps of all sequences."""
    function, both = _function(site), site.attr("direction") == "bidirectional"
    x, back = site.operands[0], site.attr("direction") == "reverse"
    if back:
        x = site.call(torch.flip, x, [0])
    weights = [v for direction in range(1 + both) for v in _weights(site, direction)]
    states = [_state(site, i, x, 1 + both) for i in ((5, 6) if site.node.op == "LSTM" else (5,))]
    given = (states if len(states) > 1 else states[0], weights, site.has(3), 1, 0.0, False, both, False)
    found = site.call(function, x, *given)
    y = found[0].unflatten(2, (1 + both, -1)).transpose(1, 2)
    return (site.call(torch.flip, y, [0]) if back else y, *(found[i + 1] for i in range(len(states))))


def _function(site: Site) -> Any:
    """The network of torch that has the same steps. Raises `Unwritten` where none has."""
    attributes, functions = site.node.attributes, _FUNCTIONS[site.node.op]
    listed = tuple(a.lower() for a in attributes.get("activations") or ())
    usual = next(iter(functions))
    once = listed[: len(usual)] or usual
    if once not in functions or listed != once * (len(listed) // len(once)):
        raise Unwritten(f"its activations are {', '.join(listed)}")
    if site.has(4):
        raise Unwritten("its sequences have lengths of their own")
    if site.has(7):
        raise Unwritten("its gates see the state of the cell")
    if attributes.get("clip") or attributes.get("input_forget") or attributes.get("layout"):
        raise Unwritten("it has a clip, gates of input and forgetting that are one, or batches before steps")
    if site.node.op == "GRU" and not site.attr("linear_before_reset"):
        raise Unwritten("it resets the state before the product")
    return functions[once]


def _weights(site: Site, direction: int) -> list[Any]:
    """Weights of inputs and states of a direction, and biases, if there are any."""
    found = [_in_order(site, i, direction, 0) for i in (1, 2)]
    return found + [_in_order(site, 3, direction, half) for half in (0, 1)] if site.has(3) else found


def _in_order(site: Site, index: int, direction: int, half: int) -> Any:
    """The rows of an input's direction, gate by gate in the order of torch; of biases one half."""
    gates, units = _GATES[site.node.op], _units(site)
    starts = [(half * len(gates) + gate) * units for gate in gates]
    rows = np.concatenate([np.arange(start, start + units) for start in starts])
    if (known := site.value(index)) is not None:
        return site.constant(known[direction][rows])
    return site.call(torch.index_select, site.operands[index].select(0, direction), 0, site.constant(rows))


def _state(site: Site, index: int, x: Any, directions: int) -> Any:
    if site.has(index):
        return site.operands[index]
    return site.call(torch.zeros, (directions, x.size(1), _units(site)), **site.like())


def _units(site: Site) -> int:
    *_, found = site.type(2).shape or (None,)
    if not isinstance(found, int):
        raise Unwritten("how many units it has is not known")
    return found
