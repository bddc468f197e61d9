"""What the lab does in a real play of programs alone, in order (pure).

    of a queue      start all | hand the writer's handle on | until each has done its part | let each look back, alone |
                    close the program, the readers, the writer | look for leftovers: see `scenarios.lab.queue_play`
    of a program    start it | until it has done its part, and is gone | look for leftovers
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.config import Bounds
from engine.topology import Engine, Node, Topology, core, frontend, worker
from scenarios.lab.queue_play import PATIENCE_S, PLAYS
from scenarios.lab.script import CLOSE, DONE, GO, Actor, Script, Seen, Steps, Wait


class QueueBench(Protocol):
    def start_part(self, node: Node) -> Actor:
        """One that plays this node's part. The writer says the handle first; each says DONE when it is done."""

    def start_program(self, node: Node) -> Actor:
        """One that plays this node's part and then leaves. It says DONE when it has asked all that it asks."""

    def living(self, engine: Engine) -> list[str]: ...
    def files(self, engine: Engine) -> set[str]: ...
    def now(self) -> float: ...


def queue_script(bench: QueueBench, queue: str, topology: Topology, bounds: Bounds) -> Script:
    nodes = [core(), *map(worker, range(PLAYS[queue].readers)), frontend()]
    writer, *others = parts = [bench.start_part(node) for node in nodes]
    yield Wait(lambda: bool(writer.said) or writer.gone, PATIENCE_S)
    for part in others:
        part.tell(writer.said[0] if writer.said else CLOSE)
    yield from _until_done(parts, 1)
    for part in parts:
        part.tell(GO)
        yield from _until_done([part], 2)
    for part in reversed(parts):
        part.tell(CLOSE)
        yield from _until_gone(part)
    return (yield from _leftovers(bench, topology, bounds))


def program_script(bench: QueueBench, topology: Topology, bounds: Bounds) -> Script:
    part = bench.start_program(frontend())
    yield from _until_done([part], 1)
    yield from _until_gone(part)
    return (yield from _leftovers(bench, topology, bounds))


def _leftovers(bench: QueueBench, topology: Topology, bounds: Bounds) -> Script:
    (deployment,) = topology.deployments

    def left() -> list[str]:
        return bench.living(deployment) + sorted(bench.files(deployment))

    yield Wait(lambda: not left(), bounds.cleanup_s, guards=False)
    return Seen(leftovers=left(), leftovers_checked_at=bench.now())


def _until_done(parts: Iterable[Actor], times: int) -> Steps:
    yield Wait(lambda: all(part.gone or part.said.count(DONE) >= times for part in parts), PATIENCE_S)


def _until_gone(part: Actor) -> Steps:
    yield Wait(lambda: part.gone, PATIENCE_S)
