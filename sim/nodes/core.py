"""The core of the twin: the engine's own `EngineCore`, handshake, I/O loops, queues and KV loops on SimPy."""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.core.engine_core import INPUT, OUTPUT, Dead, EngineCore, Terminate, reason_of
from engine.core.io_loops import input_loop, last_words, output_loop
from engine.core.scheduler import Scheduler
from engine.effects import Loop, MarkPoint, Observe, Put, Receive, Send, Take
from engine.errors import PeerDeadError, QueueCancelledError, StartupError, WorkerDeadError
from engine.executor.abstract import Executor
from engine.executor.multiproc import CORE_BELL, MultiprocExecutor
from engine.executor.uniproc import UniProcExecutor
from engine.ipc.queue import READY, QueueReader, QueueWriter
from engine.ipc.ring import RingReader, RingWriter
from engine.kv_events.publisher.life import start_publisher
from engine.topology import Mark
from engine.wire.handshake import REQUESTS, core_hello, core_ready
from engine.wire.wiring import (
    core_handshake_socket,
    core_output_socket,
    core_request_socket,
    overflow_socket,
    response_ring,
    rpc_ring,
)
from sim.nodes.publisher import events_of
from sim.nodes.worker import RECIPE, ModelStandIn, add_ring, parent_is_gone, start_worker
from sim.process.effects import Sleep
from sim.process.process import SimProcess
from sim.stage import Stage


class _Core:
    """The process's own variables: what the real one keeps in `EngineCoreProc`."""

    def __init__(self, process: SimProcess, stage: Stage, frontend: SimProcess) -> None:
        self.process = process
        self.stage = stage
        self.frontend = frontend
        self.workers: list[SimProcess] = []
        self.serving = False
        self.watching = False  # a worker's death ends whatever the core waits for
        self.leaving = False
        self.output_thread: Any = None
        self.last_words: Any = None  # what the main thread says in the output thread's place

    # -- what reaches it from outside

    def on_sigterm(self) -> None:
        if self.serving:
            self.process.put(INPUT, Terminate())
        else:
            self.process.interrupt(SystemExit("SIGTERM while starting"))

    def parent_gone(self) -> None:
        self.process.observe("parent-gone", {})
        self.process.cancel(QueueCancelledError("the frontend is gone"))
        self.process.put(INPUT, QueueCancelledError("the frontend is gone"))

    def worker_gone(self, worker: SimProcess) -> None:
        self.process.put("gone", worker)
        self.process.put("children", ("died", worker.node.index, f"exit code {worker.exitcode}"))
        if not self.leaving and self.watching:
            text = f"{worker.name} (pid {worker.pid}) died"
            self.process.cancel(PeerDeadError(text))
            self.process.put(INPUT, WorkerDeadError(text))

    # -- the main thread

    def main(self) -> Loop[None]:
        process = self.process
        self.stage.born(process)
        yield MarkPoint(Mark.BORN)
        process.on_terminate = self.on_sigterm
        process.recheck_s = self.stage.config.bounds.ring_recheck_s
        try:
            core = yield from self.start()
            self.serving = True
            reason = yield from core.busy_loop()
        except (Exception, SystemExit) as error:
            reason = reason_of(error)
            if not self.serving:
                process.send_to(self.frontend, "core", (type(error).__name__, str(error)))
        yield from self.leave(reason)

    def start(self) -> Loop[EngineCore]:
        process, stage, config = self.process, self.stage, self.stage.config
        if config.tensor_parallel_size > 1:
            self.workers = [start_worker(stage, process, rank) for rank in range(config.tensor_parallel_size)]
        process.watch(self.frontend, self.parent_gone)
        process.heartbeat = lambda count: stage.sim.segments[stage.segment("beat")].memory.__setitem__(
            slice(0, 8), count.to_bytes(8, "little")) if stage.segment("beat") in stage.sim.segments else None
        process.open_socket(core_handshake_socket(stage.address("handshake")))
        metadata = yield from core_hello(stage.sim.now + config.bounds.handshake_s)
        executor = yield from self.start_executor()
        num_blocks = yield from executor.initialize()
        log = yield from start_publisher(events_of(stage), config.data_parallel_rank, epoch=stage.life + 1)
        scheduler = Scheduler(config.scheduler, config.cache, num_blocks, config.cache.block_size,
                              stage.max_model_len, vocab_size=stage.vocab_size,
                              enable_events=config.kv_events.enable_kv_cache_events)
        core = EngineCore(config, scheduler, executor, kv_log=log)
        process.open_socket(core_request_socket(config, metadata.addresses.inputs[0]))
        for client_index, address in enumerate(metadata.addresses.outputs):
            process.open_socket(core_output_socket(config, address, client_index))
        clients, unsent = len(metadata.addresses.outputs), deque[Any]()
        self.output_thread = process.start("output", output_loop(clients, unsent))
        self.last_words = last_words(clients, unsent)
        self.output_thread.on_finish = self.output_thread_ended
        yield Observe("ready", {"num_gpu_blocks": num_blocks, "parallel_config": metadata.parallel_config})
        yield from core_ready(num_blocks)
        yield Send(REQUESTS, [b""])
        thread = process.start("input", input_loop("frontend.0->core.0/requests"))
        thread.on_finish = self.thread_failed
        return core

    def thread_failed(self, thread: Any) -> None:
        """A thread that ends takes the core with it."""
        if thread.error is not None and not self.leaving and not isinstance(thread.error, QueueCancelledError):
            error = thread.error
            self.process.put(INPUT, error if isinstance(error, Exception) else RuntimeError(reason_of(error)))

    def output_thread_ended(self, thread: Any) -> None:
        self.thread_failed(thread)
        self.process.put("output-done", True)

    # -- workers

    def start_executor(self) -> Loop[Executor]:
        process, stage, config = self.process, self.stage, self.stage.config
        if config.tensor_parallel_size == 1:
            yield Sleep(stage.sim.costs.model_load_s)
            process.call_handler = ModelStandIn(stage, 0).call
            return UniProcExecutor(config.bounds)
        spec = rpc_ring(config)
        layout, opened = add_ring(process, stage, spec, "rpc", create=True)
        process.add_bell("rpc.bell", stage.segment("rpc.bell"), site="core.0/rpc:doorbell")
        process.add_bell(CORE_BELL, stage.segment(CORE_BELL))
        process.open_socket(overflow_socket(spec, stage.address("rpc"), "rpc.overflow", writer=True))
        writer = QueueWriter("rpc", RingWriter(layout, opened.memory, opened.fence), len(self.workers),
                             bell="rpc.bell", space_bell=CORE_BELL, overflow_outbox="rpc.overflow")
        for worker in self.workers:
            process.watch(worker, lambda worker=worker: self.worker_gone(worker))
            process.send_to(worker, RECIPE, True)
        yield from self.wait_for_workers()
        readers = [self.open_response(rank) for rank in range(len(self.workers))]
        yield from self.wait_until_subscribed()
        self.watching = True
        return MultiprocExecutor(config.bounds, writer, readers)

    def wait_for_workers(self) -> Loop[None]:
        """READY of every worker. Raises StartupError or ConfigError when one fails, dies or is late."""
        deadline = self.stage.sim.now + self.stage.config.bounds.startup_s
        waiting = {worker.node.index for worker in self.workers}
        while waiting:
            news = yield Take("children", deadline)
            if not news:
                raise StartupError(f"{', '.join(f'worker.{r}' for r in sorted(waiting))} did not report READY in time")
            for what, rank, text in news:
                if what == "died":
                    raise StartupError(f"worker.{rank} died while starting ({text})")
                if what == "failed":
                    raise StartupError(f"worker.{rank} could not start: {text}")
                waiting.discard(rank)

    def open_response(self, rank: int) -> QueueReader:
        process, stage, name = self.process, self.stage, f"response.{rank}"
        spec = response_ring(stage.config, rank)
        layout, opened = add_ring(process, stage, spec, name, create=False)
        process.add_bell(f"{name}.space", stage.segment(f"{name}.space"))
        process.open_socket(overflow_socket(spec, stage.address(name), f"{name}.overflow", writer=False))
        return QueueReader(name, RingReader(layout, opened.memory, opened.fence, 0), bell=CORE_BELL,
                           space_bell=f"{name}.space", overflow_inbox=f"{name}.overflow",
                           recheck_s=stage.config.bounds.ring_recheck_s)

    def wait_until_subscribed(self) -> Loop[None]:
        deadline = self.stage.sim.now + self.stage.config.bounds.startup_s
        for _ in self.workers:
            if (yield Receive(("rpc.overflow",), deadline)) is None:
                raise StartupError("a worker did not subscribe to the ring's overflow socket in time")
        yield Send("rpc.overflow", [READY])

    # -- the end

    def leave(self, reason: str) -> Loop[None]:
        process, stage, bounds = self.process, self.stage, self.stage.config.bounds
        self.leaving = True
        yield Observe("dying", {"reason": reason, "queued": len(process.queues[OUTPUT])})
        try:
            yield MarkPoint(Mark.DYING)
        except (Exception, SystemExit):
            pass  # whatever goes wrong on the way out, the last words are said
        process.cancel(QueueCancelledError("the core is leaving"))
        if self.output_thread is not None:
            yield Put(OUTPUT, Dead())
            yield Take("output-done", stage.sim.now + bounds.linger_s)
            if self.output_thread.error is not None:
                yield from self.last_words
        yield from self.end_workers()
        orphaned = not self.frontend.alive
        if orphaned:
            for port in process.sockets.values():
                port.close(0.0)
            stage.remove_files()
        yield Observe("bye", {"reason": reason})

    def end_workers(self) -> Loop[None]:
        """Closing a worker's pipe ends it; one that does not hear is killed."""
        sim = self.stage.sim
        for worker in self.workers:
            sim.after(sim.costs.hop_s, worker.deliver,
                      lambda worker=worker: parent_is_gone(worker, self.stage) if worker.alive else None)
        deadline = sim.now + self.stage.config.bounds.terminate_s / 2
        while any(worker.alive for worker in self.workers) and sim.now < deadline:
            yield Take("gone", deadline)
        for worker in self.workers:
            if worker.alive:
                worker.kill()


def core_main(process: SimProcess, stage: Stage, frontend: SimProcess) -> Loop[None]:
    """The core's main thread."""
    return _Core(process, stage, frontend).main()


