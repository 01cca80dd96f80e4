"""Products and convolutions of one input, side by side: one launch instead of several.

    x @ A, x @ B == Split(x @ Concat(A, B))                       any number at once           `products`
    A @ w, B @ w == Split(Concat(A, B) @ w)                       one right operand            `batches`
    Conv(x, A), Conv(x, B) == Split(Conv(x, Concat(A, B)))        smaller kernels padded       `convolutions`
    f(Split(x)[0]), f(Split(x)[1]) == Split(f(x))                 what follows all alike       `epilogues`

Never pair by pair: n products have n! orders in which pairs could meet, and one merged product of all.
"""
