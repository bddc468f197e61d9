"""A worker of the twin: the engine's own worker loop; the model answers from recorded tokens.

A step costs time and the collectives of the real model, in its order and number, so that the nth collective
means the same in both worlds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.effects import Loop, MarkPoint, Observe, Receive, Take
from engine.errors import QueueCancelledError, StartupError
from engine.executor.multiproc import CORE_BELL
from engine.ipc.queue import READY, QueueReader, QueueWriter
from engine.ipc.ring import RingLayout, RingReader, RingWriter
from engine.messages import ModelRunnerOutput, SchedulerOutput
from engine.ports import RingSpec
from engine.topology import Mark
from engine.wire.wiring import overflow_socket, response_ring, rpc_ring
from engine.worker.worker_loop import worker_busy_loop
from sim.process.effects import Enter, Sleep
from sim.process.process import SimProcess
from sim.stage import Stage

RECIPE = "recipe"


class _Known:
    """A request as a worker knows it: how many tokens it has, and what follows its prompt."""

    __slots__ = ("continuation", "num_prompt_tokens", "num_tokens")

    def __init__(self, num_tokens: int, num_prompt_tokens: int, continuation: Sequence[int]) -> None:
        self.num_tokens = num_tokens
        self.num_prompt_tokens = num_prompt_tokens
        self.continuation = continuation


class ModelStandIn:
    """One rank's model: knows its requests' tokens and answers with the recorded ones."""

    def __init__(self, stage: Stage, rank: int, group: Any = None) -> None:
        self._stage = stage
        self._rank = rank
        self._group = group
        self._known: dict[str, _Known] = {}

    def call(self, thread: Any, method: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Answers `Call`. Raises AttributeError for a method that a worker does not have."""
        return getattr(self, method)(*args, **kwargs)

    def get_num_blocks(self) -> int:
        return self._stage.num_gpu_blocks

    def initialize_cache(self, num_blocks: int) -> None:
        return None

    def check_health(self) -> None:
        return None

    def execute_model(self, step: SchedulerOutput) -> Loop[ModelRunnerOutput | None]:
        known, model = self._known, self._stage.model
        for request_id in (*step.finished, *step.preempted):
            known.pop(request_id, None)
        starts: dict[str, int] = {}
        for new in step.new:
            prompt = tuple(new.token_ids[:new.num_prompt_tokens])
            known[new.request_id] = _Known(len(new.token_ids), new.num_prompt_tokens, model.continuation(prompt))
            starts[new.request_id] = new.num_computed_tokens
        for cached in step.cached:
            known[cached.request_id].num_tokens += len(cached.new_token_ids)
            starts[cached.request_id] = cached.num_computed_tokens
        scheduled = step.num_scheduled_tokens
        samples = [request_id for request_id, count in scheduled.items()
                   if starts[request_id] + count >= known[request_id].num_tokens]
        if scheduled:
            yield Sleep(self._stage.sim.costs.model_step_s)
            if self._group is not None:
                yield Enter(self._group, model.collectives, "all_reduce")
                if samples:
                    yield Enter(self._group, 1, "all_gather")
        if self._rank:  # only the output rank answers
            return None
        sampled: dict[str, list[int]] = {request_id: [] for request_id in scheduled}
        for request_id in samples:
            request = known[request_id]
            position = request.num_tokens - request.num_prompt_tokens
            token = request.continuation[position] if position < len(request.continuation) else model.last_token
            sampled[request_id] = [token]
        return ModelRunnerOutput(step.step, sampled)


def add_ring(process: SimProcess, stage: Stage, spec: RingSpec, name: str, *, create: bool) -> tuple[RingLayout, Any]:
    """Open a ring under its name in this process, with its bells."""
    layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
    segment = stage.segment(name)
    ports = process.ports
    opened = ports.create_ring(spec, segment, layout.total_bytes) if create else ports.attach_ring(spec, segment)
    ports.add_ring(name, spec)
    return layout, opened


def start_worker(stage: Stage, core: SimProcess, rank: int) -> SimProcess:
    """Begin a worker as the core's child; it waits for its recipe."""
    from engine.topology import worker

    process = core.start_child(stage.node(worker(rank)), lambda p: worker_main(p, stage, core, rank))
    process.context["engine"] = stage.engine_id
    return process


def worker_main(process: SimProcess, stage: Stage, core: SimProcess, rank: int) -> Loop[None]:
    """The worker's main thread."""
    bounds = stage.config.bounds
    stage.born(process)
    yield MarkPoint(Mark.BORN)
    process.recheck_s = bounds.ring_recheck_s
    process.watch(core, lambda: parent_is_gone(process, stage))
    yield Take(RECIPE, None)
    try:
        rpc, response = yield from _load(process, stage, rank)
    except (StartupError, RuntimeError) as error:
        process.send_to(core, "children", ("failed", rank, str(error)))
        yield Observe("bye", {"reason": f"could not start: {error}"})
        return
    process.send_to(core, "children", ("ready", rank, ""))
    ready = yield Receive(("rpc.overflow",), stage.sim.now + bounds.startup_s)
    if ready is None or ready[2] != [READY]:
        yield Observe("bye", {"reason": "the core did not say READY"})
        return
    try:
        yield from worker_busy_loop(rank, rpc, response, bounds)
    except (QueueCancelledError, RuntimeError) as error:
        yield Observe("bye", {"reason": f"{type(error).__name__}: {error}"})


def _load(process: SimProcess, stage: Stage, rank: int) -> Loop[tuple[QueueReader, QueueWriter]]:
    sim, config = stage.sim, stage.config
    yield MarkPoint(Mark.LOADING)
    yield Sleep(sim.costs.model_load_s)
    ranks = [f"worker.{r}" for r in range(config.tensor_parallel_size)]
    group = sim.host.collective(stage.segment("group"), ranks, config.bounds.collective_s)
    process.call_handler = ModelStandIn(stage, rank, group).call
    rpc_spec, response_spec = rpc_ring(config), response_ring(config, rank)
    layout, opened = add_ring(process, stage, rpc_spec, "rpc", create=False)
    process.ports.add_bell("rpc.bell", stage.segment("rpc.bell"))
    process.ports.add_bell(CORE_BELL, stage.segment(CORE_BELL))
    process.ports.open_socket(overflow_socket(rpc_spec, stage.address("rpc"), "rpc.overflow", writer=False))
    rpc = QueueReader("rpc", RingReader(layout, opened.memory, opened.fence, rank), bell="rpc.bell",
                      space_bell=CORE_BELL, overflow_inbox="rpc.overflow", recheck_s=config.bounds.ring_recheck_s)
    name = f"response.{rank}"
    layout, opened = add_ring(process, stage, response_spec, name, create=True)
    process.ports.add_bell(f"{name}.bell", stage.segment(CORE_BELL), site=f"worker.{rank}/response:doorbell")
    process.ports.add_bell(f"{name}.space", stage.segment(f"{name}.space"))
    process.ports.open_socket(overflow_socket(response_spec, stage.address(name), f"{name}.overflow", writer=True))
    response = QueueWriter(name, RingWriter(layout, opened.memory, opened.fence), 1, bell=f"{name}.bell",
                           space_bell=f"{name}.space", overflow_outbox=f"{name}.overflow")
    yield MarkPoint(Mark.READY)
    return rpc, response


def parent_is_gone(process: SimProcess, stage: Stage) -> None:
    """Leave at once, even out of a collective; the last of an engine takes its files along."""
    process.observe("parent-gone", {})
    if not any(p.alive and p.name == "frontend.0" for p in stage.members):
        stage.remove_files()
    process.observe("bye", {"reason": "the core is gone"})
    process.exit_now()
