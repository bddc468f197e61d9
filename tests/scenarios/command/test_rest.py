"""How much processor time is left: by the kernel's own counting, of the processors that this process may use."""

from __future__ import annotations

import pytest

from scenarios.command.playing.rest import LOOK_S, Rest


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("scenarios.command.playing.rest.time", found := Clock())
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2})
    return found


def stat(path, *idle: int, busy: int = 0) -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice, of the whole machine and of each processor"""
    rows = [f"cpu{number} {busy} 0 0 {ticks} 0 0 0 0 0 0" for number, ticks in enumerate(idle)]
    path.write_text("\n".join([f"cpu  9 9 9 {sum(idle)} 9 9 9 9 9 9", *rows, "intr 1 2 3"]) + "\n")


def test_it_is_the_share_since_the_last_look_and_of_its_own_processors(tmp_path, clock):
    file = tmp_path / "stat"
    stat(file, 0, 0, 0)
    rest = Rest(file)
    assert rest.share() == 0.0  # nothing has been seen yet
    clock.now += LOOK_S
    stat(file, 30, 0, 45, busy=25)  # what the second has left is not for this process
    assert rest.share() == pytest.approx(75 / 125)
    stat(file, 30, 0, 45, busy=100)
    assert rest.share() == pytest.approx(75 / 125)  # not before there is enough to count
    clock.now += LOOK_S
    assert rest.share() == 0.0


def test_where_nothing_can_be_seen_nothing_is_left(tmp_path, clock):
    rest = Rest(tmp_path / "none")
    clock.now += LOOK_S
    assert rest.share() == 0.0
