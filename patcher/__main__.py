"""The ``kvpatch`` command, and what ``python -m kvpatch`` does."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it still loads ends the process without a word."""
    at_rest = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if at_rest:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    if at_rest:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
