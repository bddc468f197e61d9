"""A process of a play, seen from outside."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("zmq")

from scenarios.worlds.measure import Watched  # noqa: E402


def test_the_time_of_an_end_is_read_when_the_end_is_known() -> None:
    """Read before, it may lie before what the process wrote last."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    watched = Watched("worker.1", 0, process.pid, lambda: 1.0)

    def too_early() -> float:
        raise AssertionError("it is still there")

    watched.look(too_early)
    process.communicate()
    watched.look(lambda: 5.0)
    watched.look(too_early)
    watched.close()
    assert watched.end().ended_at == 5.0


def test_so_it_is_for_a_process_that_was_gone_before_it_was_seen() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    times = iter((1.0, 5.0))
    end = Watched("worker.1", 0, process.pid, lambda: next(times)).end()
    assert (end.started_at, end.ended_at) == (1.0, 5.0)
