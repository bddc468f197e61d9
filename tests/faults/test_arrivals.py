"""What faults do to arriving messages: what is delivered, and in which order."""

from __future__ import annotations

from faults.arrivals import Held, Inbox
from faults.plan import Fate, Fault, Until

EDGE = "core.0->worker.0/overflow"
SWAPPED = Fault(id="swapped", site=f"{EDGE}:receive", fate=Fate.REORDER)
LATE = Fault(id="late", site=f"{EDGE}:receive", fate=Fate.DELAY, until=Until(seconds=1.0))


class Stage:
    """One inbox, and what was let go of it."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.inbox = Inbox(lambda fault, since, now: now >= since + 1.0, self._released)

    def _released(self, held: Held) -> None:
        self.released.append(held.nth)

    def arrives(self, nth: int, fault: Fault | None = None, edge: str = EDGE) -> None:
        self.inbox.arrive(edge, (None, [b"%d" % nth]), fault, nth, 0.0)

    def delivered(self) -> list[int]:
        return [int(message[1][0]) for message in iter(self.inbox.take, None)]


def test_a_reordered_message_comes_right_behind_the_next_one_of_its_edge() -> None:
    stage = Stage()
    stage.arrives(1, SWAPPED)
    stage.arrives(7, edge="core.0->worker.0/birth")
    assert stage.delivered() == [7] and not stage.inbox.holding
    stage.arrives(2)
    stage.arrives(3)
    assert stage.delivered() == [2, 1, 3] and stage.released == [1]


def test_a_reordered_message_comes_behind_a_late_one_when_that_is_let_go() -> None:
    stage = Stage()
    stage.arrives(1, SWAPPED)
    stage.arrives(2, LATE)
    assert not stage.inbox.release(0.5) and not stage.delivered()
    assert stage.inbox.release(1.0)
    assert stage.delivered() == [2, 1] and stage.released == [2, 1]
