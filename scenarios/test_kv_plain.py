"""KV-cache events of a publisher as the original's (vLLM's): no epochs, no reports, no snapshots.

Its subscriber has to tell by times whose life a batch is of, and an answer that lost a frame by what it brought.
"""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import cut, delay, drop, duplicate, hang, kill, marked, plan, stall, terminate, truncate, until
from scenarios.guarantees.all import (
    kv_asks_in_time,
    kv_gap_seen,
    kv_mirror_true,
    kv_replay_complete,
    kv_seq,
    kv_tells_what_came,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_kv import GROWING, churn, patient
from scenarios.workloads import recorded

KV = "core.0->subscriber.0/kv"
ANSWERS = "core.0->subscriber.0/replay"
QUESTIONS = "subscriber.0->core.0/replay"
EVENTS = {"enable_kv_cache_events": True}
HEALED = (kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq, kv_asks_in_time)
#: A core that stands still for 1.3 s within a step goes on with it.
UNHURRIED = {"step_s": 2.0, "stall_s": 2.6, "request_s": 4.0}

globals().update(family(__name__, (
    Case("test_plain_publisher_is_asked_for_what_was_lost",
         "Two batches do not come, nor does one of the answer: without a report the question is put again.",
         plan(drop(KV, nth=5), drop(KV, nth=6), drop(ANSWERS, nth=3)), HEALED),
    Case("test_last_batch_of_a_plain_publisher_is_lost",
         "Nothing comes live behind it, and no report tells of it: the subscriber hears of it by what is replayed.",
         plan(drop(KV, nth=28)), HEALED),
    Case("test_connection_to_a_plain_publisher_is_cut",
         "The connection is cut and comes back: who came back is held against what was known before.",
         plan(cut(KV, nth=8, until=until(f"{KV}:send", 20))), HEALED),
    Case("test_plain_publisher_was_silent",
         "It stands still for longer than another would take to be in its place: it is asked before it is believed. "
         "Its first batch is lost while an answer is waited for that no such publisher gives.",
         plan(hang("core.0", at=marked("core.0", Mark.STEP), until=until(seconds=0.45)), drop(KV),
              stall("core.0", at=f"{KV}:send", nth=12, until=until(seconds=1.2))), (kv_tells_what_came,),
         play={"config": lab_config(kv_events=EVENTS, bounds=UNHURRIED)}),
    Case("test_batch_of_a_plain_publisher_is_cut_short",
         "A batch cannot be read, live and in its replay: it is missing like one that did not come. So is the last "
         "one, behind which nothing follows.",
         plan(truncate(KV, nth=5), truncate(ANSWERS, nth=3), truncate(KV, nth=28),
              truncate(ANSWERS, match={"seq": 27})), (kv_asks_in_time, kv_tells_what_came)),
    Case("test_plain_publisher_is_started_again_while_a_gap_is_open",
         "It dies before it was asked for a batch that did not come: the next life's are not taken for it.",
         plan(drop(KV, nth=32), drop(QUESTIONS, nth=2)), (kv_seq, kv_mirror_true, kv_asks_in_time),
         play={"options": Options(without_epochs=True, kill_all_then_restart=True, rest_s=0.1),  # it has asked
               "workload": GROWING}),
    Case("test_plain_publisher_is_started_again_where_it_was",
         "Its last batches are lost, and the next life's first ones: what goes on there is no part of the old one.",
         plan(drop(KV, nth=30, times=23)), (kv_seq, kv_mirror_true, kv_tells_what_came),
         play={"options": Options(without_epochs=True, kill_all_then_restart=True), "workload": GROWING}),
    Case("test_answers_of_a_plain_publisher_hold_nothing",
         "No batch of three answers comes, neither what is asked for nor what is known: it may be another life. Two "
         "more such answers are fewer than three.",
         plan(drop(KV, nth=27), *(drop(ANSWERS, nth=nth, times=3) for nth in (2, 6, 10)),
              drop(ANSWERS, nth=14), drop(ANSWERS, nth=16)),
         (kv_asks_in_time, kv_tells_what_came),
         # It is told to leave amid its wait: earlier, and the second of the two would not be asked for.
         play={"options": Options(without_epochs=True, rest_s=0.15)}),
    Case("test_plain_publisher_was_gone_and_cannot_be_asked",
         "The connection is cut and comes back, and there is no replay socket: what is mirrored is not known any more. "
         "SIGTERM ends the reader.",
         plan(cut(KV, nth=8), terminate("subscriber.0", at=f"{KV}:receive", nth=25)), (kv_tells_what_came,),
         play={"workload": churn(), "config": patient(**EVENTS, replay=False)}),
    Case("test_batches_of_a_plain_publisher_come_late_and_twice",
         "A batch comes behind later ones, another one twice; a reader that is killed asks amid them in its next life.",
         plan(delay(KV, nth=5, until=until(f"{KV}:send", 8)), duplicate(KV, nth=9),
              kill("subscriber.0", at=f"{KV}:receive", nth=15)), (kv_mirror_true, kv_tells_what_came)),
    Case("test_answers_of_a_plain_publisher_hold_only_what_is_doubted",
         "It stands still and goes on, and when it answers its window has passed all that was known before: nothing "
         "joins the two, and the mirror is not known.",
         plan(stall("core.0", at=f"{KV}:send", nth=12, until=until(seconds=1.3)), drop(QUESTIONS, nth=2, times=2),
              delay(QUESTIONS, nth=4, until=until(seconds=0.15))), (kv_asks_in_time,),
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2}, bounds=UNHURRIED)}),
    Case("test_plain_publisher_is_started_again_behind_strange_answers",
         "Two answers hold nothing that is known, and it is started again: another such answer is the first one of its "
         "next life. A batch is lost, long before.",
         plan(drop(KV, nth=10), drop(ANSWERS, match={"seq": 32}, times=3)),
         (kv_seq, kv_mirror_true, kv_tells_what_came),
         play={"options": Options(without_epochs=True, kill_all_then_restart=True, await_death_s=0.7),
               "workload": GROWING}),
    Case("test_subscriber_of_a_plain_publisher_joins_late",
         "It comes when everything has been said, and asks for it from the beginning. The answer takes its time, and "
         "its end comes twice.",
         plan(*(hang("core.0", at=f"{ANSWERS}:send", nth=nth, until=until(seconds=0.2)) for nth in (2, 3)),
              duplicate(ANSWERS, nth=29)),
         (kv_mirror_true, kv_seq, kv_asks_in_time, kv_tells_what_came),
         play={"options": Options(without_epochs=True, late_subscriber=True)}),
), topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-mixed"), config=lab_config(kv_events=EVENTS),
    options=Options(without_epochs=True)))
