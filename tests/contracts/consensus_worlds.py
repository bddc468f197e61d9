"""Processes that decide together, in both worlds: the same loops, the same plan, and what each of them was told.

    told = world.play(plan, {0: [...], 1: [...]})      of each member the ends of its asks, None where it died or stands
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.effects import Cancel, Identity, Loop, MarkPoint, Now, StartThread, Take
from engine.errors import QueueCancelledError, RingtwinError
from engine.ipc.segment import create_segment, unlink_segment
from engine.process.consensus.effects import JoinGroup, LeaveGroup, Member, Reduce
from engine.process.identity import own_identity
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.topology import Engine, Mark, Node, core, side_by_side
from faults.journal import Kind, open_journal, read_journal
from faults.plan import Plan
from faults.real.board import create_board, open_board
from faults.real.ports import FaultyPorts
from faults.real.processes import start_ticks
from sim.simulation import Simulation

GROUP = "dp"
PATIENCE_S = 30.0


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One all-reduce of a member. `after_s`: it does something else before; `marks`: passes Mark.STEP then."""

    values: list[int]
    op: str = "sum"
    patience_s: float = PATIENCE_S
    after_s: float = 0.0
    marks: bool = False


class Told(msgspec.Struct, frozen=True):
    """How an ask ended, and after how long."""

    answer: list[int] | None
    error: str
    text: str
    took_s: float


def member(rank: int, members: tuple[Member, ...], where: str, asks: Sequence[Ask], join_s: float,
           cancel_s: float | None) -> Loop[list[Told]]:
    """What each of them does, in both worlds."""
    began = yield Now()
    try:
        yield JoinGroup(GROUP, rank, members, where, began + join_s)
    except RingtwinError as error:
        return [Told(None, type(error).__name__, str(error), (yield Now()) - began)]
    if cancel_s is not None:
        yield StartThread("canceller", _cancel(cancel_s))
    told = []
    for ask in asks:
        if ask.after_s:
            yield Take("nothing", (yield Now()) + ask.after_s)
        if ask.marks:
            yield MarkPoint(Mark.STEP)
        began = yield Now()
        try:
            answer = yield Reduce(GROUP, ask.values, ask.op, began + ask.patience_s)  # type: ignore[arg-type]
            told.append(Told(answer, "", "", (yield Now()) - began))
        except (RingtwinError, RuntimeError) as error:
            told.append(Told(None, type(error).__name__, str(error), (yield Now()) - began))
    yield LeaveGroup(GROUP)
    return told


def _cancel(after_s: float) -> Loop[None]:
    yield Take("nothing", (yield Now()) + after_s)
    yield Cancel(QueueCancelledError("the core is leaving"))


def topology_of(size: int) -> Any:
    return side_by_side(*(Engine(tp=1) for _ in range(size)))


class Twin:
    def __init__(self, folder: Path) -> None:
        pass

    def play(self, asks: dict[int, Sequence[Ask]], plan: Plan | None = None, *, join_s: float = PATIENCE_S,
             cancel_s: dict[int, float] | None = None, never: Sequence[int] = (), choices: Sequence[int] = (),
             ) -> dict[int, list[Told] | None]:
        """`never`: members that are there and do not join."""
        sim = Simulation(topology_of(len(asks)), plan, choices=choices)
        members: list[Member] = []
        processes = {}
        for rank, mine in asks.items():
            sim.host.create_segment(f"word.{rank}", 64)

            def main(process: Any, rank: int = rank, mine: Sequence[Ask] = mine) -> Loop[Any]:
                return (yield Take("nothing", None)) if rank in never else (yield from member(
                    rank, tuple(members), "file:///dp", mine, join_s, (cancel_s or {}).get(rank)))

            processes[rank] = process = sim.start_process(core(rank), main)
            members.append(Member(f"core.{rank}", Identity(process.pid, process.pid), f"word.{rank}"))
        main_threads = {}
        for rank, process in processes.items():
            sim.after(sim.costs.process_start_s + 1e-9, lambda rank=rank, process=process: main_threads.update(
                {rank: process.threads[0]}))
        sim.run(100.0)
        self.sites = [record.site for file in sim.journal_files() for record in file.records
                      if record.kind is Kind.CROSSING]
        told = {rank: main_threads[rank].result for rank in asks}
        sim.close()
        return told


class Real:
    """Forked processes with ports that play the plan."""

    def __init__(self, folder: Path, where: str = "") -> None:
        self.folder = folder
        self.where = where or f"file://{folder}/dp-store"

    def play(self, asks: dict[int, Sequence[Ask]], plan: Plan | None = None, *, join_s: float = PATIENCE_S,
             cancel_s: dict[int, float] | None = None, never: Sequence[int] = (), choices: Sequence[int] = (),
             ) -> dict[int, list[Told] | None]:
        plan = plan or Plan()
        (self.folder / "journals").mkdir(exist_ok=True)
        create_board(self.folder, plan, topology_of(len(asks)))
        tag = secrets.token_hex(4)
        words = [f"ringtwin-test.{tag}-word.{rank}" for rank in asks]  # no engine's: none that starts may sweep it away
        segments = [create_segment(word, 64) for word in words]
        fork = multiprocessing.get_context("fork")
        pipes, children = {}, {}
        try:
            for rank, mine in asks.items():
                pipes[rank], theirs = fork.Pipe()
                children[rank] = fork.Process(
                    target=self._live, args=(theirs, rank, mine, plan, join_s, (cancel_s or {}).get(rank),
                                             rank in never), daemon=True)
                children[rank].start()
                theirs.close()
            members = tuple(Member(f"core.{rank}", pipes[rank].recv(), words[rank]) for rank in asks)
            for pipe in pipes.values():
                pipe.send((members, self.where))
            told = self._ends(pipes)
        finally:
            for child in children.values():
                child.kill()
                child.join()
            for segment in segments:
                segment.close()
                unlink_segment(segment.name)
        self.sites = [record.site for file in sorted((self.folder / "journals").iterdir())
                      for record in read_journal(file).records if record.kind is Kind.CROSSING]
        return told

    def _ends(self, pipes: dict[int, Any]) -> dict[int, list[Told] | None]:
        """Who says nothing any more when all others have ended is dead, or stands still."""
        told: dict[int, list[Told] | None] = dict.fromkeys(pipes)
        waiting, deadline = dict(pipes), time.monotonic() + 60.0
        quiet_at = None
        while waiting and time.monotonic() < deadline:
            for pipe in multiprocessing.connection.wait(list(waiting.values()), 0.1):
                rank = next(rank for rank, one in waiting.items() if one is pipe)
                try:
                    told[rank] = msgspec.msgpack.decode(pipe.recv_bytes(), type=list[Told])
                except EOFError:
                    pass
                del waiting[rank]
                quiet_at = time.monotonic()
            if quiet_at is not None and time.monotonic() > quiet_at + 3.0:
                break
        return told

    def _live(self, pipe: Any, rank: int, asks: Sequence[Ask], plan: Plan, join_s: float, cancel_s: float | None,
              never: bool) -> None:
        signal.alarm(90)
        node: Node = core(rank)
        board = open_board(self.folder)
        board.seat(str(node)).enter(os.getpid(), start_ticks(os.getpid()))
        ports = FaultyPorts(RealPorts(node), plan, board,
                            open_journal(self.folder / "journals", str(node), 0, time.monotonic))
        pipe.send(own_identity())
        members, where = pipe.recv()
        process = EngineProcess(ports)
        if never:
            signal.pause()
        told = process.run(member(rank, members, where, asks, join_s, cancel_s))
        pipe.send_bytes(msgspec.msgpack.encode(told))
        process.close()
        ports.close()
