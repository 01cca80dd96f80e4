"""The shipped rules, one module per family. Importing the package registers them."""

if __name__ != "eqsat.rules":
    raise ImportError("import this package as eqsat.rules")

from eqsat.rules import (
    affine,
    algebra,
    associativity,
    broadcasting,
    clamps,
    forward_folding,
    movement,
    normalisation,
    padding,
    parallel,
    parallel_epilogues,
    parts,
    quantisation,
    quantised_joining,
    quantised_movement,
    scale_folding,
    selection,
    structure,
    transposed_products,
    transposes,
    views,
)

__all__ = [
    "affine",
    "algebra",
    "associativity",
    "broadcasting",
    "clamps",
    "forward_folding",
    "movement",
    "normalisation",
    "padding",
    "parallel",
    "parallel_epilogues",
    "parts",
    "quantisation",
    "quantised_joining",
    "quantised_movement",
    "scale_folding",
    "selection",
    "structure",
    "transposed_products",
    "transposes",
    "views",
]
