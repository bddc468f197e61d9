"""What a publisher tells of what it has lost and could not answer: to the judges, and to whoever runs it."""

from __future__ import annotations

from typing import Any

from engine.topology import Channel, Mark
from scenarios.guarantees.base import Finding
from scenarios.history.events.publishing import SENDS
from scenarios.history.history import FOREVER, Fate, Record

#: A line of one kind is followed by the next one after so long.
LINE_S = 10.0


def judge_words(finding: Finding, core: str, *, in_order: bool) -> None:
    """What is lost or not answered is told to whoever runs it, and a full queue is a place where plans may strike."""
    history = finding.history
    marks = [record.data.get("seq") for node, record in history.marks(Mark.KV_DROPPED.value) if node == core]
    lost = history.by_node("kv-lost").get(core, [])
    full = [record.data["seq"] for record in lost if "wait" in record.data["reason"]]
    if marks[:len(full)] != full:
        finding.broke("{} lost batches {} at its full queue, and marked {}", core, full, marks, node=core)
    warned = [record.data for record in history.by_node("warned").get(core, ())]
    if not in_order:
        return
    _judge_lines(finding, core, history.by_node("warned").get(core, []))
    told = sum(data["data"].get("batches", 1) for data in warned if data["kind"] == "kv-lost")
    if told != len(lost):
        finding.broke("{} lost {} batches, and warned of {}", core, len(lost), told, node=core)
    failed = sum(record.data.get("site", "").endswith(SENDS[1]) for record in history.by_node("not-sent").get(core, ()))
    failed += sum(hit.node == core and hit.site.endswith(SENDS[1]) for hit in history.faults.hit(Fate.RAISE))
    ended = len(history.by_node("replay-ended").get(core, ()))
    # A real one may be refused where nobody writes it down.
    if failed > ended or (history.simulated and failed < ended):
        finding.broke("{} could not send {} parts of answers, and told of {}", core, failed, ended, node=core)
    for name in ("kv-unsent", "replay-ended", "bad-frame"):
        count = sum(data["kind"] == name and _is_of_events(name, data["data"]) for data in warned)
        told_judges = sum(_is_of_events(name, record.data) for record in history.by_node(name).get(core, ()))
        if count != told_judges:
            finding.broke("{} told the judges of {} and whoever runs it of {} by {}", core, told_judges, count, name,
                          node=core)


def _is_of_events(name: str, data: dict[str, Any]) -> bool:
    """Others than its publisher tell of bad frames, too."""
    return name != "bad-frame" or data.get("edge") == Channel.REPLAY.value


def _judge_lines(finding: Finding, core: str, warned: list[Record]) -> None:
    """Each kind is a line at once; then none for a while, and one that counts those that were passed over."""
    latest: dict[str, tuple[float, int]] = {}
    for record in warned:
        kind, line = record.data["kind"], record.data["line"]
        at, passed_over = latest.get(kind, (-FOREVER, 0))
        if (record.at - at >= LINE_S) != (line is not None):
            finding.broke("{} {} {} at {:.3f}, {:.3f} s after the last line of its kind", core,
                          "passed over" if line is None else "wrote", kind, record.at, record.at - at, node=core)
        elif line is not None and (f"({passed_over} more" in line) != (passed_over > 0):
            finding.broke("{} had passed over {} of {}, and wrote {!r}", core, passed_over, kind, line, node=core)
        latest[kind] = (at, passed_over + 1) if line is None else (record.at, 0)
