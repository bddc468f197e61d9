"""Everything one play left on disk, and how it is read back.

    <run>/play.json            Play: what was asked
    <run>/journals/*.journal   one per process life (faults.journal)
    <run>/lab.json             Lab: what the lab itself saw from outside
    <run>/verdicts.json        Judgement: made from the three above, offline, as often as one likes

A run directory that was cut off is an error that says what is missing, never a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import RingtwinError
from engine.topology import tensor_parallel
from faults.journal import RELAYED, JournalFile, read_journal
from scenarios.history.history import History
from scenarios.history.play import Lab, Play, ProcessEnd
from scenarios.history.verdicts import Judgement, Verdict

__all__ = ["Lab", "Play", "ProcessEnd", "Run", "RunError", "known_run", "load_run", "save"]

_Value = TypeVar("_Value")


class RunError(RingtwinError):
    """The directory is not a whole run. The message names the file."""


class Run:
    """A run directory, read lazily. `journals`: what is in them, or how they are read once somebody asks."""

    def __init__(self, path: Path, play: Play, lab: Lab, journals: list[JournalFile] | Callable[[], list[JournalFile]],
                 judgement: Judgement | None) -> None:
        self.path = path
        self.play = play
        self.lab = lab
        self._journals = journals
        self.judgement = judgement

    @property
    def name(self) -> str:
        return f"{self.play.scenario}-{self.play.world}"

    @cached_property
    def journals(self) -> list[JournalFile]:
        """As `load_run` reads them, with its errors."""
        return self._journals() if callable(self._journals) else self._journals

    @cached_property
    def history(self) -> History:
        """Its records, indexed. Also of a run whose lab failed: then of what there is."""
        return History(self.play, self.lab, self.journals)

    @property
    def failure(self) -> str | None:
        """Why the run says nothing about the engine: the lab itself failed, or nobody judged it."""
        if self.lab.failure:
            return self.lab.failure
        return "the run was not judged" if self.judgement is None else None

    @property
    def unfired(self) -> list[str]:
        """Ids of planned faults that did not fire, so that the run says nothing; empty where that was declared."""
        if Verdict.UNKNOWN in self.play.expected.values():
            return []
        fired = {receipt.id for receipt in self.judgement.faults if receipt.fired} if self.judgement else set()
        return [fault.id for fault in self.play.plan.faults if fault.id not in fired]

    @property
    def took_s(self) -> float:
        """What it took of the machine's time."""
        return self.seconds if self.lab.took_s is None else self.lab.took_s

    @property
    def seconds(self) -> float:
        """In its own world's time."""
        return self.judgement.seconds if self.judgement else self.lab.ended_at - self.lab.began_at


def _read(path: Path, kind: type[_Value]) -> _Value:
    try:
        if kind is Play:
            return msgspec.convert(_of_today(msgspec.json.decode(path.read_bytes())), type=kind)
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise RunError(f"{path}: missing, so this is not a whole run; play it again") from None
    except RunError as error:
        raise RunError(f"{path}: {error}") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{path}: cut off or damaged ({error}); play it again") from None


def _of_today(play: Any) -> Any:
    """A play that was recorded before engines were values had one engine, told by its size alone.

    One that does not say by which schema it was recorded is of the first.
    """
    if isinstance(play, dict):
        play = {"schema": 1, **play}
    topology = play.get("topology") if isinstance(play, dict) else None
    if not isinstance(topology, dict) or "engines" in topology:
        return play
    if "neighbour" in play.get("options", ()):
        raise RunError("recorded when an engine beside the first was no part of its play; play it again")
    engine = tensor_parallel(topology.get("tp", 2), subscribers=topology.get("subscribers", 0))
    return {**play, "topology": msgspec.to_builtins(engine)}


def load_run(path: Path) -> Run:
    """Raises RunError where the directory is not a whole run."""
    run = known_run(path)
    return Run(run.path, run.play, run.lab, run.journals, run.judgement)


def known_run(path: Path) -> Run:
    """Of a directory that was read whole before, and looked through: what is in the journals is read when asked for."""
    play, lab = _read(path / "play.json", Play), _read(path / "lab.json", Lab)
    verdicts = path / "verdicts.json"
    judgement = _read(verdicts, Judgement) if verdicts.exists() else None
    return Run(path, play, lab, lambda: _journals_of(path, lab), judgement)


def _journals_of(path: Path, lab: Lab) -> list[JournalFile]:
    folder = path / "journals"
    names = {file.name for place in (folder, folder / RELAYED) for file in place.glob("*.journal")}
    files = [folder / name for name in sorted(names)]
    if not any(file.exists() for file in files):
        raise RunError(f"{path / 'journals'}: holds no journal, so this is not a whole run; play it again")
    journals = [journal_of(file, folder / RELAYED / file.name) for file in files]
    for file, journal in zip(files, journals, strict=True):
        if (damage := _damage(journal, lab)) is not None:
            raise RunError(f"{file}: damaged journal ({damage}); play it again")
    return journals


def journal_of(own: Path, relayed: Path) -> JournalFile:
    """Of one process: what it wrote, and what a relay has seen cross there, by time. One of both may be missing: a
    process may end before it writes anything."""
    if not relayed.exists():
        return read_journal(own)
    seen = read_journal(relayed)
    mine = read_journal(own) if own.exists() else msgspec.structs.replace(seen, records=[])
    records = sorted((*mine.records, *seen.records), key=lambda record: record.at)
    return msgspec.structs.replace(mine, damage=mine.damage or seen.damage, records=[
        msgspec.structs.replace(record, number=number) for number, record in enumerate(records)])


def _damage(journal: JournalFile, lab: Lab) -> str | None:
    """What is wrong with it that no kill of its process explains."""
    if journal.damage is not None or not journal.torn:
        return journal.damage
    mine = next((p for p in lab.processes if (p.node, p.life) == (journal.node, journal.life)), None)
    if mine is None or mine.exitcode is None or mine.exitcode < 0:
        return None
    return f"it ends in the midst of record {len(journal.records)}, and its process was not killed"


def save(path: Path, value: msgspec.Struct) -> None:
    """Write whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))
    temporary.replace(path)
