"""The error of this package."""

from eqsat.errors import EqsatError


class ExtractionError(EqsatError):
    """The extraction problem is malformed, or no acyclic choice of finite cost derives its roots."""
