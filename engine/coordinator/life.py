"""The life of a coordinator's process (pure): the board's ears and mouth.

Promises
- It says READY to its parent, with where it is bound, or in one line why it could not start.
- Whatever bytes arrive, it goes on: what cannot be read is dropped and reported.
- It leaves when its parent has gone, and says why it leaves to a parent that is there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.coordinator.board import Board, Notice, Odd, Ready, Said, Start
from engine.coordinator.sockets import READY, REPORTS, STATS, WAVES, coordinator_sockets
from engine.coordinator.words import decode_first_request, decode_report, encode_notice, encode_start
from engine.effects import (
    AwaitParent,
    Beat,
    Cancel,
    Close,
    HoldFiles,
    IsAlive,
    LogLine,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OnTerminate,
    OpenHeartbeat,
    OpenSocket,
    Receive,
    RemoveFiles,
    Send,
    TellParent,
    WhoAmI,
)
from engine.errors import BadFrameError, QueueCancelledError
from engine.messages import EngineCoreOutputs
from engine.process.beside import beside
from engine.process.files import birth_certificate
from engine.process.recipes import (
    CoordinatorReady,
    CoordinatorRecipe,
    Leaving,
    StartFailure,
    last_word,
    leaves_undisturbed,
)
from engine.topology import Channel, Edge, Mark, Node, core, frontend
from engine.wire.places import place_of
from engine.wire.subscriptions import leaver_of, subscriber_of, topic_in

#: Where a SIGTERM goes to whoever leaves already. Nobody looks there.
AGAIN = "again"


def coordinator_life(node: Node, recipe: CoordinatorRecipe) -> Loop[None]:
    """Never raises: the reason to leave is told on every way that still works."""
    return CoordinatorLife(node, recipe).run()


class CoordinatorLife:
    board: Board  # from the start on

    def __init__(self, node: Node, recipe: CoordinatorRecipe) -> None:
        self._recipe, self._config = recipe, recipe.config
        self._node = node.first_life
        self._parent_gone = False
        self._beats = 0

    def run(self) -> Loop[None]:
        recipe, serving = self._recipe, False
        yield Observe("born", birth_certificate((yield WhoAmI()), recipe.files))
        yield MarkPoint(Mark.BORN)
        try:
            yield OnTerminate(None, "SIGTERM")
            if self._config.start_method == "spawn":
                yield HoldFiles(recipe.files)
            yield from self._start()
            serving = True
            yield MarkPoint(Mark.READY)
            yield from self._serve()
            reason = "its loop has ended"
        except (Exception, SystemExit) as error:
            yield from leaves_undisturbed(AGAIN, None)
            reason = f"{type(error).__name__}: {error}"
            if not self._parent_gone:
                why = Leaving(reason) if serving else StartFailure(type(error).__name__, str(error))
                yield from last_word(why)
                if not isinstance(error, SystemExit):
                    yield LogLine(f"the coordinator leaves: {reason}")
        yield from self._leave(reason)

    # -- start

    def _start(self) -> Loop[None]:
        config, options = self._config, self._config.data_parallel
        yield beside("parent-watch", self._watch_parent())
        yield OpenHeartbeat(self._recipe.beat, create=False)
        bound = {}
        for spec in coordinator_sockets(config.sockets, partial(place_of, config.sockets, self._recipe.files)):
            bound[spec.name] = yield OpenSocket(spec)
        self.board = Board(config.data_parallel_size, changed_s=options.changed_s, unchanged_s=options.unchanged_s,
                           settle_s=options.settle_s, now=(yield Now()), lockstep=config.is_lockstep,
                           protocol=options.wave_protocol, repair=options.repair,
                           counted=config.is_counted)
        yield TellParent(CoordinatorReady(stats=bound[STATS], waves=bound[WAVES], reports=bound[REPORTS]))

    def _watch_parent(self) -> Loop[None]:
        yield AwaitParent()
        self._parent_gone = True
        yield Observe("parent-gone", {})
        yield Cancel(QueueCancelledError("the frontend is gone"))

    # -- serve

    def _serve(self) -> Loop[None]:
        every_s = self._config.bounds.heartbeat_s / 2
        while True:
            now = yield Now()
            self._beats += 1
            yield Beat(self._beats)
            if now >= self.board.publish_at:
                yield from self._say(self.board.publish(now), "time")
                continue
            got = yield Receive((STATS, WAVES, REPORTS), min(self.board.publish_at, now + every_s))
            if got is not None:
                yield from self._hear(*got)

    def _hear(self, inbox: str, peer: int | None, frames: list[Any]) -> Loop[None]:
        try:
            if inbox == REPORTS:
                yield from self._report(decode_report(frames))
            elif topic_in(frames) is not None:
                yield from self._subscription(inbox, frames)
            elif inbox == STATS:
                first = decode_first_request(frames)
                if first.client not in self._recipe.clients:
                    raise BadFrameError(f"a first request of client {first.client}, of which there is none")
                yield from self._say(self.board.on_first_request(first.rank, first.wave), "first-request")
            else:
                raise BadFrameError("a word of a core that is no subscription")
        except BadFrameError as error:
            yield Observe("bad-frame", {"edge": self._edge(inbox, peer), "error": str(error)})

    def _subscription(self, inbox: str, frames: list[Any]) -> Loop[None]:
        """Of whom it is, its topic says; that it wants everything says nothing of that."""
        leaver = leaver_of(frames)
        if leaver is not None:
            yield Observe("unsubscribed", {"inbox": inbox, "index": leaver})
            return
        index = subscriber_of(frames)
        if index is None:
            if len(frames[0]) > 1:
                raise BadFrameError("a subscription to what nobody is called, or its end")
            return
        if inbox == STATS and index not in self._recipe.clients:
            raise BadFrameError(f"a subscription of client {index}, of which there is none")
        yield Observe("subscribed", {"inbox": inbox, "index": index})
        if inbox == WAVES:
            yield from self._say(self.board.on_subscription(index), "subscription")

    def _report(self, report: EngineCoreOutputs) -> Loop[None]:
        board, rank = self.board, report.engine_index
        if report.scheduler_stats is not None:
            stats = report.scheduler_stats
            total = stats.blocks_total
            share = (total - stats.blocks_free) / total if total else 0.0
            wave, step = report.counted_at or (0, 0)
            yield from self._say(board.on_counts(rank, (stats.num_waiting, stats.num_running, share), wave, step,
                                                 (yield Now())), "counts")
        if report.start_wave is not None:
            yield from self._say(board.on_start_wave(rank, report.start_wave), "start-wave")
        if report.wave_complete is not None:
            yield from self._say(board.on_wave_complete(rank, report.wave_complete), "wave-complete")

    def _say(self, said: list[Said], cause: str) -> Loop[None]:
        for one in said:
            if isinstance(one, Ready):
                yield Observe("all-subscribed", {"cores": sorted(self.board.subscribed)})
                yield Send(WAVES, [READY])
            elif isinstance(one, Start):
                yield Observe("start", {"wave": one.wave, "exclude": one.exclude, "cause": cause})
                yield Send(WAVES, encode_start(one))
            elif isinstance(one, Notice):
                yield Observe("notice", {"counts": None if one.counts is None else [list(each) for each in one.counts],
                                         "wave": one.wave, "running": one.running, "cause": cause})
                yield Send(STATS, encode_notice(one))
            elif isinstance(one, Odd):
                yield Observe("odd", {"why": one.why, "cause": cause})

    def _edge(self, inbox: str, peer: int | None) -> str:
        """By its channel alone where nobody is known to have sent it."""
        channel = {STATS: Channel.STATS, WAVES: Channel.WAVE, REPORTS: Channel.REPORT}[inbox]
        known = self._recipe.clients if inbox == STATS else range(self._config.data_parallel_size)
        if peer is None or peer not in known:
            return channel.value
        return str(Edge(frontend(peer) if inbox == STATS else core(peer), self._node, channel))

    # -- leave

    def _leave(self, reason: str) -> Loop[None]:
        yield Observe("dying", {"reason": reason, "queued": 0})
        yield MarkPoint(Mark.DYING)
        yield Cancel(QueueCancelledError("the coordinator is leaving"))
        yield Close(0.0)
        if self._parent_gone or not (yield IsAlive(self._recipe.frontend)):
            yield RemoveFiles(self._recipe.files)
        yield Observe("bye", {"reason": reason})
