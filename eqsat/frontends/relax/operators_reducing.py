"""How operators of Relax are read: reductions, norms, products, convolutions, windows."""

from typing import Any

from eqsat.frontends.relax.site import READINGS, Reading, Site, integers, reads

# ---- reductions and norms


def _reduction(op: str) -> Reading:
    def reading(site: Site) -> Any:
        axes = site.attributes.axis
        given = () if axes is None else (site.integers(axes),)
        return site.op(op, site.operands[0], *given, keepdims=int(site.attributes.keepdims))

    return reading


for _name, _op in (("mean", "Mean"), ("sum", "Sum"), ("max", "Max"), ("min", "Min"), ("prod", "Prod")):
    READINGS[_name] = _reduction(f"Reduce{_op}")


@reads("variance")
def _variance(site: Site) -> Any:
    x, axes = site.operands[0], site.attributes.axis
    given = () if axes is None else (site.integers(axes),)
    deviation = site.op("Sub", x, site.op("ReduceMean", x, *given, keepdims=1))
    return site.op("ReduceMean", site.op("Mul", deviation, deviation), *given, keepdims=int(site.attributes.keepdims))


@reads("nn.layer_norm")
def _layer_norm(site: Site) -> Any:
    axes = sorted(a % site.rank for a in integers(site.attributes.axes))
    if axes != list(range(site.rank - len(axes), site.rank)) or not (site.attributes.center and site.attributes.scale):
        return None
    return site.op("LayerNormalization", *site.operands, axis=axes[0], epsilon=float(site.attributes.epsilon))


@reads("nn.batch_norm")
def _batch_norm(site: Site) -> Any:
    attributes = site.attributes
    if attributes.training or not (attributes.center and attributes.scale) or int(attributes.axis) != 1:
        return None
    y = site.op("BatchNormalization", *site.operands, epsilon=float(attributes.epsilon))
    return y, site.operands[3], site.operands[4]


# ---- products, convolutions, windows


@reads("matmul")
def _matmul(site: Site) -> Any:
    if site.builder.type_of(site.operands[0]).dtype.numpy != site.dtype:  # type: ignore[union-attr]
        return None
    return site.op("MatMul", *site.operands)


def _standard_layout(site: Site) -> bool:
    attributes, spatial = site.attributes, "DHW"[5 - site.rank :]
    layouts = [attributes.out_layout, getattr(attributes, "data_layout", None) or attributes.layout]
    return all(v in ("", "NC" + spatial) for v in layouts) and getattr(attributes, "kernel_layout", "OI" + spatial) == (
        "OI" + spatial
    )


@reads("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(site: Site) -> Any:
    attributes = site.attributes
    if not _standard_layout(site) or attributes.out_dtype not in (None, "", site.dtype):
        return None
    return site.op("Conv", *site.operands, group=int(attributes.groups), **_sliding(attributes))


def _sliding(attributes: Any) -> dict[str, tuple[int, ...]]:
    named = {"strides": attributes.strides, "pads": attributes.padding, "dilations": attributes.dilation}
    return {name: tuple(integers(values)) for name, values in named.items()}


def _window(site: Site, op: str, **more: Any) -> Any:
    kernel = tuple(integers(site.attributes.pool_size))
    ceil = int(site.attributes.ceil_mode)
    return site.op(op, site.operands[0], kernel_shape=kernel, ceil_mode=ceil, **_sliding(site.attributes), **more)


@reads("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def _max_pool(site: Site) -> Any:
    return _window(site, "MaxPool") if _standard_layout(site) else None


@reads("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _avg_pool(site: Site) -> Any:
    if site.attributes.ceil_mode or not _standard_layout(site):
        return None
    return _window(site, "AveragePool", count_include_pad=int(site.attributes.count_include_pad))


@reads("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d")
def _adaptive_avg_pool(site: Site) -> Any:
    if set(site.shape[2:]) != {1} or not _standard_layout(site):
        return None
    return site.op("GlobalAveragePool", site.operands[0])
