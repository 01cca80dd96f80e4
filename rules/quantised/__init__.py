"""Quantisation: ``Q(x, s, z) = saturate(round(x / s) + z)``, ``D(q, s, z) = (q - z) * s``.

    Q(D(q)) == q                                                  pairs cancel                 `pairs`, `scales`
    Q(move(x)) == move(Q(x))      D(move(q)) == move(D(q))        movement on integers         `movement`, `joining`
    Q(Relu(x)) == Clip(Q(x), z, top)                              s positive: order is kept    `order`
    Q(f(D(q))) == table[q]                                        256 values of f              `byte_tables`
    D(a) @ D(b) == (a @ b - ...) * (s * t)                        sums of integers             `integer_products`
                                                                  and convolutions             `integer_convolutions`
    ConvInteger(q, r) * (s * t) == Conv(D(q, s), D(r, t))         s is computed as it runs     `integer_convolutions`
    D(sums) + c == D(sums + round(c / s))                         below half a quantum         `integer_bias`, `integer_bounds`
    D(q, s) * c == D(q, s * c)                                    factors of integers          `integer_scales`
    D(q, s) / t == D(q, s / t)                                    weights by any spelling      `weight_spellings`
    w == D(w / s, s)              w / s whole numbers             floats that were dequantised   `byte_weights`
    D(int8 q, s, z) == D(uint8 q + 128, s, z + 128)               for unsigned kernels         `recentring`
    Clip(Round(x / s) + z) == Q(x, s, z)                          quantisation spelled out     `recognition`
    Concat(D(v), D(w)) == D(Concat(v, w), (s, t))                 weights side by side         `weights`

Most of this is stated for operators of a kind, not one by one: movement is whatever has the trait ``moves``, order whatever
rises and takes one of its elements, a function of bytes whatever has ``operands`` and is continuous. An operator defined later
has these rules, too.

What is computed on integers is exact as long as nothing overflows; where a float was rounded between, the integer may differ by a
quantum, and the rule is of class `lsb`.
"""
