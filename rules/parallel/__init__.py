"""Products and convolutions of one input, side by side: one launch instead of several.

    L(x, A), L(x, B) == Split(L(x, Concat(A, B)))                 weights for each channel     `products`
    A @ w, B @ w == Split(Concat(A, B) @ w)                       one right operand            `batches`
    Conv(x, A), Conv(x, B) == Split(Conv(x, Concat(A, Pad(B))))   smaller kernels padded       `convolutions`
    Conv(x, A) + Conv(x, B) + x == Conv(x, A + B + 1)             branches that are added     `sums`
    f(Split(x)[0]), f(Split(x)[1]) == Split(f(x))                 what follows all alike       `epilogues`
    f(x[0]), f(x[1]), ... == f(x)[0], f(x)[1], ...                of each element alike        `elements`

Never pair by pair: n products have n! orders in which pairs could meet, and one merged product of all. Which products may be
one says `groups`.
"""
