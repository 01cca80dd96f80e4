"""Why, and why not: which rules fired where in a model, and how near the others came at a place the user names."""

from eqsat.why.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
