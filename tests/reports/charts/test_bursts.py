"""What charts make of much that happens at once: bands instead of fans, and times that are told once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.plan import Fate, Fault
from reports.charts.arrows import MOST_ALONE, Arrow, Burst, Skipped, bursts, select
from reports.charts.kv_timeline import mirrors_of
from reports.charts.timeline import sequence_chart
from reports.formats import clocks
from scenarios.history.run import load_run
from tests.reports.charts.test_charts import many, published, says, told_of
from tests.reports.example import Stage, killed, untested

#: Which edges a burst takes: one, both between two processes, or those to two ranks.
WAYS = {"one way": ["frontend.0->core.0/requests"],
        "both ways": ["frontend.0->core.0/requests", "core.0->frontend.0/outputs"],
        "to ranks": ["core.0->worker.0/rpc", "core.0->worker.1/rpc"]}


def burst(folder: Path, way: str, apart_s: float, took_s: float | None = None) -> Path:
    """Hundreds of messages at once, or so near to each other that their lines cross; a fault in their midst."""
    fault = Fault(id="f1", site="core.0/mark:step", fate=Fate.STALL)
    stage = Stage(folder, f"test_burst_{way}_{apart_s}".replace(" ", "_"), "engine", "Much at once.", faults=(fault,))
    stage.start_up()
    for number in range(300):
        if number == 150:
            stage.fire(fault, "core.0")
            stage.receipts["f1"]["detected_at"] = stage.now + 0.001
        for edge in WAYS[way]:
            stage.message(edge, took=apart_s if took_s is None else took_s,
                          position=number if edge.endswith("/rpc") else None)
        stage.pass_time(apart_s)
    stage.leave()
    return stage.finish(*untested())


def test_a_band_does_not_point_back_in_time(tmp_path):
    """Neither where it all happens at once nor where each message arrives in the instant in which it was sent."""
    for number, (apart_s, took_s) in enumerate(((0.0, 0.0), (1e-3, 0.0), (1e-6, 1e-3))):
        picture = str(sequence_chart(load_run(burst(tmp_path / str(number), "one way", apart_s, took_s)), cap=150).svg)
        found = re.findall(r'd="M\d+ ([\d.]+)L\d+ ([\d.]+)V([\d.]+)L\d+ ([\d.]+)Z"', picture)
        assert found
        for began, received, over, ended in (map(float, band) for band in found):
            assert began < ended and began <= received < over and ended <= over


def ticks(picture: str) -> list[str]:
    return re.findall(r">(-?[\d.]+ s)</text>", picture)


@pytest.mark.parametrize("apart_s", [0.0, 1e-7, 1e-6, 2e-4, 1.0])
def test_no_tick_of_an_axis_repeats_what_another_says(tmp_path, apart_s):
    path, _ = told_of(tmp_path, *((apart_s, *published(seq)) for seq in range(4)),
                      (apart_s, *says("batch", seq=0, source="live")))
    run = load_run(path)
    for picture in (str(mirrors_of(run)[0].svg), str(sequence_chart(run).svg)):
        assert ticks(picture) and len(set(ticks(picture))) == len(ticks(picture))
        assert [float(tick[:-2]) for tick in ticks(picture)] == sorted(float(tick[:-2]) for tick in ticks(picture))


def test_a_chart_of_the_twin_where_much_happens_at_once_repeats_no_time(tmp_path):
    found = ticks(str(sequence_chart(load_run(killed(tmp_path, "sim"))).svg))
    assert len(found) > 10 and len(set(found)) == len(found)


@pytest.mark.parametrize(("moments", "labels"), [
    ([0.0, 1.0], ["0.000 s", "1.000 s"]), ([0.0421, 0.0422, 0.5], ["0.0421 s", "0.0422 s", "0.500 s"]),
    ([0.1, 0.1000001], ["0.100000 s", ""]), ([0.1, 0.1, 0.1000012], ["0.100000 s", "", "0.100001 s"]), ([], [])])
def test_moments_have_as_many_digits_as_tell_them_apart(moments, labels):
    assert clocks(moments) == labels


def fan(number: int, *, apart: float = 0.1, **struck: object) -> list[Arrow]:
    found = many(number)
    for place, arrow in enumerate(found):
        arrow.label, arrow.sent_at, arrow.received_at = f"outputs {place}", place * apart, 100.0 + place * apart
        if place == struck.get("at"):
            arrow.fate = "delay"
    return found


def test_many_alike_on_one_edge_are_one_band_and_few_are_not():
    (band,) = bursts(fan(MOST_ALONE + 1), [])
    assert isinstance(band, Burst) and (band.count, band.label) == (MOST_ALONE + 1, f"outputs 0 to {MOST_ALONE}")
    assert (band.at, band.until) == (0.0, pytest.approx(100.0 + MOST_ALONE * 0.1))
    assert bursts(fan(MOST_ALONE), []) == fan(MOST_ALONE)


def test_a_band_ends_where_something_happens_and_what_was_struck_stands_alone():
    assert [item.count for item in bursts(fan(20), [0.95])] == [10, 10]
    before, struck, after = bursts(fan(20, at=9), [])
    assert (before.count, struck.fate, after.count) == (9, "delay", 10)


def test_what_was_overtaken_or_lost_is_in_no_band():
    overtaken, lost = fan(20), fan(20)
    overtaken[10].received_at = 0.0
    lost[10].received_at = None
    assert [type(item) for item in bursts(overtaken, [])] == [Burst, Burst]
    assert [type(item) for item in bursts(lost, [])] == [Burst, Arrow, Burst]


def test_bands_leave_nothing_out():
    mixed = sorted([*fan(30), *(Arrow(source="frontend.0", target="core.0", channel="requests", label=f"requests {n}",
                                      sent_at=n + 0.5, received_at=n + 1.0) for n in range(3))], key=lambda a: a.at)
    found = bursts(mixed, [])
    assert [arrow for item in found for arrow in (item.arrows if isinstance(item, Burst) else [item])] == mixed


def test_of_bands_that_are_not_drawn_every_message_is_counted():
    items = [item for n in range(200) for item in (Burst(arrows=fan(10, apart=1e-9)), *many(1))]
    skipped = [item for item in select(items, [], cap=20) if isinstance(item, Skipped)]
    assert sum(item.count for item in skipped) == 11 * 200 - 11 * 10
