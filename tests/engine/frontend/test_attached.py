"""A client of engines that others have started, stepped by hand: whose end it tells of when one of them leaves."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import DataParallelConfig
from engine.effects import Identity
from engine.frontend.attachment import Attachment, ClientAddresses, Running
from engine.frontend.handles.monitor import LOOK_S
from engine.frontend.life import ClientLife
from engine.messages import ENGINE_CORE_DEAD
from engine.topology import frontend
from tests.engine.frontend.test_life import BOUNDS, CONFIG
from tests.engine.process.hands import LifeHand

CORES, HUB = (Identity(401, 1, 1), Identity(402, 1, 1)), Identity(403, 1, 1)
PATIENCE_S = BOUNDS.detection_s / 4
LEAVES = "core.1 said that it is leaving (ENGINE_CORE_DEAD)"


def all_live() -> LifeHand:
    hand = LifeHand()
    hand.alive.update((*CORES, HUB))
    return hand


def told_when_a_rank_leaves(hand: LifeHand) -> set[str]:
    """Why, of two that step together, when the notice of core 1 comes."""
    attachment = Attachment(
        clients=(ClientAddresses(frontend=0, requests="r", outputs={0: "a", 1: "b"}),), blocks={}, parallel_config={},
        cores={index: Running(identity=one, beat="x") for index, one in enumerate(CORES)},
        coordinator=Running(identity=HUB, beat="x"), stats="s")
    life = ClientLife(frontend(), msgspec.structs.replace(
        CONFIG, data_parallel_size=2, data_parallel=DataParallelConfig(lockstep=True)), lambda: "x", attachment)
    for handle in life._engines.all:
        handle.watch(0.0)
    hand.run(life.on_message([ENGINE_CORE_DEAD], 1))
    return {data["reason"] for name, data in hand.observed if name == "engine-dead"}


def test_it_tells_of_who_is_gone_already() -> None:
    hand = all_live()
    hand.alive.remove(HUB)
    assert told_when_a_rank_leaves(hand) == {f"{LEAVES}; coordinator.0 died, too"}
    assert hand.now == 0.0


@pytest.mark.parametrize("after_s", [0.02, PATIENCE_S - 0.001])
def test_it_tells_of_whose_end_was_seen_a_moment_later(after_s: float) -> None:
    hand = all_live()
    hand.later(after_s, lambda: hand.alive.remove(HUB))
    assert told_when_a_rank_leaves(hand) == {f"{LEAVES}; coordinator.0 died, too"}
    assert after_s <= hand.now < after_s + LOOK_S + 1e-6


def test_it_has_patience_for_so_long_and_no_longer() -> None:
    hand = all_live()
    hand.later(PATIENCE_S + 0.001, lambda: hand.alive.remove(HUB))
    assert told_when_a_rank_leaves(hand) == {LEAVES}
    assert hand.now == PATIENCE_S


def test_the_end_of_the_one_that_leaves_is_not_what_it_waits_for() -> None:
    hand = all_live()
    hand.alive.remove(CORES[1])
    hand.later(0.02, lambda: hand.alive.remove(CORES[0]))
    assert told_when_a_rank_leaves(hand) == {f"{LEAVES}; core.0 died, too"}
