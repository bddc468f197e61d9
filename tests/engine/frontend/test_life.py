"""The client's life, stepped by hand: a core that dies is noticed by each of its witnesses, and nothing of it stays."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from engine.config import Bounds, DataParallelConfig, EngineConfig, LimitsConfig
from engine.effects import Close, EndProcesses, Gone, Identity, OpenSocket, RemoveFiles, Send, StartChild
from engine.errors import ConfigError, EngineDeadError, StartupError, UnroutableError
from engine.frontend.attachment import Attachment, ClientAddresses, Running
from engine.frontend.handles.coordinator import CoordinatorHandle
from engine.frontend.handles.monitor import GRACE_S, LOOK_S
from engine.frontend.life import ClientLife
from engine.frontend.session import RequestEnd, Tokens
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineHandshakeMetadata,
    FinishReason,
    SamplingParams,
)
from engine.ports import Unroutable
from engine.process.recipes import CoreRecipe, Leaving, StartFailure, WorkersBorn
from engine.topology import coordinator, core, frontend
from engine.wire.adoption import parallel_config
from engine.wire.codec import encode_outputs
from engine.wire.handshake import HANDSHAKE, REQUESTS, Greeting
from engine.wire.wiring import outputs_of
from tests.engine.process.hands import FILES, ME, LifeHand

BOUNDS = Bounds(startup_s=20.0, handshake_s=5.0, heartbeat_s=1.0, stall_s=3.0, request_s=50.0, output_gap_s=1.0,
                orphan_s=2.0, terminate_s=5.0)
CONFIG = EngineConfig(model="m", tensor_parallel_size=2, bounds=BOUNDS, limits=LimitsConfig(max_requests=2))
WORKERS = (Identity(301, 1, 201), Identity(302, 1, 201))
PARAMS = SamplingParams(max_tokens=8)


class Client:
    """A client with a core that answers its handshake."""

    def __init__(self, index: int = 0) -> None:
        self.hand = hand = LifeHand()
        numbers = itertools.count()
        self.life = ClientLife(frontend(index), CONFIG, lambda: f"{next(numbers):08x}")
        self.delivered: list[Any] = []
        self.life.deliver = self._take
        self.core = core(index)
        for at, inbox, frame in ((0.5, HANDSHAKE, _greeting("HELLO")), (1.0, HANDSHAKE, _greeting("READY", 16)),
                                 (1.0, REQUESTS, b"")):
            hand.inboxes[inbox].append((at, index, [frame]))
        hand.words.append((self.core, WorkersBorn(WORKERS)))

    def _take(self, delivery: Any) -> Any:
        self.delivered.append(delivery)
        return
        yield

    def run(self, loop: Any) -> Any:
        return self.hand.run(loop)

    def start(self) -> Client:
        self.run(self.life.start())
        self.hand.heartbeat = (1, self.hand.now)
        return self

    def serve(self, until: float) -> Client:
        while self.hand.now < until:
            self.run(self.life.serve(until))
        return self

    def beats(self, until: float) -> Client:
        """The core counts while it is served, every tenth of a second until then."""
        for number in range(1, round(until * 10)):
            self.hand.later(number / 10, lambda n=number: setattr(self.hand, "heartbeat", (n, n / 10)))
        return self

    def dies(self, at: float, exitcode: int = -9) -> Client:
        self.hand.later(at, lambda: self.hand.ended.update({self.core: Gone(exitcode)}))
        return self

    def outputs(self, at: float, *outputs: EngineCoreOutput) -> None:
        self.hand.inboxes[outputs_of(0)].append((at, 0, encode_outputs(EngineCoreOutputs(outputs=list(outputs)))))

    @property
    def reasons(self) -> list[str]:
        return [data["reason"] for name, data in self.hand.observed if name == "engine-dead"]

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(one.request_id, str(one.error)) for one in self.delivered if isinstance(one, RequestEnd)]


def _greeting(status: str, blocks: int | None = None) -> bytes:
    return msgspec.msgpack.encode(Greeting(status, num_gpu_blocks=blocks))


# -- start


@pytest.mark.parametrize("index", [0, 1])
def test_the_core_is_started_before_the_first_socket_and_told_where_to_connect(index: int) -> None:
    client = Client(index).start()
    kinds = [type(effect) for effect in client.hand.done]
    assert kinds.index(StartChild) < kinds.index(OpenSocket)
    recipe = client.hand.recipes[core(index)]
    assert isinstance(recipe, CoreRecipe) and recipe.config.start_method == "spawn"
    assert (recipe.engine_index, recipe.clients, recipe.frontend, recipe.files) == (index, (index,), ME, FILES)
    assert recipe.handshake_address == FILES.socket("handshake.ipc")
    (metadata,) = [frames for outbox, frames, peer in client.hand.sent if (outbox, peer) == (HANDSHAKE, index)]
    told = msgspec.msgpack.decode(metadata[0], type=EngineHandshakeMetadata)
    assert told.parallel_config == parallel_config(CONFIG) and told.addresses.inputs == [FILES.socket("requests.ipc")]
    assert client.life.num_gpu_blocks == 16


@pytest.mark.parametrize(("word", "error", "text"), [
    (StartFailure("ConfigError", "no such model"), ConfigError, "^no such model$"),
    (StartFailure("RuntimeError", "out of memory"), StartupError, "^out of memory$"),
    (Leaving("worker.0 failed"), StartupError,
     r"^core\.0 died while starting \(exit code -9\): worker\.0 failed$"),
    (None, StartupError, r"^core\.0 died while starting \(exit code -9\)$")])
def test_a_core_that_dies_while_it_starts_is_noticed_at_once_with_its_own_words(word, error, text) -> None:
    client = Client().dies(0.7)
    if word is not None:
        client.hand.words.append((client.core, word))
    with pytest.raises(error, match=text):
        client.run(client.life.start())
    assert client.hand.now == 0.7
    assert client.hand.observed[-1] == ("start-failed", {
        "error": error.__name__, "reason": text.strip("^$").replace("\\", "")})


def test_a_coordinator_that_fails_as_it_starts_is_named() -> None:
    hand, handle = LifeHand(), CoordinatorHandle(coordinator(), BOUNDS)
    hand.words.append((coordinator(), StartFailure("RuntimeError", "no port is left")))
    with pytest.raises(StartupError, match=r"^coordinator\.0: no port is left$"):
        hand.run(handle.open(CONFIG, FILES, ME, (0,)))


def test_a_core_that_never_answers_ends_the_start_at_its_bound() -> None:
    client = Client()
    client.hand.inboxes.clear()
    with pytest.raises(StartupError, match=r"core\.0 did not say HELLO in time"):
        client.run(client.life.start())
    assert client.hand.now == BOUNDS.handshake_s


# -- the core dies


def test_its_notice_is_believed_at_once_and_its_reason_told() -> None:
    client = Client().start().beats(3.0)
    client.run(client.life.add("a", [1], PARAMS))
    client.hand.words.append((client.core, Leaving("SIGTERM")))
    client.hand.inboxes[outputs_of(0)].append((2.0, 0, [ENGINE_CORE_DEAD]))
    client.serve(2.0)
    reason = "core.0 said that it is leaving (ENGINE_CORE_DEAD): SIGTERM"
    assert client.reasons == [reason] and [name for name, _ in client.ends] == ["a"] and reason in client.ends[0][1]
    assert not client.hand.ending and client.hand.now == 2.0  # it goes by itself


def test_its_sentinel_counts_when_the_last_words_have_had_their_time() -> None:
    client = Client().start().beats(2.0)
    internal = client.run(client.life.add("a", [1], PARAMS))
    client.run(client.life.add("b", [1], PARAMS))
    client.outputs(2.0 + GRACE_S / 2, EngineCoreOutput(internal, [7], 0, FinishReason.LENGTH))
    client.dies(2.0).serve(2.0 + GRACE_S / 2)
    assert not client.reasons and not client.life.watched
    client.serve(2.0 + GRACE_S)
    assert client.reasons == ["core.0 died (exit code -9)"]
    assert [one.token_ids for one in client.delivered if isinstance(one, Tokens)] == [[7]]
    (one, _), (other, error) = client.ends
    assert (one, other) == ("a", "b") and "core.0 died (exit code -9)" in error
    assert client.hand.now == pytest.approx(2.0 + GRACE_S)


def test_when_its_connection_has_ended_and_all_was_read_nothing_is_waited_for() -> None:
    client = Client().start().beats(2.0)
    internal = client.run(client.life.add("a", [1], PARAMS))
    client.run(client.life.add("b", [1], PARAMS))
    client.outputs(2.0 + LOOK_S, EngineCoreOutput(internal, [7], 0, FinishReason.LENGTH))
    client.hand.over_at = 2.0 + 2.5 * LOOK_S
    client.dies(2.0).serve(2.0 + 1.5 * LOOK_S)
    assert not client.reasons
    client.serve(2.0 + 3.5 * LOOK_S)
    assert client.reasons == ["core.0 died (exit code -9)"]
    assert [one.token_ids for one in client.delivered if isinstance(one, Tokens)] == [[7]]
    assert client.hand.now < 2.0 + 5 * LOOK_S < 2.0 + GRACE_S


def test_a_connection_that_has_ended_says_nothing_of_a_core_that_lives() -> None:
    client = Client().start().beats(4.0)
    client.hand.over_at = 1.0
    client.serve(3.0)
    assert not client.reasons


def test_who_has_not_read_for_a_while_reads_the_last_words_before_the_death_is_told() -> None:
    client = Client().start()
    internal = client.run(client.life.add("a", [1], PARAMS))
    client.outputs(2.0, EngineCoreOutput(internal, [7], 0, FinishReason.LENGTH))
    client.hand.now = 9.0
    client.hand.ended[client.core] = Gone(-9)
    client.run(client.life.tick())
    client.hand.now = 10.0
    client.run(client.life.tick())
    assert [one.finish_reason for one in client.delivered if isinstance(one, RequestEnd)] == [FinishReason.LENGTH]
    assert client.reasons == ["core.0 died (exit code -9)"]


def test_nothing_is_added_while_the_last_words_are_waited_for() -> None:
    client = Client().start().beats(2.0).dies(2.0).serve(2.0)
    with pytest.raises(EngineDeadError, match=r"core\.0 died \(exit code -9\)"):
        client.run(client.life.add("late", [1], PARAMS))
    with pytest.raises(EngineDeadError):
        client.run(client.life.utility("ping", []))
    assert len(client.life.session) == 0


def test_who_calls_while_the_last_words_are_waited_for_reads_why_the_core_has_left() -> None:
    client = Client().start().beats(2.0)
    client.hand.words.append((client.core, Leaving("worker.0 failed")))
    client.dies(2.0, exitcode=0).serve(2.0)
    assert not client.reasons
    for call in (client.life.add("late", [1], PARAMS), client.life.utility("ping", []), client.life.check_health()):
        with pytest.raises(EngineDeadError, match=r"core\.0 died \(exit code 0\): worker\.0 failed"):
            client.run(call)
    client.serve(2.0 + GRACE_S)
    assert client.reasons == ["core.0 died (exit code 0): worker.0 failed"]


@pytest.mark.parametrize("lockstep", [True, False])
def test_whose_core_is_gone_is_let_in_by_another_one_where_they_do_not_step_together(lockstep: bool) -> None:
    """Also while its last words are waited for, by which the others are known to end."""
    options = DataParallelConfig(lockstep=lockstep)
    life = ClientLife(frontend(), msgspec.structs.replace(
        CONFIG, data_parallel_size=2, data_parallel=options), lambda: "x")
    for handle in life.cores.values():
        handle.watch(0.0)
    assert life.reachable
    life.cores[1].monitor.on_gone(" (exit code -9)", 1.0)
    assert life.reachable is not lockstep


def test_a_heartbeat_that_stands_still_ends_a_core_that_nothing_else_would_end() -> None:
    client = Client().start().beats(2.0)
    client.serve(6.0)
    (reason,) = client.reasons
    assert "no progress" in reason and client.hand.ending == [(client.core, "kill")]
    died = client.life.cores[0]._dead_since
    assert died is not None and 1.9 + BOUNDS.stall_s < died <= 1.9 + BOUNDS.stall_s + 2 * client.life.tick_s


def test_a_core_that_makes_progress_is_left_alone() -> None:
    client = Client().start().beats(30.0).serve(29.0)
    client.run(client.life.check_health())  # and does not raise
    assert not client.reasons and not client.hand.ending


def test_the_workers_of_a_core_long_dead_are_ended_without_patience() -> None:
    client = Client().start().beats(2.0).dies(2.0).serve(2.0 + GRACE_S)
    client.serve(4.0)
    assert not client.hand.seen(EndProcesses)
    client.serve(5.0)
    assert client.hand.seen(EndProcesses) == [EndProcesses(WORKERS, 0.0)]
    client.serve(8.0)
    assert len(client.hand.seen(EndProcesses)) == 1


def test_what_a_living_core_cannot_be_sent_fails_and_what_a_dead_one_cannot_ends_by_its_death() -> None:
    client = Client().start()

    def unroutable(effect: Send) -> None:
        raise Unroutable

    client.hand.instead[Send] = unroutable
    client.run(client.life.add("a", [1], PARAMS))
    assert [name for name, _ in client.ends] == ["a"] and "unroutable" in client.hand.names()
    with pytest.raises(UnroutableError):
        client.run(client.life.utility("ping", []))
    client.hand.observed.clear()
    client.hand.ended[client.core] = Gone(-9)
    assert client.run(client.life.send([b"x"])) is True and "unroutable" not in client.hand.names()


def test_a_request_whose_sending_fails_is_its_caller_s_alone() -> None:
    client = Client().start()

    def broken(effect: Send) -> None:
        raise OSError("no such socket")

    client.hand.instead[Send] = broken
    with pytest.raises(OSError, match="no such socket"):
        client.run(client.life.add("a", [1], PARAMS))
    del client.hand.instead[Send]
    client.run(client.life.add("a", [1], PARAMS))  # its id and its place are free
    client.run(client.life.add("b", [1], PARAMS))
    client.run(client.life.shutdown())
    assert [name for name, _ in client.ends] == ["a", "b"]


# -- the end


def test_a_client_that_is_closed_says_what_is_kept_and_by_whom() -> None:
    client = Client().start()
    client.life.kept = lambda: {"streams": 1}
    client.run(client.life.shutdown())
    kept = dict(client.hand.observed)["closing"]["kept"]
    assert kept == {"requests": 0, "internal": 0, "bytes": 0, "calls": 0, "streams": 1}


def test_a_shutdown_ends_everything_and_a_second_one_nothing() -> None:
    client = Client().start()
    client.run(client.life.add("a", [1], PARAMS))
    sent = len(client.hand.sent)
    client.run(client.life.shutdown())
    assert len(client.hand.sent) == sent + 1  # the core is told to let the request go
    assert client.ends == [("a", client.ends[0][1])] and "was shut down" in client.ends[0][1]
    assert client.hand.ending == [(client.core, "terminate")] and client.hand.now == 1.0
    assert client.hand.seen(EndProcesses) == [EndProcesses(WORKERS, BOUNDS.orphan_s)]
    assert [effect.files for effect in client.hand.seen(RemoveFiles)] == [FILES]
    assert client.hand.names()[-2:] == ["closing", "closed"]
    done = list(client.hand.done)
    client.run(client.life.shutdown())
    assert client.hand.done == done


def test_a_core_that_does_not_go_is_killed_at_the_bound() -> None:
    client = Client().start()
    client.hand.obey = False
    client.run(client.life.shutdown())
    assert client.hand.ending == [(client.core, "terminate"), (client.core, "kill")]
    assert client.hand.now == 1.0 + BOUNDS.terminate_s


def test_an_engine_that_never_started_is_shut_down_all_the_same() -> None:
    client = Client()
    client.run(client.life.shutdown())
    assert len(client.hand.seen(Close)) == 1 and not client.hand.seen(RemoveFiles) and not client.hand.ending


def test_one_whose_start_failed_leaves_no_file_and_no_child() -> None:
    client = Client()
    client.hand.inboxes.clear()
    with pytest.raises(StartupError):
        client.run(client.life.start())
    client.run(client.life.shutdown())
    assert client.hand.ending == [(client.core, "terminate")] and len(client.hand.seen(RemoveFiles)) == 1


def test_a_shutdown_that_is_broken_off_has_no_more_patience() -> None:
    client = Client().start()
    client.hand.obey = False
    shutdown = client.life.shutdown()
    client.hand.run(shutdown, until=lambda effect: client.hand.ending)
    before = client.hand.now
    client.run(client.life.break_off())
    assert client.hand.ending == [(client.core, "terminate"), (client.core, "kill")] and client.hand.now == before
    assert len(client.hand.seen(Close)) == len(client.hand.seen(RemoveFiles)) == 1


def test_last_words_of_a_core_that_was_buried_with_others_are_not_awaited() -> None:
    """Else whoever has nothing to do looks for them again and again, without end."""
    running = {index: Running(identity=ME, beat="x") for index in (0, 1)}
    mine = ClientAddresses(frontend=0, requests="r", outputs={0: "a", 1: "b"})
    life = ClientLife(frontend(0), CONFIG, lambda: "", Attachment(
        clients=(mine,), cores=running, blocks={}, parallel_config={}))
    for handle in life.cores.values():
        handle.watch(0.0)
        handle.monitor.on_gone("", 1.0)
    assert life.deadline is not None
    for handle in life.cores.values():
        assert list(handle.bury("core.1 died", False)) == []
    assert life.deadline is None


def told_when_a_rank_leaves(hand: LifeHand) -> set[str]:
    """Why, of two that step together, when the notice of core 1 comes."""
    life = ClientLife(frontend(), msgspec.structs.replace(
        CONFIG, data_parallel_size=2, data_parallel=DataParallelConfig(lockstep=True)), lambda: "x")
    for handle in life._engines.all:
        handle.watch(0.0)
    life.watched = tuple(handle.node for handle in life._engines.all)
    hand.run(life.on_message([ENGINE_CORE_DEAD], 1))
    return {data["reason"] for name, data in hand.observed if name == "engine-dead"}


@pytest.mark.parametrize("died", [True, False])
def test_a_core_that_leaves_with_its_coordinator_is_told_with_it(died: bool) -> None:
    """Its notice may come before anybody has looked; and it does not say for whose end it leaves."""
    hand = LifeHand()
    if died:
        hand.ended[coordinator()] = Gone(-9)
    told = told_when_a_rank_leaves(hand)
    assert told == {"core.1 said that it is leaving (ENGINE_CORE_DEAD)" + ("; coordinator.0 died, too" if died else "")}


@pytest.mark.parametrize("follows", [True, False])
def test_a_core_that_leaves_because_another_one_gave_up_is_told_with_the_end_that_is_the_cause(follows: bool) -> None:
    """That end may be seen a moment later. One that has a reason of its own is told at once."""
    hand = LifeHand()
    hand.words.append((core(1), Leaving("core.0 gave up", follows=follows)))
    hand.later(0.02, lambda: hand.ended.update({coordinator(): Gone(-9)}))
    told = told_when_a_rank_leaves(hand)
    assert told == {"core.1 said that it is leaving (ENGINE_CORE_DEAD): core.0 gave up"
                    + ("; coordinator.0 died, too" if follows else "")}
    assert hand.now == (0.02 if follows else 0.0)
