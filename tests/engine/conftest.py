"""What several tests of the engine's parts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """Makes queues and child processes, and ends them."""
    things: list[Any] = []

    def make(kind: Callable[..., Any], *args: Any, **options: Any) -> Any:
        things.append(kind(*args, **options))
        return things[-1]

    yield make
    for thing in reversed(things):
        if hasattr(thing, "shutdown"):
            thing.shutdown()
        else:
            thing.kill()
            thing.join()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Ends what a test opened."""
    with ExitStack() as stack:
        yield stack
