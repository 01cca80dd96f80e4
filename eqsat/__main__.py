"""The ``eqsat`` command, from the first moment on: what is imported here may be interrupted, too."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of the ``eqsat`` command."""
    gc.disable()  # nothing waits for it; on the way from imports to verification it took a sixth of the time of a small model
    _open_streams()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Names are the user's: what a terminal, or a pipe on Windows, has no letter for is spelled out, as in errors.
        reconfigure(errors="backslashreplace")
    handled = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if handled:
        signal.signal(signal.SIGTERM, _end)
    try:
        from eqsat.cli import app

        app()
    except KeyboardInterrupt:
        print("eqsat: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    except OSError as error:  # of help, say, that is printed to a disk that is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"eqsat: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    finally:
        if handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # what is left goes with the process: searching it for cycles at the end took 0.3 s
        gc.enable()


def _open_streams() -> None:
    """A standard stream that is closed, as of a service, leads nowhere: a file that is opened would get its number, and what
    libraries print there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _end(number: int, _: FrameType | None) -> None:
    """Leaves as after an interrupt, so that no process or folder stays behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
