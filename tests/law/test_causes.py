"""What callers, the lab and the configuration explain, and the near miss of each that they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.config import CacheConfig, KVEventsConfig, LimitsConfig, SchedulerConfig
from engine.topology import data_parallel, external, hybrid, offline
from faults.plan import Until
from scenarios.history.play import Intruder, Options
from scenarios.history.verdicts import Verdict
from scenarios.law.causes import CAUSES
from scenarios.law.incidents import Sort, incidents
from scenarios.law.law import cause_of
from tests.guarantees.build import WORKLOAD, Builder, bounds, history

LAW = "nothing-without-cause"
EVENTS = KVEventsConfig(enable_kv_cache_events=True, hwm=2)
RAW = {**WORKLOAD, "phases": [{"actions": [{"kind": "raw", "args": ["00"]}], "steps": None}]}
EMPTY = {**WORKLOAD, "requests": [{**WORKLOAD["requests"][0], "prompt_token_ids": []}]}


def _aborted(asked: bool) -> Builder:
    h = history().called("a")
    return (h.observes("frontend.0", "abort", request="a") if asked else h).ended("a", "aborted")


def _impossible(**play: object) -> Builder:
    return history().promised(**play).called("a").ended("a", "failed", error="BadRequestError")


def _refused(limit: int) -> Builder:
    h = history(limits=LimitsConfig(max_requests=limit)).called("a")
    return h.observes("frontend.0", "call", request="b", index=1).ended("b", "refused").ended("a")


def _call(method: str) -> Builder:
    return history().called("a").ended("a").observes("frontend.0", "utility", method=method, failure="no such call")


def _bad_frame(node: str = "core.0", **play: object) -> Builder:
    return history(subscribers=1).promised(**play).observes(node, "bad-frame", edge="requests", error="no request")


def _late_abort(action: str) -> Builder:
    return history().request("a").observes("core.0", "request", request="a-0", action=action, reason="")


def _wait(closing: bool) -> Builder:
    h = history().request("a")
    h = h.observes("frontend.0", "closing") if closing else h
    return h.observes("worker.1", "parent-gone")


def _ended_with_another(closing: bool) -> Builder:
    """One of two cores cannot start; the other one, which does not hear yet, is ended, by its client if that closes."""
    h = history(tp=1, topology=data_parallel(2), data_parallel_size=2).observes("frontend.0", "starting")
    h.fires("exit", "core.0/mark:born").ends("core.0", exitcode=1)
    h.observes("frontend.0", "start-failed", error="StartupError", reason="core.0 died")
    return (h.observes("frontend.0", "closing", kept={}) if closing else h).ends("core.1", exitcode=-15)


def _leaves(why: str) -> Builder:
    return history().request("a").observes("frontend.0", "closing").observes("core.0", why, reason="SIGTERM", queued=0)


def _killed(again: bool) -> Builder:
    h = history().request("a")
    h.promised(options=Options(kill_all_then_restart=again))
    return h.ends("core.0", "frontend.0", killed_by_lab=True, exitcode=-9).lab(leftovers=[])


def _gap(options: Options | None = None, **config: object) -> Builder:
    h = history(subscribers=1, **config).observes("subscriber.0", "born", pid=9)
    h.promised(options=options or Options())
    for seq in range(4):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    return h.observes("subscriber.0", "kv-gap", first=0, last=1)


def _start(long_name: bool) -> Builder:
    return history().promised(options=Options(long_runtime_dir=long_name)).observes("frontend.0", "starting").observes(
        "frontend.0", "start-failed", error="ConfigError", reason="the path is too long")


def _executor(name: str, tp: int = 2) -> Builder:
    return history(tp=tp, distributed_executor_backend=name).observes("frontend.0", "starting").observes(
        "core.0", "dying", reason="ConfigError: distributed_executor_backend").observes(
        "frontend.0", "start-failed", error="ConfigError", reason="distributed_executor_backend")


def _stays(publisher: str) -> Builder:
    h = history(subscribers=1).started().request("a").observes("subscriber.0", "born", pid=9)
    if publisher == "dies":
        h.fires("kill", "core.0/mark:step", node="core.0")
    return h.ends("subscriber.0", alive=True)


def _asks_and_leaves(*, first: bool) -> Builder:
    """A subscriber asks once more, and is done; it leaves before it is answered, or behind that."""
    h = history(subscribers=1).started().request("a")
    h.observes("subscriber.0", "born", pid=9).crosses("subscriber.0/mark:born")
    h = h.observes("subscriber.0", "bye", reason="done") if first else h
    h.observes("core.0", "not-sent", site="core.0->subscriber.0/replay:send", nth=1)
    h.observes("core.0", "replay-ended", edge="replay", error="replay: its peer is not connected")
    return h if first else h.observes("subscriber.0", "bye", reason="done")


def _stays_behind(lasts_s: float) -> Builder:
    """The thread that answers it hangs, and its engine is shut down 0.5 s later."""
    h = history(subscribers=1).started().request("a").observes("subscriber.0", "born", pid=9)
    h.fires("hang", "core.0->subscriber.0/replay:send", node="core.0", until=Until(seconds=lasts_s)).wait(0.5)
    h = h.releases() if lasts_s <= 0.5 else h
    h.observes("frontend.0", "closing", kept={}).wait(0.1).ends("core.0", "worker.0", "worker.1")
    h.observes("frontend.0", "closed").observes("frontend.0", "bye", reason="done").ends("frontend.0")
    return h.wait(0.1).ends("subscriber.0", alive=True)


@pytest.mark.parametrize(("lasts_s", "explained"), [(9.0, True), (0.5, False)])
def test_who_is_not_answered_to_the_end_is_still_there(lasts_s: float, explained: bool) -> None:
    h = _stays_behind(lasts_s).history()
    found = [cause_of(h, incident) for incident in incidents(h) if incident.sort is Sort.OVERSTAY]
    assert found == (["whom it follows is gone"] if explained else [None])


def _full(queue: str) -> Builder:
    h = history().promised(options=Options(queue=queue)).crosses("core.0/mark:ring-full", ring="rpc")
    return h.wait(1).observes(
        "core.0", "queue-wait", ring="rpc", began=1.0, deadline=2.0, ended=2.0, outcome="timeout")


def _canary(declared: bool) -> Builder:
    h = history().called("a").ended("a", "failed", error="RequestTimeoutError")
    return h.promised(expected={"hwm0-no-loss": Verdict.BROKEN}) if declared else h


def _refuses(**differs: object) -> Builder:
    h = history(tp=1, topology=external(2), data_parallel_size=2).promised(options=Options(differs=differs))
    h.observes("frontend.0", "starting").observes("core.1", "dying", reason="StartupError: it differs", queued=0)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="core.1 refuses: it differs")


def _offline(*, closing: bool = False, missed: bool = False) -> Builder:
    """One of two ranks is dead for its client: the other one was shut down, or it missed it in a forward."""
    h = history(tp=1, topology=offline(2), data_parallel_size=2).called("a")
    if closing:
        h.observes("frontend.1", "closing", kept={})
    if missed:
        h.crosses("core.0/collective:enter", operation="keep_step", wave=0, step=0).wait(6.0)
    return h.observes("frontend.0", "engine-dead", reason="core.1 is gone", core=0).dies("a", reason="core.1 is gone")


@pytest.mark.parametrize(("fate", "comes", "explained"), [
    ("drop", False, True), ("delay", True, False), (None, False, False)])
def test_a_rank_that_never_got_what_its_client_asked_has_nothing_to_do(fate: str | None, comes: bool,
                                                                       explained: bool) -> None:
    """Of two that nobody wakes the first one misses it."""
    h = history(tp=1, topology=offline(2), data_parallel_size=2)
    h.called("a").called("b", node="frontend.1", core=False)
    if fate is not None:
        h.fires(fate, "frontend.1->core.1/requests:receive", node="core.1")
    h.crosses("core.0/collective:enter", operation="keep_step", wave=0, step=0).wait(1.0)
    if comes:
        h.observes("core.1", "request", request="b-0", action="add", reason="")
    h.wait(6.0).observes("core.0", "dying", reason="core.1 did not enter", queued=0)
    found = [cause_of(h.history(), incident) for incident in incidents(h.history()) if incident.sort is Sort.DEAD]
    missed = "one of those that step together was asked nothing in a wave"
    assert len(found) == 1 and (found == [missed]) == explained


def _stays_stopped(node: str, *, owner: str = "dies", lasts_s: float = 9.0) -> Builder:
    """By the plan it stands still, and it is there when all is over."""
    h = history(tp=1, subscribers=1).started()
    if owner == "dies":
        h.fires("kill", "frontend.0/mark:born").ends("frontend.0", exitcode=-9)
    elif owner == "closes":
        h.observes("frontend.0", "closing", kept={}).observes("frontend.0", "closed").ends("frontend.0")
    h.fires("stall", f"{node}/mark:born", node=node, until=Until(seconds=lasts_s)).wait(min(lasts_s, 5.0))
    if lasts_s < 5.0:
        h.releases().wait(1.0)
    return h.observes("subscriber.0", "born", pid=9).ends(node, alive=True)


@pytest.mark.parametrize(("node", "owner", "lasts_s", "explained"), [
    ("core.0", "dies", 9.0, True), ("core.0", "closes", 9.0, False), ("core.0", "lives", 9.0, False),
    ("core.0", "dies", 1.0, False), ("subscriber.0", "lives", 9.0, True), ("subscriber.0", "lives", 1.0, False)])
def test_what_stands_still_to_the_end_is_there_where_nobody_would_end_it(
        node: str, owner: str, lasts_s: float, explained: bool) -> None:
    h = _stays_stopped(node, owner=owner, lasts_s=lasts_s).history()
    found = [cause_of(h, incident) for incident in incidents(h) if incident.sort is Sort.OVERSTAY]
    assert found == (["it stands still, and nobody is left to end it"] if explained else [None])


def _hears_of_the_coordinator(*, closing: bool) -> Builder:
    """A client of cores that the head has not started sees that their coordinator is gone."""
    h = history(tp=1, topology=hybrid(2, 2), data_parallel_size=4)
    if closing:
        h.observes("frontend.0", "closing", kept={}).wait(0.01)
    return h.observes("frontend.1", "coordinator-dead", reason="coordinator.0 died")


def _second_gives_up(*, first: bool = True) -> Builder:
    """Of a rank's workers the second one came to a forward before the first one did, and gives the other rank up first;
    or it has come to none.
    """
    h = history(topology=offline(2, tp=2), data_parallel_size=2, bounds=bounds(collective_s=0.8))
    if first:
        h.crosses("worker.1/collective:enter", operation="keep_step", wave=0, step=0)
    h.wait(0.3).crosses("worker.0/collective:enter", operation="keep_step", wave=0, step=0).wait(0.5)
    return h.observes("worker.1", "rpc-raised", call=2, method="execute_model",
                      error="CollectiveError: worker.1.1 did not enter within 0.8 s")


def test_whoever_of_a_rank_came_first_to_a_forward_may_give_up_the_others_first() -> None:
    assert _second_gives_up().judged(LAW).verdict is Verdict.HELD
    assert _second_gives_up(first=False).judged(LAW).verdict is Verdict.BROKEN


def _misses_one(*, closing: bool = False, left: bool = True) -> Builder:
    """A rank whose forward fails, for another one has left; and whether their client is closing."""
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2).request("a")
    if closing:
        h.observes("frontend.0", "closing", kept={})
    if left:
        h.observes("core.1", "dying", reason="SIGTERM", queued=0)
    return h.observes("core.0", "rpc-failed", call=3, rank=0, error="CollectiveError: connection closed by core.1")


def test_a_forward_that_fails_while_all_are_there_has_no_cause_in_that_its_client_closes() -> None:
    assert _misses_one(closing=True, left=False).judged(LAW).verdict is Verdict.BROKEN


def _noise(edge: str) -> Builder:
    h = history(subscribers=1).observes("subscriber.0", "malformed", edge=edge)
    return h.observes("subscriber.0", "bad-frame", edge="kv", error="?")


def _intrudes(said: int, edge: str = "core.0->frontend.0/outputs", at: str = "outputs") -> Builder:
    """Three messages are dropped."""
    h = history().promised(options=Options(intruders=[Intruder(at=at, kind="PUSH", bad=[[b"?"]] * said)])).request("a")
    for _ in range(3):
        h.observes("frontend.0", "bad-frame", edge=edge, error="no outputs")
    return h


@pytest.mark.parametrize("edge", ["requests", "core.0->frontend.0/handshake"])
def test_an_intruder_explains_what_is_dropped_where_it_speaks_and_nowhere_else(edge: str) -> None:
    assert _intrudes(3, edge).judged(LAW).verdict is Verdict.BROKEN
    assert _intrudes(3, at="client.1.outputs.0").judged(LAW).verdict is Verdict.BROKEN


def _steps(asked: int, first_fails: bool = False) -> Builder:
    """A client asks for steps so often in a phase that has some of its own; one call of two fails."""
    action = {"kind": "utility", "method": "run_steps", "args": [12]}
    phases = [{"actions": [action] * (asked - 1), "steps": 3}]
    h = history().promised(workload={**WORKLOAD, "phases": phases}).request("a")
    for method, failed in (("get_stats", False), ("run_steps", not first_fails), ("run_steps", first_fails)):
        h.observes("frontend.0", "utility", method=method, args=[3], result=None if failed else 12,
                   failure="steps are being run already" if failed else "")
    return h


def _steers(asked: str) -> Builder:
    """A client asks ranks that step together for this, and steps are refused."""
    phases = [{"actions": [{"kind": "utility", "method": asked, "args": []}], "steps": 0}]
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2).promised(
        workload={**WORKLOAD, "phases": phases})
    return h.observes("frontend.0", "utility", method="run_steps", args=[3], result=None, failure="not paused")


def test_the_last_of_two_calls_for_steps_does_not_fail() -> None:
    assert _steps(2, first_fails=True).judged(LAW).verdict is Verdict.BROKEN


def _strange(what: str, by: str) -> Builder:
    """`by`: whom what cannot be has reached."""
    h = history(subscribers=2).promised(options=Options(misnumbered_batch=True))
    if what == "kv-gap":
        return h.observes(by, "malformed", edge="kv").observes("subscriber.0", "kv-gap", first=1, last=999)
    h.observes(by, "impossible", seq=1, hashes=[], named=[], sentences=1)
    return h.observes("subscriber.0", "kv-mirror", hashes=[], next_seq=1, unknown_since=None, errors=["?"])


#: By cause: what it explains, and what looks like it and has no cause.
CASES: dict[str, tuple[Callable[[], Builder], Callable[[], Builder]]] = {
    "its caller aborted it": (lambda: _aborted(True), lambda: _aborted(False)),
    "it cannot be served": (lambda: _impossible(workload=EMPTY), _impossible),
    "more than is admitted": (lambda: _refused(1), lambda: _refused(2)),
    "the core cannot do what is asked": (lambda: _call("no_such_call"), lambda: _call("ping")),
    "steps are being run already": (lambda: _steps(2), lambda: _steps(1)),
    "ranks that step together are not paused": (lambda: _steers("run_steps"), lambda: _steers("pause_scheduler")),
    "the workload sends bytes that are no request": (lambda: _bad_frame(workload=RAW), _bad_frame),
    "somebody speaks with it who is none of its peers": (lambda: _intrudes(3), lambda: _intrudes(2)),
    "it was over when its abort came": (lambda: _late_abort("unknown-abort"), lambda: _late_abort("duplicate")),
    "a subscriber asks what none asks": (
        lambda: _bad_frame(options=Options(rude_subscriber=True)),
        lambda: _bad_frame("subscriber.0", options=Options(rude_subscriber=True))),
    "a publisher says what none says": (lambda: _noise("kv"), lambda: _noise("replay")),
    "whom it follows is gone": (lambda: _stays("dies"), lambda: _stays("lives")),
    "who follows it was done and has left": (
        lambda: _asks_and_leaves(first=True), lambda: _asks_and_leaves(first=False)),
    "it stands still, and nobody is left to end it": (
        lambda: _stays_stopped("core.0"), lambda: _stays_stopped("core.0", owner="closes")),
    "its engine was shut down": (lambda: _wait(True), lambda: _wait(False)),
    "one of those that it steps with has left before it": (lambda: _misses_one(closing=True), _misses_one),
    "another core of its client could not start": (lambda: _ended_with_another(True),
                                                   lambda: _ended_with_another(False)),
    "its engine was asked to leave": (lambda: _leaves("dying"), lambda: _leaves("bad-frame")),
    "one of those that it steps with was shut down": (lambda: _offline(closing=True), _offline),
    "the head was shut down, and the coordinator with it": (
        lambda: _hears_of_the_coordinator(closing=True), lambda: _hears_of_the_coordinator(closing=False)),
    "one of those that step together was asked nothing in a wave": (lambda: _offline(missed=True), _offline),
    "some are configured otherwise than others": (lambda: _refuses(sync_interval=7), _refuses),
    "its reader is slower than it waits": (lambda: _full("slow"), lambda: _full("few")),
    "the lab killed its engine": (lambda: _killed(True), lambda: _killed(False)),
    "it joined late": (lambda: _gap(Options(late_subscriber=True)), _gap),
    "its directory's name is too long": (lambda: _start(True), lambda: _start(False)),
    "its executor cannot be had": (lambda: _executor("uni"), lambda: _executor("uni", 1)),
    "more events than a queue holds": (lambda: _gap(kv_events=EVENTS), _gap),
    "a canary": (lambda: _canary(True), lambda: _canary(False)),
}


def test_every_cause_has_its_case() -> None:
    assert [cause.name for cause in CAUSES] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_law_accepts_what_has_this_cause(name: str) -> None:
    cell = CASES[name][0]().judged(LAW)
    assert cell.verdict is Verdict.HELD, [evidence.text for evidence in cell.evidence]
    assert name in " ".join(evidence.text for evidence in cell.evidence)


@pytest.mark.parametrize("name", CASES)
def test_the_law_rejects_what_only_looks_like_it(name: str) -> None:
    assert CASES[name][1]().judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize("what", ("kv-gap", "kv-mirror"))
def test_what_cannot_be_explains_what_its_own_reader_says(what: str) -> None:
    assert _strange(what, "subscriber.0").judged(LAW).verdict is Verdict.HELD
    assert _strange(what, "subscriber.1").judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize(("name", "known"), [("ray", False), ("mp", True), ("auto", True)])
def test_an_executor_that_nobody_knows_cannot_be_had(name: str, known: bool) -> None:
    assert _executor(name).judged(LAW).verdict is (Verdict.BROKEN if known else Verdict.HELD)


LONG = {**WORKLOAD, "requests": [{**WORKLOAD["requests"][0], "prompt_token_ids": [1] * 14}]}


@pytest.mark.parametrize(("blocks", "longest", "fails"), [
    (8, None, False), (7, None, True), (8, 14, True), (8, 15, False)])
def test_a_request_fails_that_needs_more_than_the_cache_or_the_model_has(
        blocks: int, longest: int | None, fails: bool) -> None:
    """14 tokens and the first two of three answers are kept: 16, in blocks of two."""
    h = history(cache=CacheConfig(num_gpu_blocks=blocks, block_size=2),
                scheduler=SchedulerConfig(max_model_len=longest))
    cell = h.promised(workload=LONG).called("a").ended("a", "failed", error="BadRequestError").judged(LAW)
    assert cell.verdict is (Verdict.HELD if fails else Verdict.BROKEN)


@pytest.mark.parametrize(("args", "cannot"), [
    (("run_steps", 0), True), (("run_steps", 1), False), (("run_steps",), True), (("ping", 7, 2), True),
    (("ping", "x", 2), False),
    (("ping", "xy", 1 << 19), False), (("ping", "xy", (1 << 19) + 1), True),
    (("ping", "x", -1), True), (("ping", 7, 1), False), (("collective_rpc", "check_health"), False),
    (("collective_rpc", "execute_model"), True), (("collective_rpc", "check_health", 0), True),
    (("get_stats",), False)])
def test_what_cannot_be_done_is_refused_by_every_core(args: tuple, cannot: bool) -> None:
    h = history().called("a").ended("a")
    h.observes("frontend.0", "utility", method=args[0], args=list(args[1:]), result=None, failure="no")
    assert h.judged(LAW).verdict is (Verdict.HELD if cannot else Verdict.BROKEN)


def test_bytes_that_are_no_request_explain_a_refusal_and_nothing_else_that_is_strange() -> None:
    for action, verdict in (("refused", Verdict.HELD), ("duplicate", Verdict.BROKEN)):
        h = history().promised(workload=RAW).request("a").observes("core.0", "request", request="x", action=action)
        assert h.judged(LAW).verdict is verdict


@pytest.mark.parametrize(("core", "verdict"), [(0, Verdict.HELD), (1, Verdict.BROKEN)])
def test_an_abort_comes_too_late_to_the_core_that_was_asked_and_to_no_other(core: int, verdict: Verdict) -> None:
    h = history(tp=1, topology=data_parallel(2), data_parallel_size=2)
    h.observes("frontend.0", "call", request="a", index=0, prompt=2, max_tokens=3)
    h.observes("frontend.0", "accepted", request="a", internal="a-0", core=0)
    h.observes("core.0", "request", request="a-0", action="add", reason="").ended("a")
    h.observes(f"core.{core}", "request", request="a-0", action="unknown-abort", reason="")
    assert h.judged(LAW).verdict is verdict


def test_no_cause_explains_a_request_that_never_ends_or_a_process_that_finds_itself_wrong() -> None:
    assert not any(sort in cause.sorts for cause in CAUSES for sort in (Sort.UNHEARD, Sort.WRONG))


@pytest.mark.parametrize(("printed", "verdict"), [
    ("RuntimeError: planted by the plan", Verdict.HELD), ("SystemExit: 1", Verdict.HELD),
    ("RuntimeError: planted by another", Verdict.BROKEN), ("SystemExit: 4", Verdict.BROKEN),
    ("OSError: [Errno 9] Bad file descriptor", Verdict.BROKEN)])
def test_an_exception_is_printed_only_where_a_fault_has_raised_it(printed: str, verdict: Verdict) -> None:
    h = history(tp=1).started().request("a")
    h.fires("raise", "frontend.0/mark:dying").fires("exit", "core.0/mark:dying")
    assert h.lab(printed=[printed]).judged(LAW).verdict is verdict
    assert history(tp=1).started().request("a").lab(printed=[printed]).judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize(("program", "verdict"), [("sockets", Verdict.HELD), ("", Verdict.BROKEN)])
def test_what_a_program_s_own_handler_raises_may_be_printed(program: str, verdict: Verdict) -> None:
    h = history(tp=1).promised(options=Options(program=program)).started().request("a")
    assert h.lab(printed=["InterruptedError: "]).judged(LAW).verdict is verdict


def test_who_is_asked_to_leave_may_print_that() -> None:
    h = history(tp=1).started().request("a").lab(printed=["SystemExit: SIGTERM"])
    assert h.judged(LAW).verdict is Verdict.HELD
