"""Histories of the wrong engines that promises name, as they were seen when such an engine was planted."""

from engine.config import LimitsConfig
from engine.topology import tensor_parallel
from faults.plan import Until
from tests.guarantees.build import REQUESTS, RPC, Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_kv import SUBSCRIBER
from tests.guarantees.cases_ring import _calls, _raised

HANDSHAKE = "core.0->frontend.0/handshake"
KV = "core.0->subscriber.0/kv"

# -- before READY


@rejects("handshake-order")
def a_request_is_taken_in_after_hello() -> Builder:
    h = history().observes("frontend.0", "starting").carries(HANDSHAKE, "", "hello")
    return h.observes("frontend.0", "ready", num_gpu_blocks=0, parallel_config={}).called("a", core=False)


@rejects("handshake-order")
def work_is_sent_after_hello() -> Builder:
    h = history().observes("frontend.0", "starting").carries(HANDSHAKE, "", "hello")
    h.carries("core.0->frontend.0/requests", "here").observes("frontend.0", "ready", num_gpu_blocks=0)
    return h.sends(REQUESTS, "a")


@rejects("start-ends")
def a_start_waits_for_a_worker_that_is_dead() -> Builder:
    h = history().observes("frontend.0", "starting").fires("kill", "worker.1/mark:loading").wait(2)
    return h.observes("frontend.0", "start-failed", error="StartupError", reason="worker.1 did not report READY").ends(
        "core.0", "worker.0", "worker.1", at=h.now + .1)


# -- bad frames, and requests that are bad


@accepts("bad-frame-isolated")
def another_request_waits_for_what_the_plan_has_lost() -> Builder:
    h = history().started().called("a").called("b", 1).called("c").sends(REQUESTS, "a").receives(REQUESTS, "a").fires(
        "truncate", f"{REQUESTS}:receive").observes("core.0", "bad-frame", edge=REQUESTS, error="cut short")
    h.fires("drop", "core.0->frontend.0/outputs:receive")
    return h.ended("a", "failed", error="BadRequestError").ended("b", "failed", error="RequestTimeoutError").ended("c")


def _answer(fate: str, **said: object) -> Builder:
    """What the publisher answered is changed on its way."""
    site = "core.0->subscriber.0/replay:receive"
    h = history(topology=tensor_parallel(2, subscribers=1)).started().called("a")
    return h.crosses(site, **said, fate=fate, fault="f1").fires(fate, site, node=SUBSCRIBER)


@accepts("bad-frame-isolated")
def a_report_fails_its_checksum_and_is_logged() -> Builder:
    h = _answer("corrupt", end=True, tag=2, start=1, epoch=1, oldest=0, next=3, count=2)
    return h.observes(SUBSCRIBER, "bad-frame", edge="replay", error="the checksum is wrong").ended("a")


@accepts("bad-frame-isolated")
def a_batch_is_changed_which_has_no_checksum() -> Builder:
    h = _answer("corrupt", seq=2, ts=1.0, epoch=1, payload=7)
    return h.observes(SUBSCRIBER, "bad-frame", edge="kv", error="another one").ended("a")


@rejects("bad-frame-isolated")
def a_report_fails_its_checksum_and_is_taken() -> Builder:
    return _answer("corrupt", end=True, tag=2, start=1, epoch=1, oldest=0, next=3, count=2).ended("a")


@rejects("bad-frame-isolated")
def the_place_of_a_piece_fails_its_checksum_and_is_taken() -> Builder:
    return _answer("corrupt", tag=2, epoch=1, next=3, piece=0, pieces=1, known=1).ended("a")


def _too_long(h: Builder) -> Builder:
    """A hundred tokens for a cache that holds 8 x 16."""
    h.observes("frontend.0", "call", request="long", index=5, prompt=200, max_tokens=3)
    return h.observes("frontend.0", "accepted", request="long", internal="long-0")


@accepts("bad-request-isolated")
def what_can_never_fit_fails_and_says_how_long_it_is() -> Builder:
    h = _too_long(history().started().called("a"))
    return h.ended("long", "failed", error="BadRequestError", reason="the prompt has 200 tokens").ended("a")


@rejects("bad-request-isolated")
def what_can_never_fit_fails_and_does_not_say_why() -> Builder:
    h = _too_long(history().started().called("a"))
    return h.ended("long", "failed", error="BadRequestError", reason="invalid").ended("a")


@rejects("bad-request-isolated")
def what_can_never_fit_ends_the_core() -> Builder:
    return _too_long(history().started().called("a")).dies("long").dies("a")


def _five() -> Builder:
    h = history().started()
    for name in "abcd":
        h.called(name)
    return h.observes("frontend.0", "call", request="e", index=0, prompt=2, max_tokens=3)


@rejects("memory-bounded")
def one_request_too_many_fails_like_a_wrong_one() -> Builder:
    return _five().ended("e", "failed", error="BadRequestError")


@silent("memory-bounded")
def an_id_that_is_in_use_is_refused_as_wrong_where_no_more_are_admitted() -> Builder:
    h = history().started()
    for name in "abcd":
        h.called(name)
    return h.observes("frontend.0", "call", request="d", index=1, prompt=2, max_tokens=3).ended(
        "d", "failed", error="BadRequestError", internal="", index=1)


@rejects("memory-bounded")
def longer_prompts_are_in_flight_than_the_limit_allows() -> Builder:
    return history(limits=LimitsConfig(max_request_bytes=2)).started().called("a").called("b", 1)


@silent("memory-bounded")
def the_same_prompts_one_behind_the_other() -> Builder:
    return history(limits=LimitsConfig(max_request_bytes=2)).started().request("a").request("b", 1)


# -- streams, told by their tokens


@rejects("tokens-in-order")
def a_doubled_output_is_delivered_twice_in_numbered_places() -> Builder:
    return history().started().called("a").streams("a", [7], [7], [8], [9]).ended("a")


@rejects("tokens-in-order")
def two_outputs_that_swapped_are_delivered_as_they_come() -> Builder:
    return history().started().called("a").streams("a", [8], [7], [9]).ended("a")


@rejects("tokens-in-order")
def tokens_of_another_request_are_delivered() -> Builder:
    return history().started().called("a").called("b", 1).streams("a", [5, 6]).ended("a").ended("b")


@silent("tokens-in-order")
def a_wrong_token_is_in_nobodys_reference() -> Builder:
    return history().started().called("a").streams("a", [7, 3, 9]).ended("a")


# -- aborts


def _aborted() -> Builder:
    h = history().started().called("a").sends(REQUESTS, "add").receives(REQUESTS, "add")
    h.observes("frontend.0", "abort", request="a", internal="a-0").sends(REQUESTS, "abort").ended("a", "aborted")
    return h.receives(REQUESTS, "abort")


@accepts("abort-is-final")
def a_step_was_about_to_begin_when_the_abort_came() -> Builder:
    return _aborted().crosses("core.0/mark:step").observes("core.0", "request", request="a-0", action="abort").observes(
        "core.0", "freed", request="a-0")


@silent("abort-is-final")
def the_request_had_finished_when_its_abort_came() -> Builder:
    h = _aborted().crosses("core.0/mark:step").observes("core.0", "freed", request="a-0")
    return h.observes("core.0", "request", request="a-0", action="unknown-abort")


@rejects("abort-is-final")
def the_core_says_that_it_does_not_know_what_it_holds() -> Builder:
    h = _aborted().observes("core.0", "request", request="a-0", action="unknown-abort")
    return h.observes("core.0", "freed", request="a-0")


def _heeds_an_abort_before_what_it_aborts(h: Builder) -> Builder:
    h.called("a", core=False).sends(REQUESTS, "add").receives(REQUESTS, "add")
    h.observes("frontend.0", "abort", request="a", internal="a-0").sends(REQUESTS, "abort").ended("a", "aborted")
    h.receives(REQUESTS, "abort").observes("core.0", "request", request="a-0", action="unknown-abort")
    return h.observes("core.0", "request", request="a-0", action="add").wait(.1).observes(
        "core.0", "freed", request="a-0")


@rejects("abort-is-final")
def the_core_heeds_an_abort_before_what_it_aborts() -> Builder:
    return _heeds_an_abort_before_what_it_aborts(history().started())


@silent("abort-is-final")
def what_is_aborted_was_late() -> Builder:
    h = history().started().fires("delay", f"{REQUESTS}:receive", until=Until(seconds=.1))
    return _heeds_an_abort_before_what_it_aborts(h).releases()


@rejects("abort-is-final")
def the_core_computes_on_and_says_nothing() -> Builder:
    return _aborted().crosses("core.0/mark:step").crosses("core.0/mark:step").observes("core.0", "freed", request="a-0")


@silent("abort-is-final")
def the_thread_that_reads_hangs_with_the_abort_in_its_hands() -> Builder:
    h = _aborted().fires("hang", f"{REQUESTS}:receive", nth=2, until=Until(seconds=.1))
    h.crosses("core.0/mark:step").crosses("core.0/mark:step").observes("core.0", "freed", request="a-0")
    return h.releases().observes("core.0", "request", request="a-0", action="unknown-abort")


@rejects("abort-is-final")
def the_core_computes_on_when_the_thread_has_come_to_the_abort() -> Builder:
    h = _aborted().fires("hang", f"{REQUESTS}:receive", nth=2, until=Until(seconds=.1)).wait(.1).releases()
    return h.wait(.1).crosses("core.0/mark:step").crosses("core.0/mark:step").observes(
        "core.0", "freed", request="a-0")


@silent("bad-request-isolated")
def what_can_never_fit_is_aborted_by_its_caller() -> Builder:
    return _too_long(history().started()).observes("frontend.0", "abort", request="long").ended("long", "aborted")


@rejects("abort-is-final")
def an_id_inside_is_given_twice() -> Builder:
    h = history().started().called("a", internal="a").ended("a", "aborted", index=0)
    return h.called("a", 1, internal="a").ended("a", index=1)


@rejects("lost-request-is-bounded")
def the_core_computes_on_what_was_given_up() -> Builder:
    h = history().started().called("a").sends(REQUESTS, "add").receives(REQUESTS, "add").streams("a", [7])
    h.fires("drop", "core.0->frontend.0/outputs:receive").wait(.6)
    h.ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)
    return h.crosses("core.0/mark:step").crosses("core.0/mark:step").observes("core.0", "freed", request="a-0")


# -- rings and calls


@rejects("ring-no-overwrite")
def a_reader_finds_a_message_of_two_rounds_later() -> Builder:
    h = history().started()
    for position in range(5):
        h.writes(RPC[1], position, stores=False)
    return h.reads(RPC[1], 0, "m4", stores=False)


def _late_payload() -> Builder:
    h = history().started().writes(RPC[1], 0, overflow=True)
    return h.fires("delay", "core.0->worker.1/overflow:receive", until=Until(seconds=.2))


def _times_out(h: Builder, seconds: float) -> Builder:
    began = h.now
    return h.wait(seconds).observes("worker.1", "queue-wait", ring="rpc", began=began, deadline=began + seconds,
                                    ended=h.now + seconds, outcome="timeout")


@rejects("ring-overflow-ordered")
def a_reader_waits_in_vain_for_a_payload_that_is_there() -> Builder:
    return _times_out(_times_out(_late_payload(), .25), .2)


@silent("ring-overflow-ordered")
def a_reader_waits_until_just_after_its_payload_has_come() -> Builder:
    return _times_out(_late_payload(), .25)


@silent("ring-overflow-ordered")
def a_writer_stands_still_between_a_flag_and_its_payload() -> Builder:
    h = history().started().writes(RPC[1], 0, overflow=True)
    h.fires("hang", "core.0->worker.1/overflow:send", until=Until(seconds=.9))
    return _times_out(_times_out(h.wait(.2), .2), .2).wait(.5).releases()


@rejects("rpc-any-rank-fails-fast")
def the_next_step_follows_a_failure() -> Builder:
    h = _raised(1).observes("core.0", "rpc-failed", call=0, rank=1, error="x").observes(
        "core.0", "rpc-call", call=1, method="execute_model", output_rank=0).wait(.01)
    return h.observes("frontend.0", "engine-dead", reason="no answer").dies("a")


def _takes(h: Builder, rank: int, *calls: int, executes: bool = True) -> Builder:
    for call in calls:
        h.reads(RPC[rank], call, stores=False)
        h.observes(f"worker.{rank}", "queue-wait", ring="rpc", began=h.now - .1, deadline=None, ended=h.now,
                   outcome="ok")
        if executes:
            h.executes(f"worker.{rank}", call=call, method="m")
    return h


@accepts("workers-in-step")
def both_workers_execute_what_they_take() -> Builder:
    return _takes(_takes(_calls(0, 0), 0, 0, 1), 1, 0, 1)


@rejects("workers-in-step")
def a_worker_takes_the_next_call_and_has_not_executed_the_one_before() -> Builder:
    h = _takes(_calls(0, 0, 0), 0, 0, 1, 2)
    return _takes(_takes(_takes(h, 1, 0), 1, 1, executes=False), 1, 2)


@rejects("workers-in-step")
def a_worker_waits_for_the_next_call_and_has_not_executed_the_one_before() -> Builder:
    h = _takes(_takes(_takes(_calls(0, 0), 0, 0, 1), 1, 0), 1, 1, executes=False)
    return h.wait(.2).observes("worker.1", "queue-wait", ring="rpc", began=h.now - .1, deadline=None, ended=h.now,
                               outcome="timeout")


# -- events


def _next_life(digest: str) -> Builder:
    h = history(subscribers=1).observes(SUBSCRIBER, "born", pid=9).started()
    h.observes("core.0", "kv-published", seq=0, took=.0001).carries(KV, "b0").observes(
        SUBSCRIBER, "kv-batch", seq=0, source="live")
    h.observes("core.0@1", "kv-published", seq=0, took=.0001).crosses(f"{KV}:send", "other", life=1)
    return h.receives(KV, digest)


@rejects("kv-seq")
def a_batch_of_the_next_life_is_taken_for_one_that_came_before() -> Builder:
    return _next_life("other")


@silent("kv-seq")
def nothing_has_come_of_the_next_life() -> Builder:
    return _next_life("b0")


@rejects("kv-gap-seen")
def a_subscriber_that_is_still_there_at_the_end_never_asked() -> Builder:
    h = history(subscribers=1).observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(2):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    return h.observes(SUBSCRIBER, "kv-batch", seq=0, source="live").wait(2).observes("frontend.0", "closing")
