"""The frontend of the twin: the engine's own client session, monitor and handshake, driven by a workload."""

from __future__ import annotations

from itertools import count
from typing import Any

from engine.core.io_loops import OUTPUTS
from engine.effects import Loop, MarkPoint, Now, Observe, Receive, Send, Take
from engine.errors import BadFrameError, EngineDeadError, RefusedError, RingtwinError, StartupError
from engine.frontend.monitor import CoreMonitor
from engine.frontend.session import ClientSession, Delivery, Tokens, UtilityResult, outcome_of_error
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses, FinishReason, Outcome
from engine.ports import Unroutable
from engine.topology import Mark, core
from engine.wire.handshake import REQUESTS, frontend_handshake
from engine.wire.wiring import frontend_sockets
from sim.nodes.core import core_main
from sim.process.process import SimProcess
from sim.stage import Stage, sweep

#: What the lab says to a caller, by its queue.
ORDERS, GO, CLOSE = "orders", "go", "close"
READY, FAILED, DONE = "ready", "failed", "done"
PROBE_S = 0.05


class _Frontend:
    """The process's own variables: what the real ones keep in `EngineCoreClient` and the play's caller."""

    def __init__(self, process: SimProcess, stage: Stage) -> None:
        self.process = process
        self.stage = stage
        self.bounds = bounds = stage.config.bounds
        suffixes = (f"{number:08x}" for number in count(1))
        self.session = ClientSession(stage.config.limits, bounds, suffixes.__next__)
        self.driver = stage.make_driver()
        self.core: Any = None
        self.monitor: Any = None
        self.finished = False
        self.told_dead = False
        self.tick_s = min(bounds.heartbeat_s, bounds.stall_s, bounds.request_s, bounds.output_gap_s) / 10
        self._tickets: dict[int, Any] = {}
        self._internal: dict[str, str] = {}

    # -- the main thread

    def main(self) -> Loop[None]:
        stage = self.stage
        yield MarkPoint(Mark.BORN)
        try:
            yield from self.start()
        except RingtwinError as error:
            yield Observe("start-failed", {"error": type(error).__name__, "reason": str(error)})
            yield from self.shutdown()
            yield Observe("bye", {"reason": "the engine did not start"})
            stage.said(FAILED)
            return
        stage.said(READY)
        orders = yield Take(ORDERS, None)
        if orders == [GO]:
            yield from self.serve()
            stage.said(DONE)
            yield Take(ORDERS, None)
        yield from self.shutdown()
        yield Observe("bye", {"reason": "done"})

    def start(self) -> Loop[None]:
        process, stage, config = self.process, self.stage, self.stage.config
        yield Observe("starting", {})
        sweep(stage.sim)
        stage.claim()
        stage.born(process)
        self.core = process.start_child(stage.node(core()), lambda p: core_main(p, stage, process))
        self.core.context["engine"] = stage.engine_id
        process.watch(self.core, self.core_gone)
        stage.sim.host.create_segment(stage.segment("beat"), 64)
        for spec in frontend_sockets(config, stage.address):
            process.ports.open_socket(spec)
        parallel = {"tensor_parallel_size": config.tensor_parallel_size, "data_parallel_size": 1}
        metadata = EngineHandshakeMetadata(
            EngineZmqAddresses([stage.address("requests")], [stage.address("outputs")]), parallel)
        ready = yield from frontend_handshake(metadata, 1, self.bounds.handshake_s, self.bounds.startup_s)
        self.monitor = CoreMonitor("core.0", self.bounds.stall_s, stage.sim.now)
        yield Observe("ready", {"num_gpu_blocks": ready[0], "parallel_config": parallel})

    def why_start_failed(self) -> Exception:
        told = self.process.ports.queues["core"].items
        if told:
            return StartupError(told[0][1])
        return StartupError(f"core.0 died while starting (exit code {self.core.exitcode})")

    def core_gone(self) -> None:
        if self.monitor is not None:
            self.monitor.on_gone(f" (exit code {self.core.exitcode})", self.stage.sim.now)
        else:
            self.process.death_errors.append(self.why_start_failed)
            self.process.wake(self.process.threads)
        self.process.put("core-gone", True)

    # -- serving

    def serve(self) -> Loop[None]:
        next_tick = next_probe = yield Now()
        yield from self.do(self.driver.start())
        leave_at = None
        while not self.finished or leave_at is None or (self.session.dead is None and self.stage.sim.now < leave_at):
            if self.finished and leave_at is None:
                leave_at = self.stage.sim.now + self.stage.await_death_s
                continue
            got = yield Receive((OUTPUTS,), min(next_tick, self.monitor.deadline() or next_tick))
            now = yield Now()
            if got is not None:
                yield from self.take(got[2], now)
            if now >= next_tick or self.monitor.deadline() is not None:
                yield from self.tick(now)
                next_tick = now + self.tick_s
            if now >= next_probe:
                yield from self.check_health()
                next_probe = now + PROBE_S
        if self.session.dead is not None:
            began = yield Now()
            error = ""
            try:
                self.session.add("late", [1], self.driver.workload.requests[0].params, began)
            except RingtwinError as raised:
                error = type(raised).__name__
            yield Observe("late-call", {"began": began, "error": error})
        yield from self.check_health()

    def take(self, frames: list[Any], now: float) -> Loop[None]:
        try:
            yield from self.deliver(self.session.on_frames(frames, now))
        except BadFrameError as error:
            yield Observe("bad-frame", {"edge": "core.0->frontend.0/outputs", "error": str(error)})
            return
        if self.session.notice_read and self.session.dead is None:
            yield Observe("dead-notice", {})
            yield from self.die(self.monitor.on_notice())

    def tick(self, now: float) -> Loop[None]:
        if self.session.dead is not None:
            return
        deliveries, messages = self.session.on_tick(now)
        for frames in messages:
            yield from self.send(frames)
        yield from self.deliver(deliveries)
        beat = bytes(self.stage.sim.host.segments[self.stage.segment("beat")].memory[:8])
        yield from self.die(self.monitor.on_tick(int.from_bytes(beat, "little"), now))

    def die(self, reason: str | None) -> Loop[None]:
        if reason is None:
            return
        deliveries = self.session.die(reason)
        yield Observe("engine-dead", {"reason": reason})
        if self.core.alive and not self.session.notice_read:
            self.core.kill()
        yield from self.deliver(deliveries)
        yield from self.learn_of_death()

    def check_health(self) -> Loop[None]:
        dead = self.session.dead
        healthy = dead is None and self.core.alive
        yield Observe("health", {"healthy": healthy,
                                 "reason": "" if healthy else dead.reason if dead else "core.0 is gone"})

    def learn_of_death(self) -> Loop[None]:
        if not self.told_dead:
            self.told_dead = True
            yield from self.do(self.driver.died())

    # -- the workload

    def do(self, commands: list[Any]) -> Loop[None]:
        for command in commands:
            if command.kind == "add":
                yield from self.add(command)
            elif command.kind == "abort":
                yield Observe("abort", {"request": command.request_id,
                                        "internal": self._internal.get(command.request_id, "")})
                yield from self.act(*self.session.abort(command.request_id))
            elif command.kind == "raw":
                yield from self.send([bytes.fromhex(frame) for frame in command.args], None)
            elif command.kind == "utility":
                yield from self.utility(command)
            else:
                self.finished = True

    def add(self, command: Any) -> Loop[None]:
        request, name, params = command.request, command.request_id, command.request.params
        yield Observe("call", {"request": name, "index": request.index, "prompt": len(request.prompt_token_ids),
                               "max_tokens": params.max_tokens})
        try:
            self.require_core()
            internal, frames = self.session.add(name, request.prompt_token_ids, params, (yield Now()),
                                                self.stage.model.eos_token_id)
        except RingtwinError as error:
            if isinstance(error, RefusedError):
                limits = self.stage.config.limits
                yield Observe("load", {
                    "requests": len(self.session), "bytes": self.session.bytes_in_flight,
                    "max_requests": limits.max_requests, "max_bytes": limits.max_request_bytes})
            yield from self.end(name, "", None, error)
            return
        self._internal[name] = internal
        yield Observe("accepted", {"request": name, "internal": internal})
        if not (yield from self.send(frames, name)):
            yield from self.deliver(self.session.unroutable(name))

    def utility(self, command: Any) -> Loop[None]:
        try:
            self.require_core()
            call_id, frames = self.session.utility(command.method, command.args, (yield Now()))
        except EngineDeadError as error:
            yield from self.answered(command, None, error)
            return
        self._tickets[call_id] = command
        if not (yield from self.send(frames, utility=command.method)):
            del self._tickets[call_id]
            yield from self.answered(command, None, self.session.unroutable_call(call_id))

    def require_core(self) -> None:
        """Raises EngineDeadError where the core is gone, also while its last words are still waited for."""
        gone = self.monitor.gone()
        if gone is not None and self.session.dead is None:
            raise EngineDeadError(gone)

    def send(self, frames: list[Any], request: str | None = None, utility: str | None = None) -> Loop[bool]:
        """-> False where the core is not connected, so that this was not sent."""
        try:
            yield Send(REQUESTS, frames, 0)
        except Unroutable:
            if not self.core.alive:
                return True  # all that is open ends by its death
            yield Observe("unroutable", {"request": request, "utility": utility, "edge": REQUESTS})
            return False
        return True

    def act(self, deliveries: list[Delivery], messages: list[list[bytes]]) -> Loop[None]:
        for frames in messages:
            yield from self.send(frames)
        yield from self.deliver(deliveries)

    def deliver(self, deliveries: list[Delivery]) -> Loop[None]:
        for delivery in deliveries:
            if isinstance(delivery, Tokens):
                yield Observe("tokens", {"request": delivery.request_id, "internal": delivery.internal_id,
                                         "offset": delivery.offset, "tokens": delivery.token_ids})
            elif isinstance(delivery, UtilityResult):
                command = self._tickets.pop(delivery.call_id, None)
                if command is not None:
                    failure = delivery.error or (ValueError(delivery.failure) if delivery.failure else None)
                    yield from self.answered(command, delivery.result, failure)
            else:
                yield from self.end(delivery.request_id, delivery.internal_id, delivery.finish_reason, delivery.error)

    def end(self, name: str, internal: str, finish: FinishReason | None, error: Exception | None) -> Loop[None]:
        outcome = outcome_of_error(error) if error is not None else (
            Outcome.ABORTED if finish is FinishReason.ABORT else Outcome.FINISHED)
        yield Observe("end", {
            "request": name, "internal": internal, "outcome": outcome.value, "reason": str(error or ""),
            "finish_reason": str(finish) if finish is not None and error is None else None,
            "error": type(error).__name__ if error is not None else "",
            "may_have_taken_effect": getattr(error, "may_have_taken_effect", False)})
        if isinstance(error, EngineDeadError):
            yield from self.learn_of_death()
        yield from self.do(self.driver.ended(name))

    def answered(self, command: Any, result: Any, failure: Exception | None) -> Loop[None]:
        yield Observe("utility", {"method": command.method, "result": result, "failure": str(failure or "")})
        if isinstance(failure, EngineDeadError):
            yield from self.learn_of_death()
        yield from self.do(self.driver.answered(command.ticket, failure is not None))

    # -- the end

    def shutdown(self) -> Loop[None]:
        yield Observe("closing", {})
        self.session.die("the engine was shut down")
        if self.core is not None and self.core.alive:
            self.core.terminate()
            deadline = self.stage.sim.now + self.bounds.terminate_s
            yield Take("core-gone", deadline)
            if self.core.alive:
                self.core.kill()
        for port in self.process.ports.sockets.values():
            port.close(0.0)
        self.stage.remove_files()
        yield MarkPoint(Mark.DYING)
        yield Observe("closed", {})


def frontend_main(process: SimProcess, stage: Stage) -> Loop[None]:
    """The frontend's main thread."""
    return _Frontend(process, stage).main()
