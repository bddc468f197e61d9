"""Starts a core and speaks with it: the shell around `ClientSession`.

`EngineCoreClient` never waits after its start: `pump` takes what has arrived, `tick` lets time pass. The
sync and the async client differ only in who waits: `SyncMPClient` polls descriptors, `AsyncMPClient` hands
them to the event loop.

Promises
- Start-up ends in ready or in a named error within its bound; a core that dies on the way is noticed at once.
- The core's death is known from its sentinel, whatever it could still say; its last outputs are read first, and for
  at most `grace_s` after the death.
- A core that is alive and makes no progress is known from its heartbeat.
- After `shutdown` nothing of the engine is left: no process, segment, socket file or directory. A program that ends
  without it, or by an exception, shuts down on its way out.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import BadFrameError, ConfigError, EngineDeadError, StartupError
from engine.frontend.monitor import CoreMonitor
from engine.frontend.session import ClientSession, Delivery
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses, SamplingParams
from engine.model_config import check_parallel, max_model_len, read_model_config
from engine.ports import Child, Ports, Unroutable
from engine.process.children import end_processes, readable
from engine.process.entry import open_ports
from engine.process.identity import start_time
from engine.process.recipes import CoreRecipe, Leaving, StartFailure, WorkersBorn
from engine.process.runtime_dir import RuntimeDir, sweep
from engine.process.shell import BEAT, Process
from engine.topology import Mark, core, frontend
from engine.wire.handshake import HANDSHAKE, REQUESTS, frontend_handshake
from engine.wire.wiring import OUTPUTS, frontend_sockets

CORE_MAIN = "engine.core.engine_core_proc:run_engine_core"
#: A tick looks at all time-outs; the shortest of them sets how often.
TICKS_PER_BOUND = 10


#: Clients whose engines run, of this process and (after a fork) of its parent. Held here until their shutdown: a ZMQ
#: context that is collected together with its sockets would wait for them for ever.
_open_clients: set[EngineCoreClient] = set()


def end_client(client: EngineCoreClient) -> None:
    """Shut down unless it is another process's: a fork has copies of its parent's clients."""
    if client.owner_pid == os.getpid():
        client.shutdown()


@atexit.register
def _end_all() -> None:
    """Runs before `multiprocessing` waits for children that nobody told to go."""
    for client in list(_open_clients):
        end_client(client)


def parallel_config(config: EngineConfig) -> dict[str, int | str | bool]:
    """What both sides of the handshake must agree on."""
    return {"tensor_parallel_size": config.tensor_parallel_size, "data_parallel_size": 1}


class EngineCoreClient:
    """One core, one client. Raises ConfigError or StartupError from its constructor, which leaves nothing behind."""

    def __init__(self, config: EngineConfig, *, ports: Ports | None = None) -> None:
        self.config = config
        self.ports: Any = ports or open_ports(frontend(), "", b"")
        self.num_gpu_blocks = 0
        self.deliver: Callable[[Delivery], None] = lambda delivery: None
        self._process = Process(self.ports)
        self._runtime: RuntimeDir | None = None
        self._core: Child | None = None
        self._closed = False
        self.owner_pid = os.getpid()
        self._workers: list[tuple[int, int]] = []
        self._told: StartFailure | Leaving | None = None
        self._dead_since: float | None = None
        bounds = config.bounds
        self.session = ClientSession(config.limits, bounds, lambda: secrets.token_hex(4))
        self.tick_s = min(bounds.heartbeat_s, bounds.stall_s, bounds.request_s, bounds.output_gap_s) / TICKS_PER_BOUND
        _open_clients.add(self)
        try:
            self._start()
        except BaseException as error:
            self.ports.observe("start-failed", error=type(error).__name__, reason=str(error))
            self.shutdown()
            raise
        self._monitor = CoreMonitor("core.0", bounds.stall_s, self.now())

    @staticmethod
    def make_client(config: EngineConfig, *, asyncio_mode: bool, ports: Ports | None = None) -> EngineCoreClient:
        """vLLM's factory."""
        return (AsyncMPClient if asyncio_mode else SyncMPClient)(config, ports=ports)

    def now(self) -> float:
        return self.ports.clock.monotonic()

    # -- start

    def _start(self) -> None:
        config = self.config
        self.ports.observe("starting")
        self._check_model()
        sweep()
        self._runtime = runtime = RuntimeDir.create(config.runtime_dir)
        self.ports.observe("born", pid=os.getpid(), ppid=os.getppid(), start_time=start_time(os.getpid()) or 0,
                           segments=[runtime.segment("")], paths=[str(runtime.path)])
        start_method = "spawn" if config.start_method == "auto" else config.start_method
        # Before the first socket: under fork a child must not inherit a ZMQ context.
        self._core = child = self.ports.start_child(core(0, self.ports.node.life), CORE_MAIN, start_method)
        self._process.heartbeat = self.ports.shared_word(runtime.segment("beat"), create=True)
        addresses = self._open_sockets(runtime)
        child.send_recipe(msgspec.msgpack.encode(CoreRecipe(
            config=msgspec.structs.replace(config, start_method=start_method), engine_id=runtime.engine_id,
            runtime_path=str(runtime.path), handshake_address=self._process.sockets[HANDSHAKE].address,
            beat=runtime.segment("beat"), frontend=(os.getpid(), start_time(os.getpid()) or 0), clients=1)))
        self._process.sentinels[child.sentinel] = self._why_start_failed
        metadata = EngineHandshakeMetadata(addresses, parallel_config(config))
        ready = self._process.run(frontend_handshake(metadata, 1, config.bounds.handshake_s, config.bounds.startup_s))
        self.num_gpu_blocks = ready[0]
        self.ports.observe("ready", num_gpu_blocks=self.num_gpu_blocks, parallel_config=parallel_config(config))

    def _check_model(self) -> None:
        """What can be said before any process is started. Raises ConfigError."""
        config = self.config
        self.model = read_model_config(config.model)
        check_parallel(self.model, config.tensor_parallel_size)
        max_model_len(config, self.model)
        if not any(Path(config.model).glob("*.safetensors")):
            raise ConfigError(f"{config.model}: no weights, there is no *.safetensors in this model directory")

    def _open_sockets(self, runtime: RuntimeDir) -> EngineZmqAddresses:
        def address(name: str) -> str:
            return runtime.socket(f"{name}.ipc") if self.config.sockets.transport == "ipc" else "tcp://127.0.0.1:*"

        for spec in frontend_sockets(self.config, address):
            self._process.sockets[spec.name] = self.ports.open_socket(spec)
        return EngineZmqAddresses([self._process.sockets[REQUESTS].address], [self._process.sockets[OUTPUTS].address])

    def _why_start_failed(self) -> Exception:
        """The core is gone: what it wrote on its pipe before, or what is known from outside."""
        self._listen()
        if isinstance(self._told, StartFailure):
            return (ConfigError if self._told.kind == "ConfigError" else StartupError)(self._told.reason)
        return StartupError(f"core.0 died while starting (exit code {self._core.exitcode()})")

    def _listen(self) -> None:
        """What the core wrote on its pipe: who its workers are, why it could not start, why it leaves."""
        with contextlib.suppress(EOFError, OSError, msgspec.DecodeError):
            while (message := self._core.try_receive()) is not None:
                told = msgspec.msgpack.decode(message, type=WorkersBorn | StartFailure | Leaving)
                if isinstance(told, WorkersBorn):
                    self._workers = told.identities
                else:
                    self._told = told

    # -- requests

    def add(self, request_id: str, prompt_token_ids: list[int], params: SamplingParams,
            eos_token_id: int | None = None) -> str:
        """-> the id it has inside. Raises EngineDeadError, BadRequestError, RefusedError; the rest is delivered."""
        self._require_core()
        internal, frames = self.session.add(request_id, prompt_token_ids, params, self.now(), eos_token_id)
        self.ports.observe("accepted", request=request_id, internal=internal)
        if not self._send(frames, request=request_id):
            self._hand_over(self.session.unroutable(request_id))
        return internal

    def abort(self, request_id: str) -> None:
        self._take(self.session.abort(request_id))

    def stop(self, request_id: str, stop_reason: str) -> None:
        self._take(self.session.stop(request_id, stop_reason))

    def fail(self, request_id: str, error: Exception) -> None:
        self._take(self.session.fail(request_id, error))

    def utility(self, method: str, *args: Any, timeout_s: float | None = None) -> int:
        """-> call id, whose result is delivered. Raises EngineDeadError, UnroutableError."""
        self._require_core()
        call_id, frames = self.session.utility(method, list(args), self.now(), timeout_s)
        if not self._send(frames, utility=method):
            raise self.session.unroutable_call(call_id)
        return call_id

    def send_raw(self, frames: list[Any]) -> None:
        """Send frames as they are: for tests of what the core makes of them."""
        self._send(frames)

    def _require_core(self) -> None:
        """Raises EngineDeadError where the core is gone, also while its last words are still waited for."""
        self._look_at_core()
        gone = self._monitor.gone()
        if gone is not None and self.session.dead is None:
            raise EngineDeadError(gone)

    def _send(self, frames: list[Any], request: str | None = None, utility: str | None = None) -> bool:
        """-> False where a living core is not connected, so that this was not sent."""
        try:
            self._process.sockets[REQUESTS].send(frames, 0)
        except Unroutable:
            if self._core is not None and not self._core.alive():
                return True  # all that is open ends by its death
            self.ports.observe("unroutable", request=request, utility=utility, edge=str(REQUESTS))
            return False
        return True

    def _take(self, decided: tuple[list[Delivery], list[list[bytes]]]) -> None:
        deliveries, messages = decided
        for frames in messages:
            self._send(frames)
        self._hand_over(deliveries)

    def _hand_over(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.deliver(delivery)

    # -- what happens

    def filenos(self) -> list[int]:
        """Descriptors that are readable when `pump` has something to do."""
        descriptors = [self._process.sockets[OUTPUTS].fileno()]
        if self._monitor.deadline() is None and self._core is not None:
            descriptors.append(self._core.sentinel)
        return descriptors

    def pump(self, most: int = 256) -> bool:
        """Take what has arrived, at most `most` messages. -> whether there may be more"""
        outputs = self._process.sockets[OUTPUTS]
        for _ in range(most):
            message = outputs.try_receive()
            if message is None:
                break
            try:
                self._hand_over(self.session.on_frames(message[1], self.now()))
            except BadFrameError as error:
                self.ports.observe("bad-frame", edge="core.0->frontend.0/outputs", error=str(error))
                continue
            if self.session.notice_read and self.session.dead is None:
                self.ports.observe("dead-notice")
                self._die(self._monitor.on_notice())
        else:
            return True
        self._look_at_core()
        return False

    def tick(self) -> None:
        """Let time pass: time-outs, the heartbeat, the end of a death's grace."""
        if self.session.dead is None:
            self._take(self.session.on_tick(self.now()))
            self._look_at_core()
        elif self._workers and self._core_is_long_dead():
            self._end_workers()

    def _look_at_core(self) -> None:
        """Notice that the core is gone or stands still."""
        if self.session.dead is not None or self._core is None:
            return
        now = self.now()
        if not self._core.alive():
            self._monitor.on_gone(f" (exit code {self._core.exitcode()})", now)
        beat, beaten_at_ns = BEAT.unpack_from(self._process.heartbeat)
        self._die(self._monitor.on_tick(beat, now, beaten_at_ns / 1e9 if beaten_at_ns else None))

    @property
    def grace_left_s(self) -> float | None:
        """How long the last words of a dead core are still waited for; None while it lives."""
        deadline = self._monitor.deadline()
        return None if deadline is None else max(0.0, deadline - self.now())

    def _die(self, reason: str | None) -> None:
        if reason is None:
            return
        self._listen()
        if isinstance(self._told, Leaving):
            reason = f"{reason}: {self._told.reason}"
        self._dead_since = self.now()
        deliveries = self.session.die(reason)
        self.ports.observe("engine-dead", reason=reason)
        if self._core is not None and self._core.alive() and not self.session.notice_read:
            self._core.kill()  # it stands still: nothing else would end it
        self._hand_over(deliveries)

    def check_health(self) -> None:
        """Raises EngineDeadError where the engine is dead or makes no progress. Never waits."""
        if self.session.dead is None:
            self.tick()
            if self._core is not None and not self._core.alive():
                self.ports.observe("health", healthy=False, reason="core.0 is gone")
                raise EngineDeadError("core.0 is gone")
        dead = self.session.dead
        self.ports.observe("health", healthy=dead is None, reason="" if dead is None else dead.reason)
        if dead is not None:
            raise EngineDeadError(dead.reason)

    # -- the end

    def shutdown(self) -> None:
        """End the engine and remove everything it has. Safe to call twice, and on an engine that never started."""
        if self._closed:
            return
        self._closed = True
        self.ports.observe("closing")
        if self.session.dead is None:
            for frames in self.session.free_all():  # or the core would let them run to their end
                self._send(frames)
        self._hand_over(self.session.die("the engine was shut down"))
        try:
            self._end_core()
        finally:
            self._process.close()
            self.ports.close()
            if self._runtime is not None:
                self._runtime.remove()
            _open_clients.discard(self)
            self.ports.mark(Mark.DYING)
            self.ports.observe("closed")

    def _end_core(self) -> None:
        child, bounds = self._core, self.config.bounds
        if child is None:
            return
        try:
            child.terminate()
            if not child.join(bounds.terminate_s):
                child.kill()
                child.join(bounds.terminate_s)
        except BaseException:  # a second Ctrl-C: no more patience
            child.kill()
            raise
        self._listen()
        self._end_workers()

    def _end_workers(self) -> None:
        """Of a core that is gone: they go by themselves, unless they are stopped."""
        workers, self._workers = self._workers, []
        end_processes(workers, 0.0 if self._core_is_long_dead() else self.config.bounds.orphan_s)

    def _core_is_long_dead(self) -> bool:
        return self._dead_since is not None and self.now() - self._dead_since > self.config.bounds.orphan_s


class SyncMPClient(EngineCoreClient):
    """For callers without an event loop."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until something may have happened or the time is over, then take it."""
        if self.pump():
            return
        left_s = min(timeout_s, self.tick_s, *(() if self.grace_left_s is None else (self.grace_left_s,)))
        readable(self.filenos(), left_s)
        self.pump()
        self.tick()


class AsyncMPClient(EngineCoreClient):
    """For asyncio: the loop watches the descriptors."""

    loop: asyncio.AbstractEventLoop | None = None

    def shutdown(self) -> None:
        self.detach()
        super().shutdown()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this loop from now on, and no other."""
        self.detach()
        self._loop = self.loop = loop
        self._watched = self.filenos()
        for descriptor in self._watched:
            loop.add_reader(descriptor, self._readable)
        self._timer = loop.call_later(self.tick_s, self._on_timer)
        loop.call_soon(self._readable)

    def detach(self) -> None:
        if self.loop is None:
            return
        self.loop = None
        self._timer.cancel()
        if not self._loop.is_closed():
            for descriptor in self._watched:
                self._loop.remove_reader(descriptor)
        self._watched = []

    def _readable(self) -> None:
        if self.loop is None:  # called by an earlier promise of the loop
            return
        if self.pump():
            self._loop.call_soon(self._readable)  # let the others run, then go on
        grace_s = self.grace_left_s
        if grace_s is not None and len(self._watched) > 1:
            # A sentinel stays readable for ever: unwatch it, and come back when the last words had their time.
            self._loop.remove_reader(self._watched.pop())
            self._loop.call_later(grace_s, self._readable)

    def _on_timer(self) -> None:
        self.tick()
        self._readable()
        self._timer = self._loop.call_later(self.tick_s, self._on_timer)
