"""A worker process: one rank behind two rings.

Promises
- It says READY with the handle of its answer queue when its weights are loaded, or why it could not.
- When its parent is gone it is gone too, at once, whatever it was doing; the last of an engine takes the
  engine's files with it.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from engine.ipc.message_queue import Handle, MessageQueue
from engine.ports import Ports
from engine.process.children import set_log_prefix
from engine.process.identity import birth_certificate, is_alive
from engine.process.recipes import StartFailure, WorkerReady, WorkerRecipe
from engine.process.runtime_dir import RuntimeDir
from engine.process.shell import Process
from engine.topology import Mark
from engine.wire.wiring import response_ring, rpc_ring
from engine.worker.worker_loop import worker_busy_loop


def worker_main(ports: Ports, recipe_bytes: bytes) -> None:
    """Entry point: runs until the core is gone."""
    recipe = msgspec.msgpack.decode(recipe_bytes, type=WorkerRecipe)
    set_log_prefix(f"worker.{recipe.rank}")
    WorkerProc(ports, recipe).run()


class WorkerProc:
    def __init__(self, ports: Ports, recipe: WorkerRecipe) -> None:
        self._ports = ports
        self._recipe = recipe
        self._config = recipe.config
        self._process = Process(ports, recipe.config.bounds.ring_recheck_s)
        self._runtime = RuntimeDir.of(recipe.engine_id, recipe.runtime_path)

    def run(self) -> None:
        ports, rank = self._ports, self._recipe.rank
        ports.observe("born", **birth_certificate(self._runtime))
        ports.mark(Mark.BORN)
        ports.parent.watch(self._parent_is_gone)
        if self._config.start_method == "spawn":
            self._runtime.hold()
        try:
            rpc, response = self._start()
        except Exception as error:
            ports.parent.send(msgspec.msgpack.encode(StartFailure(type(error).__name__, str(error))))
            ports.observe("bye", reason=f"could not start: {error}")
            os._exit(1)
        loop = worker_busy_loop(rank, rpc.drive_by(self._process), response.drive_by(self._process),
                                self._config.bounds)
        try:
            self._process.run(loop)
        except Exception as error:
            ports.observe("bye", reason=f"{type(error).__name__}: {error}")
            os._exit(1)

    def _start(self) -> tuple[MessageQueue, MessageQueue]:
        from engine.worker.worker import Worker

        ports, recipe, config = self._ports, self._recipe, self._config
        self._process.worker = model = Worker(
            config, recipe.rank, config.tensor_parallel_size, recipe.init_method, make_group=ports.process_group)
        ports.mark(Mark.LOADING)
        model.init_device()
        model.load_model()
        rpc = MessageQueue.create_from_handle(
            msgspec.msgpack.decode(recipe.rpc_handle, type=Handle), recipe.rank, ports=ports, spec=rpc_ring(config))
        name = f"response.{recipe.rank}"
        response = MessageQueue(
            1, 1, max_chunk_bytes=config.ring.response_chunk_bytes, max_chunks=config.ring.response_chunks,
            ports=ports, spec=response_ring(config, recipe.rank), name=name,
            segment_name=self._runtime.segment(name), overflow_address=self._runtime.socket(f"{name}.ipc"),
            bell=rpc.bell_address)
        ports.mark(Mark.READY)
        ports.parent.send(msgspec.msgpack.encode(WorkerReady(
            recipe.rank, msgspec.msgpack.encode(response.export_handle()))))
        rpc.wait_until_ready(config.bounds.startup_s)
        response.wait_until_ready(config.bounds.startup_s)
        return rpc, response

    def _parent_is_gone(self) -> None:
        """Nothing a worker holds needs to be brought home: leave at once, even out of a collective."""
        with contextlib.suppress(Exception):
            self._ports.observe("parent-gone")
            if not is_alive(self._recipe.frontend):
                self._runtime.remove()
            self._ports.observe("bye", reason="the core is gone")
        os._exit(0)
