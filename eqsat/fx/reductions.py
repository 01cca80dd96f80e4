"""Reductions of torch: sums and extrema over axes, norms, softmax."""

from collections.abc import Callable
from typing import Any

import torch

from eqsat.fx.site import WRITERS, Site, Unwritten, writes


def _reduced(site: Site) -> tuple[list[int], bool]:
    """The axes, and whether they stay as extents of 1; no axes where the operator leaves its input as it is."""
    axes = site.axes(1)
    if not axes:
        axes = [] if site.attr("noop_with_empty_axes") else list(range(site.rank()))
    return sorted(set(axes)), bool(site.attr("keepdims"))


def _over(site: Site, x: Any, reduce: Callable[[Any, list[int], bool], Any]) -> Any:
    axes, keep = _reduced(site)
    return reduce(x, axes, keep) if axes and site.rank() else x


def _sum(site: Site, x: Any) -> Any:
    return _over(site, x, lambda v, axes, keep: site.call(torch.sum, v, axes, keep, dtype=site.dtype))


@writes("ReduceMean")
def _mean(site: Site) -> Any:
    x = site.operands[0]
    if site.result.dtype.is_float:
        return _over(site, x, lambda v, axes, keep: site.call(torch.mean, v, axes, keep))
    wide = x.to(torch.float64)
    return _over(site, wide, lambda v, axes, keep: site.call(torch.mean, v, axes, keep)).to(site.dtype)


@writes("ReduceProd")
def _prod(site: Site) -> Any:
    def reduce(x: Any, axes: list[int], keep: bool) -> Any:
        for axis in reversed(axes):
            x = site.call(torch.prod, x, axis, keep, dtype=site.dtype)
        return x

    return _over(site, site.operands[0], reduce)


@writes("ReduceMax", "ReduceMin", "ReduceLogSumExp")
def _extremum(site: Site) -> Any:
    function = {"ReduceMax": torch.amax, "ReduceMin": torch.amin, "ReduceLogSumExp": torch.logsumexp}[site.node.op]
    return _over(site, site.operands[0], lambda v, axes, keep: site.call(function, v, axes, keep))


WRITERS["ReduceSum"] = lambda site: _sum(site, site.operands[0])
WRITERS["ReduceL1"] = lambda site: _sum(site, site.call(torch.abs, site.operands[0]))
WRITERS["ReduceL2"] = lambda site: site.call(torch.sqrt, WRITERS["ReduceSumSquare"](site)).to(site.dtype)
WRITERS["ReduceSumSquare"] = lambda site: _sum(site, site.operands[0] * site.operands[0])
WRITERS["ReduceLogSum"] = lambda site: site.call(torch.log, _sum(site, site.operands[0]))


@writes("ArgMax", "ArgMin")
def _arg(site: Site) -> Any:
    x, axis = site.operands[0], site.axis()
    last = site.attr("select_last_index")
    function = torch.argmax if site.node.op == "ArgMax" else torch.argmin
    found = site.call(function, site.call(torch.flip, x, [axis]) if last else x, axis, bool(site.attr("keepdims")))
    return x.size(axis) - 1 - found if last else found


@writes("Softmax", "LogSoftmax")
def _softmax(site: Site) -> Any:
    return site.call(torch.softmax if site.node.op == "Softmax" else torch.log_softmax, site.operands[0], site.axis())


# --- norms


def _rows(site: Site) -> tuple[list[Any], bool]:
    """The extents that are normalised over, and whether scale and bias have just these."""
    shape = site.type(0).shape or ()
    rows = shape[site.axis() :]
    extents = [site.scope.extent(d) for d in rows]
    if any(d is None for d in extents):
        raise Unwritten("it normalises over extents that the inputs do not tell")
    same = all(site.type(i).shape == rows for i in (1, 2) if i < len(site.operands) and site.has(i))
    return extents, same


@writes("LayerNormalization")
def _layer_norm(site: Site) -> Any:
    rows, same = _rows(site)
    x, scale, bias, epsilon = site.operands[0], site.operands[1], site.operand(2), site.attr("epsilon")
    given = (scale, bias) if same else (None, None)
    if len([v for v in site.node.outputs if v]) > 1:
        found = site.call(torch.native_layer_norm, x, rows, *given, epsilon)
        y, *statistics = (found[i] for i in range(3))
    else:
        y, statistics = site.call(torch.layer_norm, x, rows, *given, epsilon), []
    if not same:
        y = y * scale if bias is None else y * scale + bias
    return (y, *statistics)


@writes("RMSNormalization")
def _rms_norm(site: Site) -> Any:
    rows, same = _rows(site)
    x, scale, epsilon = site.operands[0], site.operands[1], site.attr("epsilon")
    if same and site.type(0).dtype is site.type(1).dtype:
        return site.call(torch.rms_norm, x, rows, scale, epsilon)
    return site.call(torch.rms_norm, x, rows, None, epsilon).to(site.dtype) * scale


@writes("GroupNormalization", "InstanceNormalization")
def _group_norm(site: Site) -> Any:
    shape = site.type(0).shape or ("", "")
    groups = site.attr("num_groups") if site.node.op == "GroupNormalization" else shape[1]
    if not isinstance(groups, int):
        raise Unwritten(f"it has {groups} groups, which is no number")
    return site.call(torch.group_norm, *site.operands[:1], groups, *site.operands[1:], site.attr("epsilon"))


@writes("LRN")
def _local_response_norm(site: Site) -> Any:
    x, size = site.operands[0], site.attr("size")
    around = [0, 0] * (site.rank() - 2) + [(size - 1) // 2, size // 2]
    total = site.call(torch.Tensor.unfold, site.call(torch.nn.functional.pad, x * x, around), 1, size, 1)
    weighed = site.call(torch.sum, total, -1) * (site.attr("alpha") / size)
    return x / (weighed + site.attr("bias")) ** site.attr("beta")


@writes("BatchNormalization")
def _batch_norm(site: Site) -> Any:
    if site.attr("training_mode"):
        raise Unwritten("it trains")
    x, scale, bias, mean, variance = site.operands
    if site.rank() > 1:
        return site.call(
            torch.nn.functional.batch_norm, x, mean, variance, scale, bias, False, 0.0, site.attr("epsilon")
        )
    return (x - mean) * (scale / site.call(torch.sqrt, variance + site.attr("epsilon"))) + bias
