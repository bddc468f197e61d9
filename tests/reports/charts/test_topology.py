"""Who is drawn as joined with whom, and who is marked."""

from __future__ import annotations

import re
from itertools import permutations

import msgspec
import pytest

from engine.topology import Engine, Topology, data_parallel, side_by_side, tensor_parallel
from reports.charts.topology import BOX, CHANNELS, HIGH, topology_chart
from scenarios.history.play import Options
from scenarios.history.run import Run
from tests.reports.charts.played import ALONE, CALM, DIES, LOST, PAUSED, STEPPING, WORKERS, hostile, played, titles
from tests.reports.charts.told import Told, run_of

TOPOLOGIES = {
    "two": tensor_parallel(2), "one": tensor_parallel(1, subscribers=2), "stages": tensor_parallel(4, pp=4),
    "sixteen": tensor_parallel(16, subscribers=1), "groups": data_parallel(4, tp=4, lockstep=True),
    "many": data_parallel(16, subscribers=1, lockstep=True), "hub": data_parallel(3, tp=2, pp=2, coordinated=True),
    "attached": data_parallel(2, clients=3), "attached hub": data_parallel(3, tp=2, clients=2, lockstep=True),
    "beside": side_by_side(Engine(tp=2, subscribers=(0,)), Engine(tp=1), Engine(tp=2, pp=2))}
EACH = pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)


def drawn(topology: Topology) -> str:
    picture = topology_chart(run_of(topology))
    assert picture is not None
    return str(picture.svg)


def edges_said(svg: str) -> set[str]:
    """Every directed edge that a line speaks of."""
    found = set()
    for words in titles(svg, "ch"):
        channel, _, who = words.partition(";")[0].partition(": ")
        if who.endswith(", each with every other"):
            names = re.split(r", | and ", who.removesuffix(", each with every other"))
            found |= {f"{source}->{target}/{channel}" for source, target in permutations(names, 2)}
        else:
            source, target = who.removesuffix(" and back").split(" to ")
            found.add(f"{source}->{target}/{channel}")
            if who.endswith(" and back"):
                found.add(f"{target}->{source}/{channel}")
    return found


@EACH
def test_every_edge_of_the_topology_is_drawn_and_no_other(topology):
    met = {edge for edge in edges_said(drawn(topology)) if edge.endswith(("/consensus", "/keep_step"))}
    assert edges_said(drawn(topology)) - met == set(map(str, topology.edges))


@EACH
def test_cores_meet_where_they_step_together_and_nowhere_else(topology):
    said = edges_said(drawn(topology))
    for hub in topology.coordinators:
        pairs = permutations([str(topology.engine(index).core) for index in hub.engines], 2)
        assert {f"{one}->{other}/consensus" in said for one, other in pairs} == {hub.lockstep}
    steps = any(hub.lockstep for hub in topology.coordinators)
    assert any(edge.endswith("/consensus") for edge in said) == steps
    ranks = [engine.workers or (engine.core,) for engine in topology.engines]
    wanted = {f"{one}->{other}/keep_step" for like in zip(*ranks, strict=False) for one, other in permutations(like, 2)}
    assert {edge for edge in said if edge.endswith("/keep_step")} == (wanted if steps else set())


@EACH
def test_each_process_has_a_box_of_its_own_and_none_lies_on_another(topology):
    svg = drawn(topology)
    boxes = [tuple(map(float, found)) for found in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="136"', svg)]
    assert sorted(re.findall(r'class="name"[^>]*>([^<]+)<', svg)) == sorted(map(str, topology.nodes))
    assert len(boxes) == len(topology.nodes)
    assert not [1 for (x, y), (other_x, other_y) in permutations(boxes, 2)
                if abs(x - other_x) < BOX and abs(y - other_y) < HIGH]
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    assert all(x >= 0 and x + BOX <= width and y >= 0 and y + HIGH <= height for x, y in boxes)


def test_clients_come_before_coordinators_before_cores_before_workers():
    svg = drawn(TOPOLOGIES["groups"])
    lefts = {}
    for x, name in re.findall(r'<rect x="([\d.]+)"[^>]*/><text [^>]*>([^<]+)<', svg):
        lefts.setdefault(name.partition(".")[0], set()).add(float(x))
    order = [lefts[kind] for kind in ("frontend", "coordinator", "core", "worker")]
    assert all(len(xs) == 1 for xs in order) and order == sorted(order, key=min)


def test_the_legend_has_what_is_drawn_and_nothing_else():
    for name, topology in TOPOLOGIES.items():
        picture = topology_chart(run_of(topology))
        drawn_channels = {edge.rpartition("/")[2] for edge in edges_said(str(picture.svg))}
        assert set(picture.legend) == drawn_channels <= set(CHANNELS), name


@pytest.mark.parametrize("name", [*STEPPING, ALONE])
def test_marked_is_whom_a_fault_struck_and_who_died(name):
    run = played(name)
    svg = topology_chart(run).svg
    struck = {receipt.node.partition("@")[0] for receipt in run.history.faults.receipts}
    assert {title.partition(":")[0] for title in titles(svg, "struck")} == struck
    assert str(svg).count('class="flash"') == len(struck)
    killed = {process.node for process in run.lab.processes if process.exitcode is not None and process.exitcode < 0}
    assert {title.partition(":")[0] for title in titles(svg, "dead")} >= killed
    assert bool(struck) == (name not in (CALM, ALONE, PAUSED))


def test_what_befell_a_process_stands_in_its_box():
    assert "f1 kill, died: SIGKILL" in str(topology_chart(played(DIES)).svg)
    assert "worker.1.1 (f1 kill, died: SIGKILL)" in topology_chart(played(WORKERS)).sentence


def test_a_line_that_a_fault_struck_is_marked():
    assert titles(topology_chart(played(LOST)).svg, "hit") == [
        "wave: coordinator.0 to core.1 and back; struck by f1 drop"]
    assert titles(topology_chart(played(CALM)).svg, "hit") == []


def test_a_process_of_which_nothing_is_on_record_says_so():
    svg = topology_chart(run_of(tensor_parallel(2), Told("core.0").at(1.0, "born"))).svg
    assert sorted(title.partition(":")[0] for title in titles(svg, "unseen")) == ["worker.0", "worker.1"]


def test_a_play_without_an_engine_has_none():
    run = run_of(tensor_parallel(2))
    play = msgspec.structs.replace(run.play, options=Options(queue="x"))
    assert topology_chart(Run(run.path, play, run.lab, run.journals, None)) is None


def test_a_hostile_name_is_a_word():
    svg = str(topology_chart(hostile(played(DIES))).svg)
    assert "<script" not in svg and "&lt;script&gt;" in svg
