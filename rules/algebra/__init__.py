"""What holds of numbers, whatever they mean.

    x + 0 == x                      x * 1 == x                    neutral elements             `arithmetic`
    (x - y) + y == x                                              what was subtracted          `arithmetic`
    x ** (3/2) == x * Sqrt(x)                                     powers by constants          `powers`
    (x * c) * d == x * (c * d)      (x + c) + d == x + (c + d)    constants in a chain         `associativity`
    a + (x + c) == (a + x) + c                                    where ``a + x`` exists       `regrouping`
    Min(Max(x, a), b) == Clip(x, a, b)                            bounds compose               `clamps`
    Where(Not(p), a, b) == Where(p, b, a)                         choices                      `selection`
    Expand(x) + y == x + y                                        where ``y`` enlarges it      `broadcasting`
    ReduceSum(x) / n == ReduceMean(x)                             reductions in one form       `reductions`
    ReduceSum(Concat(x, y)) == Sum(x, y)                          one element of each          `reductions`
    Identity(x) == x                                              operators that do nothing    `structure`
    Gather(t, f(x)) == Gather(u, Clip(x, a, b))                   where ``f`` stays the same   `integer_tables`

Three equations of school are false here: ``x * 0 == 0``, ``x - x == 0`` and ``x / x == 1`` do not hold where ``x`` is infinite or
NaN. Sums and products of floats re-associate up to rounding only, and only where a constant of the graph disappears: free
associativity would fill the e-graph with spellings of which none is cheaper.
"""
