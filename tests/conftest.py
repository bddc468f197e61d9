"""What every test may rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell's background job, or a CI runner, may have left SIGINT ignored, and programs inherit that.

    Tests send Ctrl-C to programs that they start; those must be able to hear it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
