"""Operators that are linear in an input, and what passes them: ``L(w, x)`` is a product by weights or a convolution.

    L(w, x) * s == L(w * s, x)                                    s along what L puts out      `scale_folding`
    L(w, x * s) == L(w * s, x)                                    s along what L reads         `forward_folding`
    L(w, x + c) == L(w, x) + L(w, c)                              a bias                       `forward_folding`
    L(w, x) + c == L(w, x, c)                                     the operator's own bias      `affine`
    r(x * s) == r(x) * s                                          r rectifies, s positive      `scale_motion`
    movement(x) * s == movement(x * s')                           s moved along                `scale_passages`, `scale_carrying`
    BatchNormalization(x) == x * a + b                            at inference                 `normalisation`
    Norm(x) * g == Norm(x, gain=g)                                and on to the next product   `norm_gains`
    L(w, Pad(x)) == L(w, x, pads)                                 a border of zeros            `padding`
    (x @ A) @ B == x @ (A @ B)                                    adapters of low rank         `low_rank`
    rows of x @ w == (x @ w)'s rows                               stacked rows                 `row_products`
    Transpose(A) @ B == Gemm(A, B, transA=1)                      flags                        `transposed_products`
    Concat(Conv(x1), Conv(x2)) == Conv(x, group=2)                convolutions in groups       `grouped_convolutions`

A scale may lie along one axis of a value; what that is for the weights is in `alignment`. Constants have to stay finite.
"""
