"""The weights of a call: which tensors they are, and what tells that one of them was written to.

They are constants of a program, which is not to keep a model in memory that nobody has any more: references to them are weak.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, call, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

_version: Callable[[Tensor], int] = attrgetter("_version")
_address: Callable[[Tensor], int] = (
    Tensor.data_ptr
)  # not by `methodcaller`, which takes twice as long for hundreds of weights
_first: Callable[[memoryview], Any] = itemgetter(0)

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def _sample(weight: Tensor) -> memoryview:
    """The bits of one element where it lies on the CPU, which keeps that place from being used again; else a constant.

    What is written to ``weight.data`` or by numpy, as moving averages and merged adapters are, changes no version.
    """
    if type(weight) not in (Tensor, torch.nn.Parameter) or weight.device.type != "cpu" or not weight.numel():
        return memoryview(b"0")
    # Not of `detach`, whose result is a view that keeps the weight itself.
    element = weight.data[tuple(n // 2 for n in weight.shape)].resolve_conj().resolve_neg()
    return memoryview(element.reshape(1).view(_WORDS.get(element.element_size(), torch.int64)).numpy())


class Weights(NamedTuple):
    """The weights of a call, a sample of each, and what changes when one of them is written to."""

    references: Sequence[weakref.ref[Tensor]]
    samples: Sequence[memoryview]
    state: tuple[tuple[Any, ...], ...]

    def are_tensors(self, others: Sequence[Tensor]) -> bool:
        """By identity, as an audit hook, which torch may set, makes ids slow."""
        return all(map(is_, others, map(call, self.references)))

    def are(self, others: Sequence[Tensor]) -> bool:
        """Whether the others are these, and as they were."""
        return self.are_tensors(others) and self.state == _state(others, self.samples)

    def now(self, others: Sequence[Tensor]) -> Weights | None:
        """The same tensors as they are now; ``None`` where the others are not these."""
        if not self.are_tensors(others):
            return None
        moved = self.state[1] != tuple(map(_address, others))
        samples = [*map(_sample, others)] if moved else self.samples
        return Weights(self.references, samples, _state(others, samples))


def watched(weights: Sequence[Tensor], forget: Callable[[], None]) -> Weights:
    """Weights as they are. ``forget`` is called when one of them is gone."""
    samples = [*map(_sample, weights)]
    references = [weakref.ref(w, lambda _: forget()) for w in weights]
    return Weights(references, samples, _state(weights, samples))


def _state(weights: Sequence[Tensor], samples: Sequence[memoryview]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(_version, weights)), tuple(map(_address, weights)), tuple(map(_first, samples))
