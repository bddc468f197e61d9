"""The core's process: threads, sockets and children around the pure `EngineCore`.

    main     busy loop: inputs, schedule, execute, publish
    input    DEALER -> decode -> input queue
    output   output queue -> encode -> one PUSH per client
    kv       what `engine.kv_events.publisher.process` runs
    watch    sentinels of the workers, the pipe of the parent

Promises
- Start-up follows the documented order and ends in READY, or in one line on the parent's pipe that says why not.
- However the process leaves on its own feet (exception, SIGTERM, sys.exit), every output queued before is sent,
  then ENGINE_CORE_DEAD, and ZMQ gets `linger` to deliver it.
- The death of a worker ends whatever the core waits for. The death of the frontend ends the core and its
  workers, and their files go with them.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from typing import Any

import msgspec

from engine.core.engine_core import INPUT, KV, OUTPUT, Dead, EngineCore, Terminate, reason_of
from engine.core.io_loops import input_loop, last_words, output_loop
from engine.core.scheduler import Scheduler
from engine.errors import (
    ConfigError,
    PeerDeadError,
    QueueCancelledError,
    RpcError,
    StartupError,
    WorkerDeadError,
)
from engine.executor.abstract import Executor
from engine.executor.multiproc import CORE_BELL, MultiprocExecutor
from engine.executor.uniproc import UniProcExecutor
from engine.ipc.message_queue import Handle, MessageQueue
from engine.kv_events.publisher.process import EventPublisherFactory
from engine.messages import EngineZmqAddresses
from engine.model_config import max_model_len, read_model_config
from engine.ports import Child, Ports, SocketSpec
from engine.process.children import readable, set_log_prefix
from engine.process.identity import birth_certificate, is_alive, start_time
from engine.process.recipes import CoreRecipe, Leaving, StartFailure, WorkerReady, WorkerRecipe, WorkersBorn
from engine.process.runtime_dir import RuntimeDir
from engine.process.shell import LocalQueue, Process
from engine.topology import Mark, worker
from engine.wire.handshake import REQUESTS, core_hello, core_ready
from engine.wire.wiring import core_handshake_socket, core_output_socket, core_request_socket, response_ring, rpc_ring

logger = logging.getLogger(__name__)
WORKER_MAIN = "engine.worker.worker_proc:worker_main"
#: A dying process closes its sockets a moment before its sentinel tells.
SENTINEL_S = 0.02


def run_engine_core(ports: Ports, recipe_bytes: bytes) -> None:
    """Entry point."""
    recipe = msgspec.msgpack.decode(recipe_bytes, type=CoreRecipe)
    set_log_prefix(f"core.{recipe.engine_index}")
    EngineCoreProc(ports, recipe).run()


class EngineCoreProc:
    def __init__(self, ports: Ports, recipe: CoreRecipe) -> None:
        self._ports: Any = ports
        self._recipe = recipe
        self._config = recipe.config
        self._process = Process(ports, recipe.config.bounds.ring_recheck_s)
        self._process.queues.update({INPUT: LocalQueue(), OUTPUT: LocalQueue()})
        self._runtime = RuntimeDir.of(recipe.engine_id, recipe.runtime_path)
        self._queues: list[MessageQueue] = []
        self._children: list[Child] = []
        self._output_thread: threading.Thread | None = None
        self._input_thread: threading.Thread | None = None
        self._last_words: Any = None  # what the main thread says in the output thread's place
        self._publisher: Any = None
        self._serving = False
        self._leaving = threading.Event()
        self._parent_gone = False
        self._gone = threading.Event()

    def run(self) -> None:
        """Start, serve, leave. Never raises: the reason to leave is told on every way that still works."""
        ports = self._ports
        ports.observe("born", **birth_certificate(self._runtime))
        ports.mark(Mark.BORN)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._config.start_method == "spawn":
            self._runtime.hold()
        try:
            core = self._start()
            self._serving = True
            reason = self._process.run(core.busy_loop())
        except BaseException as error:
            reason = self._who_died(error) + reason_of(error)
            if not self._serving:
                kind = type(error).__name__
                ports.parent.send(msgspec.msgpack.encode(StartFailure(kind, str(error) or kind)))
            elif not self._parent_gone:
                logger.error("the core leaves: %s", reason)
        self._leave(reason)

    def _who_died(self, error: BaseException) -> str:
        """When a rank dies its peers fail in their collectives, and their error may be faster than its sentinel."""
        if not isinstance(error, RpcError) or not self._children:
            return ""
        dead = readable([child.sentinel for child in self._children], SENTINEL_S)
        return "".join(f"{child.node} (pid {child.pid}) died; " for child in self._children if child.sentinel in dead)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if self._serving:
            self._process.queues[INPUT].put(Terminate())
        else:
            raise SystemExit("SIGTERM while starting")

    # -- start

    def _start(self) -> EngineCore:
        config, ports, process = self._config, self._ports, self._process
        if config.tensor_parallel_size > 1:
            # Before the first socket and thread: under fork they must not be inherited.
            self._children = [ports.start_child(worker(rank, ports.node.life), WORKER_MAIN, config.start_method)
                              for rank in range(config.tensor_parallel_size)]
            ports.parent.send(msgspec.msgpack.encode(WorkersBorn(
                [(child.pid, start_time(child.pid) or 0) for child in self._children])))
        ports.parent.watch(self._parent_is_gone)
        process.heartbeat = ports.shared_word(self._recipe.beat, create=False)
        self._open(core_handshake_socket(self._recipe.handshake_address, self._recipe.engine_index))
        metadata = process.run(core_hello(ports.clock.monotonic() + config.bounds.handshake_s))
        agreed = metadata.parallel_config.get("tensor_parallel_size")
        if agreed != config.tensor_parallel_size:
            raise StartupError(f"the frontend speaks of tensor_parallel_size {agreed}, the core was started with "
                               f"{config.tensor_parallel_size}")
        executor = self._start_executor()
        num_blocks = process.run(executor.initialize())
        model = read_model_config(config.model)
        self._publisher = EventPublisherFactory.create(
            self._kv_config(), config.data_parallel_rank, ports=ports)
        scheduler = Scheduler(config.scheduler, config.cache, num_blocks, config.cache.block_size,
                              max_model_len(config, model), vocab_size=model.vocab_size,
                              enable_events=config.kv_events.enable_kv_cache_events)
        core = EngineCore(config, scheduler, executor, engine_index=self._recipe.engine_index,
                          kv_log=self._publisher.log)
        self._start_io(metadata.addresses)
        ports.observe("ready", num_gpu_blocks=num_blocks, parallel_config=metadata.parallel_config)
        process.run(core_ready(num_blocks))
        process.sockets[REQUESTS].send([b""])  # announces the core on the socket where its work will come
        self._input_thread = self._thread("input", input_loop(f"frontend.0->core.{self._recipe.engine_index}/requests"))
        return core

    def _open(self, spec: SocketSpec) -> None:
        self._process.sockets[spec.name] = self._ports.open_socket(spec)

    def _kv_config(self) -> Any:
        """The event endpoints: as configured, else in the engine's own directory."""
        asked = self._config.kv_events
        changes = {name: getattr(asked, name) or self._runtime.socket(f"{short}.ipc")
                   for name, short in (("endpoint", "kv"), ("replay_endpoint", "replay"))}
        if not asked.replay:
            changes["replay_endpoint"] = None
        return msgspec.structs.replace(asked, **changes)

    def _start_executor(self) -> Executor:
        config = self._config
        if config.tensor_parallel_size == 1:
            from engine.worker.worker import Worker

            self._process.worker = model = Worker(config, 0, 1, "", make_group=self._ports.process_group)
            model.init_device()
            model.load_model()
            return UniProcExecutor(config.bounds)
        rpc = MessageQueue(
            config.tensor_parallel_size, config.tensor_parallel_size, max_chunk_bytes=config.ring.max_chunk_bytes,
            max_chunks=config.ring.max_chunks, ports=self._ports, spec=rpc_ring(config), name="rpc",
            segment_name=self._runtime.segment("rpc"), overflow_address=self._runtime.socket("rpc.ipc"))
        self._queues.append(rpc)
        handle = msgspec.msgpack.encode(rpc.export_handle())
        for rank, child in enumerate(self._children):
            child.send_recipe(msgspec.msgpack.encode(WorkerRecipe(
                config=config, engine_id=self._recipe.engine_id, runtime_path=self._recipe.runtime_path, rank=rank,
                init_method="file://" + self._runtime.file("process-group"), rpc_handle=handle,
                frontend=self._recipe.frontend)))
        handles = self._wait_for_workers()
        responses = [MessageQueue.create_from_handle(handles[rank], 0, ports=self._ports,
                                                     spec=response_ring(config, rank))
                     for rank in range(config.tensor_parallel_size)]
        self._queues += responses
        for queue in self._queues:
            queue.wait_until_ready(config.bounds.startup_s)
        threading.Thread(target=self._watch_workers, name="watch", daemon=True).start()
        writer = rpc.drive_by(self._process, space_bell=CORE_BELL)
        readers = [queue.drive_by(self._process, bell=CORE_BELL) for queue in responses]
        return MultiprocExecutor(config.bounds, writer, readers)

    def _wait_for_workers(self) -> list[Handle]:
        """READY of every worker. Raises ConfigError or StartupError when one fails, dies or is late."""
        deadline = self._ports.clock.monotonic() + self._config.bounds.startup_s
        handles: dict[int, Handle] = {}
        waiting = dict(enumerate(self._children))
        while waiting:
            left_s = deadline - self._ports.clock.monotonic()
            if left_s <= 0:
                raise StartupError(f"{', '.join(f'worker.{r}' for r in waiting)} did not report READY in time")
            readable([fd for child in waiting.values() for fd in (child.fileno(), child.sentinel)], left_s)
            for rank, child in list(waiting.items()):
                message = _last_words(child)
                if message is not None:
                    handles[rank] = _handle_of(rank, message)
                    del waiting[rank]
                elif not child.alive():
                    raise StartupError(f"worker.{rank} died while starting (exit code {child.exitcode()})")
        return [handles[rank] for rank in sorted(handles)]

    def _start_io(self, addresses: EngineZmqAddresses) -> None:
        self._open(core_request_socket(self._config, addresses.inputs[0], self._recipe.engine_index))
        for client_index, address in enumerate(addresses.outputs):
            self._open(core_output_socket(self._config, address, client_index))
        clients, unsent = len(addresses.outputs), deque[Any]()
        self._output_thread = self._thread("output", output_loop(clients, unsent))
        self._last_words = last_words(clients, unsent)
        if self._publisher.queue is not None:
            self._process.queues[KV] = self._publisher.queue

    def _thread(self, name: str, loop: Any) -> threading.Thread:
        def run() -> None:
            try:
                self._process.run(loop)
            except QueueCancelledError:
                return
            except BaseException as error:  # a thread that ends takes the core with it, never in silence
                if not self._leaving.is_set():
                    logger.exception("the %s thread failed", name)
                    self._process.queues[INPUT].put(
                        error if isinstance(error, Exception) else RuntimeError(reason_of(error)))

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    # -- watch

    def _watch_workers(self) -> None:
        by_fd = {child.sentinel: child for child in self._children}
        dead = readable(by_fd, None)
        if self._leaving.is_set():
            return
        names = ", ".join(f"{by_fd[fd].node} (pid {by_fd[fd].pid})" for fd in dead)
        self._process.cancel(PeerDeadError(f"{names} died"))
        self._process.queues[INPUT].put(WorkerDeadError(f"{names} died"))

    def _parent_is_gone(self) -> None:
        """Nobody is left to serve: leave in order, but not for longer than a fraction of the orphans' bound."""
        self._parent_gone = True
        self._ports.observe("parent-gone")
        self._process.cancel(QueueCancelledError("the frontend is gone"))
        self._process.queues[INPUT].put(QueueCancelledError("the frontend is gone"))
        if not self._gone.wait(self._config.bounds.orphan_s / 4):
            for child in self._children:
                child.kill()
            self._runtime.remove()
            os._exit(1)

    # -- leave

    def _leave(self, reason: str) -> None:
        """Say goodbye, end the workers, let ZMQ deliver, remove what nobody else will."""
        ports, bounds = self._ports, self._config.bounds
        self._leaving.set()
        ports.observe("dying", reason=reason, queued=len(self._process.queues[OUTPUT]))
        try:
            ports.mark(Mark.DYING)
        except (Exception, SystemExit):  # whatever goes wrong on the way out, the last words are said
            logger.exception("on the way out")
        self._process.cancel(QueueCancelledError("the core is leaving"))
        if self._serving:
            ports.parent.send(msgspec.msgpack.encode(Leaving(reason)))  # before the notice: who reads that finds this
        if self._output_thread is not None:
            self._process.queues[OUTPUT].put(Dead())
            self._output_thread.join(bounds.linger_s)
            if not self._output_thread.is_alive():
                self._process.run(self._last_words)  # nothing, unless the thread failed
        if self._input_thread is not None:
            self._input_thread.join(bounds.linger_s)
        self._end_workers()
        if self._publisher is not None:
            self._publisher.shutdown()
        if self._parent_gone:
            for socket in self._process.sockets.values():
                socket.close(0.0)  # nobody will ever read it
        for queue in self._queues:
            queue.shutdown()
        self._process.close()
        ports.close()
        if self._parent_gone or not is_alive(self._recipe.frontend):
            self._runtime.remove()
        ports.observe("bye", reason=reason)
        self._gone.set()

    def _end_workers(self) -> None:
        """Closing a worker's pipe ends it; one that does not hear is killed."""
        deadline = self._ports.clock.monotonic() + self._config.bounds.terminate_s / 2
        for child in self._children:
            child.hang_up()
        for child in self._children:
            if not child.join(max(0.0, deadline - self._ports.clock.monotonic())):
                child.kill()
                child.join(self._config.bounds.terminate_s)


def _last_words(child: Child) -> bytes | None:
    try:
        return child.try_receive()
    except (EOFError, OSError):
        return None


def _handle_of(rank: int, message: bytes) -> Handle:
    """A worker's READY. Raises what it failed with."""
    told = msgspec.msgpack.decode(message, type=WorkerReady | StartFailure)
    if isinstance(told, StartFailure):
        error = ConfigError if told.kind == "ConfigError" else StartupError
        raise error(told.reason if told.kind == "ConfigError" else f"worker.{rank} could not start: {told.reason}")
    return msgspec.msgpack.decode(told.response_handle, type=Handle)
