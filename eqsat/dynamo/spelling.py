"""What torch's exporter has no form for, spelled out in what it has one for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F


class Spelling(torch.overrides.TorchFunctionMode):
    """Replaces functions while a graph is exported.

    ``unseen_is_zero``: attention of a query that may see nothing, as of padding on the left, is zero in PyTorch; exported, and in
    ONNX Runtime, it looks at all keys alike, which is finite, so that a factor makes it zero.
    """

    unseen_is_zero = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: Mapping[str, Any] = kwargs or {}
        if (spelled := _FUNCTIONS.get(func)) is not None:
            return spelled(*args, **given)
        if func in (torch.squeeze, Tensor.squeeze) and _squeezes_nothing(*args, **given):
            return args[0]
        if func in (Tensor.index_copy_, Tensor.__setitem__) and not given and (found := _along_axis(func, *args)):
            return args[0].index_put_(*found)
        if func in _OF_COMPLEX and args and isinstance(args[0], Tensor) and args[0].is_complex():
            pairs = _OF_COMPLEX[func](torch.view_as_real(args[0]), *args[1:], **given)
            return torch.view_as_complex(pairs)
        if func is F.scaled_dot_product_attention and len(args) > 2 and args[0].ndim == 3:
            return self.__torch_function__(func, types, *_with_heads(*args, **given)).squeeze(1)
        found: Any = func(*args, **given)
        if self.unseen_is_zero and func is F.scaled_dot_product_attention:
            mask = given.get("attn_mask", args[3] if len(args) > 3 else None)
            if mask is not None and mask.dtype is torch.bool:
                return found * mask.any(-1, keepdim=True).to(found.dtype)
        return found


def _is_finite(x: Any) -> Any:
    """Up to 2.11 the exporter fails at that of half precision."""
    return x == x if x.dtype is torch.bool else x - x == 0  # infinities and NaN leave NaN


def _squeezes_nothing(x: Tensor, dim: Any = None) -> bool:
    """Whether the axis is longer than one. The exporter takes it for granted that it is not."""
    return isinstance(dim, int) and x.ndim > 0 and x.shape[dim] != 1


def _along_axis(function: Any, x: Tensor, *given: Any) -> tuple[Any, Any] | None:
    """Places along all axes up to one, and values, of ``x.index_copy_(axis, places, values)`` and ``x[:, :, places] = values``;
    ``None`` for anything else that is assigned.

    The exporter, told of a single axis, moves it to the front, and all of ``x`` with it, as of a cache for the row that is new.
    """
    axis: list[int]
    *axis, index, values = given
    if function is Tensor.__setitem__:
        before: list[Any]
        *before, index = cast(Sequence[Any], index if isinstance(index, tuple) else (index,))
        axis = [len(before)] if all(isinstance(i, slice) and i == slice(None) for i in before) else []
    if not axis or not isinstance(index, Tensor) or (index.ndim, index.dtype) != (1, torch.int64):
        return None
    if not isinstance(values, Tensor) or values.ndim != x.ndim:
        return None
    counted = [torch.arange(extent, device=x.device) for extent in x.shape[: axis[0] % x.ndim]] + [index]
    shapes = [[-1 if i == k else 1 for i in range(len(counted))] for k in range(len(counted))]
    return tuple(place.reshape(shape) for place, shape in zip(counted, shapes, strict=True)), values


def _with_heads(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *others: Any, **named: Any
) -> tuple[Any, Any]:
    """Arguments of attention without an axis of heads, which the exporter wants, with one of 1."""
    mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
    return (*(x.unsqueeze(1) for x in (query, key, value)), mask, *others), named


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    weights: Tensor,
    biases: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """What `torch.nn.MultiheadAttention` calls for inference; ``mask`` is true where a query may not see a key.

    ``mask_type``: 0 for one of queries and keys, 1 for one of sequences and keys, 2 for one with all axes.
    """
    projected = zip((query, key, value), weights.chunk(3), biases.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (heads, width // heads)).transpose(1, 2) for x, w, b in projected)
    seen = None
    if mask is not None:
        seen = ~mask.to(torch.bool)
        seen = seen[:, None, None, :] if mask_type == 1 else seen
    shares = None
    if need_weights:
        scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
        shares = (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1)
    found = F.scaled_dot_product_attention(q, k, v, seen) if shares is None else shares @ v
    result = F.linear(found.transpose(1, 2).flatten(2), weight, bias)
    return result, shares.mean(1) if shares is not None and average_attn_weights else shares


def _encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    weights: Tensor,
    biases: Tensor,
    weight: Tensor,
    bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    scale_1: Tensor,
    shift_1: Tensor,
    scale_2: Tensor,
    shift_2: Tensor,
    inner: Tensor,
    inner_bias: Tensor,
    outer: Tensor,
    outer_bias: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """What `torch.nn.TransformerEncoderLayer` calls for inference: attention, linear layers and a norm for each."""

    def attended(x: Tensor) -> Any:
        own = (width, heads, weights, biases, weight, bias)
        return _attention(x, x, x, *own, mask, need_weights=False, mask_type=mask_type)[0]

    def fed(x: Tensor) -> Any:
        hidden = F.linear(x, inner, inner_bias)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), outer, outer_bias)

    def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        return F.layer_norm(x, (width,), scale, shift, eps)

    if norm_first:
        x = x + attended(normed(x, scale_1, shift_1))
        return x + fed(normed(x, scale_2, shift_2))
    x = normed(x + attended(x), scale_1, shift_1)
    return normed(x + fed(x), scale_2, shift_2)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.isfinite: _is_finite,
    Tensor.isfinite: _is_finite,
    torch._native_multi_head_attention: _attention,
    torch._transformer_encoder_layer_fwd: _encoder_layer,
}


def _unsqueezed(pairs: Tensor, dim: int) -> Tensor:
    return pairs.unsqueeze(dim if dim >= 0 else dim - 1)


def _taken(pairs: Any, index: Any) -> Any:
    given = cast(tuple[Any, ...], index if isinstance(index, tuple) else (index,))
    return pairs[(*given, slice(None))] if any(i is ... for i in given) else pairs[given]


def _expanded(pairs: Tensor, *sizes: Any) -> Tensor:
    given: Sequence[Any] = sizes if isinstance(sizes[0], int | torch.SymInt) else sizes[0]
    return pairs.expand(*given, 2)


_OF_COMPLEX: dict[Any, Callable[..., Tensor]] = {
    torch.unsqueeze: _unsqueezed,
    Tensor.unsqueeze: _unsqueezed,
    Tensor.__getitem__: _taken,
    Tensor.expand: _expanded,
}
"""Functions that move complex numbers, on tensors with real and imaginary parts along one more axis."""
