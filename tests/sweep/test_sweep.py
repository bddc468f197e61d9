"""The sweep: what it plays, and the sample that CI plays."""

from __future__ import annotations

import os

import pytest

from faults.plan import Fate, Fault
from scenarios.lab.sweep import crossings, neighbours, phases, red, singles, words
from scenarios.worlds.sim import play_once
from tests.sweep.command import all_singles, is_red

#: Of single faults, over all phases; `make soak` plays 3,000, and then all of them by `python -m tests.sweep`.
PLAYS = int(os.environ.get("SWEEP_PLAYS", "1000"))
PHASES = {phase.name: phase for phase in phases()}


@pytest.mark.parametrize("name", PHASES)
def test_no_phase_is_red_without_a_fault(name: str) -> None:
    finding = is_red(PHASES[name].play())
    assert finding is None, words(finding)


def test_every_crossing_of_a_phase_has_every_fate_that_it_admits() -> None:
    phase = PHASES["calm"]
    counts = crossings(phase, play_once)
    plays = list(singles(phase, counts))
    swept = {(fault.site, fault.nth) for play in plays for fault in play.plan.faults}
    assert swept == {(site, nth) for site, count in counts.items() for nth in range(1, count + 1)}
    outputs = {fault.fate for play in plays for fault in play.plan.faults if fault.site.endswith("/outputs:receive")}
    assert outputs == set(Fate) - {Fate.PASS, Fate.CUT, Fate.SWAP}  # few have two frames
    requests = {fault.fate for play in plays for fault in play.plan.faults if fault.site.endswith("0/requests:receive")}
    assert requests == set(Fate) - {Fate.PASS, Fate.CUT}
    for play in plays:
        play.plan.check(phase.topology)


def test_another_process_is_struck_while_the_core_is_idle() -> None:
    phase = PHASES["calm"]
    struck = {fault.victim for play in singles(phase, crossings(phase, play_once)) for fault in play.plan.faults
              if fault.site == "core.0/mark:idle" and fault.fate is Fate.KILL}
    assert struck == {None, "worker.0", "worker.1", "frontend.0"}


def test_a_pair_is_two_neighbouring_crossings() -> None:
    phase = PHASES["calm"]
    counts = crossings(phase, play_once)
    pair = next(found for play in singles(phase, counts) if (found := neighbours(play, counts, 1)) is not None)
    one, other = pair.plan.faults
    assert (other.site, other.nth) == (one.site, one.nth + 1)


def test_a_play_in_which_the_twin_falls_over_is_a_finding() -> None:
    def falls_over(play: object) -> object:
        raise KeyError("worker.7")

    finding = red(PHASES["calm"].play(), falls_over)
    assert finding is not None and "KeyError: 'worker.7'" in words(finding)


def test_a_writer_whose_reader_waits_for_a_lost_payload_gives_up_its_last_object_and_leaves() -> None:
    """Nothing comes behind the payload beside the ring, so its reader waits on, and the ring stays full."""
    lost = Fault(id="swept", site="core.0->worker.1/overflow:receive", fate=Fate.DROP, nth=2)
    play = PHASES["a queue: objects"].play(lost)
    _, lab = play_once(play)
    assert {process.node for process in lab.processes if process.ended_at is None} == set()
    finding = is_red(play)
    assert finding is None, words(finding)


@pytest.mark.long
def test_no_single_fault_of_a_sample_turns_a_promise_red() -> None:
    """Each phase has its share, and each fate comes."""
    by_phase = all_singles(PLAYS, seed=7)
    assert by_phase.keys() == PHASES.keys()
    plays = [play for mine in by_phase.values() for play in mine]
    assert PLAYS * 0.95 <= len(plays) <= PLAYS
    assert {fault.fate for play in plays for fault in play.plan.faults} == set(Fate) - {Fate.PASS, Fate.CUT}
    found = [finding for play in plays if (finding := is_red(play)) is not None]
    assert not found, "\n".join(map(words, found[:5]))
