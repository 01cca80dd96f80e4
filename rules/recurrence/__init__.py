"""Recurrent networks that exporters write as loops, as the operators that run over a whole sequence.

    Loop(h = step(x[t], h)) == LSTM(x, h), GRU(x, h), RNN(x, h)   what one iteration computes    `loops`, `cells`, `steps`
    f(x @ w + b) == f(x), of weights times w                      f is one of the three          `projections`

What an iteration computes is read as sums of products by constants, and elementwise functions of such (`steps`): how a product
is cut into gates, or which gates are computed together, is no matter (`samples` draws some ways). A single step is no operator of
its own: ONNX Runtime takes as long for it as for the parts, and longer for several sequences.
"""
