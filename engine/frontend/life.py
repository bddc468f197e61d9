"""The life of a client of one or more cores (pure): start them, serve, notice their deaths, end them.

`start` and `shutdown` are loops that wait. All between them never waits: whoever owns the waiting (asyncio, a caller
without a loop, the twin) says what arrived and lets time pass. Decided deliveries are handed to `deliver`, a loop.

Promises
- Start-up ends in ready or in a named error within its bound; a core that dies on the way is noticed at once.
- A core's death is known from its sentinel, whatever it could still say; its last outputs are read first, and for
  at most `grace_s` after the death. Of several cores the others serve on.
- A core that is alive and makes no progress is known from its heartbeat.
- After `shutdown` nothing of the engine is left: no process, segment, socket file or directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.coordinator.sockets import STATS
from engine.effects import (
    AwaitEnds,
    Close,
    Loop,
    MarkPoint,
    Now,
    Observe,
    ReadModel,
    Receive,
    RemoveFiles,
    Send,
)
from engine.errors import BadFrameError, EngineDeadError, RefusedError
from engine.frontend.attachment import Attachment
from engine.frontend.handles.attached import AttachedEngines
from engine.frontend.handles.core import CoreHandle
from engine.frontend.handles.handle import Handle
from engine.frontend.handles.own import OwnEngines
from engine.frontend.handles.remote import RemoteCore
from engine.frontend.link import CoordinatorLink
from engine.frontend.session import ClientSession, Delivery, Message
from engine.messages import EngineCoreRequestType, SamplingParams
from engine.model_config import ModelConfig
from engine.ports import Unroutable
from engine.process.files import EngineFiles
from engine.topology import Channel, Edge, Mark, Node
from engine.wire.adoption import parallel_config
from engine.wire.handshake import HANDSHAKE, REQUESTS

#: A tick looks at all time-outs; the shortest of them sets how often.
TICKS_PER_BOUND = 5
_AT_ONCE = 0.0
#: Of the time in which a death has to be told: so long others may know of an end before those who wait for it.
_SAME_END_SHARE = 0.25
#: Ticks that a client has missed when it stood still itself.
_AWAY = 5


def nobody(delivery: Delivery) -> Loop[None]:
    """Takes what nobody waits for."""
    return
    yield


class ClientLife:
    """Of the client that runs in process `node`; its one core has the same number, several count from their first."""

    model: ModelConfig  # from the start on
    num_gpu_blocks: int  # of the core that has the fewest

    def __init__(self, node: Node, config: EngineConfig, suffix: Callable[[], str],
                 attachment: Attachment | None = None) -> None:
        """`attachment`: of engines that run; None: it starts them, and ends them."""
        self.config = config
        self.bounds = bounds = config.bounds
        self._engines = engines = OwnEngines(node, config) if attachment is None else AttachedEngines(
            config, attachment)
        index, count = (0, 1) if attachment is None else (attachment.index_of(node.index), len(attachment.clients))
        self.cores: Mapping[int, CoreHandle | RemoteCore] = engines.cores
        #: Where cores introduce themselves. Also later somebody may come there, who is not to be heard in silence.
        self._doors = (HANDSHAKE, REQUESTS) if attachment is None else (REQUESTS,)
        self.inboxes = (*(handle.inbox for handle in self.cores.values()), *([STATS] if config.has_coordinator else []),
                        *self._doors)
        self.session = ClientSession(config.limits, bounds, suffix, index, tuple(self.cores), count,
                                     config.data_parallel.score, config.sockets.own_frame_bytes)
        self._link = CoordinatorLink(node, config, self.session, tuple(self.cores))
        self.deliver: Callable[[Delivery], Loop[None]] = nobody
        self.kept: Callable[[], dict[str, int]] = dict  # sizes of what whoever takes deliveries has of open requests
        self.tick_s = min(bounds.heartbeat_s, bounds.stall_s, bounds.request_s, bounds.output_gap_s) / TICKS_PER_BOUND
        self._node = node
        self.watched: tuple[Node, ...] = ()  # whose end is to be noticed; once: it stays readable for ever
        self.closed = False  # or about to be
        self._ticked_at = self._looked_at = 0.0

    # -- start

    def start(self) -> Loop[None]:
        """Raises ConfigError or StartupError; then `shutdown` is still to be run."""
        engines, agreed = self._engines, parallel_config(self.config)
        yield Observe("starting", {})
        try:
            self.model = yield ReadModel(self.config)
            blocks: dict[int, int] = yield from engines.open_for(self._node, self.config, agreed)
        except Exception as error:
            yield Observe("start-failed", {"error": type(error).__name__, "reason": str(error)})
            raise
        self.num_gpu_blocks = min(blocks.values())
        of_each = {"blocks": {self.cores[index].name: some for index, some in blocks.items()}}
        yield Observe("ready", {"num_gpu_blocks": self.num_gpu_blocks, "parallel_config": agreed,
                                **(of_each if len(blocks) > 1 else {})})
        self._ticked_at = now = yield Now()
        engines.watch(now)
        self.watched = engines.nodes

    # -- requests

    def add(self, request_id: str, prompt_token_ids: list[int], params: SamplingParams,
            eos_token_id: int | None = None, priority: int = 0, data_parallel_rank: int | None = None) -> Loop[str]:
        """-> the id it has inside. Raises EngineDeadError, BadRequestError, RefusedError; the rest is delivered."""
        now = yield from self._require_core()
        try:
            internal, (chosen, frames) = self.session.add(request_id, prompt_token_ids, params, now, eos_token_id,
                                                          priority, data_parallel_rank)
        except EngineDeadError as error:
            why = None if data_parallel_rank is None else [*self.cores.values()][data_parallel_rank].reason
            raise EngineDeadError(f"{error}: {why}" if why else str(error)) from None
        except RefusedError:
            limits = self.config.limits
            yield Observe("load", {
                "requests": len(self.session), "bytes": self.session.bytes_in_flight,
                "max_requests": limits.max_requests, "max_bytes": limits.max_request_bytes})
            raise
        yield Observe("accepted", {"request": request_id, "internal": internal, "core": chosen})
        try:
            was_sent = yield from self.send(frames, chosen, request=request_id)
        except Exception:
            self.session.abort(request_id)  # its caller is told by what is raised, and by nothing that comes later
            raise
        if was_sent:
            self._link.sent(chosen)
        else:
            yield from self._hand_over(self.session.unroutable(request_id))
        return internal

    def abort(self, request_id: str) -> Loop[None]:
        yield from self._take(self.session.abort(request_id))

    def stop(self, request_id: str, stop_reason: str) -> Loop[None]:
        yield from self._take(self.session.stop(request_id, stop_reason))

    def utility(self, method: str, args: list[Any]) -> Loop[int]:
        """Of all cores that live. -> call id, whose result is delivered. Raises EngineDeadError, UnroutableError."""
        now = yield from self._require_core()
        call_id, messages = self.session.utility(method, args, now)
        for index, frames in messages:
            if not (yield from self.send(frames, index, utility=method)):
                raise self.session.unroutable_call(call_id)
        return call_id

    def send(self, frames: list[Any], index: int | None = None, request: str | None = None,
             utility: str | None = None) -> Loop[bool]:
        """To this core, or to the first. -> False where a living core is not connected, so that this was not sent."""
        handle = self.cores[min(self.cores) if index is None else index]
        try:
            yield Send(REQUESTS, frames, handle.node.index)
        except Unroutable:
            if handle.process is not None and (yield AwaitEnds((handle.node,), _AT_ONCE)):
                return True  # all that is open ends by its death
            yield Observe("unroutable", {"request": request, "utility": utility, "edge": REQUESTS})
            return False
        return True

    def _require_core(self) -> Loop[float]:
        """-> now. Raises EngineDeadError where no core is left, also while last words are still waited for."""
        now = yield from self.look_at_cores()
        if self.session.dead is None and not self.reachable:
            yield from self._raise_gone()
        return now

    @property
    def reachable(self) -> bool:
        """Whether there is a core that nothing is known against; of those that step together, against none of them."""
        enough = all if self.config.is_lockstep else any
        return self.session.dead is None and enough(
            not handle.dead and handle.gone() is None for handle in self.cores.values())

    @property
    def files(self) -> EngineFiles | None:
        """Of engines that it has started, from the start on."""
        return self._engines.files

    @property
    def has_unfinished_requests(self) -> bool:
        """Its own, or offline those of any rank of its group, which its core still steps with."""
        session = self.session
        return len(session) > 0 or (self.config.is_offline and session.balance.running and session.dead is None)

    @property
    def dead_cores(self) -> dict[str, str]:
        """By name, with what is known against each: those that are dead, and those whose last words are waited for."""
        return {handle.name: handle.reason or handle.gone() or "" for handle in self.cores.values()
                if handle.dead or handle.gone() is not None}

    def _raise_gone(self) -> Loop[None]:
        """All are dead or gone; one at least has still its last words to be read."""
        for handle in self.cores.values():
            gone = handle.gone()
            if gone is not None and not handle.dead:
                raise EngineDeadError((yield from handle.in_its_words(gone)))

    def _take(self, decided: tuple[list[Delivery], list[Message]]) -> Loop[None]:
        deliveries, messages = decided
        for index, frames in messages:
            yield from self.send(frames, index)
        yield from self._hand_over(deliveries)

    def _hand_over(self, deliveries: list[Delivery]) -> Loop[None]:
        for delivery in deliveries:
            yield from self.deliver(delivery)

    # -- what happens

    def on_message(self, frames: list[Any], index: int) -> Loop[float]:
        """That core has sent this. -> when it was read"""
        now: float = yield Now()
        handle = self.cores[index]
        try:
            deliveries = self.session.on_frames(frames, now, index)
        except BadFrameError as error:
            edge = Edge(handle.node.first_life, self._node.first_life, Channel.OUTPUTS)
            yield Observe("bad-frame", {"edge": str(edge), "error": str(error)})
            return now
        while self.session.answers:
            yield Observe("answer", msgspec.structs.asdict(self.session.answers.pop(0)))
        while self.session.strays:
            yield Observe("stray", {"request": self.session.strays.pop(), "core": index})
        yield from self._hand_over(deliveries)
        if index in self.session.notices and not handle.dead and handle.serves:
            yield Observe("dead-notice", {"core": index})
            yield from self._die(handle, handle.monitor.on_notice())
        return now

    def on_any(self, got: tuple[str, int | None, list[Any]]) -> Loop[float]:
        inbox, peer, frames = got
        if inbox in self._doors:
            if peer not in (self._engines.greeted if inbox == HANDSHAKE else self.cores):
                yield Observe("bad-frame", {"edge": inbox, "error": f"unknown engine {peer}"})
        elif inbox == STATS:
            yield from self._link.hear(frames)
        elif peer is not None:
            return (yield from self.on_message(frames, peer))
        now: float = yield Now()
        return now

    def serve(self, until: float) -> Loop[float]:
        """Wait until something may have happened, at most until then, and take it. -> when that was"""
        next_tick, deadline = self._ticked_at + self.tick_s, self.deadline
        got = yield Receive(self.inboxes, min(until, next_tick, next_tick if deadline is None else deadline),
                            self.watched)
        if got is not None:
            now: float = yield from self.on_any(got)
            if now < next_tick:
                return now
            yield from self._read_what_is_there()  # nothing is too late that was here in time
        yield from self.tick()
        return self._ticked_at

    def tick(self) -> Loop[None]:
        """Let time pass: deaths of cores, heartbeats, the end of a death's grace, then time-outs of the living."""
        yield from self._link.tell()
        now = yield from self.look_at_cores()
        was_away, self._ticked_at = now - self._ticked_at > _AWAY * self.tick_s, now
        if self.session.dead is None and not was_away:  # else what came meanwhile is read before anything is late
            yield from self._take(self.session.on_tick(now))
        for handle in self.cores.values():
            if handle.dead:
                yield from handle.end_orphans()

    def look_at_cores(self) -> Loop[float]:
        """Notice who is gone or stands still. -> now"""
        now: float = yield Now()
        if self.session.dead is not None or now == self._looked_at:
            return now
        self._looked_at = now
        yield from self._see_ends(now)
        yield from self._engines.look(now)
        for handle in self._engines.all:
            if handle.serves and not handle.dead:
                yield from self._look_at(handle, now)
        return now

    def _see_ends(self, now: float, wait_s: float = 0.0) -> Loop[None]:
        if not self.watched:
            return
        gone = yield AwaitEnds(self.watched, now + wait_s if wait_s else _AT_ONCE)
        for node, end in gone.items():
            self._engines.by_node[node].monitor.on_gone(f" (exit code {end.exitcode})", now)
            if self._engines.is_core(node):
                self.session.shun(node.index)
        if gone:
            self.watched = tuple(node for node in self.watched if node not in gone)

    def _look_at(self, handle: Handle, now: float) -> Loop[None]:
        reason = yield from handle.beat(now)
        if handle.gone() is not None:
            yield from self._read_what_is_there()
            if reason is None and not handle.dead:
                reason = yield from handle.last_word()
        yield from self._die(handle, reason)

    def _read_what_is_there(self) -> Loop[None]:
        """Nobody may have read for a while."""
        while (got := (yield Receive(self.inboxes, _AT_ONCE))) is not None:
            yield from self.on_any(got)

    @property
    def deadline(self) -> float | None:
        """Until when the last words of a dead core are still waited for; None while all live."""
        return min((deadline for handle in self._engines.all if handle.serves and not handle.dead
                    if (deadline := handle.monitor.deadline()) is not None), default=None)

    def _die(self, handle: Handle, reason: str | None) -> Loop[None]:
        if reason is None or handle.dead:
            return
        reason = yield from handle.in_its_words(reason)
        index, is_core = handle.node.index, self._engines.is_core(handle.node)
        self.watched = tuple(node for node in self.watched if node != handle.node)
        if is_core:
            self.session.shun(index)
        else:
            yield Observe("coordinator-dead", {"reason": reason})
        yield from handle.bury(reason, is_core and index in self.session.notices)
        if self.config.is_lockstep and self.session.dead is None:
            now: float = yield Now()
            # One that says only that it leaves may do so for another's end: its connections end before itself. And
            # another client's coordinator is ended for that.
            why_is_known = handle.has_said_why or (
                index not in self.session.notices if is_core else handle.process is not None)
            is_alone = all(one.gone() is None for one in self._engines.all if one is not handle)
            patience_s = _SAME_END_SHARE * self.config.bounds.detection_s if is_alone and not why_is_known else 0.0
            yield from self._see_ends(now, patience_s)
            yield from self._engines.look_for_another(handle, now + patience_s)
            yield from self._all_die(reason + self._engines.silent(now))
        elif is_core:
            deliveries = self.session.die(reason, index)
            yield Observe("engine-dead", {"reason": reason, "core": index})
            yield from self._hand_over(deliveries)

    def _all_die(self, reason: str) -> Loop[None]:
        """Of those that step together none goes on without the others."""
        deliveries = self.session.die(reason)
        for index in self.cores:
            yield Observe("engine-dead", {"reason": reason, "core": index})
        for handle in self._engines.all:
            if not handle.dead:
                yield from handle.bury(reason, False)
        self.watched = ()
        yield from self._hand_over(deliveries)

    def check_health(self) -> Loop[None]:
        """Raises EngineDeadError where no core is left that makes progress."""
        yield from self.look_at_cores()
        if self.session.dead is not None:
            raise EngineDeadError(self.session.dead.reason)
        if not self.reachable:
            yield from self._raise_gone()

    # -- the end

    def shutdown(self) -> Loop[None]:
        """End the engine and remove everything it has. Safe to run twice, and on an engine that never started."""
        if self.closed:
            return
        self.closed = True
        yield Observe("closing", {"kept": {**self.session.kept(), **self.kept()}, "unfinished":
                                  self.has_unfinished_requests, "errors": self.session.check_integrity()})
        if self.session.dead is None:
            for index, frames in self.session.free_all():  # or the cores would let them run to their end
                yield from self.send(frames, index)
        yield from self._hand_over(self.session.die("the engine was shut down"))
        for index in self._engines.headless:
            if not self.cores[index].dead:
                yield from self.send([EngineCoreRequestType.LEAVE], index)
        yield from self._engines.end()
        yield from self.give_back()

    def break_off(self) -> Loop[None]:
        """`shutdown` was interrupted, by a second Ctrl-C: no more patience."""
        yield from self._engines.kill()
        yield from self.give_back()

    def give_back(self) -> Loop[None]:
        """Close and remove what this process has."""
        yield Close()
        if self._engines.files is not None:
            yield RemoveFiles(self._engines.files)
        yield MarkPoint(Mark.DYING)
        yield Observe("closed", {})
