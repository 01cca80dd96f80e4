"""How far a rewrite may move a value: the exactness classes, weakest promise last."""

from __future__ import annotations

from enum import IntEnum


class Exactness(IntEnum):
    """Exactness class of a rewrite. A numerics level allows its own class and every stronger one.

    - ``EXACT``: equal on every input, up to the sign of zero and the payload of NaN.
    - ``ROUNDING``: equal over the reals; floats differ by re-association, and where one overflows on the way.
    - ``LSB``: an integer result may differ by a stated number of quanta at rounding ties.
    - ``LOSSY``: not an equality; only on request.
    """

    EXACT = 0
    ROUNDING = 1
    LSB = 2
    LOSSY = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @staticmethod
    def parse(name: str | Exactness, what: str = "numerics") -> Exactness:
        """The class called ``name``. Raises `OptionError` for any other word; ``what`` is what the message calls it."""
        from eqsat.errors import OptionError, choices

        if isinstance(name, Exactness):
            return name
        try:
            return Exactness[str(name).upper()]
        except KeyError:
            known = choices(name, (e.label for e in Exactness))
            raise OptionError(f"{what} {name!r} does not exist; {known}") from None
