"""Where the `multihead` command begins: beside the package, because `import multihead` loads torch.

That takes seconds, in which Ctrl-C must be no traceback, so this file imports next to nothing.
"""

import os
import signal


def main() -> None:
    """Load the command line, then hand over to it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # and not ignored, as in a background job
        signal.signal(signal.SIGINT, _stop)
    from multihead.cli import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _stop(*_: object) -> None:
    """At once: an exception in the middle of an import may be caught there, taken for a fault."""
    os.write(2, b"\nmultihead: stopped\n")
    os._exit(130)  # what a shell says of a command that Ctrl-C ended
