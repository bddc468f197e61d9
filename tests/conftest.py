"""What every test may rely on."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

#: No property here is about real time, and an example that another process kept waiting is no finding.
settings.register_profile("ringtwin", deadline=None)
settings.load_profile("ringtwin")


def pytest_configure() -> None:
    """A shell's background job, or a CI runner, may have left SIGINT ignored, and programs inherit that.

    Tests send Ctrl-C to programs that they start; those must be able to hear it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is marked `long` comes first: of several workers none is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
