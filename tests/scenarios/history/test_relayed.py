"""What a relay has seen cross at a process is a part of that process's journal, in the order of time."""

from __future__ import annotations

from pathlib import Path

from faults.journal import Kind, Record, journal_bytes
from scenarios.history.run import journal_of


def written(path: Path, *at: float, thread: str) -> Path:
    records = [Record(number, moment, thread, Kind.CROSSING, f"{thread} {moment}") for number, moment in enumerate(at)]
    path.write_bytes(journal_bytes(records))
    return path


def test_both_are_one_journal_by_time(tmp_path: Path) -> None:
    (tmp_path / "relayed").mkdir()
    own = written(tmp_path / "core.0@0.journal", 1.0, 3.0, thread="main")
    seen = written(tmp_path / "relayed" / "core.0@0.journal", 2.0, 4.0, thread="relay")
    joined = journal_of(own, seen)
    assert [(record.number, record.at, record.thread) for record in joined.records] == [
        (0, 1.0, "main"), (1, 2.0, "relay"), (2, 3.0, "main"), (3, 4.0, "relay")]
    assert (joined.node, joined.life) == ("core.0", 0)


def test_one_of_both_may_be_missing(tmp_path: Path) -> None:
    own = written(tmp_path / "core.0@0.journal", 1.0, thread="main")
    assert len(journal_of(own, tmp_path / "none").records) == 1
    assert len(journal_of(tmp_path / "core.1@0.journal", own).records) == 1


def test_damage_and_a_torn_end_are_not_joined_away(tmp_path: Path) -> None:
    (tmp_path / "relayed").mkdir()
    own = written(tmp_path / "core.0@0.journal", 1.0, 3.0, thread="main")
    seen = written(tmp_path / "relayed" / "core.0@0.journal", 2.0, thread="relay")
    own.write_bytes(own.read_bytes()[:-3])
    assert journal_of(own, seen).torn
    own.write_bytes(b"\x08\0\0\0" + bytes(12))
    assert journal_of(own, seen).damage is not None
