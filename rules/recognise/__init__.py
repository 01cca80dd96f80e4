"""Structures that exporters spell out, as one operator, and the same spelled out again where a target has no kernel.

    x * (1 + Erf(x / sqrt(2))) / 2 == Gelu(x)                     activations                  `activations`
    x * Sigmoid(x) == Swish(x)                                    gates                        `gates`
    Where(x > 0, x, c * x) == LeakyRelu(x)                        choices by an order          `choices`
    Exp(x - max) / sum(Exp(x - max)) == Softmax(x)                always the stable form       `softmax`
    (x - mean) / sqrt(mean((x - mean)^2) + e) == LayerNorm(x)     norms                        `norms`, `group_norms`
    N(x over channels) == T(N(T(x)))                              as norms of rows             `channel_norms`
    LayerNorm(x over positions) == InstanceNorm(x)                each channel by itself       `group_norms`
    mean(x^2) - mean(x)^2 == mean((x - mean)^2)                   recognised, never made       `variance`
    Cast(LayerNorm(Cast(x))) == LayerNorm(x), so Softmax          casts from half precision    `halves`
    Cast(Cast(x) + Cast(y)) == x + y                              rounded twice, as once       `halves`
    operator == what it is built of                               for targets without kernel   `legalization`
    fused operator == what it is built of                         where the file has it        `fused`

A recogniser matches the one spelling that the other rules bring every exporter's to.
"""
