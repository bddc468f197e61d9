"""A core meets the head of its group and its own client, stepped by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config import DataParallelConfig, EngineConfig
from engine.core.io.handshakes import HEAD, Handshakes
from engine.effects import Identity
from engine.errors import StartupError
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses
from engine.process.consensus.effects import Member
from engine.process.recipes import CoreRecipe
from engine.wire.adoption import MASTER_ADDRESS, parallel_config
from engine.wire.handshake import HANDSHAKE, Greeting, hash_of
from tests.engine.process.hands import FILES, ME, LifeHand

CONFIG = EngineConfig(model="m", data_parallel_size=2, data_parallel_rank=1, data_parallel=DataParallelConfig(
    load_balancing="external", head_address="tcp://127.0.0.1:5000", size_local=1))
ALONE = msgspec.structs.replace(CONFIG, data_parallel=msgspec.structs.replace(
    CONFIG.data_parallel, load_balancing="internal"))
FROM_HEAD = EngineZmqAddresses([], [], "ipc://waves", "ipc://reports", "ipc://stats")
OWN = EngineZmqAddresses(["ipc://in"], ["ipc://out"])
HUB, FIRST = Member("coordinator.0", Identity(5, 1), "hub"), Member("frontend.0", Identity(4, 1))


class Meeting:
    """A core of this configuration, whose head and own client have answered so."""

    def __init__(self, config: EngineConfig = CONFIG, head: dict[str, Any] | None = None,
                 own: dict[str, Any] | None = None, *, headless: bool = False, addresses: Any = FROM_HEAD) -> None:
        self.hand = hand = LifeHand()
        said = {**parallel_config(config), MASTER_ADDRESS: "ipc:///ranks", **(head or {})}
        hand.inboxes[HEAD].append((0.1, 0, [msgspec.msgpack.encode(EngineHandshakeMetadata(
            addresses, said, head=FIRST, coordinator=HUB))]))
        if not headless:
            hand.inboxes[HANDSHAKE].append((0.2, 1, [msgspec.msgpack.encode(EngineHandshakeMetadata(
                OWN, {**parallel_config(config), **(own or {})}))]))
        self.handshakes = Handshakes(CoreRecipe(
            config=config, files=FILES, handshake_address="tcp://127.0.0.1:5000", beat="beat", frontend=ME,
            engine_index=1, dp_rank=1, head=0, clients=(0,) if headless else (1,),
            launcher=1 if headless else None, client_handshake_address=None if headless else "ipc://own"))

    def greeted(self) -> Handshakes:
        self.hand.run(self.handshakes.greet())
        return self.handshakes

    def said(self, inbox: str) -> list[Greeting]:
        return [msgspec.msgpack.decode(frames[0], type=Greeting) for box, frames, _ in self.hand.sent
                if box == inbox and frames != [b""]]


def test_the_head_says_where_the_coordinator_is_and_its_own_client_where_requests_come_from() -> None:
    meeting = Meeting()
    handshakes = meeting.greeted()
    assert handshakes.addresses == EngineZmqAddresses(
        ["ipc://in"], ["ipc://out"], "ipc://waves", "ipc://reports", "ipc://stats")
    assert handshakes.master_address == "ipc:///ranks"
    assert [box for box, *_ in meeting.hand.sent] == [HEAD, HEAD, HANDSHAKE, HANDSHAKE], "one behind the other"
    (to_head,), (to_own,) = meeting.said(HEAD), meeting.said(HANDSHAKE)
    assert to_head.place == (False, False) and to_head.member == Member("core.1", ME, "beat")
    assert to_own.place == (True, False) and to_own.stats == "ipc://stats" and to_own.coordinator == HUB


def test_it_is_ready_to_both_and_its_hash_is_what_all_agree_on() -> None:
    meeting = Meeting()
    handshakes = meeting.greeted()
    meeting.hand.run(handshakes.ready(64))
    ready = [meeting.said(inbox)[-1] for inbox in (HEAD, HANDSHAKE)]
    assert [one.status for one in ready] == ["READY"] * 2 and [one.num_gpu_blocks for one in ready] == [64] * 2
    assert ready[0].parallel_config_hash == hash_of(handshakes.agreed) and ready[1].parallel_config_hash is None


def test_it_cannot_go_on_without_the_head_and_its_coordinator_where_all_step_together() -> None:
    assert Meeting().greeted().needed == (FIRST, HUB)
    dense = msgspec.structs.replace(CONFIG, data_parallel=msgspec.structs.replace(
        CONFIG.data_parallel, load_balancing="hybrid"))
    assert Meeting(dense).greeted().needed == ()
    assert Meeting(ALONE, headless=True).greeted().needed == (FIRST,), "nobody else asks it"


def test_a_headless_one_takes_over_how_many_ranks_there_are() -> None:
    meeting = Meeting(ALONE, head={"data_parallel_size": 5}, headless=True, addresses=OWN)
    handshakes = meeting.greeted()
    assert handshakes.config.data_parallel_size == 5 and handshakes.agreed["data_parallel_size"] == 5
    assert meeting.said(HEAD)[0].place == (False, True)


@pytest.mark.parametrize(("head", "own", "words"), [
    ({"sync_interval": 7}, {}, "sync_interval is 16 here, and 7 of frontend.0"),
    ({"load_balancing": "hybrid", "lockstep": False}, {},
     "load_balancing is 'external' here, and 'hybrid' of frontend.0; lockstep is True here, and False of frontend.0"),
    ({}, {"data_parallel_size": 3}, "data_parallel_size is 2 here, and 3 of frontend.1"),
    ({"data_parallel_size": 3}, {}, "data_parallel_size is 3 here, and 2 of frontend.1")])
def test_what_differs_is_refused_by_name_and_the_head_is_told(head, own, words: str) -> None:
    meeting = Meeting(head=head, own=own)
    with pytest.raises(StartupError, match=words):
        meeting.greeted()
    last = meeting.said(HEAD)[-1]
    assert last.status == "REFUSED" and last.reason == words
    assert not any(one.status == "READY" for one in meeting.said(HEAD) + meeting.said(HANDSHAKE))


@pytest.mark.parametrize(("silent", "whom"), [(HEAD, "frontend.0"), (HANDSHAKE, "the frontend")])
def test_whoever_does_not_answer_is_named(silent: str, whom: str) -> None:
    meeting = Meeting()
    meeting.hand.inboxes[silent].clear()
    with pytest.raises(StartupError, match=f"{whom} did not answer"):
        meeting.greeted()
    assert meeting.hand.now >= CONFIG.bounds.handshake_s
