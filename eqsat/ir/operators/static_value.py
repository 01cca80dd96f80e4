"""Outputs that follow from the types of the inputs alone, so that they fold although the inputs are not constant."""

from __future__ import annotations

import numpy as np

from eqsat.ir.operator import Application
from eqsat.ir.operators.generator import shape_range
from eqsat.ir.types import TensorType


def static_outputs(app: Application) -> tuple[np.ndarray, ...] | None:
    """The outputs of ``app`` if its input types determine them, else ``None``.

    Shape needs only the extents it lists to be known, Size all of them.

    >>> from eqsat.ir.graph import Attributes
    >>> from eqsat.ir.types import tensor_type
    >>> static_outputs(Application("Shape", Attributes({"start": 1}), [tensor_type("float32", ("n", 3, 4))], [None]))
    (array([3, 4]),)
    """
    if app.op not in ("Shape", "Size") or not app.types or not isinstance(app.types[0], TensorType):
        return None
    found = app.types[0]
    if found.shape is None:
        return None
    if app.op == "Size":
        return None if found.size is None else (np.asarray(found.size, np.int64),)
    listed = found.shape[shape_range(app.attributes, len(found.shape))]
    if not all(isinstance(d, int) for d in listed):
        return None
    return (np.asarray(listed, np.int64),)
