"""Tensors of PyTorch as arrays of numpy, and back: the same memory, never a copy of what is contiguous on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a tensor, with types that numpy lacks as those of ml_dtypes."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no such type
        import ml_dtypes

        name = str(tensor.dtype).removeprefix("torch.")
        raw = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()]).numpy()
        return raw.view(getattr(ml_dtypes, name))


def to_tensor(array: Any) -> torch.Tensor:
    """The array as a tensor."""
    import torch

    array = np.asarray(array)
    if array.dtype.isbuiltin != 2:  # not of another package
        return torch.from_numpy(array)
    raw = array.view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
    return torch.from_numpy(raw).view(getattr(torch, array.dtype.name))
