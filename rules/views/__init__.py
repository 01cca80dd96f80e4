"""What moves elements and computes nothing. All of it is exact, but places counted in floats.

    Reshape(Reshape(x, a), b) == Reshape(x, b)                    one normal form              `reshapes`
    Shape(f(x)) == Shape(input)                                    extents by their symbols      `extents`
    GatherND(x, all places in order) == x                         look-ups that move nothing   `indices`, `counting`
    ScatterND(x, all places in order, y) == y                     nothing of x is left         `scatters`
    Transpose(ScatterND(Transpose(x), i, y)) == ScatterND(x, j, y)  along an axis               `scatters`
    ScatterND(x, [2, 3], y) == Concat(x[:2], y, x[4:])            side by side                 `scatters`
    ScatterND(ScatterND(x, [0, 2], y), [1, 3], z) == Reshape(Concat(y, z))   by turns          `scatters`
    And(place <= place, m) == Trilu(m)                            what is compared by place    `triangles`
    Gather(x, Range(0, n)) == x[0:n]                              the first elements           `places`
    NonZero(ones) == Unsqueeze(Range(0, Size(ones)))              nothing is zero              `places`
    Transpose(Transpose(x, p), q) == Transpose(x, p o q)          chains compose               `movement`
    f(Transpose(x, p)) == Transpose(f(x), p)                      elementwise, padding, sums   `transposes`
    Slice(Concat(a, b)) == a, Concat(Slice(x), Slice(x)) == x     parts and wholes cancel      `parts`
    x[0:a], x[a:n] == Split(x, (a, n - a))                        slices that cover a value    `parts`
    x[0], x[1], ... == Squeeze(Split(x, (1, 1, ...)))             elements, one by one         `elements`
    Concat(Unsqueeze(x[0:k]), Unsqueeze(x[k:2*k])) == Reshape(x)  stacked again, elements too  `elements`
    x[::-1][0] == x[-1], Transpose(x, p)[i] == x[i]               elements where they lie      `elements`
    Reshape(Transpose(Reshape(x))) == Transpose(Reshape(x))       fewest axes                  `transposed_views`
    Transpose(Reshape(Transpose(x))) == Reshape(x)                where groups of axes stay    `transposed_views`
    Transpose(Reshape(Transpose(x))) == Reshape(Transpose(x))     or move together             `transposed_views`
    Transpose(A) @ Transpose(B) == Transpose(B @ A)               stacks of products           `transposed_stacks`
    f(Split(x)[i]) == Split(f(x))[i]                              one view for all parts       `splits`
    rows(Reshape(x)) == Reshape(rows(x))                          functions of whole rows      `rows`
    f(Gather(t, i)) == Gather(f(t), i)                            t constant                   `tables`
    Gather(x, [[0, 1], [1, 2]]) == Concat(x[0:2], x[1:3])         windows of places known        `windows`
    Concat(x[0::2], x[1::2]) == Reshape(Transpose(Reshape(x)))    blocks, part by part           `windows`

Moving a view past an operator makes no program cheaper by itself, so nothing moves unless it meets what cancels it: each equation
does both steps at once.
"""
