"""The end of a lab: all of it, whatever comes meanwhile."""

from __future__ import annotations

import signal
import threading

import pytest

from scenarios.lab import home


class Came(BaseException):
    pass


@pytest.fixture
def told():
    """SIGTERM raises, as in the command."""
    def came(number, frame):
        raise Came

    before = signal.signal(signal.SIGTERM, came)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_until_the_end_is_whole(told, tmp_path, monkeypatch):
    monkeypatch.setattr(home, "_folder", lambda: tmp_path)
    monkeypatch.setattr(home, "_home", None)
    monkeypatch.setattr(home, "_sweep_engines", lambda homes: signal.pthread_kill(
        threading.get_ident(), signal.SIGTERM) or [])
    place = home.scratch()
    assert place.is_dir()
    with pytest.raises(Came):
        home.end()
    assert list(tmp_path.iterdir()) == []


def test_an_end_that_was_broken_off_is_ended_by_the_next(told, tmp_path, monkeypatch):
    def broken_off(homes):
        raise Came

    monkeypatch.setattr(home, "_folder", lambda: tmp_path)
    monkeypatch.setattr(home, "_home", None)
    home.scratch()
    with monkeypatch.context() as once, pytest.raises(Came):
        once.setattr(home, "_sweep_engines", broken_off)
        home.end()
    assert list(tmp_path.iterdir())
    home.end()
    assert list(tmp_path.iterdir()) == []
