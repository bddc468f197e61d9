"""What each rank of cores that step together did: as its journal says, on the page and in an exported trace."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from engine.topology import data_parallel
from faults.journal import Record
from reports.charts.group import ranks as drawing
from reports.charts.group.ranks import rank_charts
from reports.charts.group.waves import RankLane, ranks_of
from reports.charts.perfetto import trace
from scenarios.history.run import Run
from tests.reports.charts.played import (
    ALONE,
    CALM,
    DENSE,
    DIES,
    PAUSED,
    STANDS,
    STEPPING,
    WORKERS,
    hostile,
    played,
    titles,
)
from tests.reports.charts.told import Told, run_of

EACH = pytest.mark.parametrize("name", STEPPING)


def records(run: Run, core: str) -> list[Record]:
    (file,) = [file for file in run.journals if file.node == core]
    return file.records


def cores(run: Run) -> list[str]:
    return [str(engine.core) for engine in run.play.topology.engines]


def lanes(run: Run) -> dict[str, RankLane]:
    (group,) = ranks_of(run.history)
    return {lane.node: lane for lane in group}


def written(run: Run, core: str) -> Counter[str]:
    """What its journal holds of each thing that is drawn, counted by another way than the chart's."""
    found: Counter[str] = Counter()
    for record in records(run, core):
        found["dummy"] += record.site == f"{core}/mark:dummy"
        found["real"] += record.site == f"{core}/mark:scheduled" and record.data["tokens"] > 0
        found["reduce"] += record.site == f"{core}/consensus:enter"
        found["answer"] += record.site == "consensus"
        found["start"] += record.site == "start-heard" and record.data["runs"]
        found["idle"] += record.site == "start-heard" and not record.data["runs"]
        found["pause"] += record.site == f"{core}/mark:paused"
        found["done"] += record.site == f"{core}/mark:wave-done"
    return +found


@EACH
def test_as_many_are_drawn_of_each_as_its_journal_has(name):
    run = played(name)
    (chart,) = rank_charts(run)
    for core in cores(run):
        wanted = written(run, core)
        for look in ("dummy", "real", "reduce", "start", "idle", "pause"):
            mine = [title for title in titles(chart.svg, look) if title.startswith(f"{core}: ")]
            assert len(mine) == wanted[look], (core, look)
        answered = [title for title in titles(chart.svg, "reduce")
                    if title.startswith(f"{core}: ") and "no answer" not in title]
        assert len(answered) == wanted["answer"]


@EACH
def test_waves_are_those_whose_forwards_ranks_entered_and_over_where_all_agreed(name):
    run = played(name)
    for core, lane in lanes(run).items():
        engine = run.play.topology.engine(int(core.partition(".")[2]))
        place = str((engine.workers or (engine.core,))[0])
        entered = {record.data["wave"] for record in records(run, place)
                   if record.site == f"{place}/collective:enter" and record.data["operation"] == "keep_step"}
        done = {record.data["wave"] for record in records(run, core) if record.site == f"{core}/mark:wave-done"}
        assert {wave.number for wave in lane.waves} == entered
        assert {wave.number for wave in lane.waves if wave.is_over} == done
        assert len(titles(rank_charts(run)[0].svg, "wave")) == sum(len(one.waves) for one in lanes(run).values())


@EACH
def test_forwards_lie_in_their_wave_and_do_not_lie_on_each_other(name):
    for lane in lanes(played(name)).values():
        waves = {wave.number: wave for wave in lane.waves}
        for forward in lane.forwards:
            if forward.wave is not None:
                wave = waves[forward.wave]
                assert wave.began <= forward.began and (not wave.is_over or forward.ended <= wave.ended)
        for one, other in pairwise(forward for forward in lane.forwards if forward.place == 0):
            assert one.ended <= other.began


def test_an_all_reduce_says_what_it_answered():
    run = played(PAUSED)
    (chart,) = rank_charts(run)
    answers = [record.data["answer"] for core in cores(run) for record in records(run, core)
               if record.site == "consensus"]
    words = Counter(f"{work}|{pause}" if pause else f"{work}" for work, pause in answers)
    said = re.findall(r'<ellipse [^>]*/><text [^>]*>([^<]*)</text>', str(chart.svg))
    assert Counter(said) == words and "0|2" in words


def test_a_pause_ends_where_its_rank_goes_on():
    for core, lane in lanes(played(PAUSED)).items():
        (pause,) = lane.pauses
        began, over = (next(record.at for record in records(played(PAUSED), core)
                            if record.site == f"{core}/mark:{mark}") for mark in ("paused", "resumed"))
        origin = played(PAUSED).history.began_at
        assert (pause.began, pause.is_over) == (began - origin, True) and pause.ended <= over - origin
        assert all(forward.ended <= pause.began or forward.began >= pause.ended for forward in lane.forwards)


@pytest.mark.parametrize("name", [DIES, WORKERS, CALM])
def test_the_end_of_a_rank_is_drawn_where_one_died(name):
    run = played(name)
    killed = {process.node for process in run.lab.processes
              if (process.exitcode or 0) < 0 and process.node in cores(run)}
    (chart,) = rank_charts(run)
    assert {title.partition(" ")[0] for title in titles(chart.svg, "death")} == killed
    assert len(titles(chart.svg, "fault")) == (name != CALM)


def test_what_never_ended_says_so():
    (chart,) = rank_charts(played(STANDS))
    missing = [title for title in titles(chart.svg, "reduce") if "no answer" in title]
    assert len(missing) == 2 and all("no record says that it ended" in title for title in missing)
    assert ("open", "no record says that it ended") in chart.legend


@pytest.mark.parametrize("name", [ALONE, DENSE])
def test_of_cores_that_do_not_step_together_nothing_is_drawn(name):
    run = played(name)
    assert ranks_of(run.history) == [] == rank_charts(run)
    assert not [event for event in json.loads(trace(run))["traceEvents"] if event.get("cat") in ("wave", "forward")]


def test_of_a_group_that_never_ran_nothing_is_drawn():
    run = run_of(data_parallel(2, lockstep=True), Told("core.0").at(1.0, "born"), Told("core.1").at(1.0, "born"))
    assert rank_charts(run) == []


def test_the_same_moment_has_the_same_place_in_all_lanes():
    """Both ranks enter a forward at once: their bars begin at one place."""
    run = played(CALM)
    (chart,) = rank_charts(run)
    xs = defaultdict(set)
    bars = re.findall(r'<g class="(?:real|dummy)"><title>core\.\d: \w+ forward (\d+ of wave \d+), from ([^,]+)[^<]*'
                      r'</title><rect x="([\d.]+)"', str(chart.svg))
    for step, _, x in bars:
        xs[step].add(float(x))
    began = defaultdict(set)
    for lane in lanes(run).values():
        for forward in lane.forwards:
            began[f"{forward.step} of wave {forward.wave}"].add(forward.began)
    together = [step for step, times in began.items() if len(times) == 1]
    assert len(together) > 20 and all(len(xs[step]) == 1 for step in together)


def test_of_too_many_forwards_the_first_and_the_last_are_drawn(monkeypatch):
    monkeypatch.setattr(drawing, "MOST", 40)
    (chart,) = rank_charts(played(CALM))
    bars = len(titles(chart.svg, "real")) + len(titles(chart.svg, "dummy"))
    whole = sum(len(lane.forwards) for lane in lanes(played(CALM)).values())
    assert 40 <= bars <= 46 and f"{whole - bars} forwards in the middle not drawn" in chart.sentence
    assert "cut short" in str(chart.svg)


def test_a_hostile_name_is_a_word():
    (chart,) = rank_charts(hostile(played(DIES)))
    assert "<script" not in str(chart.svg) and "&lt;script&gt;" in str(chart.svg)


# -- an exported trace


@EACH
def test_a_trace_has_the_same_as_slices_of_each_rank(name):
    run = played(name)
    events = json.loads(trace(run))["traceEvents"]
    nodes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = Counter((nodes[event["pid"]], event["cat"]) for event in events
                    if event["ph"] in "Xi" and event["cat"] in ("wave", "forward", "all-reduce", "pause", "start"))
    wanted: Counter[tuple[str, str]] = Counter()
    for core in cores(run):
        there = written(run, core)
        wanted.update({(core, "forward"): there["real"] + there["dummy"], (core, "all-reduce"): there["reduce"],
                       (core, "pause"): there["pause"], (core, "start"): there["start"] + there["idle"],
                       (core, "wave"): len(lanes(run)[core].waves)})
    assert found == +wanted
    dummies = sum(event["name"] == "dummy" for event in events)
    assert dummies == sum(written(run, core)["dummy"] for core in cores(run))


@EACH
def test_slices_of_a_lane_do_not_lie_on_each_other(name):
    found = defaultdict(list)
    for event in json.loads(trace(played(name)))["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in ("wave", "forward", "all-reduce", "pause"):
            found[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(found) > 4
    for mine in found.values():
        assert all(round(1000 * end) <= round(1000 * begin) for (_, end), (begin, _) in pairwise(sorted(mine)))
