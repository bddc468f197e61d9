"""The life of who owns engines and asks nothing of them (pure): start them, watch them, end them.

    start    cores, coordinator, handshakes      -> an Attachment, which each of several clients is given
             headless: cores alone; they greet the head of their group, and its client is theirs
    watch    a core that stands still is killed: so all clients notice it, which watch processes and connections
    end      when it is asked to, or when all cores are gone

Promises
- No client owns what another one needs: the end of one changes nothing for the others.
- Of cores that step together, and of their coordinator, the end of one ends all.
- After `shutdown` nothing of the engines is left: no process, segment, socket file or directory.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.effects import (
    AwaitEnds,
    ClaimFiles,
    Close,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OpenSocket,
    Receive,
    RemoveFiles,
    ReserveAddress,
    SweepFiles,
    WhoAmI,
)
from engine.errors import ConfigError
from engine.frontend.attachment import Attachment, ClientAddresses, Running
from engine.frontend.handles.handle import Handle
from engine.frontend.handles.manager import HEAD, CoreEngineProcManager, with_start_method
from engine.process.files import EngineFiles, birth_certificate
from engine.topology import Mark, Node
from engine.wire.adoption import parallel_config
from engine.wire.handshake import HANDSHAKE, REQUESTS
from engine.wire.places import is_chosen_by_the_system, place_of
from engine.wire.wiring import outputs_of, owner_socket

#: A tick looks at all heartbeats; the shortest bound sets how often.
TICKS_PER_BOUND = 5
_MOST_AT_ONCE = 256


class LauncherLife:
    """Of the process `node`. `clients`: the frontends that may attach, by the index that they have among them.

    None: the cores are headless. Raises ConfigError where they cannot be.
    """

    def __init__(self, node: Node, config: EngineConfig, clients: tuple[int, ...]) -> None:
        internal = config.data_parallel.load_balancing == "internal"
        if not clients and (not config.is_spread or config.is_head or not internal):
            raise ConfigError("headless cores have a head that starts rank 0, and are asked by its client: give its "
                              "head_address, a data_parallel_rank above 0, and no other load balancing than internal")
        self._config, self._clients = config, clients
        self._engines = CoreEngineProcManager(node, config)
        self.watched: tuple[Node, ...] = ()  # whose end is to be noticed
        self.tick_s = min(config.bounds.heartbeat_s, config.bounds.stall_s) / TICKS_PER_BOUND
        self.reason = ""  # why there is nothing left to do
        self.closed = False

    # -- start

    def start(self) -> Loop[Attachment]:
        """Raises ConfigError or StartupError; then `shutdown` is still to be run."""
        yield Observe("starting", {})
        try:
            attachment = yield from self._start()
        except Exception as error:
            yield Observe("start-failed", {"error": type(error).__name__, "reason": str(error)})
            raise
        yield Observe("ready", {"num_gpu_blocks": min(attachment.blocks.values(), default=None),
                                "parallel_config": attachment.parallel_config})
        yield MarkPoint(Mark.READY)
        self._engines.watch((yield Now()))
        self.watched = self._engines.nodes
        return attachment

    def _start(self) -> Loop[Attachment]:
        engines, agreed = self._engines, parallel_config(self._config)
        yield SweepFiles()
        engines.files = files = yield ClaimFiles(self._config.runtime_dir)
        me = yield WhoAmI()
        yield Observe("born", birth_certificate(me, files))
        config = with_start_method(self._config)
        yield from engines.start(config.start_method)
        if not self._clients:
            yield from engines.tell(config, files, me, None, (HEAD.index,))
            yield from engines.await_beats(self.tick_s)
            return Attachment(clients=(), cores=engines.running, blocks={}, parallel_config=agreed)
        handshake = yield OpenSocket(owner_socket(config, place_of(config.sockets, files, HANDSHAKE)))
        hub = yield from engines.tell(config, files, me, handshake, self._clients)
        clients = []
        for place in range(len(self._clients)):
            clients.append((yield from self._addresses(files, place)))
        blocks = yield from engines.meet(clients, agreed, hub, (HANDSHAKE,), me)
        return Attachment(
            clients=tuple(clients), blocks=blocks, parallel_config=agreed,
            cores=engines.running,
            coordinator=None if engines.coordinator is None else Running(
                identity=engines.coordinator.identity, beat=engines.coordinator.beats_at),
            stats=None if hub is None else hub.stats)

    def _addresses(self, files: EngineFiles, place: int) -> Loop[ClientAddresses]:
        """Kept for that client: the cores are told of them before it is there to bind them."""
        kept = {}
        for name in (REQUESTS, *map(outputs_of, self._engines.cores)):
            address = place_of(self._config.sockets, files, f"client.{place}.{name}")
            kept[name] = (yield ReserveAddress(address)) if is_chosen_by_the_system(address) else address
        return ClientAddresses(frontend=self._clients[place], requests=kept[REQUESTS],
                               outputs={core: kept[outputs_of(core)] for core in self._engines.cores})

    # -- watch

    def serve(self, until: float) -> Loop[float]:
        """Let time pass, at most until then, and see who is gone. -> when that was"""
        inboxes = (HANDSHAKE,) if self._clients else ()
        got = yield Receive(inboxes, min(until, (yield Now()) + self.tick_s), self.watched)
        for _ in range(_MOST_AT_ONCE):  # who floods this may not keep it from looking
            if got is None:
                break
            if got[1] not in self._engines.cores:  # late greetings are nothing
                yield Observe("bad-frame", {"edge": HANDSHAKE, "error": f"unknown engine {got[1]}"})
            got = yield Receive(inboxes, 0.0)
        now: float = yield Now()
        yield from self._look(now)
        return now

    @property
    def has_orphans(self) -> bool:
        """Whether workers of dead cores may still be there, which have some time to go by themselves."""
        return any(handle.has_orphans for handle in self._engines.all)

    def _look(self, now: float) -> Loop[None]:
        gone = (yield AwaitEnds(self.watched, 0.0)) if self.watched else {}
        for node, end in gone.items():
            self._engines.by_node[node].monitor.on_gone(f" (exit code {end.exitcode})", now)
        self.watched = tuple(node for node in self.watched if node not in gone)
        for handle in self._engines.all:
            if handle.serves and not handle.dead:
                reason = yield from handle.beat(now)
                if reason is None and handle.gone() is not None:
                    reason = handle.monitor.on_last_word()
                if reason is not None:
                    yield from self._is_dead(handle, reason)
            elif handle.dead:
                yield from handle.end_orphans()

    def _is_dead(self, handle: Handle, reason: str) -> Loop[None]:
        reason = yield from handle.in_its_words(reason)
        is_core = self._engines.is_core(handle.node)
        yield Observe("engine-dead", {"reason": reason, "core": handle.node.index}) if is_core else Observe(
            "coordinator-dead", {"reason": reason})
        yield from handle.bury(reason, False)
        if self._config.is_lockstep:
            reason += self._engines.silent((yield Now()))
            for other in self._engines.all:
                if not other.dead:
                    yield from other.bury(reason, False)
        if not self.reason and all(core.dead for core in self._engines.cores.values()):
            self.reason = reason
            yield Observe("none-left", {"reason": reason})

    # -- the end

    def shutdown(self) -> Loop[None]:
        """End the engines and remove everything they have. Safe to run twice, and where they never started."""
        if self.closed:
            return
        self.closed = True
        yield Observe("closing", {"kept": {}, "errors": []})
        yield from self._engines.end()
        yield from self.give_back()

    def break_off(self) -> Loop[None]:
        """`shutdown` was interrupted: no more patience."""
        yield from self._engines.kill()
        yield from self.give_back()

    @property
    def files(self) -> EngineFiles | None:
        """From the start on."""
        return self._engines.files

    def give_back(self) -> Loop[None]:
        yield Close()
        if self._engines.files is not None:
            yield RemoveFiles(self._engines.files)
        yield MarkPoint(Mark.DYING)
        yield Observe("closed", {})
