"""The core's loop, stepped by hand with the real scheduler and an executor of the test."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from engine.config import Bounds, CacheConfig, EngineConfig, LimitsConfig, SchedulerConfig
from engine.coordinator.board import Start
from engine.coordinator.sockets import WAVES
from engine.coordinator.words import encode_start
from engine.core.engine_core import EngineCore, reason_of
from engine.core.io.items import INPUT, OUTPUT, Dead, MalformedRequest, Outgoing, Terminate
from engine.core.io.loops import input_loop, last_words, outboxes_of, output_loop
from engine.core.io.pulse import Pulse
from engine.core.scheduler import Scheduler
from engine.effects import Receive, Send, Take
from engine.errors import QueueCancelledError, RpcError
from engine.executor.uniproc import UniProcExecutor
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    ModelRunnerOutput,
    SamplingParams,
    SchedulerOutput,
)
from engine.topology import Mark
from engine.wire.codec import Abort, Utility, decode_outputs, encode_abort, encode_add
from engine.wire.handshake import REQUESTS
from engine.worker.phases import Phases
from tests.engine.core.loops import Hand

CONFIG = EngineConfig(
    model="", cache=CacheConfig(block_size=4, num_gpu_blocks=32),
    scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8), limits=LimitsConfig(max_requests=6),
    bounds=Bounds(heartbeat_s=1.0, drain_s=10.0))


class Model:
    """Answers token 7 for every request whose known tokens are all scheduled; keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[SchedulerOutput] = []
        self.known: set[str] = set()
        self.fail_at: int | None = None
        self.phases = Phases[ModelRunnerOutput]()

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        self.steps.append(step)
        if self.fail_at == len(self.steps):
            raise RuntimeError("out of memory")
        self.known -= {*step.finished, *step.preempted}
        self.known |= {new.request_id for new in step.new}
        output = ModelRunnerOutput(step.step, {name: [7] for name in step.num_scheduled_tokens})
        if not step.num_scheduled_tokens:
            return output
        self.phases.execute()
        self.phases.keep(output)
        return None

    def sample_tokens(self, grammar_output: None) -> ModelRunnerOutput | None:
        return self.phases.sample()

    def check_health(self) -> str:
        return "well"


class Stage:
    """A core between two queues. `turn` lets it take what is there and run one round."""

    def __init__(self, config: EngineConfig = CONFIG) -> None:
        self.hand = Hand()
        self.model = self.hand.worker = Model()
        scheduler = Scheduler(config.scheduler, config.cache, 32, 4, 128, vocab_size=100)
        self.core = EngineCore(config, scheduler, UniProcExecutor(config.bounds))
        self.loop = self.core.busy_loop()
        self._waiting: Take | None = None

    def say(self, *items: Any) -> Stage:
        self.hand.queues[INPUT].extend(items)
        return self

    def turn(self, times: int = 1) -> list[Outgoing]:
        """-> what was handed to the output thread meanwhile"""
        before = len(self.hand.queues[OUTPUT])
        for _ in range(times):
            answer = None if self._waiting is None else self.hand.answer(self._waiting)
            while True:
                effect = self.loop.send(answer)
                if isinstance(effect, Take):
                    self._waiting = effect
                    break
                try:
                    answer = self.hand.answer(effect)
                except Exception as error:
                    effect = self.loop.throw(error)
                    answer = self.hand.answer(effect)
        return list(self.hand.queues[OUTPUT])[before:]

    def finish(self) -> Any:
        """Turn until the loop returns. -> why"""
        try:
            while True:
                self.turn()
        except StopIteration as stop:
            return stop.value


def ask(name: str, max_tokens: int = 3, prompt: int = 5, **more: Any) -> EngineCoreRequest:
    return EngineCoreRequest(name, list(range(prompt)), SamplingParams(max_tokens=max_tokens, ignore_eos=True), **more)


def tokens_of(outgoing: list[Outgoing], name: str) -> list[int]:
    return [t for out in outgoing for o in out.outputs.outputs if o.request_id == name for t in o.new_token_ids]


def ends_of(outgoing: list[Outgoing]) -> dict[str, tuple[FinishReason, Any]]:
    return {o.request_id: (o.finish_reason, o.stop_reason) for out in outgoing for o in out.outputs.outputs
            if o.finish_reason is not None}


def answers(outgoing: list[Outgoing]) -> dict[int, tuple[Any, Any]]:
    found = [out.outputs.utility_output for out in outgoing if out.outputs.utility_output is not None]
    return {answer.call_id: (answer.failure, answer.result) for answer in found}


def call(method: str, *args: Any, call_id: int = 1) -> Utility:
    return Utility(0, call_id, method, list(args))


def test_a_request_is_served_and_its_outputs_count_what_came_before() -> None:
    stage = Stage()
    out = stage.say(ask("a")).turn(8)
    assert tokens_of(out, "a") == [7, 7, 7]
    assert [o.num_preceding for sent in out for o in sent.outputs.outputs] == [0, 1, 2]
    assert ends_of(out) == {"a": (FinishReason.LENGTH, None)}
    assert [sent.outputs.step for sent in out] == [1, 2, 3]


def test_workers_forget_the_last_request_although_nothing_else_is_scheduled() -> None:
    """The ids of what finished travel with a step; when nothing is left to schedule, with an empty one."""
    stage = Stage()
    stage.say(ask("a")).turn(12)
    assert stage.model.known == set()
    assert stage.model.steps[-1].finished == ["a"] and stage.model.steps[-1].total_num_scheduled_tokens == 0
    count = len(stage.model.steps)
    stage.turn(5)
    assert len(stage.model.steps) == count, "and then it is quiet"


def test_workers_forget_an_aborted_request_too() -> None:
    stage = Stage()
    stage.say(ask("a", 50)).turn(4)
    out = stage.say(Abort(["a"])).turn(4)
    assert stage.model.known == set() and out == []
    assert stage.core.scheduler.check_integrity() == []


def test_all_inputs_are_handled_before_the_next_step() -> None:
    stage = Stage()
    stage.say(ask("a"), ask("b"), Abort(["a"]), ask("c")).turn(2)
    assert [new.request_id for new in stage.model.steps[0].new] == ["b", "c"]


def test_exactly_k_steps_run_between_pause_and_resume() -> None:
    stage = Stage()
    stage.say(call("pause_scheduler"), ask("a", 50)).turn(6)
    assert stage.model.steps == []
    out = stage.say(call("run_steps", 4, call_id=2)).turn(12)
    assert len(stage.model.steps) == 4 and answers(out) == {2: (None, 4)}
    assert tokens_of(out, "a") == [7] * 4
    stage.say(call("resume_scheduler", call_id=3)).turn(10)
    assert len(stage.model.steps) > 8


def test_run_steps_answers_when_nothing_is_left_to_run_and_stays_paused() -> None:
    stage = Stage()
    out = stage.say(ask("a", 2), call("run_steps", 100)).turn(10)
    assert answers(out) == {1: (None, 3)}, "two tokens, and the step that lets the workers forget"
    stage.say(ask("b")).turn(5)
    assert tokens_of(list(stage.hand.queues[OUTPUT]), "b") == []


def test_a_second_run_steps_while_one_runs_is_refused() -> None:
    out = Stage().say(ask("a", 50), call("run_steps", 3), call("run_steps", 3, call_id=2)).turn(8)
    assert answers(out)[2][0] == "run_steps: steps are being run already" and answers(out)[1] == (None, 3)


@pytest.mark.parametrize(("method", "args", "failure"), [
    ("nonsense", [], "unknown utility 'nonsense'"), ("run_steps", [], "run_steps"), ("run_steps", ["x"], "run_steps"),
    ("run_steps", [0], "at least 1"), ("ping", [1, 2], "ping"), ("_answer", [], "unknown utility"),
    ("collective_rpc", ["shutdown"], "cannot be asked"), ("collective_rpc", ["check_health", 0], "at least 1"),
    ("collective_rpc", [["check_health"]], "collective_rpc"),
])
def test_a_utility_that_cannot_be_called_so_says_why_and_the_core_lives(method, args, failure) -> None:
    stage = Stage()
    out = stage.say(call(method, *args), call("ping", "alive", call_id=2)).turn(3)
    assert failure in answers(out)[1][0] and answers(out)[2] == (None, "alive")


def test_a_utility_reaches_the_workers() -> None:
    assert answers(Stage().say(call("collective_rpc", "check_health", 3)).turn(3)) == {1: (None, ["well"])}


def test_a_doubled_add_of_a_live_request_is_ignored() -> None:
    stage = Stage()
    out = stage.say(ask("a")).turn(2) + stage.say(ask("a")).turn(10)
    assert tokens_of(out, "a") == [7, 7, 7]
    assert ("request", {"request": "a", "action": "duplicate", "reason": "id is live"}) in stage.hand.observed


def test_beyond_the_limit_the_core_refuses_by_itself() -> None:
    out = Stage().say(*(ask(f"r{k}") for k in range(8))).turn(12)
    refused = {name for name, (reason, _) in ends_of(out).items() if reason is FinishReason.REFUSED}
    assert refused == {"r6", "r7"} and len(ends_of(out)) == 8


def test_a_malformed_add_fails_the_request_it_names_and_no_other() -> None:
    stage = Stage()
    out = stage.say(ask("a")).turn(2) + stage.say(
        MalformedRequest("no tokens", "bad"), MalformedRequest("garbage"),
        MalformedRequest("damaged copy", "a")).turn(10)
    assert ends_of(out)["bad"] == (FinishReason.ERROR, "no tokens")
    assert tokens_of(out, "a") == [7, 7, 7], "a damaged copy does not end the request that lives under its id"


def test_outputs_go_to_the_client_that_asked() -> None:
    out = Stage().say(ask("a", client_index=1), ask("b", client_index=0)).turn(8)
    by_client = {(sent.client_index, o.request_id) for sent in out for o in sent.outputs.outputs}
    assert by_client == {(1, "a"), (0, "b")}


# -- leaving


def test_sigterm_lets_what_runs_finish_refuses_what_is_new_and_ends() -> None:
    stage = Stage()
    stage.say(ask("a", 4)).turn(2)
    stage.say(Terminate(), ask("late"))
    assert stage.finish() == "SIGTERM"
    out = list(stage.hand.queues[OUTPUT])
    assert tokens_of(out, "a") == [7] * 4
    assert ends_of(out) == {"a": (FinishReason.LENGTH, None), "late": (FinishReason.REFUSED, "the engine is draining")}


def test_sigterm_while_paused_resumes_what_was_accepted() -> None:
    stage = Stage()
    stage.say(call("pause_scheduler"), ask("a")).turn(3)
    assert stage.say(Terminate()).finish() == "SIGTERM"
    assert tokens_of(list(stage.hand.queues[OUTPUT]), "a") == [7, 7, 7]


def test_at_the_drain_deadline_the_rest_is_told_where_it_stands() -> None:
    stage = Stage()
    stage.say(ask("a", 100)).turn(3)
    stage.say(Terminate()).turn(1)
    stage.hand.now += CONFIG.bounds.drain_s + 1
    stage.say(Terminate())
    assert stage.finish() == "SIGTERM"
    last = stage.hand.queues[OUTPUT][-1].outputs.outputs[0]
    sent = tokens_of(list(stage.hand.queues[OUTPUT]), "a")
    assert (last.finish_reason, last.num_preceding) == (FinishReason.ABORT, len(sent))
    assert stage.core.scheduler.cache.num_used == 0


def test_a_failing_worker_ends_the_loop_with_its_error() -> None:
    stage = Stage()
    stage.model.fail_at = 2
    with pytest.raises(RpcError, match="out of memory") as caught:
        stage.say(ask("a")).finish()
    assert reason_of(caught.value) == "worker.0 failed in execute_model: RuntimeError: out of memory"


def test_an_exception_of_another_thread_ends_the_loop() -> None:
    with pytest.raises(OSError, match="socket"):
        Stage().say(OSError("socket")).finish()


def test_idle_it_beats_and_looks_at_its_books_once() -> None:
    stage = Stage()
    stage.turn(6)
    beats = [at for _, at in stage.hand.beats]
    gaps = [later - earlier for earlier, later in zip(beats, beats[1:], strict=False)]
    assert max(gaps) <= CONFIG.bounds.heartbeat_s
    assert [count for count, _ in stage.hand.beats] == list(range(1, len(beats) + 1))
    books = [data for name, data in stage.hand.observed if name == "blocks"]
    assert len(books) == 1 and books[0]["errors"] == [] and books[0]["free"] == books[0]["total"]


# -- the two I/O loops


class Ending(Hand):
    """Cancelled once all has been read."""

    def answer(self, effect):
        if isinstance(effect, Receive) and not any(self.inboxes.values()):
            raise QueueCancelledError("the core is leaving")
        return super().answer(effect)


def test_the_input_loop_decodes_drops_what_is_none_and_lives_on() -> None:
    hand = Ending()
    request = ask("good")
    damaged = [b"\x00", msgspec.msgpack.encode(["bad", "no list", {}])]
    for frames in ([b"\xff"], damaged, encode_add(request), [], encode_abort(["x"])):
        hand.inboxes[REQUESTS].append((0.0, 0, frames))
    with pytest.raises(QueueCancelledError):
        hand.run(input_loop({REQUESTS: "edge"}, Pulse(CONFIG.bounds)))
    kinds = [type(item) for item in hand.queues[INPUT]]
    assert kinds == [MalformedRequest, MalformedRequest, EngineCoreRequest, MalformedRequest, Abort]
    assert [item.request_id for item in hand.queues[INPUT] if isinstance(item, MalformedRequest)] == [None, "bad", None]
    assert hand.queues[INPUT][2] == request
    assert [name for name, _ in hand.observed] == ["bad-frame"] * 3


@pytest.mark.parametrize("in_step", [True, False])
def test_a_start_is_heard_by_a_core_that_steps_with_others_and_is_told_of_by_any_other(in_step: bool) -> None:
    hand = Ending()
    hand.inboxes[WAVES].append((0.0, None, encode_start(Start(3, None))))
    with pytest.raises(QueueCancelledError):
        hand.run(input_loop({WAVES: "edge"}, Pulse(CONFIG.bounds), in_step=in_step))
    assert list(hand.queues[INPUT]) == ([Start(3, None)] if in_step else [])
    assert [name for name, _ in hand.observed] == ([] if in_step else ["bad-frame"])


def test_a_core_whose_threads_stand_still_does_not_beat() -> None:
    """It looks alive, and nobody is served: who watches its heartbeat must see that."""
    pulse, bounds = Pulse(CONFIG.bounds), CONFIG.bounds
    assert pulse.missing(100.0) == []  # not started yet
    pulse.beat("input", 1.0)
    pulse.beat("output", 1.0)
    assert pulse.missing(1.0 + 2 * pulse.every_s) == []
    pulse.beat("input", 1.0 + bounds.stall_s)
    assert pulse.missing(1.0 + bounds.stall_s) == ["output"]
    pulse.beat("output", 1.1 + bounds.stall_s)
    assert pulse.missing(1.1 + bounds.stall_s) == []


def test_the_output_loop_keeps_the_order_and_the_notice_comes_last_to_every_client() -> None:
    hand = Hand()
    items = [Outgoing(client, EngineCoreOutputs(step=step)) for step, client in enumerate([0, 1, 5, 0])]
    hand.queues[OUTPUT] = deque([*items, Dead()])
    hand.run(output_loop(outboxes_of(2, coordinated=False), deque(), Pulse(CONFIG.bounds)))
    said = [(box, "dead" if frames == [ENGINE_CORE_DEAD] else decode_outputs(frames).step)
            for box, frames, _ in hand.sent]
    assert said == [("outputs.0", 0), ("outputs.1", 1), ("outputs.0", 3), ("outputs.0", "dead"), ("outputs.1", "dead")]
    assert hand.observed == [("bad-frame", {"edge": "outputs", "error": "no client 5"})]


def test_what_a_failed_output_thread_has_taken_is_sent_before_the_notice_once_more_at_most() -> None:
    class Deaf(Hand):
        """Sending the outputs of step 1 fails, each time."""

        def answer(self, effect):
            if isinstance(effect, Send) and effect.frames != [ENGINE_CORE_DEAD] and \
                    decode_outputs(effect.frames).step == 1:
                raise RuntimeError("broken")
            return super().answer(effect)

    hand, unsent = Deaf(), deque()
    hand.queues[OUTPUT] = deque([Outgoing(0, EngineCoreOutputs(step=step)) for step in range(3)])
    with pytest.raises(RuntimeError):
        hand.run(output_loop(outboxes_of(1, coordinated=False), unsent, Pulse(CONFIG.bounds)))
    hand.queues[OUTPUT].extend([Outgoing(0, EngineCoreOutputs(step=3)), Dead()])
    hand.run(last_words(outboxes_of(1, coordinated=False), unsent))
    said = ["dead" if frames == [ENGINE_CORE_DEAD] else decode_outputs(frames).step for _, frames, _ in hand.sent]
    assert said == [0, 2, 3, "dead"]
    assert hand.observed == [("not-sent", {"edge": "outputs", "error": "RuntimeError: broken"})]
    assert not unsent


# -- several steps in flight

DEEP = msgspec.structs.replace(
    CONFIG, max_concurrent_batches=2, scheduler=SchedulerConfig(max_num_batched_tokens=5, max_num_seqs=8))


def steps_marked(stage: Stage) -> list[tuple[str, int]]:
    wanted = (Mark.SCHEDULED.value, Mark.EXECUTED.value)
    return [(mark, data["step"]) for mark, data in stage.hand.marks if mark in wanted]


def test_a_second_step_is_scheduled_before_the_first_is_used() -> None:
    stage = Stage(DEEP)
    out = stage.say(ask("a", 2), ask("b", 2)).turn(20)
    assert steps_marked(stage)[:6] == [
        ("scheduled", 0), ("scheduled", 1), ("executed", 0), ("scheduled", 2), ("executed", 1), ("scheduled", 3)]
    assert (tokens_of(out, "a"), tokens_of(out, "b")) == ([7, 7], [7, 7])


def test_where_nothing_else_can_be_scheduled_the_oldest_is_used() -> None:
    stage = Stage(DEEP)
    assert tokens_of(stage.say(ask("a", 3)).turn(20), "a") == [7, 7, 7]
    assert steps_marked(stage)[:4] == [("scheduled", 0), ("executed", 0), ("scheduled", 1), ("executed", 1)]


def test_who_is_aborted_while_its_step_is_in_flight_is_told_nothing_of_it() -> None:
    stage = Stage(DEEP)
    stage.say(ask("a"), ask("b")).turn(3)
    assert steps_marked(stage) == [("scheduled", 0), ("scheduled", 1)], "the core looks for aborts before it uses one"
    stage.say(Abort(["a"]))
    out = stage.turn(30)
    assert tokens_of(out, "a") == [] and tokens_of(out, "b") == [7, 7, 7]
    assert "a" not in ends_of(out)


def test_inputs_that_came_with_an_abort_keep_their_turn() -> None:
    stage = Stage(DEEP)
    stage.say(ask("a", 4), ask("b", 4)).turn(3)
    out = stage.say(Abort(["a", "late"]), ask("late"), Abort(["late"]), ask("c")).turn(40)
    told = [(data["request"], data["action"]) for name, data in stage.hand.observed if name == "request"]
    assert told == [("a", "add"), ("b", "add"), ("a", "abort"), ("late", "unknown-abort"), ("late", "add"),
                    ("late", "abort"), ("c", "add")]
    assert (tokens_of(out, "late"), tokens_of(out, "c")) == ([], [7, 7, 7])


def test_paused_nothing_is_in_flight_any_more() -> None:
    stage = Stage(DEEP)
    stage.say(ask("a", 9), ask("b", 9)).turn(2)
    assert len(stage.core.in_flight) == 1
    out = stage.say(call("pause_scheduler")).turn(6)
    assert not stage.core.in_flight
    assert answers(out) == {1: (None, stage.core.steps)}
    assert steps_marked(stage)[-1] == ("executed", stage.core.steps - 1)


def test_what_came_while_a_pause_waited_for_steps_is_not_kept_waiting() -> None:
    stage = Stage(DEEP)
    stage.say(ask("a", 9), ask("b", 9)).turn(2)
    stage.say(call("pause_scheduler")).turn()  # up to where it looks for aborts
    before = stage.hand.now
    out = stage.say(call("ping", "here", call_id=2)).turn(2)
    assert answers(out)[2] == (None, "here")
    assert stage.hand.now == before


def test_run_steps_counts_those_that_are_scheduled() -> None:
    stage = Stage(DEEP)
    stage.say(call("pause_scheduler"), ask("a", 9), ask("b", 9)).turn(2)
    out = stage.say(call("run_steps", 3, call_id=2)).turn(20)
    assert answers(out) == {2: (None, 3)}
    assert [step for mark, step in steps_marked(stage) if mark == "executed"] == [0, 1, 2]


def test_a_drain_uses_what_is_in_flight() -> None:
    stage = Stage(DEEP)
    stage.say(ask("a", 3), ask("b", 3)).turn(2)
    assert stage.say(Terminate()).finish() == "SIGTERM"
    out = list(stage.hand.queues[OUTPUT])
    assert tokens_of(out, "a") == tokens_of(out, "b") == [7, 7, 7]


def test_of_two_steps_that_fail_the_first_ones_error_is_raised() -> None:
    stage = Stage(DEEP)
    stage.model.fail_at = 1
    with pytest.raises(RpcError, match="out of memory"):
        stage.say(ask("a"), ask("b")).finish()


def test_a_step_that_fails_is_put_on_record_without_a_prompt() -> None:
    stage = Stage(msgspec.structs.replace(DEEP, scheduler=SchedulerConfig(max_num_batched_tokens=600, max_num_seqs=200),
                                          limits=LimitsConfig(max_requests=200), cache=CONFIG.cache))
    stage.core.scheduler = Scheduler(stage.core.config.scheduler, CONFIG.cache, 512, 4, 128, vocab_size=5000)
    stage.model.fail_at = 1
    asked = [EngineCoreRequest(f"r{n}", [4001, 4002, 4003], SamplingParams(max_tokens=4)) for n in range(80)]
    with pytest.raises(RpcError, match="out of memory"):
        stage.say(*asked).finish()
    [failed] = [data for name, data in stage.hand.observed if name == "step-failed"]
    assert (failed["step"], failed["behind"], failed["left_out"]) == (0, [], 16)
    assert failed["new"][0] == ["r0", 3, 3, 1, 0] and len(failed["new"]) == len(failed["scheduled"]) == 64
    assert failed["stats"]["running"] == 80 and failed["error"].startswith("RpcError: worker.0 failed in execute_model")
    assert "400" not in str(failed)
    assert len(str(failed)) < 5000
