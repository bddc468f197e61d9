"""KV-cache events: what befalls the replay itself, the publisher's queue, and subscribers side by side."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import corrupt, delay, drop, duplicate, hang, marked, plan, stall, terminate, until
from scenarios.guarantees.all import (
    bad_frame_isolated,
    blocks_conserved,
    kv_asks_in_time,
    kv_gap_seen,
    kv_gap_too_old,
    kv_mirror_true,
    kv_never_stalls,
    kv_replay_complete,
    kv_seq,
    kv_tells_what_came,
    rests_when_idle,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_kv import GROWING, NARROW, churn, patient
from scenarios.workloads import ENDED, add, recorded

KV = "core.0->subscriber.0/kv"
ANSWERS = "core.0->subscriber.0/replay"
QUESTIONS = "subscriber.0->core.0/replay"
EVENTS = {"enable_kv_cache_events": True}


#: `eight-mixed` makes as many batches, always; and `eight-growing`.
LAST, GROWN = 28, 33
#: What befalls a replay is the same for few batches and for many; few say it sooner.
HEALED = (kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_seq)
AGAIN = {"options": Options(kill_all_then_restart=True), "workload": GROWING}
HELD_AFTER_A_RESTART = (kv_seq, kv_mirror_true, kv_asks_in_time, kv_tells_what_came)

globals().update(family(__name__, (
    Case("test_last_batch_is_lost",
         "Nothing comes live behind the lost batch: the subscriber learns of it by asking in the silence.",
         plan(drop(KV, nth=LAST)), HEALED),
    Case("test_replay_request_is_lost",
         "A batch does not come, and neither does the question for it: the question is put again.",
         plan(drop(KV, nth=5), drop(QUESTIONS, nth=2)), HEALED),
    Case("test_replayed_batch_is_lost",
         "The batch is lost twice, live and in its replay: the answer's report tells that it is not whole.",
         plan(drop(KV, nth=5), drop(ANSWERS, nth=2)), HEALED),
    Case("test_end_of_a_replay_is_lost",
         "The first answer never ends, for its marker is lost: it is given up, and a later gap heals all the same.",
         plan(drop(ANSWERS, nth=1), drop(KV, nth=5)), HEALED),
    Case("test_batch_is_lost_in_every_replay",
         "Two batches do not come live, nor one of them in an answer: that is given up. The state that makes up for it "
         "is late.",
         plan(drop(KV, nth=26), drop(KV, nth=27), *(drop(ANSWERS, nth=nth) for nth in (3, 6, 9, 12)),
              delay(ANSWERS, nth=15, until=until(seconds=0.4))),
         (kv_gap_seen, kv_mirror_true, kv_tells_what_came)),
    Case("test_end_of_an_answer_is_changed",
         "The report at the end of an answer is changed on its way: it is no report, and the question is put again.",
         plan(drop(KV, nth=5), *(corrupt(ANSWERS, nth=nth, byte=byte) for nth, byte in ((1, 47), (5, 39), (6, 31)))),
         (bad_frame_isolated, kv_gap_seen, kv_seq)),
    Case("test_state_is_changed_on_its_way",
         "Two batches are given up. The place of the state that makes up for them is changed on its way, and then it "
         "is of a number that no place has: it is none, and is asked for again.",
         plan(drop(KV, nth=26), drop(KV, nth=27), *(drop(ANSWERS, nth=nth) for nth in (3, 6, 9, 12)),
              corrupt(ANSWERS, nth=15, byte=15), corrupt(ANSWERS, nth=16, byte=0)),
         (kv_gap_seen,)),
    Case("test_nobody_answers_for_a_while",
         "Three questions for a batch are lost, and it is given up: whoever did not answer is asked again later.",
         plan(drop(KV, nth=20), drop(QUESTIONS, nth=2, times=3)),
         (kv_gap_seen, kv_asks_in_time, kv_tells_what_came)),
    Case("test_question_is_lost_and_two_answers_do_not_bring_the_batch",
         "Three questions for a batch, one lost and two answered without it: it is given up, as three lost ones would.",
         plan(drop(KV, nth=27), drop(QUESTIONS, nth=2), drop(ANSWERS, nth=2), drop(ANSWERS, nth=5)),
         (kv_gap_seen, kv_mirror_true, kv_asks_in_time, kv_tells_what_came)),
    Case("test_two_batches_are_lost_and_one_is_given_up",
         "Of two batches that did not come live the first is given up for want of answers; the other one is healed.",
         plan(drop(KV, nth=25), drop(KV, nth=27), drop(QUESTIONS, nth=2),
              *(drop(ANSWERS, nth=nth) for nth in (2, 4, 7, 9))),
         (kv_gap_seen, kv_mirror_true, kv_asks_in_time, kv_tells_what_came)),
    Case("test_batch_is_lost_behind_one_that_was_given_up",
         "The last batch before a pause is given up, as three answers lack it, and the first one behind it is not: it "
         "is lacked by two.",
         plan(drop(KV, nth=10), drop(ANSWERS, match={"seq": 9}, times=3),
              hang("core.0", at=marked("core.0", Mark.STEP), nth=13, until=until(seconds=0.95)),
              drop(KV, nth=11), drop(ANSWERS, match={"seq": 10}, times=2)),
         (kv_mirror_true, kv_asks_in_time, kv_tells_what_came)),
    Case("test_answers_that_lack_a_batch_are_counted_anew",
         "Two answers lack the first batch. In a pause a question is lost when nothing is missing, and two answers "
         "lack the batch behind it: both come in the end.",
         plan(drop(KV, nth=1), drop(ANSWERS, match={"seq": 0}, times=2),
              hang("core.0", at=marked("core.0", Mark.STEP), nth=13, until=until(seconds=0.7)),
              drop(QUESTIONS, match={"seq": 10}), drop(KV, nth=11), drop(ANSWERS, match={"seq": 10}, times=2)),
         (kv_mirror_true, kv_asks_in_time, kv_tells_what_came)),
    Case("test_nothing_comes_live",
         "No batch comes live, and a question is lost: who has answered once is still asked in its own words.",
         plan(drop(KV, nth=1, times=LAST), drop(QUESTIONS, nth=2)), (*HEALED, kv_asks_in_time, kv_tells_what_came)),
    Case("test_answer_tells_of_batches_that_are_too_old",
         "An answer tells of four batches that do not come live, and has two: the others are lost when live goes on.",
         plan(drop(KV, nth=2), delay(QUESTIONS, nth=2, until=until(f"{KV}:send", 9)), drop(KV, nth=6, times=4)),
         (kv_gap_too_old, kv_mirror_true, kv_asks_in_time, kv_tells_what_came),
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_state_is_lost_on_its_way",
         "Two holes are older than the window, and the state is lost as often as it is asked for: it stays unknown.",
         plan(drop(KV, nth=24), drop(KV, nth=26), drop(QUESTIONS, nth=2),
              *(drop(ANSWERS, nth=nth) for nth in (5, 7, 9))),
         (kv_gap_too_old, kv_asks_in_time, kv_tells_what_came),
         play={"config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_nobody_can_be_asked_for_a_batch",
         "There is no replay socket: what did not come is lost at once, the mirror unknown. SIGTERM ends the reader.",
         plan(drop(KV, nth=5), terminate("subscriber.0", at=f"{KV}:receive", nth=20)), (kv_tells_what_came,),
         play={"config": lab_config(kv_events={**EVENTS, "replay": False})}),
    Case("test_reader_that_cannot_ask_rests",
         "There is no replay socket, and nothing comes for longer than one would have been asked: the reader rests.",
         plan(), (rests_when_idle,),
         play={"config": lab_config(kv_events={**EVENTS, "replay": False}), "options": Options(rest_s=0.6)}),
    Case("test_publisher_is_started_again_while_a_gap_is_open",
         "It dies before it was asked for a batch that did not come: it is lost before the restart. Another is late.",
         plan(drop(KV, nth=32), drop(QUESTIONS, nth=2), delay(KV, nth=31, until=until(seconds=0.2))),
         (kv_seq, kv_mirror_true, kv_asks_in_time),
         play=AGAIN),
    Case("test_publisher_is_started_again_and_nothing_of_it_is_heard",
         "Amid its life live falls silent, and in the next one, too: the subscriber hears of that by asking. Only "
         "live batches have told it which life it was.",
         plan(drop(ANSWERS, nth=1), drop(KV, nth=14, times=53)), HELD_AFTER_A_RESTART, play=AGAIN),
    Case("test_first_batch_of_a_next_life_is_lost",
         "The publisher is started again. Two answers lack its first batch: a third one brings it.",
         plan(drop(KV, nth=GROWN + 1), drop(ANSWERS, match={"seq": 0}, times=2)), HELD_AFTER_A_RESTART,
         play=AGAIN),
    Case("test_publisher_is_started_again_while_its_state_is_asked_for",
         "It dies with the question for its state, and its next life answers: that is not taken for the old one.",
         plan(drop(KV, nth=31, times=2), drop(QUESTIONS, nth=3), drop(ANSWERS, nth=5),
              drop(KV, nth=GROWN + 1, times=GROWN)),
         HELD_AFTER_A_RESTART,
         play={"options": Options(kill_all_then_restart=True, rest_s=0.1),  # so long the question may be on its way
               "workload": GROWING, "config": lab_config(kv_events={**EVENTS, "buffer_steps": 2})}),
    Case("test_batch_of_two_that_begin_alike_is_lost",
         "Two are computed at once, and neither finds the other's blocks: of the second one's only the last are new. A "
         "third one takes some of the first one's, whose content the second one's still hold.",
         plan(drop(KV, nth=1)), HEALED, play={
             "config": lab_config(kv_events=EVENTS, cache={"num_gpu_blocks": 26},
                                  scheduler={"max_num_batched_tokens": 256}),
             "workload": recorded("eight-mixed").then(add(2, 3), behind=("r3", ENDED)).then(add(5))}),
    Case("test_replay_comes_twice",
         "A question is doubled on its way, so the whole answer comes twice; one of its batches comes a third time.",
         plan(drop(KV, nth=5), duplicate(QUESTIONS, nth=2), duplicate(ANSWERS, nth=2)), HEALED),
    Case("test_answer_is_to_a_question_that_nobody_asked",
         "The number of a question is changed on its way, and so its answer's: it brings what was missing, and the "
         "question counts as open.",
         plan(drop(KV, nth=5), corrupt(QUESTIONS, nth=2, byte=27)),
         (kv_gap_seen, kv_mirror_true, kv_asks_in_time, kv_tells_what_came)),
), topology=tensor_parallel(1, subscribers=1), workload=recorded("eight-mixed"), config=lab_config(kv_events=EVENTS)))

globals().update(family(__name__, (
    Case("test_live_batches_go_on_during_a_replay",
         "The answer is held back while fifty further batches come live: they wait for the ones before them.",
         plan(drop(KV, nth=5), delay(ANSWERS, nth=2, until=until(f"{KV}:send", 60))),
         (kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls, kv_seq)),
    Case("test_window_is_overrun_during_a_replay",
         "Questions are held back until the window of four has moved on: the loss is told, a snapshot makes up for it. "
         "It tells of a last batch that never comes.",
         plan(drop(KV, nth=5), delay(QUESTIONS, nth=2, until=until(f"{KV}:send", 140)),
              delay(QUESTIONS, nth=4, until=until(f"{KV}:send", 166)), drop(KV, nth=166)),
         (kv_gap_seen, kv_gap_too_old, kv_mirror_true, kv_never_stalls),
         play={"config": patient(**EVENTS, buffer_steps=4)}),
    Case("test_publisher_thread_is_stalled_and_its_queue_full",
         "The publisher thread stands still until three batches found its queue full: they keep numbers, no step "
         "waits.",
         plan(hang("core.0", at=f"{KV}:send", nth=5, until=until(marked("core.0", Mark.KV_DROPPED), 3))),
         (kv_never_stalls, kv_seq, kv_gap_too_old, blocks_conserved),
         play={"config": patient(**EVENTS, max_queue_size=1)}),
    Case("test_one_of_two_subscribers_is_stopped",
         "One subscriber stands still and loses batches; the other and the engine do not notice.",
         plan(stall("subscriber.1", at="core.0->subscriber.1/kv:receive", nth=3, until=until(f"{KV}:send", 150))),
         (kv_gap_seen, kv_replay_complete, kv_mirror_true, kv_never_stalls),
         play={"topology": tensor_parallel(1, subscribers=2), "config": patient(**NARROW)}),
), topology=tensor_parallel(1, subscribers=1), workload=churn(), config=patient(**EVENTS)))
