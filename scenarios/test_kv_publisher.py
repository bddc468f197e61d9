"""KV-cache events: what a publisher owes whatever its subscribers do, and what a subscriber hears of a bad one."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import delay, drop, hang, marked, plan, raises, terminate, until
from scenarios.guarantees.all import (
    bad_frame_isolated,
    kv_answers_exact,
    kv_gap_seen,
    kv_gap_too_old,
    kv_mirror_true,
    kv_replay_complete,
    kv_sent_once,
    kv_seq,
    kv_tells_what_came,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_kv import churn, patient
from scenarios.workloads import add, recorded, utility

KV = "core.0->subscriber.0/kv"
ANSWERS = "core.0->subscriber.0/replay"
QUESTIONS = "subscriber.0->core.0/replay"
EVENTS = {"enable_kv_cache_events": True}
#: A window of two batches, and a cache for all that `churn` leaves.
MANY_BLOCKS = lab_config(kv_events={**EVENTS, "buffer_steps": 2}, cache={"num_gpu_blocks": 600},
                         bounds={"request_s": 30.0})
#: Everything that a publisher owes who follows it.
OWED = (kv_sent_once, kv_answers_exact, kv_mirror_true, kv_seq)

globals().update(family(__name__, (
    Case("test_batch_cannot_be_sent",
         "The publisher's socket fails for one batch: that is told, the next ones go on, and replay brings it.",
         plan(raises("core.0", at=f"{KV}:send", nth=5)), (kv_mirror_true, kv_seq)),
    Case("test_answer_cannot_be_sent",
         "The publisher's socket fails in the midst of an answer: that is told, and the next question is answered.",
         plan(drop(KV, nth=5), raises("core.0", at=f"{ANSWERS}:send", nth=3)), (kv_mirror_true, kv_tells_what_came)),
    Case("test_publisher_has_still_to_send_when_the_engine_ends",
         "The publisher's thread stands still while the engine is asked to leave: what waits is sent before it goes.",
         plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=12),
              hang("core.0", at=f"{KV}:send", nth=5, until=until(seconds=0.9))), (kv_sent_once,)),
    Case("test_publisher_has_more_to_send_than_time_when_the_engine_ends",
         "The publisher's thread stands still for so long that the engine's patience is over: the rest is not sent.",
         plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=12), *(
             hang("core.0", at=f"{KV}:send", nth=nth, until=until(seconds=0.45)) for nth in (5, 6, 7)),
              terminate("subscriber.0", at=f"{KV}:receive", nth=6)),
         (kv_sent_once,)),
    Case("test_state_is_of_batches_that_never_came",
         "Batches are older than the window, and no later one comes live: the state tells how far the publisher is.",
         plan(drop(KV, nth=15, times=3), drop(KV, nth=20, times=9),
              delay(QUESTIONS, nth=3, until=until(f"{KV}:send", 28))), (kv_mirror_true, kv_gap_too_old,
                                                                       kv_tells_what_came),
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_last_batches_find_the_queue_full",
         "The publisher's thread stands still until the last three batches find its queue full: that is told. Who asks "
         "meanwhile hears of what was sent.",
         plan(hang("core.0", at=f"{KV}:send", nth=21, until=until(marked("core.0", Mark.KV_DROPPED), 3)),
              drop(KV, nth=5), delay(QUESTIONS, nth=2, until=until(marked("core.0", Mark.KV_DROPPED)))),
         (kv_sent_once, kv_seq, kv_gap_too_old),
         play={"config": lab_config(kv_events={**EVENTS, "max_queue_size": 4})}),
    Case("test_batch_is_lost_behind_one_that_found_the_queue_full",
         "The publisher's thread stands still until a batch finds its queue full, and a later one is lost on its way: "
         "whoever asks for that has it, though the window lacks the other.",
         plan(hang("core.0", at=f"{KV}:send", nth=6, until=until(marked("core.0", Mark.KV_DROPPED))),
              drop(KV, nth=14)),
         (kv_seq, kv_answers_exact),
         play={"config": lab_config(kv_events={**EVENTS, "max_queue_size": 4})}),
    Case("test_events_have_a_topic",
         "Events carry a topic, and any number of them may wait: a lost one is replayed to who subscribed to it.",
         plan(drop(KV, nth=5)), OWED,
         play={"config": lab_config(kv_events={**EVENTS, "topic": "kv@0", "max_queue_size": 0})}),
    Case("test_cache_is_reset_while_it_is_followed",
         "The cache is cleared between two requests, and a batch around it is lost: the mirror is cleared, too.",
         plan(drop(KV, nth=3)), OWED,
         play={"workload": recorded("pair").then(add(0), steps=40).then(
             utility("reset_prefix_cache"), add(1))}),
    Case("test_publisher_sends_what_is_no_event",
         "A subscriber hears messages that are none before the true ones of each socket: it drops each, and says so.",
         plan(drop(KV, nth=5)), (bad_frame_isolated, kv_gap_seen, kv_replay_complete, kv_mirror_true),
         play={"options": Options(noisy_publisher=True), "config": lab_config(kv_events={**EVENTS, "topic": "kv"})}),
    Case("test_subscriber_leaves_amid_its_answer",
         "Who asked has left when the rest of its answer is due: that is told, and the engine goes on.",
         plan(drop(KV, nth=26), terminate("subscriber.0", at=f"{ANSWERS}:receive", nth=2),
              hang("core.0", at=f"{ANSWERS}:send", nth=3, until=until(seconds=0.5))), (kv_sent_once,),
         play={"config": lab_config(kv_events=EVENTS, bounds={"replay_s": 1.0})}),
    Case("test_state_is_passed_by",
         "The state is late, and its place lies in a second hole that is lost, too: the next state is asked for.",
         plan(drop(KV, nth=5, times=3), delay(QUESTIONS, nth=3, until=until(f"{KV}:send", 12)),
              drop(KV, nth=11, times=5)), (kv_mirror_true, kv_gap_too_old),
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_publisher_tells_what_cannot_be",
         "A batch tells of blocks that no cache has: the mirror says which they are, and holds the others as they are.",
         plan(drop(KV, nth=8)), (kv_mirror_true, kv_replay_complete),
         play={"options": Options(impossible_events=True)}),
    Case("test_state_makes_up_for_what_cannot_be",
         "The publisher's whole state has none of those blocks: behind it the mirror neither holds nor names one.",
         plan(drop(KV, nth=20, times=3), drop(QUESTIONS, nth=2), drop(ANSWERS, nth=2)),
         (kv_mirror_true, kv_gap_too_old),
         play={"options": Options(impossible_events=True),
               "config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_batch_has_a_wrong_number",
         "Batches come by numbers that nobody has given: answers give them away, and what they hid is healed.",
         plan(drop(KV, nth=24), drop(QUESTIONS, nth=3)), (kv_mirror_true, kv_replay_complete),
         play={"options": Options(misnumbered_batch=True)}),
), topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-mixed"), config=lab_config(kv_events=EVENTS)))

globals().update(family(__name__, (
    Case("test_two_ask_for_everything_and_one_asks_again",
         "Two subscribers ask for all of it when it is over; the answers stop for so long that both ask once more.",
         plan(hang("core.0", at=f"{ANSWERS}:send", nth=10, until=until(seconds=1.2))), OWED),
    Case("test_piece_of_a_state_comes_with_the_next_state",
         "A piece of the state is so late that the state is asked for again, when it has changed: it is no part of it.",
         plan(drop(KV, nth=50, times=4), delay(ANSWERS, nth=6, until=until(f"{QUESTIONS}:send", 5)),
              delay(ANSWERS, nth=9, until=until(seconds=0.02)),
              hang("core.0", at=marked("core.0", Mark.STEP), nth=75, until=until(seconds=0.6))),
         (kv_mirror_true, kv_gap_too_old, kv_tells_what_came),
         play={"topology": tensor_parallel(1, subscribers=1), "options": Options(), "config": MANY_BLOCKS}),
    Case("test_state_of_many_blocks_is_told_in_pieces",
         "The window holds two batches and the cache 400 blocks: who comes late is told all of them, in two pieces.",
         plan(), OWED,
         play={"config": MANY_BLOCKS}),
), topology=tensor_parallel(1, subscribers=2), workload=churn(), config=patient(**EVENTS),
   options=Options(late_subscriber=True)))
