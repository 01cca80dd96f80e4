"""Operators of ``com.microsoft``, which ONNX Runtime has kernels for: programs of the form ``onnxruntime`` are made of them.

    act(Gemm(a, b, c)) == FusedGemm(a, b, c)                      and MatMul, Conv             `products`
    Gelu(x + b) == BiasGelu(x, b)                                 activations                  `activations`
    RMSNorm(x) == SimplifiedLayerNormalization(x)                 norms                        `norms`
    LayerNorm(x + y), x + y == SkipLayerNormalization(x, y)       norms of sums                `norms`
    mean(x over rows) == 1/n @ x                                  slow reductions              `sums`
    x[:, None] * y[None, :] == x[:, None] @ y[None, :]            slow over short rows         `sums`
    Softmax(x over channels) == T(Softmax(T(x)))                  slow along such axes         `lines`
    LRN(x) == x / (k + band @ x^2) ** b                           slow on images               `images`
    AveragePool(x) == Conv(x, 1/n)                                where channels fill no block `images`
    Resize(x by 2, centres) == Resize(x by 2, corners)            slow ways of resizing        `resizing`
    Resize(x, cubic) == a @ x @ b                                 interpolation                `resizing`
    Conv(volume) == Conv(batch of planes)                         slow without blocks          `volumes`
    Mish(x) == x * n / (n + 2)                                    slow functions               `activations`
    Conv(sequence) == Conv(image of one row)                      slow without blocks          `blocks`
    Attention(q, k, v) == MultiHeadAttention(q, k, v)             heads apart, biases          `attention`
    Attention(q, k, v, m, pk, pv) == MultiHeadAttention(...)      shared or stored keys        `shared_heads`, `grouped_queries`
    H(x @ w) == x @ H(w)                                          the order of heads           `head_order`
    RotaryEmbedding(x, c, s) == RotaryEmbedding(x, 0, c, s)       positions                    `rotary`
    GroupQueryAttention(RotaryEmbedding(q), ...) == GroupQueryAttention(q, ...)                `turned_heads`
    LayerNorm(table[i] + table[j]) == EmbedLayerNormalization     the first layer              `norms`
    Conv(x, w, group=2n) == Conv(x, w beside zeros, group=n)      blocks of channels           `blocks`
    d[i] @ gate(u[i] @ x) == MoE(x, eye[i], u, d)                 mixtures of experts          `experts`
    x @ D(w) == MatMulNBits(x, w)                                 weights of 4 bits            `weights`
    Conv(x, D(w)) == Conv(x, (Cast(w) - z) * s)                   weights dequantised at load  `weights`
    D(MatMulInteger(a, b)) == MatMulIntegerToFloat(a, b)          products of integers         `integer`, `heads`, `depthwise`
    Q(D(a) + D(b)) == QLinearAdd(a, b)                            and relatives                `quantised`
    table[q] == Gather(table, q)                                  functions of bytes           `lookup`, `columns`, `column_heads`
    Q(D(q) + mask)                                                masks of quantised scores    `masks`

What these kernels promise is not written down anywhere; conditions cite the kernel's source or an experiment. A condition that
is only about what a kernel takes says so: the equation holds without it. What all equations on bytes ask of scales and zero
points is in `parameters`.
"""
