"""Operators that are linear in an input, and what passes them: ``L(x, w, b)`` is a product by weights or a convolution.

    L(x * s, w, b) * t == L(x, s * w * t, b * t)                  s along what L reads, t along what it puts out
    L(x + c, w, b) + e == L(x, w, b + e) + L(c, w)                without padding              `folding`
    f(x * s) == f(x) * s                                          f rectifies, s positive      `scale_motion`
    movement(x) * s == movement(x * s')                           s moved along                `scale_passages`, `scale_carrying`
    BatchNormalization(x) == x * a + b                            at inference                 `normalisation`
    Norm(x) * g == Norm(x, gain=g)                                and on to the next product   `norm_gains`
    L(w, Pad(x)) == L(w, x, pads), Slice(L(w, x)) == L(w, x)      a border of zeros            `padding`
    (x @ A) @ B == x @ (A @ B)                                    adapters of low rank         `low_rank`
    L(x[:, i], w) == L(x, w[:, i'])                               i puts channels in order     `channel_order`
    rows of x @ w == (x @ w)'s rows                               stacked rows                 `row_products`
    A' @ B + c == Gemm(A, B, c, transA=1)                         flags, factors, bias         `gemm`
    Einsum(x, y, "bid,bjd->bij") == x @ y'                        axes by their names          `einsum`
    Concat(Conv(x1), Conv(x2)) == Conv(x, group=2)                convolutions in groups       `grouped_convolutions`

A scale may lie along one axis of a value (`alignment`). Where that is in the weights the traits of the operator say
(`operators`), so what is declared here for ``L`` and ``f`` holds for every operator with such traits, those defined later
included. Constants have to stay finite, and shifts of ordinary size: a huge one rounds, and a large
one behind a product leaves few digits of what is multiplied.
"""
