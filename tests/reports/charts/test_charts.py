"""Pairing messages, choosing which to draw, and where time stands still."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.topology import tensor_parallel
from faults.journal import JournalFile, Kind, Record
from faults.plan import Fate, Fault, Plan
from reports.charts.arrows import NEAR, Arrow, Collective, Skipped, arrows_of, select
from reports.charts.detection_times import Detection, Row, strip
from reports.charts.kv_timeline import mirrors_of
from reports.charts.notable import lives_of, moments_of
from reports.charts.timeline import Axis, sequence_chart
from reports.formats import duration, listed, ranges
from reports.page import render
from scenarios.history.history import History
from scenarios.history.play import Lab, Options, Play
from scenarios.history.run import load_run
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import SimWorld
from tests.reports.example import PROMISES, Stage, gap, killed, lost_output, untested
from tests.reports.test_page import opened

EDGE, RING = "core.0->frontend.0/outputs", "core.0->worker.1/rpc"


def messages(*journals: JournalFile, plan: Plan = Plan()) -> list[Arrow | Collective]:  # noqa: B008
    """What the chart makes of journals that nobody played."""
    play = Play(scenario="s", title="", world="engine", topology=tensor_parallel(2), workload={}, plan=plan,
                config=EngineConfig(model="tiny"), promises=())
    lab = Lab(began_at=0.0, ended_at=9.0, processes=[], leftovers=[])
    return arrows_of(History(play, lab, list(journals)))


def journal(node: str, *records: tuple, life: int = 0) -> JournalFile:
    """Records as (at, site, digest, occurrence, position)."""
    made = []
    for number, (at, site, digest, occurrence, position) in enumerate(records):
        data = {} if position is None else {"position": position}
        made.append(Record(number, at, "main", Kind.CROSSING, site, number + 1, digest, occurrence, data))
    return JournalFile(node, life, made, torn=False)


def test_a_receive_pairs_with_its_send_by_digest_and_occurrence():
    lost, *arrows = messages(
        journal("core.0", (0.5, EDGE + ":send", "bb", 0, None), (1.0, EDGE + ":send", "aa", 0, None),
                (2.0, EDGE + ":send", "aa", 1, None)),
        journal("frontend.0", (2.5, EDGE + ":receive", "aa", 1, None), (3.0, EDGE + ":receive", "aa", 0, None)))
    assert [(a.sent_at, a.received_at) for a in arrows] == [(1.0, 3.0), (2.0, 2.5)]
    assert lost.received_at is None


def test_a_ring_message_pairs_by_its_position():
    arrows = messages(
        journal("core.0", (1.0, RING + ":send", "x", 0, 4), (2.0, RING + ":send", "x", 0, 5)),
        journal("worker.1", (3.0, RING + ":receive", "", 0, 5)))
    assert [(a.sent_at, a.received_at) for a in arrows] == [(1.0, None), (2.0, 3.0)]


def test_a_doubled_message_has_an_arrival_without_a_send():
    arrows = messages(
        journal("core.0", (1.0, EDGE + ":send", "aa", 0, None)),
        journal("frontend.0", (2.0, EDGE + ":receive", "aa", 0, None), (3.0, EDGE + ":receive", "aa", 1, None)))
    assert [(a.sent_at, a.received_at) for a in arrows] == [(1.0, 2.0), (None, 3.0)]


def befallen(fate: str, *after: Record) -> list[Arrow]:
    """One message that a fault met at its receive, and what else the receiver wrote."""
    met = Record(0, 2.0, "main", Kind.CROSSING, EDGE + ":receive", 1, "aa", 0, {"fate": fate, "fault": "f1"})
    return messages(journal("core.0", (1.0, EDGE + ":send", "aa", 0, None)),
                    JournalFile("frontend.0", 0, [met, *after], torn=False))


def test_a_dropped_message_was_not_received():
    (arrow,) = befallen("drop")
    assert (arrow.sent_at, arrow.received_at, arrow.fault) == (1.0, None, "f1")


def test_a_delayed_message_was_received_at_its_release():
    release = Record(1, 7.0, "main", Kind.RELEASE, "f1", 1, data={"site": EDGE + ":receive", "nth": 1})
    assert befallen("delay", release)[0].received_at == 7.0
    assert befallen("delay")[0].received_at is None


def test_a_corrupted_message_was_received_and_says_so():
    (arrow,) = befallen("corrupt")
    assert (arrow.received_at, arrow.fate) == (2.0, "corrupt")


def test_a_send_that_killed_its_sender_was_never_put():
    died = Record(0, 1.0, "main", Kind.CROSSING, EDGE + ":send", 1, "aa", 0, {"fate": "kill", "fault": "f1"})
    arrows = messages(JournalFile("core.0", 0, [died], torn=False), JournalFile("core.0", 1, [
        Record(0, 5.0, "main", Kind.CROSSING, EDGE + ":send", 1, "aa", 0)], torn=False),
        journal("frontend.0", (6.0, EDGE + ":receive", "aa", 0, None), life=1))
    assert [(a.sent_at, a.received_at) for a in arrows] == [(1.0, None), (5.0, 6.0)]


def test_a_send_that_raised_was_never_put_and_its_sender_may_try_again():
    raised = Record(0, 1.0, "output", Kind.CROSSING, EDGE + ":send", 1, "aa", 0, {"fate": "raise", "fault": "f1"})
    told = Record(1, 1.0, "output", Kind.RECEIPT, "f1", data={"site": EDGE + ":send", "nth": 1, "fate": "raise"})
    again = Record(2, 5.0, "main", Kind.CROSSING, EDGE + ":send", 2, "aa", 1)
    arrows = messages(JournalFile("core.0", 0, [raised, told, again], torn=False),
                      journal("frontend.0", (6.0, EDGE + ":receive", "aa", 0, None)),
                      plan=Plan((Fault(id="f1", site=EDGE + ":send", fate=Fate.RAISE),)))
    assert [(a.sent_at, a.received_at, a.fate) for a in arrows] == [(1.0, None, "raise"), (5.0, 6.0, "")]


def test_an_unroutable_message_stayed_with_its_sender():
    said = Record(1, 1.1, "main", Kind.OBSERVATION, "not-sent", data={"site": EDGE + ":send", "nth": 1})
    sent = Record(0, 1.0, "main", Kind.CROSSING, EDGE + ":send", 1, "aa", 0)
    (arrow,) = messages(JournalFile("core.0", 0, [sent, said], torn=False))
    assert (arrow.received_at, arrow.fate) == (None, "unroutable")


def test_an_arrival_after_a_restart_belongs_to_the_later_life():
    first, second = (JournalFile("core.0", life, [
        Record(0, at, "main", Kind.CROSSING, EDGE + ":send", 1, "aa", 0)], torn=False)
        for life, at in ((0, 1.0), (1, 5.0)))
    arrows = messages(first, second, journal("frontend.0", (6.0, EDGE + ":receive", "aa", 0, None), life=1))
    assert [(a.sent_at, a.received_at) for a in arrows] == [(1.0, None), (5.0, 6.0)]


def test_collectives_pair_by_number_over_the_workers():
    arrows = messages(journal("worker.0", (1.0, "worker.0/collective:enter", "", 0, None)),
                      journal("worker.1", (1.5, "worker.1/collective:enter", "", 0, None)))
    assert [type(a) for a in arrows] == [Collective]
    assert arrows[0].entered == {"worker.0": 1.0, "worker.1": 1.5}


def test_collectives_that_follow_each_other_are_one_line():
    files = [journal(node, *((1.0 + n, f"{node}/collective:enter", "", 0, None) for n in range(4)))
             for node in ("worker.0", "worker.1")]
    assert [(a.number, a.last) for a in messages(*files)] == [(1, 4)]


def many(number: int, lost: tuple[int, ...] = ()) -> list[Arrow]:
    return [Arrow(source="core.0", target="frontend.0", channel="outputs", label=str(n), sent_at=float(n),
                  received_at=None if n in lost else n + 0.1) for n in range(number)]


def drawn(shown) -> set[int]:
    return {int(item.label) for item in shown if isinstance(item, Arrow)}


def test_few_messages_are_all_drawn():
    assert select(many(150), [], cap=150) == many(150)


def test_of_many_messages_the_first_the_last_and_those_near_a_fault_are_drawn():
    shown = select(many(20_000), [7_000.2], cap=150)
    kept = drawn(shown)
    assert len(kept) <= 150
    assert set(range(20)) <= kept and set(range(19_980, 20_000)) <= kept
    assert {6_990, 7_000, 7_010} <= kept
    assert 3_000 not in kept


def test_what_is_not_drawn_is_counted():
    shown = select(many(20_000), [7_000.2], cap=150)
    assert sum(item.count for item in shown if isinstance(item, Skipped)) + len(drawn(shown)) == 20_000


def test_a_message_that_never_arrived_is_drawn():
    assert 11_111 in drawn(select(many(20_000, lost=(11_111,)), [], cap=150))


def test_many_faults_share_the_room():
    shown = select(many(20_000), [1_000.0 * n for n in range(1, 19)], cap=150)
    assert len(drawn(shown)) <= 150
    assert {1_000 * n for n in range(1, 19)} <= drawn(shown)


def test_a_single_fault_does_not_fill_the_page():
    kept = drawn(select(many(20_000), [7_000.2], cap=150))
    assert len([n for n in kept if 5_000 < n < 9_000]) == NEAR


def test_time_only_runs_down():
    axis = Axis()
    heights = [axis.place(at, 2.0) for at in (0.0, 0.0, 0.001, 5.0, 5.0, 900.0)]
    assert heights == sorted(heights) and len(set(heights)) == 6
    assert heights[-1] - heights[-2] < 60.0  # fifteen minutes do not take a page
    assert axis.at(2.0) > axis.at(0.5) > heights[1]


def test_an_arrow_never_points_back_in_time(tmp_path):
    svg = str(sequence_chart(load_run(killed(tmp_path, "sim"))).svg)
    paths = re.findall(r'class="a">.*?d="M\d+ ([\d.]+)L\d+ ([\d.]+)"', svg)
    paths += re.findall(r'd="M\d+ ([\d.]+)L\d+ ([\d.]+)"', svg)
    assert len(paths) > 40
    assert all(float(top) <= float(end) for top, end in paths)


def test_the_chart_of_a_kill_marks_fault_death_and_detection(tmp_path):
    svg = str(sequence_chart(load_run(killed(tmp_path, "engine")), prefix="r1").svg)
    assert 'id="r1-f1"' in svg
    assert "f1 kill" in svg and "died: SIGKILL" in svg and "f1 told after" in svg and ">19 ms<" in svg


def test_the_chart_of_a_lost_message_shows_it_ending_in_mid_air(tmp_path):
    svg = str(sequence_chart(load_run(lost_output(tmp_path, "engine"))).svg)
    assert svg.count('class="a lost"') == 1 and "never received, drop by f1" in svg


def test_moments_are_in_order_and_count_from_the_first_record(tmp_path):
    moments = moments_of(load_run(killed(tmp_path, "engine")))
    assert [m.at for m in moments] == sorted(m.at for m in moments)
    assert 0.0 <= moments[0].at < 1.0
    kinds = [m.kind for m in moments if m.kind != "note"]
    assert kinds == ["fault", "death", "told"]


def test_a_process_that_said_goodbye_did_not_die(tmp_path):
    lives = {life.node: life for life in lives_of(load_run(killed(tmp_path, "engine")))}
    assert lives["worker.1"].died == "SIGKILL"
    assert lives["core.0"].died is None and lives["core.0"].ended is not None


def test_whom_the_lab_kills_because_the_play_asks_for_it_has_outlived_nothing(tmp_path):
    world = SimWorld(tmp_path)
    world.scenario = "again"
    run = world.play(topology=tensor_parallel(2, subscribers=1), workload=recorded("eight-even"),
                     config=lab_config(kv_events={"enable_kv_cache_events": True}),
                     options=Options(kill_all_then_restart=True)).runs[0]
    told = {(life.node, life.life): life.died for life in lives_of(run)}
    assert told["frontend.0", 0] == told["core.0", 0] == told["worker.1", 0] == "killed by the lab, as the play asks"
    assert told["core.0", 1] is None
    page = opened(render([run], PROMISES, str))
    assert "The lab itself kills the whole engine" in page and "outlived" not in page


def test_the_mirror_tells_gap_noticed_and_healed(tmp_path):
    (mirror,) = mirrors_of(load_run(gap(tmp_path, "engine")))
    (found,) = mirror.gaps
    assert (found.first, found.last) == (20, 33)
    assert found.published_at < found.noticed_at < found.healed_at
    assert "39 live batches and 21 replayed batches" in mirror.sentence
    assert "gap noticed" in str(mirror.svg) and "healed" in str(mirror.svg)


def follower(folder, *told: tuple[float, str, dict]) -> Path:
    """A run in which the core published ten batches and a subscriber told this of them."""
    stage = Stage(folder, "test_window", "engine", "The window is overrun.", subscribers=1)
    stage.start_up()
    for seq in range(10):
        stage.see("core.0", "kv-published", seq=seq, took=2e-6)
    for at, name, data in told:
        stage.pass_time(at)
        stage.see("subscriber.0", name, **data)
    stage.leave()
    return stage.finish(*untested())


def test_a_snapshot_is_drawn_where_and_when_it_took_its_place(tmp_path):
    """Batches 0 to 5 are gone for good; the state before batch 8 makes up for them."""
    run = load_run(follower(
        tmp_path, (0.1, "kv-gap", {"first": 0, "last": 7}), (0.0, "kv-unrecoverable", {"first": 0, "last": 5}),
        (0.1, "kv-batch", {"seq": 6, "source": "replay"}), (0.0, "kv-batch", {"seq": 7, "source": "replay"}),
        (0.1, "kv-snapshot", {"next_seq": 8, "blocks": 4}), (0.1, "kv-batch", {"seq": 8, "source": "live"})))
    (mirror,) = mirrors_of(run)
    assert "took a snapshot of 4 blocks before batch 8" in mirror.sentence
    picture = str(mirror.svg)
    assert picture.count('class="beginning"') == 1 and ">snapshot<" in picture
    place = re.search(r'class="beginning"><title>[^<]*</title><path d="M ([\d.]+) ([\d.]+)', picture)
    eighth = re.search(r'cx="([\d.]+)" cy="([\d.]+)"[^>]*class="live dot"', picture)
    (x, y), (next_x, next_y) = (tuple(map(float, found.groups())) for found in (place, eighth))
    assert x < next_x and y + 6 > next_y, "left of the batch that comes next, and half a batch below"
    assert any(moment.kind == "kv" and "snapshot of 4 blocks" in moment.text for moment in moments_of(run))


def test_a_restart_is_drawn_at_the_number_nought(tmp_path):
    run = load_run(follower(
        tmp_path, (0.1, "kv-batch", {"seq": 0, "source": "live"}), (0.1, "kv-restarted", {"epoch": 2}),
        (0.1, "kv-batch", {"seq": 0, "source": "live"})))
    (mirror,) = mirrors_of(run)
    assert "the publisher was restarted" in mirror.sentence and ">restarted<" in str(mirror.svg)


def test_without_a_new_beginning_no_diamond_is_drawn(tmp_path):
    (mirror,) = mirrors_of(load_run(gap(tmp_path, "engine")))
    assert "beginning" not in str(mirror.svg) and "snapshot" not in mirror.sentence


def told_of(folder, *told: tuple[float, str, str, dict]) -> tuple[Path, dict[tuple[str, int], float]]:
    """A run in which these words were said, so long after each other. -> and when, since the first record"""
    stage = Stage(folder, "test_pauses", "engine", "Batches come when they come.", subscribers=1)
    stage.start_up()
    at = {}
    for pause, node, name, data in told:
        stage.pass_time(pause)
        at[name, data.get("seq", data.get("first"))] = stage.now
        stage.see(node, name, **data)
    stage.leave()
    path = stage.finish(*untested())
    began = load_run(path).history.began_at
    return path, {key: moment - began for key, moment in at.items()}


def published(seq: int) -> tuple[str, str, dict]:
    return "core.0", "kv-published", {"seq": seq, "took": 2e-6}


def says(name: str, **data: object) -> tuple[str, str, dict]:
    return "subscriber.0", f"kv-{name}", data


def test_what_is_told_of_a_gap_is_what_was_recorded_whatever_pauses_lie_in_between(tmp_path):
    path, at = told_of(
        tmp_path, (0.0, *published(0)), (0.01, *published(1)), (2.0, *published(2)), (0.0, *published(3)),
        (0.001, *says("batch", seq=0, source="live")), (0.1, *says("gap", first=1, last=2)),
        (0.3, *says("healed", first=1, last=2)))
    (gap,) = mirrors_of(load_run(path))[0].gaps
    assert gap.published_at == pytest.approx(at["kv-published", 1])
    assert gap.noticed_at == pytest.approx(at["kv-gap", 1])
    assert gap.healed_at == pytest.approx(at["kv-healed", 1])
    assert gap.sentence == ("2 batches missing (1 to 2); noticed 2.1 s after the first was published; "
                            "healed 300 ms after it was noticed")


def test_lines_have_their_steps_where_batches_were_recorded(tmp_path):
    path, at = told_of(tmp_path, (0.0, *published(0)), (1.0, *published(1)), (0.5, *published(2)),
                       *((0.0, *says("batch", seq=seq, source="live")) for seq in range(3)))
    picture = str(mirrors_of(load_run(path))[0].svg)
    (steps,) = re.findall(r'<path d="(M[^"]*)" class="published"', picture)
    (x0, *xs) = [float(x) for x in re.findall(r"[MH]([\d.]+)", steps)]
    first, second, third = (at["kv-published", seq] for seq in range(3))
    assert (xs[0] - x0) / (xs[1] - x0) == pytest.approx((second - first) / (third - first), abs=1e-3)


def test_what_was_given_up_is_not_counted_as_healed(tmp_path):
    path, _ = told_of(tmp_path, (0.0, *published(0)), (0.1, *says("gap", first=0, last=1)),
                      (0.1, *says("unrecoverable", first=0, last=1, reason="too old")),
                      (0.1, *says("healed", first=0, last=1)))
    (mirror,) = mirrors_of(load_run(path))
    assert "1 gap noticed, 0 healed, 1 lost for good" in mirror.sentence
    assert 'class="gap open"' in str(mirror.svg)


def test_the_next_life_of_a_publisher_heals_nothing_of_the_one_before(tmp_path):
    path, at = told_of(
        tmp_path, (0.0, *published(0)), (0.1, *published(1)), (0.1, *says("gap", first=0, last=0)),
        (0.1, *says("restarted", epoch=2)), (0.1, *published(0)), (0.1, *says("gap", first=0, last=0)),
        (0.1, *says("healed", first=0, last=0)))
    first, second = mirrors_of(load_run(path))[0].gaps
    assert first.healed_at is None and second.is_healed
    assert second.published_at == pytest.approx(at["kv-published", 0])
    assert second.published_at > first.noticed_at


def test_the_strip_keeps_fates_and_worlds_apart():
    detections = [Detection(fate=fate, world=world, took=0.01, scenario="s", fault="f1", number=1, anchor="r1-1")
                  for fate in ("kill", "stall") for world in ("sim", "engine")]
    assert [(row.fate, row.world) for row in strip(detections).rows] == [
        ("kill", "engine"), ("kill", "sim"), ("stall", "engine"), ("stall", "sim")]


def test_a_detection_in_no_virtual_time_can_be_drawn():
    found = strip([Detection(fate="kill", world="sim", took=0.0, scenario="s", fault="f1", number=1,
                             anchor="r1-1")], bound_s=0.1)
    assert found.rows[0].times == [0.0] and "bound 100 ms" in str(found.svg)


def test_nothing_detected_makes_no_strip():
    assert strip([]) is None


def test_a_quantile_is_a_time_that_was_measured():
    row = Row(fate="kill", world="engine", times=[float(n) for n in range(200, 0, -1)])
    assert (row.share(0.5), row.share(0.99), row.share(1.0)) == (100.0, 198.0, 200.0)


@pytest.mark.parametrize(("seconds", "words"), [
    (0.0, "0 µs"), (0.000812, "812 µs"), (0.0009996, "1 ms"), (0.0194, "19.4 ms"), (0.02, "20 ms"), (0.1, "100 ms"),
    (0.9996, "1 s"), (1.25, "1.25 s"), (125.0, "2 min 5 s"), (-0.003, "-3 ms"),
])
def test_durations_have_the_unit_that_fits(seconds, words):
    assert duration(seconds) == words


def test_lists_and_ranges_are_said_as_a_person_says_them():
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed("abcdefgh", limit=3) == "a, b and 6 more"
    assert ranges([3, 7, 8, 9]) == "3, 7 to 9"
