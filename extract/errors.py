"""The error of this package."""

from eqsat.errors import EqsatError


class ExtractionError(EqsatError):
    """The extraction problem is malformed, or no acyclic choice of finite cost derives its roots: ``eclass`` is one of them."""

    def __init__(self, message: str, eclass: int | None = None) -> None:
        super().__init__(message)
        self.eclass = eclass
