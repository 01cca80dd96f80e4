"""The shipped rules, one module per family. Importing the package registers them."""

if __name__ != "eqsat.rules":
    raise ImportError("import this package as eqsat.rules")

from eqsat.rules import (
    affine,
    forward_folding,
    normalisation,
    padding,
    parallel,
    quantisation,
    quantised_joining,
    quantised_movement,
    scale_folding,
)

__all__ = [
    "affine",
    "forward_folding",
    "normalisation",
    "padding",
    "parallel",
    "quantisation",
    "quantised_joining",
    "quantised_movement",
    "scale_folding",
]
