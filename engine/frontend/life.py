"""The life of a client of one core (pure): start the core, serve, notice its death, end it.

`start` and `shutdown` are loops that wait. All between them never waits: whoever owns the waiting (asyncio, a caller
without a loop, the twin) says what arrived and lets time pass. Decided deliveries are handed to `deliver`, a loop.

Promises
- Start-up ends in ready or in a named error within its bound; a core that dies on the way is noticed at once.
- The core's death is known from its sentinel, whatever it could still say; its last outputs are read first, and for
  at most `grace_s` after the death.
- A core that is alive and makes no progress is known from its heartbeat.
- After `shutdown` nothing of the engine is left: no process, segment, socket file or directory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.effects import (
    AwaitEnds,
    ClaimFiles,
    Close,
    EndChild,
    EndProcesses,
    Gone,
    HearChildren,
    Identity,
    IsOver,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OpenHeartbeat,
    OpenSocket,
    ReadHeartbeat,
    ReadModel,
    Receive,
    RemoveFiles,
    Send,
    StartChild,
    SweepFiles,
    TellChild,
    WhoAmI,
)
from engine.errors import BadFrameError, ChildGoneError, ConfigError, EngineDeadError, RefusedError, StartupError
from engine.frontend.monitor import CoreMonitor
from engine.frontend.session import ClientSession, Delivery
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses, SamplingParams
from engine.model_config import ModelConfig
from engine.ports import Unroutable
from engine.process.files import EngineFiles, birth_certificate
from engine.process.recipes import CoreRecipe, Leaving, StartFailure, WorkersBorn
from engine.topology import Channel, Edge, Mark, Node, core
from engine.wire.handshake import HANDSHAKE, REQUESTS, frontend_handshake
from engine.wire.wiring import OUTPUTS, frontend_sockets

#: A tick looks at all time-outs; the shortest of them sets how often.
TICKS_PER_BOUND = 10
_AT_ONCE = 0.0
#: Ticks that a client has missed when it stood still itself.
_AWAY = 5


def parallel_config(config: EngineConfig) -> dict[str, int | str | bool]:
    """What both sides of the handshake must agree on."""
    return {"tensor_parallel_size": config.tensor_parallel_size,
            "pipeline_parallel_size": config.pipeline_parallel_size, "data_parallel_size": 1}


def nobody(delivery: Delivery) -> Loop[None]:
    """Takes what nobody waits for."""
    return
    yield


class ClientLife:
    """Of the client that runs in process `node`; its core has the same number."""

    model: ModelConfig  # from the start on
    num_gpu_blocks: int

    def __init__(self, node: Node, config: EngineConfig, suffix: Callable[[], str]) -> None:
        self.config = config
        self.bounds = bounds = config.bounds
        self.session = ClientSession(config.limits, bounds, suffix)
        self.deliver: Callable[[Delivery], Loop[None]] = nobody
        self.kept: Callable[[], dict[str, int]] = dict  # sizes of what whoever takes deliveries has of open requests
        self.tick_s = min(bounds.heartbeat_s, bounds.stall_s, bounds.request_s, bounds.output_gap_s) / TICKS_PER_BOUND
        self.core = core(node.index, node.life)
        self.files: EngineFiles | None = None
        self._node = node
        self._name = str(self.core.first_life)
        self.core_process: Identity | None = None  # of the core, once it was started
        self.watched: tuple[Node, ...] = ()  # whose end is to be noticed; once: it stays readable for ever
        self._monitor: CoreMonitor | None = None
        self._workers: tuple[Identity, ...] = ()
        self._told: StartFailure | Leaving | None = None
        self._dead_since: float | None = None
        self.closed = False  # or about to be
        self._ticked_at = self._looked_at = 0.0

    # -- start

    def start(self) -> Loop[None]:
        """Raises ConfigError or StartupError; then `shutdown` is still to be run."""
        config = self.config
        yield Observe("starting", {})
        try:
            self.model = yield ReadModel(config)
            yield SweepFiles()
            self.files = files = yield ClaimFiles(config.runtime_dir)
            me = yield WhoAmI()
            yield Observe("born", birth_certificate(me, files))
            start_method = "spawn" if config.start_method == "auto" else config.start_method
            # Before the first socket: under fork a child must not inherit a ZMQ context.
            self.core_process = yield StartChild(self.core, start_method)
            yield OpenHeartbeat(files.segment("beat"), create=True)
            addresses = yield from self._open_sockets(files)
            yield TellChild(self.core, CoreRecipe(
                config=msgspec.structs.replace(config, start_method=start_method), files=files,
                handshake_address=addresses[HANDSHAKE], beat=files.segment("beat"), frontend=me,
                engine_index=self.core.index, clients=(self._node.index,)))
            yield from self._meet(EngineHandshakeMetadata(
                EngineZmqAddresses([addresses[REQUESTS]], [addresses[OUTPUTS]]), parallel_config(config)))
        except Exception as error:
            yield Observe("start-failed", {"error": type(error).__name__, "reason": str(error)})
            raise
        self._ticked_at = now = yield Now()
        self._monitor = CoreMonitor(self._name, self.bounds.stall_s, now)
        self.watched = (self.core,)

    def _open_sockets(self, files: EngineFiles) -> Loop[dict[str, str]]:
        """-> where each is bound"""
        def address(name: str) -> str:
            return files.socket(f"{name}.ipc") if self.config.sockets.transport == "ipc" else "tcp://127.0.0.1:*"

        bound = {}
        for spec in frontend_sockets(self.config, address, self.core.index):
            bound[spec.name] = yield OpenSocket(spec)
        return bound

    def _meet(self, metadata: EngineHandshakeMetadata) -> Loop[None]:
        try:
            ready = yield from frontend_handshake(
                metadata, (self.core.index,), self.bounds.handshake_s, self.bounds.startup_s, (self.core,))
        except ChildGoneError:
            raise (yield from self._why_start_failed()) from None
        self.num_gpu_blocks = ready[self.core.index]
        yield Observe("ready", {"num_gpu_blocks": self.num_gpu_blocks, "parallel_config": metadata.parallel_config})

    def _why_start_failed(self) -> Loop[Exception]:
        """The core is gone: what it wrote on its pipe before, or what is known from outside."""
        code = yield from self._listen()
        if isinstance(self._told, StartFailure):
            return (ConfigError if self._told.kind == "ConfigError" else StartupError)(self._told.reason)
        text = f"{self._name} died while starting (exit code {code})"
        return StartupError(f"{text}: {self._told.reason}" if isinstance(self._told, Leaving) else text)

    def _listen(self) -> Loop[int | None]:
        """What the core wrote on its pipe: who its workers are, why it could not start, why it leaves.

        -> its exit code, if it is gone
        """
        while True:
            heard = yield HearChildren((self.core,), 0.0)
            if heard is None:
                return None
            word = heard[1]
            if isinstance(word, Gone):
                return word.exitcode
            if isinstance(word, WorkersBorn):
                self._workers = word.identities
            elif isinstance(word, StartFailure | Leaving):
                self._told = word

    # -- requests

    def add(self, request_id: str, prompt_token_ids: list[int], params: SamplingParams,
            eos_token_id: int | None = None, priority: int = 0) -> Loop[str]:
        """-> the id it has inside. Raises EngineDeadError, BadRequestError, RefusedError; the rest is delivered."""
        now = yield from self._require_core()
        try:
            internal, frames = self.session.add(request_id, prompt_token_ids, params, now, eos_token_id, priority)
        except RefusedError:
            limits = self.config.limits
            yield Observe("load", {
                "requests": len(self.session), "bytes": self.session.bytes_in_flight,
                "max_requests": limits.max_requests, "max_bytes": limits.max_request_bytes})
            raise
        yield Observe("accepted", {"request": request_id, "internal": internal})
        if not (yield from self.send(frames, request=request_id)):
            yield from self._hand_over(self.session.unroutable(request_id))
        return internal

    def abort(self, request_id: str) -> Loop[None]:
        yield from self._take(self.session.abort(request_id))

    def stop(self, request_id: str, stop_reason: str) -> Loop[None]:
        yield from self._take(self.session.stop(request_id, stop_reason))

    def utility(self, method: str, args: list[Any]) -> Loop[int]:
        """-> call id, whose result is delivered. Raises EngineDeadError, UnroutableError."""
        now = yield from self._require_core()
        call_id, frames = self.session.utility(method, args, now)
        if not (yield from self.send(frames, utility=method)):
            raise self.session.unroutable_call(call_id)
        return call_id

    def send(self, frames: list[Any], request: str | None = None, utility: str | None = None) -> Loop[bool]:
        """-> False where a living core is not connected, so that this was not sent."""
        try:
            yield Send(REQUESTS, frames, self.core.index)
        except Unroutable:
            if self.core_process is not None and (yield AwaitEnds((self.core,), 0.0)):
                return True  # all that is open ends by its death
            yield Observe("unroutable", {"request": request, "utility": utility, "edge": REQUESTS})
            return False
        return True

    def _require_core(self) -> Loop[float]:
        """-> now. Raises EngineDeadError where the core is gone, also while its last words are still waited for."""
        now = yield from self.look_at_core()
        gone = self._monitor.gone() if self._monitor is not None else None
        if gone is not None and self.session.dead is None:
            raise EngineDeadError((yield from self._in_its_words(gone)))
        return now

    def _take(self, decided: tuple[list[Delivery], list[list[bytes]]]) -> Loop[None]:
        deliveries, messages = decided
        for frames in messages:
            yield from self.send(frames)
        yield from self._hand_over(deliveries)

    def _hand_over(self, deliveries: list[Delivery]) -> Loop[None]:
        for delivery in deliveries:
            yield from self.deliver(delivery)

    # -- what happens

    def on_message(self, frames: list[Any]) -> Loop[float]:
        """The core has sent this. -> when it was read"""
        now: float = yield Now()
        try:
            deliveries = self.session.on_frames(frames, now)
        except BadFrameError as error:
            edge = Edge(self.core.first_life, self._node.first_life, Channel.OUTPUTS)
            yield Observe("bad-frame", {"edge": str(edge), "error": str(error)})
            return now
        yield from self._hand_over(deliveries)
        if self.session.notice_read and self.session.dead is None and self._monitor is not None:
            yield Observe("dead-notice", {})
            yield from self._die(self._monitor.on_notice())
        return now

    def serve(self, until: float) -> Loop[float]:
        """Wait until something may have happened, at most until then, and take it. -> when that was"""
        next_tick, deadline = self._ticked_at + self.tick_s, self.deadline
        got = yield Receive((OUTPUTS,), min(until, next_tick, next_tick if deadline is None else deadline),
                            self.watched)
        if got is not None:
            now: float = yield from self.on_message(got[2])
            if now < next_tick:
                return now
            yield from self._read_what_is_there()  # nothing is too late that was here in time
        yield from self.tick()
        return self._ticked_at

    def tick(self) -> Loop[None]:
        """Let time pass: the core's death, its heartbeat, the end of a death's grace, then time-outs of the living."""
        now = yield from self.look_at_core()
        was_away, self._ticked_at = now - self._ticked_at > _AWAY * self.tick_s, now
        if self.session.dead is None and not was_away:  # else what came meanwhile is read before anything is late
            yield from self._take(self.session.on_tick(now))
        elif self._workers and (yield from self._core_is_long_dead()):
            yield from self._end_workers()

    def look_at_core(self) -> Loop[float]:
        """Notice that the core is gone or stands still. -> now"""
        now: float = yield Now()
        monitor = self._monitor
        if self.session.dead is not None or monitor is None or now == self._looked_at:
            return now
        self._looked_at = now
        gone = yield AwaitEnds(self.watched, 0.0)
        if gone:
            self.watched = ()
            monitor.on_gone(f" (exit code {gone[self.core].exitcode})", now)
        beat, beaten_at = yield ReadHeartbeat()
        reason = monitor.on_tick(beat, now, beaten_at)
        if monitor.gone() is not None:
            yield from self._read_what_is_there()
            if reason is None and self.session.dead is None and (yield IsOver(OUTPUTS)):
                reason = monitor.on_last_word()
        yield from self._die(reason)
        return now

    def _read_what_is_there(self) -> Loop[None]:
        """Nobody may have read for a while."""
        while (got := (yield Receive((OUTPUTS,), _AT_ONCE))) is not None:
            yield from self.on_message(got[2])

    @property
    def deadline(self) -> float | None:
        """Until when the last words of a dead core are still waited for; None while it lives."""
        return None if self._monitor is None else self._monitor.deadline()

    def _die(self, reason: str | None) -> Loop[None]:
        if reason is None:
            return
        reason = yield from self._in_its_words(reason)
        self._dead_since = yield Now()
        deliveries = self.session.die(reason)
        self.watched = ()
        yield Observe("engine-dead", {"reason": reason})
        if not self.session.notice_read and not (yield AwaitEnds((self.core,), 0.0)):
            yield EndChild(self.core, "kill")  # it stands still: nothing else would end it
        yield from self._hand_over(deliveries)

    def _in_its_words(self, reason: str) -> Loop[str]:
        """Of a core that is gone or leaves: with what it told its parent, if it did."""
        yield from self._listen()
        return f"{reason}: {self._told.reason}" if isinstance(self._told, Leaving) else reason

    def check_health(self) -> Loop[None]:
        """Raises EngineDeadError where the engine is dead or makes no progress."""
        yield from self.look_at_core()
        if self.session.dead is not None:
            raise EngineDeadError(self.session.dead.reason)
        gone = self._monitor.gone() if self._monitor is not None else None
        if gone is not None:
            raise EngineDeadError((yield from self._in_its_words(gone)))

    # -- the end

    def shutdown(self) -> Loop[None]:
        """End the engine and remove everything it has. Safe to run twice, and on an engine that never started."""
        if self.closed:
            return
        self.closed = True
        kept = {**self.session.kept(), **self.kept()}
        yield Observe("closing", {"kept": kept, "errors": self.session.check_integrity()})
        if self.session.dead is None:
            for frames in self.session.free_all():  # or the core would let them run to their end
                yield from self.send(frames)
        yield from self._hand_over(self.session.die("the engine was shut down"))
        if self.core_process is not None:
            yield from self._end_core()
        yield from self.give_back()

    def _end_core(self) -> Loop[None]:
        yield EndChild(self.core, "terminate")
        if not (yield AwaitEnds((self.core,), (yield Now()) + self.bounds.terminate_s)):
            yield EndChild(self.core, "kill")
            yield AwaitEnds((self.core,), (yield Now()) + self.bounds.terminate_s)
        yield from self._listen()
        yield from self._end_workers()

    def _end_workers(self) -> Loop[None]:
        """Of a core that is gone: they go by themselves, unless they are stopped."""
        workers, self._workers = self._workers, ()
        patience_s = 0.0 if (yield from self._core_is_long_dead()) else self.bounds.orphan_s
        if workers:
            yield EndProcesses(workers, patience_s)

    def _core_is_long_dead(self) -> Loop[bool]:
        return self._dead_since is not None and (yield Now()) - self._dead_since > self.bounds.orphan_s

    def break_off(self) -> Loop[None]:
        """`shutdown` was interrupted, by a second Ctrl-C: no more patience."""
        if self.core_process is not None:
            yield EndChild(self.core, "kill")
        yield from self.give_back()

    def give_back(self) -> Loop[None]:
        """Close and remove what this process has."""
        yield Close()
        if self.files is not None:
            yield RemoveFiles(self.files)
        yield MarkPoint(Mark.DYING)
        yield Observe("closed", {})
