"""What a client believed of its cores' load beside what there was."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from engine.topology import Engine as OneEngine
from engine.topology import data_parallel, side_by_side
from reports.charts.group.load import load_charts, loads_of
from scenarios.history.run import Run
from tests.reports.charts.played import ALONE, DENSE, DIES, STEPPING, played, titles
from tests.reports.charts.told import Told, run_of

EACH = pytest.mark.parametrize("name", [DENSE, *STEPPING])


def count(run: Run, node: str, site: str, **data: object) -> int:
    return sum(record.site == site and data.items() <= record.data.items()
               for file in run.journals if file.node == node for record in file.records)


@EACH
def test_each_core_has_a_panel_with_what_there_was_and_what_was_believed(name):
    run = played(name)
    (load,) = load_charts(run)
    cores = [str(engine.core) for engine in run.play.topology.engines]
    assert re.findall(r'class="name"[^>]*>([^<]+)<', str(load.svg)) == cores
    for look, site, data in (("was", "request", {"action": "add"}), ("believed", "accepted", {})):
        there = {core for core in cores if (count(run, core, site, **data) if look == "was" else
                 count(run, "frontend.0", site, core=int(core[5:])) + count_of_views(run))}
        assert {title.partition(":")[0] for title in titles(load.svg, look)} == there, look
    assert len(titles(load.svg, "told")) == len(cores) * count_of_views(run)


def count_of_views(run: Run) -> int:
    return sum(record.site == "view" and record.data["counts"] is not None
               for file in run.journals for record in file.records)


@EACH
def test_at_each_moment_there_are_those_that_were_added_and_not_freed(name):
    run = played(name)
    for core in loads_of(run.history)["frontend.0"]:
        (file,) = [file for file in run.journals if file.node == core.core]
        for at, many in core.was:
            seen = [record for record in file.records if record.at - run.history.began_at <= at + 1e-12]
            added = {record.data["request"] for record in seen if record.site == "request"
                     and record.data["action"] == "add"}
            left = added - {record.data["request"] for record in seen if record.site == "freed"}
            gone = any(process.node == core.core and process.ended_at is not None
                       and process.ended_at - run.history.began_at <= at for process in run.lab.processes)
            assert many == (0 if gone else len(left))
        assert not core.was or core.was[-1][1] == 0


def test_a_client_believes_what_it_was_told_and_what_it_has_sent_since():
    topology = data_parallel(2, coordinated=True)
    client = Told("frontend.0").at(1.0, "call", request="a", index=0, prompt=1, max_tokens=1)
    client.at(1.0, "accepted", request="a", internal="a-1", core=0)
    client.at(2.0, "view", counts=[[2, 3, 0.5], [0, 0, 0.0]], wave=0, running=False)
    client.at(3.0, "call", request="b", index=1, prompt=1, max_tokens=1)
    client.at(3.0, "accepted", request="b", internal="b-2", core=0)
    client.at(4.0, "view", counts=[[0, 0, 0.0], [0, 1, 0.0]], wave=0, running=False)
    client.at(4.5, "view", counts=None, wave=1, running=False)
    client.at(5.0, "end", request="a", outcome="finished")
    run = run_of(topology, client)
    first, second = loads_of(run.history)["frontend.0"]
    assert [(round(1e3 * at, 6), many) for at, many in first.believed] == [(0, 1), (1, 5), (2, 6), (3, 2), (4, 1)]
    assert [(round(1e3 * at, 6), many) for at, many in first.told] == [(1, 5), (3, 0)]
    assert [many for _, many in second.believed] == [0, 1] and first.was == []


def test_a_core_that_is_killed_has_nothing_any_more():
    loads = loads_of(played(DIES).history)["frontend.0"]
    assert [core.was[-1][1] for core in loads if core.was] == [0]
    assert Counter(many for core in loads for _, many in core.was)[1] == 1


@pytest.mark.parametrize("run", [played(ALONE), run_of(data_parallel(2)),
                                 run_of(side_by_side(OneEngine(tp=1), OneEngine(tp=1)))],
                         ids=["one core", "nobody called", "a core each"])
def test_where_nothing_is_chosen_nothing_is_drawn(run):
    assert loads_of(run.history) == {} and load_charts(run) == []
