"""The life of a core's process (pure): start, serve, watch, leave; around the `EngineCore`.

    main           start, busy loop: inputs, schedule, execute, publish; leave
    input          DEALER -> decode -> input queue
    output         output queue -> encode -> one PUSH per client
    zmq-publisher, zmq-replay   what `engine.kv_events.publisher` runs
    watch          the ends of the workers
    parent-watch   the end of the frontend

Promises
- Start-up follows the documented order and ends in READY, or in one line on the parent's pipe that says why not.
- However the process leaves on its own feet (exception, SIGTERM, sys.exit), every output queued before is sent,
  then ENGINE_CORE_DEAD, and ZMQ gets `linger` to deliver it.
- The death of a worker ends whatever the core waits for. The death of the frontend ends the core and its
  workers, and their files go with them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from engine.config import KVEventsConfig
from engine.coordinator.sockets import READY, WAVES, core_sockets
from engine.coordinator.waves import Waves
from engine.core.dp_engine_core import GROUP, CountedEngineCore, DPEngineCore
from engine.core.engine_core import EngineCore, reason_of
from engine.core.io.handshakes import Handshakes
from engine.core.io.items import INPUT, OUTPUT, Dead, Terminate
from engine.core.io.loops import Unheard, announce, input_loop, last_words, outboxes_of, output_loop
from engine.core.io.pulse import Pulse
from engine.core.scheduler import Scheduler
from engine.effects import (
    AwaitParent,
    Cancel,
    Close,
    ExitNow,
    HoldFiles,
    IsAlive,
    JoinThread,
    LogLine,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OnTerminate,
    OpenHeartbeat,
    OpenSocket,
    Put,
    ReadModel,
    Receive,
    RemoveFiles,
    Send,
    Take,
    Waiting,
    WhoAmI,
)
from engine.errors import CollectiveError, PeerDeadError, QueueCancelledError, RpcError, StartupError
from engine.executor.abstract import SENTINEL_S, Executor
from engine.executor.registry import make_executor
from engine.kv_events.publisher.life import end_publisher, start_publisher
from engine.kv_events.publisher.log import KVEventLog
from engine.messages import EngineZmqAddresses
from engine.model_config import max_model_len
from engine.process.beside import beside
from engine.process.consensus.effects import JoinGroup, Member
from engine.process.consensus.offline import LEAVING, meet_others, watch_others
from engine.process.files import birth_certificate
from engine.process.recipes import CoreRecipe, Leaving, StartFailure, last_word, leaves_undisturbed
from engine.topology import Channel, Edge, Mark, Node, coordinator, core, frontend
from engine.wire.subscriptions import subscriptions_of
from engine.wire.wiring import core_output_socket, core_request_socket, requests_of

#: So often, within the bound of a handshake, a core says that it wants to hear its coordinator.
SUBSCRIBES = 5
#: Takes a word when the core has left, for the thread that watches over its leaving without a frontend.
LEFT = "left"


def core_life(node: Node, recipe: CoreRecipe) -> Loop[None]:
    """Never raises: the reason to leave is told on every way that still works."""
    return CoreLife(node, recipe).run()


class CoreLife:
    def __init__(self, node: Node, recipe: CoreRecipe) -> None:
        self._recipe = recipe
        self._config = recipe.config
        self._files = recipe.files
        self._life = node.life
        self._executor: Executor | None = None  # from the start on, where it can be had as configured
        self._serving = False
        self._parent_gone = False
        self._needed: tuple[Member, ...] = ()  # processes without which it cannot go on, and which others have started
        self._left_by = ""  # who of them was gone, as the beginning of a sentence
        self._follows = False  # another one that gave up, it does not know why
        self._kv_log: KVEventLog | None = None
        self._pulse = Pulse(recipe.config.bounds)
        self._last_words: Loop[None] | None = None  # what the main thread says in the output thread's place

    def run(self) -> Loop[None]:
        yield Observe("born", birth_certificate((yield WhoAmI()), self._files))
        yield MarkPoint(Mark.BORN)
        farewell = ""
        try:
            yield OnTerminate(None, "SIGTERM while starting")
            if self._config.start_method == "spawn":
                yield HoldFiles(self._files)
            engine = yield from self._start()
            yield OnTerminate(INPUT, Terminate())
            self._serving = True
            reason = yield from engine.busy_loop()
        except (Exception, SystemExit) as error:
            yield from leaves_undisturbed(INPUT, Terminate())
            died = self._left_by or (yield from self._who_died(error))
            reason = died + reason_of(error)
            self._follows = not died and isinstance(error, CollectiveError) and error.follows
            if not self._serving:
                kind = type(error).__name__
                yield from last_word(StartFailure(kind, reason if died else str(error) or kind))
            elif not self._parent_gone:
                farewell = f"the core leaves: {reason}"
        yield from self._leave(reason, farewell)

    def _who_died(self, error: BaseException) -> Loop[str]:
        """The error of a call, or of a ring whose reader is gone, may be faster than word of who died.

        What a process has of a GPU is taken from it before its end is told, which may take a while. Who only waits for
        a start has the time to hear of it.
        """
        if self._executor is None or not isinstance(error, RpcError | PeerDeadError):
            return ""
        at_leisure = isinstance(error, PeerDeadError) and not self._serving
        died = yield from self._executor.who_died(self._config.bounds.detection_s if at_leisure else SENTINEL_S)
        return "" if died.removesuffix("; ") in str(error) else died

    # -- start

    def _start(self) -> Loop[EngineCore]:
        config, recipe = self._config, self._recipe
        self._executor = executor = make_executor(recipe, self._life, told=INPUT)
        yield from executor.begin()  # before the first socket and thread: under fork they must not be inherited
        yield beside("parent-watch", self._watch_parent(executor))
        yield OpenHeartbeat(recipe.beat, create=False)
        handshakes = Handshakes(recipe)
        yield from handshakes.greet()
        self._config = config = handshakes.config
        self._recipe = recipe = msgspec.structs.replace(recipe, config=config)
        self._needed = handshakes.needed
        if handshakes.master_address is not None:
            self._recipe = recipe = yield from meet_others(recipe, handshakes.master_address)
            self._needed += tuple(one for rank, one in enumerate(recipe.ranks) if rank != recipe.rank)
        if self._needed:
            yield beside("ranks-watch", self._watch_needed(executor))
        yield from executor.connect(recipe.across)
        num_blocks = yield from executor.initialize()
        model = yield ReadModel(config)
        yield from start_publisher(self._kv_config(), config.data_parallel_rank, kept=self._keep)
        yield from self._join_ranks()
        scheduler = Scheduler(config.scheduler, config.cache, num_blocks, config.cache.block_size,
                              max_model_len(config, model), vocab_size=model.vocab_size,
                              enable_events=config.kv_events.enable_kv_cache_events,
                              stages=config.pipeline_parallel_size)
        engine = self._make(scheduler, executor)
        yield from self._start_output(handshakes.addresses, engine)
        yield Observe("ready", {"num_gpu_blocks": num_blocks, "parallel_config": handshakes.agreed})
        yield from handshakes.ready(num_blocks)
        me, clients = core(recipe.engine_index), {requests_of(place): place for place in range(len(recipe.clients))}
        for inbox in clients:
            yield from announce(inbox)  # on the socket where its work will come
        edges = {inbox: str(Edge(frontend(recipe.clients[place]), me, Channel.REQUESTS))
                 for inbox, place in clients.items()}
        if config.has_coordinator:
            edges[WAVES] = str(Edge(coordinator(), me, Channel.WAVE))
        yield beside("input", input_loop(
            edges, self._pulse, None if recipe.launcher is None else clients, config.bounds.detection_s / 4,
            headless=recipe.is_headless, in_step=config.is_lockstep),
            told=INPUT)  # a thread that ends takes the core with it
        return engine

    def _keep(self, log: KVEventLog) -> None:
        self._kv_log = log

    def _make(self, scheduler: Scheduler, executor: Executor) -> EngineCore:
        config, recipe = self._config, self._recipe
        more: dict[str, Any] = {"engine_index": recipe.engine_index, "kv_log": self._kv_log, "pulse": self._pulse}
        if config.is_lockstep:
            options = config.data_parallel
            waves = Waves(recipe.rank, len(recipe.ranks), interval=options.sync_interval,
                          protocol=options.wave_protocol, coordinated=config.has_coordinator, repair=options.repair)
            return DPEngineCore(config, scheduler, executor, waves=waves, **more)
        return (CountedEngineCore if config.has_coordinator else EngineCore)(config, scheduler, executor, **more)

    def _join_ranks(self) -> Loop[None]:
        """Meet the cores that it steps together with, where there are any."""
        recipe = self._recipe
        if recipe.ranks:
            deadline = (yield Now()) + self._config.bounds.startup_s
            yield JoinGroup(GROUP, recipe.rank, recipe.ranks, recipe.meets_at, deadline)

    def _subscribe(self, addresses: EngineZmqAddresses) -> Loop[None]:
        """From here on the coordinator's words come. Asked for again while no answer comes: either may be lost.

        Raises StartupError where it says nothing.
        """
        waves, reports = addresses.coordinator_input, addresses.coordinator_output
        if waves is None or reports is None:
            raise StartupError("the frontend did not say where the coordinator is")
        for spec in core_sockets(self._config.sockets, waves, reports, self._recipe.engine_index):
            yield OpenSocket(spec)
        every_s = self._config.bounds.handshake_s / SUBSCRIBES
        edge = str(Edge(coordinator(), core(self._recipe.engine_index), Channel.WAVE))
        for _ in range(SUBSCRIBES):
            for topic in subscriptions_of(self._recipe.engine_index):
                yield Send(WAVES, [topic])
            until = (yield Now()) + every_s
            while (got := (yield Receive((WAVES,), until))) is not None:
                if [bytes(frame) for frame in got[2]] == [READY]:
                    return
                yield Observe("bad-frame", {"edge": edge, "error": "not READY, which comes first"})
        raise StartupError(f"{coordinator()} did not say READY in time: not all cores have subscribed to it, or a "
                           "message was lost")

    def _kv_config(self) -> KVEventsConfig:
        """The event endpoints: as configured, else in the engine's own directory."""
        asked = self._config.kv_events
        return msgspec.structs.replace(
            asked, endpoint=asked.endpoint or self._files.socket("kv.ipc"),
            replay_endpoint=(asked.replay_endpoint or self._files.socket("replay.ipc")) if asked.replay else None)

    def _start_output(self, addresses: EngineZmqAddresses, engine: EngineCore) -> Loop[None]:
        config, recipe = self._config, self._recipe
        several = recipe.launcher is not None
        for place, (client, requests, outputs) in enumerate(zip(
                recipe.clients, addresses.inputs, addresses.outputs, strict=True)):
            yield OpenSocket(core_request_socket(config, requests, recipe.engine_index, client, place,
                                                 watched=several))
            yield OpenSocket(core_output_socket(config, outputs, place, client, watched=several))
        unheard = None
        if config.has_coordinator:
            yield from self._subscribe(addresses)
        if config.has_coordinator and isinstance(engine, DPEngineCore):
            waves = engine.waves
            unheard = Unheard(recipe.engine_index, lambda: waves.unheard, config.data_parallel.changed_s)
        outboxes, unsent = outboxes_of(len(addresses.outputs), coordinated=config.has_coordinator), deque[Any]()
        own_frame_bytes = config.sockets.own_frame_bytes
        self._last_words = last_words(outboxes, unsent, own_frame_bytes)
        yield beside("output", output_loop(outboxes, unsent, self._pulse, unheard, own_frame_bytes), told=INPUT)

    # -- watch

    def _watch_parent(self, executor: Executor) -> Loop[None]:
        """Nobody is left to serve: leave in order, but not for longer than a fraction of the orphans' bound."""
        yield AwaitParent()
        self._parent_gone = True
        yield Observe("parent-gone", {})
        gone = QueueCancelledError(f"the {self._recipe.owner.kind} is gone")
        yield Cancel(gone)
        yield Put(INPUT, gone)
        if not (yield Take(LEFT, (yield Now()) + self._config.bounds.orphan_s / 4)):
            yield from executor.kill()
            yield RemoveFiles(self._files)
            yield ExitNow(1)

    def _watch_needed(self, executor: Executor) -> Loop[None]:
        """None goes on without the others: leave in order. A start that waits for them is broken off."""
        gone = yield from watch_others(self._needed, self._config.bounds.detection_s)
        if gone is None:
            return
        self._left_by = f"{gone}, which it steps together with, is gone; " if gone.startswith("core.") else (
            f"{gone}, without which it serves nobody, is gone; ")
        yield Observe("rank-gone", {"rank": gone})
        error = QueueCancelledError(f"no rank goes on without {gone}")
        yield Cancel(error)
        yield Put(INPUT, error)
        patience_s = self._config.bounds.orphan_s / 4
        if self._serving or (yield Take(LEAVING, (yield Now()) + patience_s)):
            return
        yield from executor.kill()
        if not (yield Take(LEAVING, (yield Now()) + patience_s)):
            yield from last_word(StartFailure("StartupError", self._left_by + str(error)))
            yield RemoveFiles(self._files)
            yield ExitNow(1)

    # -- leave

    def _leave(self, reason: str, farewell: str) -> Loop[None]:
        """Say goodbye, to an operator as well, end the workers, let ZMQ deliver, remove what nobody else will."""
        bounds = self._config.bounds
        if self._executor is not None:
            self._executor.leaving()
        yield Observe("dying", {"reason": reason, "queued": (yield Waiting(OUTPUT))})
        try:
            yield MarkPoint(Mark.DYING)
        except (Exception, SystemExit) as error:  # whatever goes wrong on the way out, the last words are said
            yield LogLine("on the way out", error)
        yield Cancel(QueueCancelledError("the core is leaving"))
        if self._needed:
            yield Put(LEAVING, True)
        if self._serving:
            yield from last_word(Leaving(reason, self._follows))  # before the notice: who reads that finds this
        if self._last_words is not None:
            yield Put(OUTPUT, Dead())
            if (yield JoinThread("output", (yield Now()) + bounds.linger_s)):
                yield from self._last_words  # nothing, unless the thread failed
        if farewell:
            yield LogLine(farewell)  # a line takes half a millisecond, for which the notice need not wait
        yield JoinThread("input", (yield Now()) + bounds.linger_s)
        if self._executor is not None:
            yield from self._executor.stop()
        if self._kv_log is not None:
            yield from end_publisher(self._kv_log, self._kv_config())
        alone = self._parent_gone and self._recipe.launcher is None  # then nobody will ever read it
        yield Close(0.0 if alone else self._config.bounds.orphan_s / 8 if self._parent_gone else None)
        yield Observe("bye", {"reason": reason})  # whose client is gone by then looks later, and tidies up
        if self._parent_gone or not (yield IsAlive(self._recipe.frontend)):
            yield RemoveFiles(self._files)
        yield Put(LEFT, True)
