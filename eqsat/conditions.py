"""Named side conditions that users' rules share with the shipped ones, and `condition` to make one of a predicate."""

from eqsat.rules.terms import about, condition, constant, every_element, finite, nonzero, same_type, signed

__all__ = ["about", "condition", "constant", "every_element", "finite", "nonzero", "same_type", "signed"]
