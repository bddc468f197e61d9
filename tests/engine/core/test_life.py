"""The core's life, stepped by hand: however it ends, it says so on every way that still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.config import Bounds, CacheConfig, EngineConfig, KVEventsConfig, SchedulerConfig
from engine.core.engine_core import EngineCore
from engine.core.io.items import INPUT
from engine.core.life import core_life
from engine.effects import (
    Close,
    JoinThread,
    MarkPoint,
    Observe,
    OnTerminate,
    Put,
    RemoveFiles,
    Send,
    StartThread,
    Take,
    WallTime,
)
from engine.errors import CollectiveError, ConfigError, PeerDeadError, WorkerDeadError
from engine.executor.registry import EXECUTORS
from engine.executor.uniproc import UniProcExecutor
from engine.kv_events.publisher.life import PUBLISHER, REPLAYER
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreRequest,
    EngineHandshakeMetadata,
    EngineZmqAddresses,
    FinishReason,
    SamplingParams,
)
from engine.process.recipes import CoreRecipe, Leaving, StartFailure
from engine.topology import Mark, core
from engine.wire.codec import decode_outputs
from engine.wire.handshake import HANDSHAKE, REQUESTS, Greeting
from tests.engine.core.test_core_loop import Model
from tests.engine.process.hands import FILES, ME, ExitedError, LifeHand, Run

BOUNDS = Bounds(handshake_s=5.0, heartbeat_s=1.0, drain_s=2.0, orphan_s=2.0, linger_s=4.0)
CONFIG = EngineConfig(model="m", bounds=BOUNDS, start_method="fork", cache=CacheConfig(block_size=4),
                      scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8))
EVENTS = msgspec.structs.replace(CONFIG, kv_events=KVEventsConfig(enable_kv_cache_events=True, replay=True))
OUTBOX = "outputs.0"


class Rank(Model):
    """The worker object of a core that runs its only rank itself."""

    def init_device(self) -> None:
        pass

    def load_model(self) -> None:
        pass

    def get_num_blocks(self) -> int:
        return 16

    def initialize_cache(self, num_blocks: int) -> None:
        pass


class Life:
    """One core, whose frontend lives and answers its HELLO with these parallel sizes."""

    def __init__(self, config: EngineConfig = CONFIG, agreed: int = 1) -> None:
        self.hand = hand = LifeHand()
        hand.alive.add(ME)
        hand.worker = self.rank = Rank()
        metadata = EngineHandshakeMetadata(EngineZmqAddresses(["ipc://in"], ["ipc://out"]),
                                           {"tensor_parallel_size": agreed})
        hand.inboxes[HANDSHAKE].append((0.1, 0, [msgspec.msgpack.encode(metadata)]))
        self.loop = core_life(core(), CoreRecipe(config=config, files=FILES, handshake_address="ipc://hello",
                                                 beat="beat", frontend=ME))

    def end(self) -> Life:
        self.hand.run(self.loop)
        return self

    def serving(self) -> Run:
        """Until it waits for work."""
        return Run(self.hand, self.loop).to(lambda effect: isinstance(effect, Take) and effect.queue == INPUT)

    @property
    def outputs(self) -> list[Any]:
        return [frames for outbox, frames, _ in self.hand.sent if outbox == OUTBOX]

    @property
    def bye(self) -> str:
        name, data = self.hand.observed[-1]
        assert name == "bye"
        return data["reason"]


def ask(name: str, max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2, 3], SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def raising(error: Exception) -> Callable[[Any], Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


# -- start


def test_it_says_hello_loads_says_ready_and_then_announces_itself() -> None:
    life = Life()
    life.serving()
    assert life.hand.sockets == [HANDSHAKE, REQUESTS, OUTBOX]
    said = [(outbox, frames[0] and msgspec.msgpack.decode(frames[0], type=Greeting)) for outbox, frames, _ in
            life.hand.sent]
    assert said == [(HANDSHAKE, b""), (HANDSHAKE, Greeting("HELLO")), (HANDSHAKE, Greeting("READY", num_gpu_blocks=16)),
                    (REQUESTS, b"")]
    assert list(life.hand.threads) == ["parent-watch", "output", "input"] and not life.hand.told_parent


def test_what_must_not_be_inherited_by_children_is_opened_after_the_executor_has_begun(monkeypatch) -> None:
    order = []

    class Begins(UniProcExecutor):
        def begin(self):
            order.append(([type(effect) for effect in life.hand.done], list(life.hand.sockets)))
            return
            yield

    monkeypatch.setitem(EXECUTORS, "begins", lambda recipe, life, told: Begins(recipe.config.bounds, recipe.config))
    life = Life(msgspec.structs.replace(CONFIG, distributed_executor_backend="begins"))
    life.serving()
    ((before, sockets),) = order
    assert sockets == [] and StartThread not in before


def test_a_frontend_that_speaks_of_other_sizes_is_refused_in_one_line() -> None:
    life = Life(agreed=2).end()
    assert life.hand.told_parent == [StartFailure(
        "StartupError", "tensor_parallel_size is 1 here, and 2 of the frontend")]
    assert not any(outbox == OUTBOX for outbox, *_ in life.hand.sent) and "is 1 here" in life.bye


def test_a_core_that_is_asked_to_leave_just_as_its_start_fails_says_why_it_failed() -> None:
    life = Life(agreed=2)
    asked, answer = [], life.hand.answer

    def interrupted(effect: Any) -> Any:
        if isinstance(effect, OnTerminate) and effect.queue == INPUT and not asked:
            asked.append(effect)
            raise SystemExit("SIGTERM while starting")
        return answer(effect)

    life.hand.answer = interrupted
    life.end()
    assert asked and "is 1 here" in life.hand.told_parent[0].reason and "is 1 here" in life.bye


def test_a_frontend_that_does_not_answer_ends_the_start_at_its_bound() -> None:
    life = Life()
    life.hand.inboxes[HANDSHAKE].clear()
    (failure,) = life.end().hand.told_parent
    assert failure.kind == "StartupError" and "did not answer the core's HELLO" in failure.reason
    assert life.hand.now == BOUNDS.handshake_s


def test_an_error_of_the_configuration_stays_one() -> None:
    life = Life()
    life.rank.load_model = raising(ConfigError("no weights"))
    assert life.end().hand.told_parent == [StartFailure("ConfigError", "no weights")]


@pytest.mark.parametrize("when", ["waits for the frontend", "loads"])
def test_a_sigterm_while_it_starts_ends_the_start(when: str) -> None:
    life = Life()
    if when == "loads":
        life.rank.load_model = life.hand.sigterm
    else:
        life.hand.inboxes[HANDSHAKE].clear()
        life.hand.later(1.0, life.hand.sigterm)
    life.end()
    assert life.hand.told_parent == [StartFailure("SystemExit", "SIGTERM while starting")]
    assert life.bye == "sys.exit('SIGTERM while starting')" and life.hand.now <= 1.0


# -- the end


def test_a_sigterm_while_it_serves_drains_and_says_goodbye_last() -> None:
    life = Life()
    life.hand.later(0.5, lambda: life.hand.queues[INPUT].append(ask("a", 3)))
    life.hand.later(0.5, life.hand.sigterm)
    life.end()
    *tokens, last = life.outputs
    outputs = [output for frames in tokens for output in decode_outputs(frames).outputs]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
    assert last == [ENGINE_CORE_DEAD] and life.bye == "SIGTERM"
    assert life.hand.told_parent == [Leaving("SIGTERM")]
    assert not life.hand.seen(RemoveFiles) and [close.linger_s for close in life.hand.seen(Close)] == [None]


def test_a_frontend_that_died_meanwhile_leaves_the_files_to_the_core() -> None:
    life = Life()
    life.hand.alive.clear()
    life.hand.later(0.5, life.hand.sigterm)
    life.end()
    assert [effect.files for effect in life.hand.seen(RemoveFiles)] == [FILES]


def test_a_frontend_that_dies_as_the_core_says_its_last_leaves_the_files_to_it() -> None:
    """Whatever a core puts on record when its client is gone is said by one that has not looked yet."""
    life = Life()
    life.hand.later(0.5, life.hand.sigterm)
    run = Run(life.hand, life.loop).to(lambda effect: isinstance(effect, Observe) and effect.name == "bye")
    life.hand.alive.clear()
    run.end()
    assert life.bye == "SIGTERM" and [effect.files for effect in life.hand.seen(RemoveFiles)] == [FILES]


def test_whatever_goes_wrong_on_the_way_out_the_last_words_are_said() -> None:
    life = Life()
    life.hand.instead[MarkPoint] = lambda effect: raising(RuntimeError("planted"))() if effect.mark is Mark.DYING \
        else None
    life.hand.later(0.5, life.hand.sigterm)
    life.end()
    assert life.outputs == [[ENGINE_CORE_DEAD]] and life.bye == "SIGTERM"


def test_a_failing_step_is_told_with_its_reason() -> None:
    life = Life()
    life.rank.fail_at = 1
    life.hand.later(0.5, lambda: life.hand.queues[INPUT].append(ask("a", 3)))
    (leaving,) = life.end().hand.told_parent
    assert "out of memory" in leaving.reason and life.outputs == [[ENGINE_CORE_DEAD]]


@pytest.mark.parametrize("follows", [True, False])
def test_a_core_that_leaves_because_another_one_gave_up_says_that_it_only_follows(monkeypatch, follows: bool) -> None:
    error = CollectiveError("core.1 gave up", ["core.1"], follows=follows)
    monkeypatch.setattr(EngineCore, "busy_loop", raising(error))
    assert Life().end().hand.told_parent == [Leaving("CollectiveError: core.1 gave up", follows=follows)]


def test_the_death_of_a_worker_ends_the_core_by_the_queue_that_its_executor_was_given(monkeypatch) -> None:
    calls = []

    class Deadly(UniProcExecutor):
        def connect(self, across):
            calls.append("connect")
            yield Put(told, WorkerDeadError("worker.1 (pid 7) died"))

        def leaving(self) -> None:
            calls.append("leaving")

        def stop(self):
            calls.append("stop")
            return
            yield

    def make(recipe, life, queue):
        nonlocal told
        told = queue
        return Deadly(recipe.config.bounds, recipe.config)

    told = ""
    monkeypatch.setitem(EXECUTORS, "deadly", make)
    life = Life(msgspec.structs.replace(CONFIG, distributed_executor_backend="deadly")).end()
    assert life.hand.told_parent == [Leaving("WorkerDeadError: worker.1 (pid 7) died")]
    assert life.outputs == [[ENGINE_CORE_DEAD]] and calls == ["connect", "leaving", "stop"]


@pytest.mark.parametrize(("error", "died", "told"), [
    (PeerDeadError("rpc: the reader of rank 0 has died"), "worker.0 died; ",
     "worker.0 died; PeerDeadError: rpc: the reader of rank 0 has died"),
    (PeerDeadError("worker.0 died"), "worker.0 died; ", "worker.0 died"),
    (PeerDeadError("rpc: the reader of rank 0 has died"), "", "rpc: the reader of rank 0 has died"),
    (ValueError("no such model"), "worker.0 died; ", "no such model")])
def test_a_start_that_fails_on_what_a_death_has_left_says_who_died(monkeypatch, error, died, told) -> None:
    class Failing(UniProcExecutor):
        def connect(self, across):
            raise error
            yield

        def who_died(self, within_s=None):
            waited.append(within_s)
            return died
            yield

    waited = []
    monkeypatch.setitem(EXECUTORS, "failing", lambda recipe, life, queue: Failing(recipe.config.bounds, recipe.config))
    life = Life(msgspec.structs.replace(CONFIG, distributed_executor_backend="failing")).end()
    assert waited == [CONFIG.bounds.detection_s] * isinstance(error, PeerDeadError)
    assert life.hand.told_parent == [StartFailure(type(error).__name__, told)]


def test_an_output_thread_that_fails_takes_the_core_with_it_and_loses_nothing() -> None:
    life = Life()
    sends = []

    def send(effect: Send) -> None:
        sends.append(effect)
        if effect.outbox == OUTBOX and len([s for s in sends if s.outbox == OUTBOX]) == 1:
            raise OSError("planted")
        life.hand.sent.append((effect.outbox, effect.frames, effect.peer))

    life.hand.instead[Send] = send
    life.hand.later(0.5, lambda: life.hand.queues[INPUT].append(ask("a", 1)))
    life.hand.later(0.6, lambda: life.hand.run_thread("output"))
    joined = []

    def join(effect: JoinThread) -> bool:
        joined.append(effect.name)  # the output thread has run to its end already
        if effect.name != "output":
            life.hand.run_thread(effect.name)
        return True

    life.hand.instead[JoinThread] = join
    life.end()
    tokens, last = life.outputs
    assert [output.new_token_ids for output in decode_outputs(tokens).outputs] == [[7]] and last == [ENGINE_CORE_DEAD]
    assert life.hand.told_parent == [Leaving("OSError: planted")] and joined == ["output", "input"]


def test_one_that_is_stuck_sending_is_not_waited_for_longer_than_its_linger() -> None:
    life = Life()
    waits = []

    def join(effect: JoinThread) -> bool:
        waits.append((effect.name, effect.deadline - life.hand.now))
        return False

    life.hand.instead[JoinThread] = join
    life.hand.later(0.5, life.hand.sigterm)
    life.end()
    assert waits == [("output", BOUNDS.linger_s), ("input", BOUNDS.linger_s)]
    assert life.outputs == [] and life.bye == "SIGTERM"  # the thread still owns the socket: nobody else may send


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("name", ["output", "input", PUBLISHER, REPLAYER])
def test_a_sigterm_as_a_thread_is_started_leaves_none_behind(name: str, started: bool) -> None:
    life = Life(EVENTS if name in (PUBLISHER, REPLAYER) else CONFIG)
    order: list[str] = []

    def start(effect: StartThread) -> None:
        if effect.name != name or started:
            life.hand.threads[effect.name] = effect
        if effect.name == name:
            raise SystemExit("SIGTERM while starting")

    def join(effect: JoinThread) -> bool:
        order.append(effect.name)
        if effect.name in life.hand.threads and effect.name in ("output", "input"):
            life.hand.run_thread(effect.name)
        return True

    life.hand.instead |= {StartThread: start, JoinThread: join, Close: lambda effect: order.append("close"),
                          WallTime: lambda effect: 1e9}
    life.end()
    assert order[-1] == "close" and {name, "input"} <= set(order[:-1])
    assert life.outputs == ([[ENGINE_CORE_DEAD]] if name in ("output", "input") else [])


# -- the frontend is gone


def test_without_a_frontend_it_leaves_in_order_and_waits_for_no_reader() -> None:
    life = Life()
    main = life.serving()
    life.hand.alive.clear()
    watch = Run(life.hand, life.hand.threads["parent-watch"].loop).to(lambda effect: isinstance(effect, Take))
    main.end()
    assert life.bye == "QueueCancelledError: the frontend is gone"
    assert [close.linger_s for close in life.hand.seen(Close)] == [0.0] and len(life.hand.seen(RemoveFiles)) == 1
    watch.end()
    assert len(life.hand.seen(RemoveFiles)) == 1


def test_an_orphan_that_cannot_leave_is_ended_within_its_bound_and_takes_the_files_along(monkeypatch) -> None:
    killed = []

    class Stuck(UniProcExecutor):
        def kill(self):
            killed.append(life.hand.now)
            return
            yield

    monkeypatch.setitem(EXECUTORS, "stuck", lambda recipe, life, told: Stuck(recipe.config.bounds, recipe.config))
    life = Life(msgspec.structs.replace(CONFIG, distributed_executor_backend="stuck"))
    life.serving()
    life.hand.now = 7.0
    with pytest.raises(ExitedError, match="^1$"):
        life.hand.run(life.hand.threads["parent-watch"].loop)
    assert killed == [7.0 + BOUNDS.orphan_s / 4] and len(life.hand.seen(RemoveFiles)) == 1


def test_a_frontend_that_goes_while_the_core_starts_ends_the_start() -> None:
    life = Life()
    life.hand.inboxes[HANDSHAKE].clear()
    life.hand.later(1.0, lambda: Run(life.hand, life.hand.threads["parent-watch"].loop).to(
        lambda effect: isinstance(effect, Take)))
    life.hand.alive.clear()
    life.end()
    assert life.hand.told_parent == [StartFailure("QueueCancelledError", "the frontend is gone")]
    assert life.hand.now == 1.0 and len(life.hand.seen(RemoveFiles)) == 1
