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
    def parse(name: str) -> Exactness:
        """The class called ``name``. Raises `OptionError` for any other word."""
        from eqsat.errors import OptionError, choices

        try:
            return Exactness[name.upper()]
        except KeyError:
            raise OptionError(
                f"numerics {name!r} does not exist; {choices(name, (e.label for e in Exactness))}"
            ) from None
