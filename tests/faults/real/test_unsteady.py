"""Processes that stand still for a moment, anywhere: when, how often, and that it changes no record."""

import pytest

from engine.topology import Mark
from faults.plan import Plan
from faults.real.crossings import Crossings
from faults.real.unsteady import MOST_S, Unsteady
from tests.faults.stage import Stage, core


def pauses(share, seed=0, process="core.0@0", places=1000):
    found = []
    unsteady = Unsteady(share, seed, process, found.append)
    for _ in range(places):
        unsteady.pause()
    return found


def test_it_stands_still_at_about_that_share_of_places_and_for_a_moment_only():
    found = pauses(0.1)
    assert 70 < len(found) < 130
    assert all(0.0 <= pause <= MOST_S for pause in found) and len(set(found)) == len(found)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (1.0, 1000)])
def test_nowhere_and_everywhere(share, count):
    assert len(pauses(share)) == count


def test_the_same_seed_draws_the_same_for_a_process_and_other_places_for_others():
    assert pauses(0.1) == pauses(0.1)
    assert pauses(0.1) != pauses(0.1, seed=1)
    assert pauses(0.1) != pauses(0.1, process="worker.1@0")


def test_it_stands_still_before_a_crossing_is_on_record_and_before_anything_follows_from_it(tmp_path):
    stage, seen = Stage(tmp_path, Plan()), []
    ports = stage.ports(core())
    crossings = Crossings(stage.plan, core(), ports.board, ports.crossings._journal, ports.clock,
                          Unsteady(1.0, 0, "core.0", lambda pause: seen.append(len(stage.records("core.0")))))
    fault, nth = crossings.cross(f"core.0/mark:{Mark.SCHEDULED.value}")
    assert (fault, nth) == (None, 1)
    assert seen == [0, 1]
