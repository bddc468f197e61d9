"""Entry point of `ringtwin`: looks whether the project's own packages are found, and only then imports them.

Promise: a folder of somebody else's that is called as one of ours and stands before it on Python's path is told in one
line, with exit code 3, and not as an ImportError.
"""

from __future__ import annotations

import atexit
import gc
import sys

from scenarios.command.shadows import hidden


def main() -> None:
    reason = hidden()
    if reason is not None:
        print(f"ringtwin: {reason}", file=sys.stderr)
        sys.exit(3)
    from scenarios.command.cli import main as run

    atexit.register(gc.freeze)  # runs by the thousand go with the process: nobody looks for garbage among them
    run()
