"""The ``eqsat`` command, from the first moment on: what is imported here may be interrupted, too."""

import gc
import sys


def main() -> None:
    """Entry point of the ``eqsat`` command."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Names are the user's: what a terminal, or a pipe on Windows, has no letter for is spelled out, as in errors.
        reconfigure(errors="backslashreplace")
    try:
        from eqsat.cli import app

        app()
    except KeyboardInterrupt:
        print("eqsat: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    finally:
        gc.freeze()  # what is left goes with the process: searching it for cycles at the end took 0.3 s


if __name__ == "__main__":
    main()
