"""Small ResNet, ResNeXt, MobileNet, Inception, NASNet and SqueezeNet, and the cell NasRNN: see `benchmarks.small_models`."""

from __future__ import annotations

from benchmarks.small_models import Net, family
from eqsat.samples import Instance

C, P = 4, 5
"""Channels and pixels."""


def _image(n: Net) -> str:
    return n.op("Relu", n.conv_norm(n.input(1, 3, P, P), 3, C, 3))


def _classes(n: Net, x: str, channels: int) -> Instance:
    pooled = n.op("Flatten", n.op("GlobalAveragePool", x))
    return n.finish(n.op("Gemm", n.rounded(pooled), n.weight(3, channels), n.weight(3), transB=1))


def _residual(n: Net, group: int) -> Instance:
    x = n.op("MaxPool", _image(n), kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    for project in (True, False):
        h = n.op("Relu", n.conv_norm(x, C, 4))
        h = n.op("Relu", n.conv_norm(h, 4, 4, 3, group))
        h = n.conv_norm(h, 4, C)
        x = n.op("Relu", n.op("Add", h, n.conv_norm(x, C, C) if project else x))
    return _classes(n, x, C)


@family("resnet", quantised=("qdq", "lowered"))
def resnet(n: Net) -> Instance:
    """Two bottlenecks, one with a projected shortcut."""
    return _residual(n, 1)


@family("resnext")
def resnext(n: Net) -> Instance:
    """The same with groups."""
    return _residual(n, 2)


@family("mobilenetv2", quantised=("qdq",))
def mobilenetv2(n: Net) -> Instance:
    """Inverted residuals under Clip."""
    x = n.op("Clip", n.conv_norm(n.input(1, 3, P, P), 3, C, 3), n.number(0), n.number(6))
    h = n.op("Clip", n.conv_norm(x, C, 6), n.number(0), n.number(6))
    h = n.op("Clip", n.conv_norm(h, 6, 6, 3, 6), n.number(0), n.number(6))
    return _classes(n, n.op("Add", x, n.conv_norm(h, 6, C)), C)


@family("mobilenetv3")
def mobilenetv3(n: Net) -> Instance:
    """Spelled hard swish, squeeze and excitation."""

    def gate(x: str) -> str:
        return n.op("Div", n.op("Clip", n.op("Add", x, n.number(3)), n.number(0), n.number(6)), n.number(6))

    x = n.conv_norm(n.input(1, 3, P, P), 3, C, 3)
    x = n.op("Mul", x, gate(x))
    h = n.op("Relu", n.conv_norm(n.conv_norm(x, C, 6), 6, 6, 3, 6))
    squeezed = n.op("Relu", n.conv(n.op("GlobalAveragePool", h), 6, 2, bias=True))
    h = n.op("Mul", h, gate(n.conv(squeezed, 2, 6, bias=True)))
    return _classes(n, n.op("Add", x, n.conv_norm(h, 6, C)), C)


@family("inception")
def inception(n: Net) -> Instance:
    """Branches of convolutions of one input, joined."""
    x = _image(n)
    branches = [n.op("Relu", n.conv_norm(x, C, 2))]
    branches.append(n.op("Relu", n.conv_norm(n.op("Relu", n.conv_norm(x, C, 3)), 3, 2, 3)))
    middle = n.op("Relu", n.conv_norm(n.op("Relu", n.conv_norm(x, C, 2)), 2, 3, 3))
    branches.append(n.op("Concat", *(n.op("Relu", n.conv_norm(middle, 3, 2, k)) for k in (1, 3)), axis=1))
    pooled = n.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)
    branches.append(n.op("Relu", n.conv_norm(pooled, C, 2)))
    return _classes(n, n.op("Concat", *branches, axis=1), 10)


@family("squeezenet")
def squeezenet(n: Net) -> Instance:
    """Fire modules: convolutions with bias, one narrow and two side by side."""
    x = n.op("Relu", n.conv(n.input(1, 3, P, P), 3, C, 3, bias=True))
    channels = C
    for _ in range(2):
        s = n.op("Relu", n.conv(x, channels, 2, bias=True))
        x = n.op("Concat", *(n.op("Relu", n.conv(s, 2, 3, k, bias=True)) for k in (1, 3)), axis=1)
        channels = 6
    x = n.op("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2))
    return n.finish(n.op("Flatten", n.op("GlobalAveragePool", n.op("Relu", n.conv(x, 6, 3, bias=True)))))


@family("nasnet")
def nasnet(n: Net) -> Instance:
    """A cell of separable convolutions and pools of two inputs, summed in pairs and joined."""

    def separable(x: str, k: int) -> str:
        return n.batch_norm(n.conv(n.conv(n.op("Relu", x), C, C, k, group=C), C, C), C)

    a = _image(n)
    b = n.conv_norm(n.op("Relu", a), C, C)
    pool = n.op("AveragePool", b, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    pairs = ((separable(a, 3), separable(b, 5)), (pool, a), (separable(b, 3), b), (pool, pool))
    return _classes(n, n.op("Concat", *(n.op("Add", *pair) for pair in pairs), axis=1), 4 * C)


@family("nasrnn")
def nasrnn(n: Net) -> Instance:
    """A searched recurrent cell: eight products of the input and eight of the state, combined in pairs, for two steps."""
    steps, state = [n.input(2, 4) for _ in range(2)], n.input(2, 4)
    of_input, of_state = ([n.weight(4, 4) for _ in range(8)] for _ in range(2))
    kinds = ("Sigmoid", "Relu", "Tanh")
    for x in steps:
        layer = []
        for i, (w, u) in enumerate(zip(of_input, of_state, strict=True)):
            total = n.op("Add" if i % 2 else "Mul", n.op("MatMul", x, w), n.op("MatMul", state, u))
            layer.append(n.op(kinds[i % 3], total))
        while len(layer) > 1:
            pairs = zip(layer[::2], layer[1::2], strict=True)
            layer = [n.op("Tanh", n.op("Mul" if i % 2 else "Add", *pair)) for i, pair in enumerate(pairs)]
        state = layer[0]
    return n.finish(state)
