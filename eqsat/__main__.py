"""The ``eqsat`` command, from the first moment on: what is imported here may be interrupted, too."""

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the ``eqsat`` command."""
    try:
        from eqsat.cli import main as run

        run()
    except KeyboardInterrupt:
        print("eqsat: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()  # what is left goes with the process: searching it for cycles at the end took 0.3 s


if __name__ == "__main__":
    main()
