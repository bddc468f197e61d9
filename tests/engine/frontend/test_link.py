"""What a client hears of its coordinator and tells it, stepped by hand."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import DataParallelConfig, EngineConfig
from engine.coordinator.board import Notice
from engine.coordinator.sockets import STATS
from engine.coordinator.words import FirstRequest, decode_first_request, encode_notice
from engine.frontend.link import CoordinatorLink
from engine.frontend.session import ClientSession
from engine.topology import frontend
from tests.engine.process.hands import LifeHand

OLD = DataParallelConfig(lockstep=True, coordinator=True, wave_protocol="old")


class Linked:
    def __init__(self, options: DataParallelConfig = OLD, index: int = 0) -> None:
        self.hand = LifeHand()
        config = EngineConfig(model="m", data_parallel_size=2, data_parallel=options)
        self.session = ClientSession(config.limits, config.bounds, str, cores=(0, 1))
        self.link = CoordinatorLink(frontend(index), config, self.session, (0, 1))

    def told(self, *cores: int) -> list[FirstRequest]:
        """What is said of requests to these, in one tick."""
        before = len(self.hand.sent)
        for core in cores:
            self.link.sent(core)
        self.hand.run(self.link.tell())
        return [decode_first_request(frames) for outbox, frames, _ in self.hand.sent[before:] if outbox == STATS]

    def hears(self, wave: int, running: bool) -> None:
        self.hand.run(self.link.hear(encode_notice(Notice(None, wave, running))))


def test_the_first_of_several_requests_is_told_and_behind_it_the_group_is_believed_to_run() -> None:
    linked = Linked(index=3)
    assert linked.told(1, 0) == [FirstRequest(3, 1, 0)]
    assert linked.told(0) == []
    assert linked.hand.observed == [("first-request", {"rank": 1, "wave": 0})]


def test_it_is_told_in_the_wave_that_is_believed_in_by_then() -> None:
    linked = Linked()
    linked.link.sent(1)
    linked.hears(4, running=False)
    assert linked.told() == [FirstRequest(0, 1, 4)]


def test_of_a_group_that_runs_nothing_is_told_and_the_next_one_is_when_it_rests_again() -> None:
    linked = Linked()
    linked.hears(0, running=True)
    assert linked.told(0) == []
    linked.hears(1, running=False)
    assert linked.told(0) == [FirstRequest(0, 0, 1)]


@pytest.mark.parametrize("changes", [{"wave_protocol": "new"}, {"lockstep": False}], ids=str)
def test_whoever_tells_of_its_work_itself_or_has_no_waves_needs_no_word(changes: dict[str, object]) -> None:
    assert Linked(msgspec.structs.replace(OLD, **changes)).told(0, 1) == []


def test_of_a_group_that_has_ended_nothing_is_told() -> None:
    linked = Linked()
    linked.link.sent(0)
    linked.session.die("core.0 died")
    assert linked.told() == []


def test_what_is_no_notice_changes_nothing_and_is_named() -> None:
    linked = Linked()
    linked.hand.run(linked.link.hear([b"\xc1"]))
    linked.hand.run(linked.link.hear(encode_notice(Notice(((0, 0, 0.0),), 5, True))))
    assert linked.session.balance.wave == 0
    assert [(name, data["edge"]) for name, data in linked.hand.observed] == [
        ("bad-frame", "coordinator.0->frontend.0/stats")] * 2
