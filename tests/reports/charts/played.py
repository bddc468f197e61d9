"""Scenarios as the twin plays them, each once, for whoever looks at what is drawn of it."""

from __future__ import annotations

import re
from functools import lru_cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from faults.plan import Plan
from scenarios.history.run import Run
from scenarios.lab.catalogue import catalogue
from scenarios.lab.player import play
from scenarios.worlds.sim import SimWorld

#: Cores that step together: at work and at rest, paused, with one killed, one that stands still, with workers.
CALM, PAUSED, DIES, STANDS, WORKERS = (
    "test_one_request_wakes_all_ranks", "test_ranks_pause_and_go_on_together", "test_rank_dies_in_a_wave",
    "test_rank_stands_still_at_an_all_reduce", "test_worker_of_a_rank_in_step_dies")
STEPPING = (CALM, PAUSED, DIES, STANDS, WORKERS)
#: Cores that do not, and one alone; a message that is lost.
DENSE, ALONE, LOST = ("test_coordinator_carries_the_counts_of_two_cores", "test_nothing_goes_wrong",
                      "test_start_to_a_rank_is_lost")


@lru_cache
def played(name: str) -> Run:
    """The first of its runs; all of it is in memory."""
    scenario = next(one for one in catalogue() if one.name == name)
    with TemporaryDirectory() as folder:
        world = SimWorld(Path(folder))
        world.scenario, world.title = scenario.name, scenario.title
        run = play(scenario, world).runs[0]
        assert len(run.history.nodes) > 1
        return run


def hostile(run: Run) -> Run:
    """The same run with a fault whose name is a script."""
    evil = "<script>alert(1)</script>\"&"
    (fault,) = run.play.plan.faults
    files = [msgspec.structs.replace(file, records=[
        msgspec.structs.replace(record, site=evil) if record.site == fault.id else record for record in file.records])
        for file in run.journals]
    plan = Plan((msgspec.structs.replace(fault, id=evil),))
    return Run(run.path, msgspec.structs.replace(run.play, plan=plan), run.lab, files, None)


def titles(svg: object, look: str) -> list[str]:
    """What each group of that class says of itself."""
    groups = re.findall(r'<g class="([^"]*)"[^>]*><title>([^<]*)</title>', str(svg))
    return [unescape(title) for classes, title in groups if look in classes.split()]
