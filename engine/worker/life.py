"""The life of a worker's process (pure): one rank behind two rings.

Promises
- It says READY with the handle of its answer queue when its weights are loaded, or why it could not.
- When its parent is gone it is gone too, at once, whatever it was doing; the last of an engine takes the
  engine's files with it.
"""

from __future__ import annotations

from engine.effects import (
    AwaitParent,
    Call,
    CreateRing,
    ExitNow,
    HoldFiles,
    IsAlive,
    Loop,
    MakeWorker,
    MarkPoint,
    Now,
    Observe,
    OpenRing,
    RemoveFiles,
    TellParent,
    WhoAmI,
)
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.readiness import wait_for_readers, wait_for_writer
from engine.process.beside import beside, needed
from engine.process.files import birth_certificate
from engine.process.recipes import StartFailure, WorkerReady, WorkerRecipe, last_word
from engine.topology import Mark, Node
from engine.wire.wiring import response_ring, rpc_ring
from engine.worker.async_output import COPY, LateAnswers, answers_of
from engine.worker.worker_loop import worker_busy_loop


def worker_life(node: Node, recipe: WorkerRecipe) -> Loop[None]:
    """Runs until the core is gone."""
    yield Observe("born", birth_certificate((yield WhoAmI()), recipe.files))
    yield MarkPoint(Mark.BORN)
    yield beside("parent-watch", _watch_parent(recipe))
    if recipe.config.start_method == "spawn":
        yield HoldFiles(recipe.files)
    try:
        rpc, response = yield from _start(recipe)
    except Exception as error:
        yield from last_word(StartFailure(type(error).__name__, str(error)))
        yield Observe("bye", {"reason": f"could not start: {error}"})
        yield ExitNow(1)
        return
    try:
        config = recipe.config
        answers = answers_of(response, config.bounds, config.batch_queue_size, config.scheduler.async_scheduling)
        if isinstance(answers, LateAnswers):
            yield needed(COPY, answers.async_output_busy_loop())
        yield from worker_busy_loop(recipe.rank, rpc, answers, config.bounds)
    except Exception as error:
        yield Observe("bye", {"reason": f"{type(error).__name__}: {error}"})
        yield ExitNow(1)


def _start(recipe: WorkerRecipe) -> Loop[tuple[QueueReader, QueueWriter]]:
    config, files, rank, engine = recipe.config, recipe.files, recipe.rank, recipe.engine_index
    yield MakeWorker(config, rank, config.grid.size, recipe.init_method, recipe.across, recipe.local_dp_rank)
    yield MarkPoint(Mark.LOADING)
    yield Call("init_device", (), {})
    yield Call("load_model", (), {})
    rpc = yield OpenRing("rpc", recipe.rpc_handle, rank, rpc_ring(config, engine))
    name = f"response.{rank}"
    response, handle = yield CreateRing(name, response_ring(config, rank, engine), files.segment(name),
                                        files.socket(f"{name}.ipc"), rings="rpc")
    yield MarkPoint(Mark.READY)
    yield TellParent(WorkerReady(rank, handle))
    yield from wait_for_writer(rpc, (yield Now()) + config.bounds.startup_s)
    yield from wait_for_readers(response, (yield Now()) + config.bounds.startup_s)
    return rpc, response


def _watch_parent(recipe: WorkerRecipe) -> Loop[None]:
    """Nothing a worker holds needs to be brought home: leave at once, even out of a collective."""
    yield AwaitParent()
    known = 0
    try:
        known = yield Call("num_requests", (), {})
    except Exception:  # it has not come so far
        pass
    try:
        yield Observe("parent-gone", {"kept": {"requests": known}})
        if not (yield IsAlive(recipe.frontend)):
            yield RemoveFiles(recipe.files)
        yield Observe("bye", {"reason": "the core is gone"})
    except Exception:
        pass
    yield ExitNow(0)
