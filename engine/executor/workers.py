"""The worker processes of an engine (pure): started, told, heard, watched and stopped by the executor that needs them.

Promises
- Every worker is up within the bound, or the start fails by name: whoever failed, died, was late or cannot be read.
- The death of one ends whatever the core waits for, and is told to its main thread.
- `stop` leaves none: closing a worker's pipe ends it, one that does not hear is killed.
"""

from __future__ import annotations

from engine.effects import (
    AwaitEnds,
    Cancel,
    CreateRing,
    EndChild,
    Gone,
    HearChildren,
    Identity,
    Loop,
    Now,
    Observe,
    OpenRing,
    Put,
    StartChild,
    TellChild,
    TellParent,
)
from engine.errors import ConfigError, PeerDeadError, StartupError, WorkerDeadError
from engine.executor.abstract import AcrossOf, alone
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.readiness import wait_for_readers, wait_for_writer
from engine.process.beside import beside
from engine.process.recipes import CoreRecipe, Garbled, StartFailure, WorkerReady, WorkerRecipe, WorkersBorn, misread
from engine.topology import Node, worker
from engine.wire.wiring import response_ring, rpc_ring

#: The bell that every worker rings: for an answer, and for a chunk of the broadcast ring it has read.
CORE_BELL = "core"
#: A core gives its workers up so much of a start's bound before its owner gives up the core, at most.
TOLD_PARTS = 10


class Workers:
    """Of the core of this recipe, in this life. A worker's death is put into the queue `told`."""

    def __init__(self, recipe: CoreRecipe, life: int, told: str) -> None:
        self._recipe = recipe
        self._told = told
        self._config = recipe.config
        self.nodes = tuple(worker(rank, life, recipe.engine_index)
                           for rank in range(recipe.config.grid.size))
        self._identities: dict[Node, Identity] = {}
        self._stopping = False

    def start(self) -> Loop[None]:
        """Begin them; each sleeps until its recipe comes."""
        for node in self.nodes:
            self._identities[node] = yield StartChild(node, self._config.start_method)
        yield TellParent(WorkersBorn(tuple(self._identities.values())))

    def connect(self, across: AcrossOf = alone) -> Loop[tuple[QueueWriter, list[QueueReader]]]:
        """-> the broadcast ring and each rank's answers. Raises ConfigError, StartupError, QueueTimeoutError."""
        config, recipe, files = self._config, self._recipe, self._recipe.files
        deadline = self._deadline((yield Now()))
        rpc, handle = yield CreateRing("rpc", rpc_ring(config, recipe.engine_index), files.segment("rpc"),
                                       files.socket("rpc.ipc"), space_bell=CORE_BELL)
        for rank, node in enumerate(self.nodes):
            yield TellChild(node, WorkerRecipe(
                config=config, files=files, rank=rank, init_method="file://" + files.file("process-group"),
                rpc_handle=handle, frontend=recipe.frontend, engine_index=recipe.engine_index,
                local_dp_rank=recipe.local_dp_rank, across=across(rank)))
        handles = yield from self._hear_ready(deadline)
        names = [f"response.{rank}" for rank in range(len(self.nodes))]
        responses = []
        for rank, name in enumerate(names):
            responses.append((yield OpenRing(name, handles[rank], 0,
                                             response_ring(config, rank, recipe.engine_index), bell=CORE_BELL)))
        yield from wait_for_readers(rpc, (yield Now()) + config.bounds.startup_s, self._all_live)
        for response in responses:
            yield from wait_for_writer(response, (yield Now()) + config.bounds.startup_s, self._all_live)
        yield beside("watch", self._watch())
        return rpc, responses

    def _deadline(self, now: float) -> float:
        """Until when their READY is waited for: whoever owns the core still hears from it who is missing."""
        bounds, start_by = self._config.bounds, self._recipe.start_by
        last = now + bounds.startup_s
        told_s = min(bounds.detection_s, bounds.startup_s / TOLD_PARTS)
        return last if start_by is None else min(last, start_by - told_s)

    def _hear_ready(self, deadline: float) -> Loop[list[bytes]]:
        """READY of every worker. Raises ConfigError or StartupError when one fails, dies or is late."""
        handles: dict[int, bytes] = {}
        waiting = set(self.nodes)
        while waiting:
            heard = yield HearChildren(self.nodes, deadline)  # who is up may die while others are late
            if heard is None:
                late = ", ".join(str(node.first_life) for node in sorted(waiting))
                raise StartupError(f"{late} did not report READY in time")
            node, word = heard
            if isinstance(word, Gone):
                raise _died(node, word)
            if isinstance(word, StartFailure):
                raise _failure(node, word)
            if isinstance(word, Garbled):
                yield misread(word.error)
                raise StartupError(f"what {node.first_life} says cannot be read: {word.error}")
            if isinstance(word, WorkerReady):
                handles[word.rank] = word.response_handle
                waiting.discard(node)
        return [handles[rank] for rank in sorted(handles)]

    def _all_live(self) -> Loop[None]:
        """Whoever waits for one of them is told of any other's death. Raises StartupError."""
        for node, gone in (yield AwaitEnds(self.nodes, (yield Now()))).items():
            raise _died(node, gone)

    def _watch(self) -> Loop[None]:
        """A thread of its own: a worker that is gone ends whatever the core waits for."""
        gone = yield AwaitEnds(self.nodes, None)
        if self._stopping:
            return
        text = f"{self._names(gone)} died"
        yield Observe("worker-gone", {"reason": text})
        yield Cancel(PeerDeadError(text))
        yield Put(self._told, WorkerDeadError(text))

    def who_died(self, within_s: float) -> Loop[str]:
        """When a rank dies its peers fail in their collectives, and their error may be faster than its sentinel."""
        gone = yield AwaitEnds(self.nodes, (yield Now()) + within_s)
        return f"{self._names(gone)} died; " if gone else ""

    def leaving(self) -> None:
        """From here on a worker may go."""
        self._stopping = True

    def stop(self, terminate_s: float) -> Loop[None]:
        deadline = (yield Now()) + terminate_s / 2
        for node in self.nodes:
            yield EndChild(node, "hang-up")
        for node in self.nodes:
            if not (yield AwaitEnds((node,), deadline)):
                yield EndChild(node, "kill")
                yield AwaitEnds((node,), (yield Now()) + terminate_s)

    def kill(self) -> Loop[None]:
        for node in self._identities:
            yield EndChild(node, "kill")

    def _names(self, nodes: dict[Node, Gone]) -> str:
        return ", ".join(f"{node} (pid {self._identities[node].pid})" for node in nodes)


def _died(node: Node, gone: Gone) -> StartupError:
    return StartupError(f"{node.first_life} died while starting (exit code {gone.exitcode})")


def _failure(node: Node, word: StartFailure) -> Exception:
    if word.kind == "ConfigError":
        return ConfigError(word.reason)
    return StartupError(f"{node.first_life} could not start: {word.reason}")
