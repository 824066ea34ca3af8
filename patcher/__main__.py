"""The ``kvpatch`` command, and what ``python -m kvpatch`` does."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run the command line; Ctrl-C while it still loads ends the process without a word."""
    # The collector walks many modules and trees, and frees nothing in so short a process.
    gc.disable()
    at_rest = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if at_rest:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    if at_rest:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        # At its end Python would walk everything that is loaded, to free it one by one.
        gc.freeze()


if __name__ == "__main__":
    main()
