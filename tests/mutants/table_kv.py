"""Bugs of the KV-event path: three that others had, three that make a mirror wrong in silence.

A mirror refuses a batch that is not the next one; where a bug shall be silent, that guard is taken out with it.
"""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

#: What a subscriber asks and tells is judged in every play: it shows where more than that goes wrong.
READING = these("kv-asks-in-time", "kv-tells-what-came")

UNGUARDED = Edit(
    "engine/kv_events/mirror.py",
    """        if number != self.next_seq:
            raise ValueError(f"the mirror expects batch {self.next_seq}, got {number}")
""",
    "")

TOPIC_DROPPED = Mutant(
    id="H68", scenario="test_replayed_batch_is_lost",
    bug="Replayed batches lack the topic frame that live ones have: whoever reads four frames reads none of them.",
    breaks=these("kv-replay-complete/exact"),
    along=READING | these("kv-mirror-true", "kv-gap-seen", "kv-answers-exact", "no-foreign-code"),
    edits=(Edit("engine/kv_events/publisher/log.py",
                "            yield [b\"\", self.topic, number_frame(number), payload]\n",
                "            yield [b\"\", number_frame(number), payload]\n"),))

PUBLISHING_BLOCKS = Mutant(
    id="H69", scenario="test_publisher_thread_is_stalled_and_its_queue_full",
    bug="The step loop waits for room in the publisher's queue.",
    breaks=these("kv-never-stalls"), along=READING | these("kv-seq", "kv-gap-too-old", "blocks-conserved"),
    edits=(
        Edit("engine/kv_events/publisher/log.py", "from engine.effects import Loop, MarkPoint",
             "from engine.effects import Loop, Receive, MarkPoint"),
        Edit("engine/kv_events/publisher/log.py", "    number, room = log.number()\n    if not room:\n",
             "    while log.waiting >= log.max_queue_size:\n"
             "        yield MarkPoint(Mark.KV_DROPPED, {})\n"
             "        yield Receive((), (yield Now()) + 0.5)\n"
             "    number, room = log.number()\n    if not room:\n"),))

TIME_OF_ITS_OWN_CLOCK = Mutant(
    id="time-of-its-own-clock", scenario="test_publisher_is_killed_and_started_again",
    bug="A batch says what the core's own clock says, which no other machine has.",
    breaks=these("kv-seq/time"),
    edits=(Edit("engine/core/engine_core.py", "            at = (yield Now()) + self.kv_log.wall_offset_s\n",
                "            at = yield Now()\n"),))

GAP_IGNORED = Mutant(
    id="H73", scenario="test_connection_of_a_subscriber_is_cut",
    bug="A subscriber takes the next batch that comes, whatever its number.",
    breaks=these("kv-gap-seen/next", "kv-replay-complete/exact", "kv-mirror-true", "kv-tells-what-came"),
    along=READING | these("kv-gap-too-old"),
    edits=(
        UNGUARDED,
        Edit("engine/kv_events/subscriber/follower.py", "                self.order.see(number)\n",
             "                order = self.order\n"
             "                order.next, order.wire = max(order.next, number), max(order.wire, number + 1)\n")))

EVICTION_UNTOLD = Mutant(
    id="eviction-untold", scenario="test_live_batches_go_on_during_a_replay",
    bug="A block that is evicted is told to nobody: mirrors keep it for ever.",
    breaks=these("kv-mirror-true"),
    along=these("blocks-conserved"),
    edits=(Edit("engine/core/block_pool.py",
                "                self._events.append(BlockRemoved(block_hashes=[block_hash]))\n",
                "                pass\n"),))

TOKENS_OF_THE_FIRST = Mutant(
    id="tokens-of-the-first", scenario="test_batch_of_two_that_begin_alike_is_lost",
    bug="Blocks behind some that are cached already are told with the tokens of these.",
    breaks=these("kv-mirror-true"), along=these("nothing-without-cause"),
    edits=(Edit("engine/core/block_pool.py",
                "list(token_ids[start * size:(start + len(run)) * size])",
                "list(token_ids[:len(run) * size])"),))

GONE_WHILE_ANOTHER_HOLDS = Mutant(
    id="gone-while-another-holds", scenario="test_batch_of_two_that_begin_alike_is_lost",
    bug="Content that two blocks hold is told as gone when the first of them is taken for something else.",
    breaks=these("kv-mirror-true"), along=these("blocks-conserved", "nothing-without-cause"),
    edits=(Edit("engine/core/block_pool.py",
                "        del blocks[block]\n        if not blocks:\n",
                "        del blocks[block]\n"
                "        if blocks and self.enable_events:\n"
                "            self._events.append(BlockRemoved(block_hashes=[block_hash]))\n"
                "        if not blocks:\n"),))

STALE_SNAPSHOT = Mutant(
    id="stale-snapshot", scenario="test_window_is_overrun_during_a_replay",
    bug="The publisher's own state forgets removals: who begins from a snapshot has blocks that are long gone.",
    breaks=these("kv-mirror-true"),
    edits=(Edit("engine/kv_events/publisher/state.py",
                "                        blocks.pop(block_hash, None)\n",
                "                        pass\n"),))

LOSS_KEPT_FROM_MIRROR = Mutant(
    id="loss-kept-from-mirror", scenario="test_window_is_overrun_during_a_replay",
    bug="A loss for good is told and then forgotten: the mirror goes on as if it still knew everything.",
    breaks=these("kv-mirror-true"), along=READING,
    edits=(
        Edit("engine/kv_events/mirror.py", "            self.unknown_since = first\n", "            pass\n"),
        Edit("engine/kv_events/subscriber/order.py", "            self.fetching.want()\n", "            pass\n")))

MALFORMED_REQUEST_ENDS_REPLAYS = Mutant(
    id="malformed-request-ends-replays", scenario="test_replay_requests_by_a_stranger_are_none",
    bug="The thread that replays ends with the first request that it cannot read: nobody is answered any more.",
    breaks=these("kv-replay-complete/exact"), along=READING | these("kv-mirror-true", "kv-gap-seen"),
    edits=(Edit("engine/kv_events/publisher/replays.py",
                """                yield from tell("bad-frame", {"edge": inbox, "error": str(error)})
        if turns""",
                """                yield from tell("bad-frame", {"edge": inbox, "error": str(error)})
                return
        if turns"""),))

RANK_FORGOTTEN = Mutant(
    id="rank-forgotten", scenario="test_one_of_two_ranks_loses_a_batch[ipc]",
    bug="The addresses of events are not moved by the rank: two ranks bind one path, and the second takes it over.",
    breaks=these("kv-ranks-apart/whole"), along=READING | these("kv-gap-seen"),
    edits=(Edit("engine/wire/wiring.py",
                "    if data_parallel_rank == 0:\n        return endpoint\n    if not endpoint",
                "    return endpoint\n    if not endpoint"),))

RANK_NOT_SAID = Mutant(
    id="rank-not-said", scenario="test_one_of_two_ranks_dies[1]",
    bug="Every rank calls itself rank 0 in its batches: who follows several cannot tell whose block is whose.",
    breaks=these("kv-ranks-apart/own"),
    edits=(Edit("engine/kv_events/codec.py",
                "    rank = data_parallel_rank if batch.data_parallel_rank is None else batch.data_parallel_rank\n",
                "    rank = 0\n"),))

NUMBERED_WHEN_SENT = Mutant(
    id="numbered-when-sent", scenario="test_publisher_thread_is_stalled_and_its_queue_full",
    bug="A batch that finds the queue full gets no number: what was dropped leaves no gap.",
    breaks=these("kv-seq/numbers"),
    along=READING | these("kv-mirror-true", "kv-replay-complete", "blocks-conserved", "kv-answers-exact"),
    edits=(Edit("engine/kv_events/publisher/log.py",
                "        self._numbered = number + 1\n        return number, room\n",
                "        self._numbered = number + room\n        return number, room\n"),))

RESTART_UNSEEN = Mutant(
    id="restart-unseen", scenario="test_publisher_is_killed_and_started_again",
    bug="All lives of a publisher call themselves the same.",
    breaks=these("kv-seq/restart"), along=READING | these("kv-mirror-true", "kv-gap-seen", "kv-replay-complete"),
    edits=(Edit("engine/kv_events/publisher/life.py", "epoch=round(wall * 1e6) if epoch is None else epoch",
                "epoch=1"),))

NEVER_ASKS_IN_SILENCE = Mutant(
    id="never-asks-in-silence", scenario="test_last_batch_is_lost",
    bug="A subscriber that hears nothing more does not ask whether there is something.",
    breaks=these("kv-gap-seen/silence", "kv-asks-in-time"),
    along=READING | these("kv-mirror-true", "kv-replay-complete"),
    edits=(Edit("engine/kv_events/subscriber/question.py",
                "        self._poll_at = now + self._poll_s\n", "        self._poll_at = now + 1e6\n"),))

APPLIED_BEFORE_THE_REPLAY = Mutant(
    id="applied-before-the-replay", scenario="test_live_batches_go_on_during_a_replay",
    bug="Live batches are applied while the replay of those before them is still on its way.",
    breaks=these("kv-replay-complete/interleave"),
    along=READING | these("kv-mirror-true", "kv-gap-too-old", "kv-gap-seen"),
    edits=(
        UNGUARDED,
        Edit("engine/kv_events/subscriber/follower.py",
             "                self.order.hold(number, batch, \"live\")\n",
             "                if number > self.order.next:\n"
             "                    self._out.append(Applied(number, batch, \"live\"))\n"
             "                self.order.hold(number, batch, \"live\")\n"),
        Edit("engine/kv_events/subscriber/follower.py",
             "from engine.kv_events.reports import Malformed,",
             "from engine.kv_events.reports import Applied, Malformed,")))

OLD_GAP_PASSED_OVER = Mutant(
    id="old-gap-passed-over", scenario="test_gap_is_older_than_the_window",
    bug="A subscriber goes on with the oldest batch that is left, as if nothing were missing before it.",
    breaks=these("kv-gap-too-old"), along=READING | these("kv-mirror-true", "kv-gap-seen", "kv-replay-complete"),
    edits=(Edit("engine/kv_events/subscriber/order.py",
                "        self._out.append(Unrecoverable(self.next, last, reason))\n", ""), UNGUARDED))

SENT_AGAIN = Mutant(
    id="batch-sent-again", scenario="test_events_have_a_topic",
    bug="Each batch is sent twice: subscribers drop the second one, and nobody notices.",
    breaks=these("kv-sent-once/once"),
    edits=(Edit("engine/kv_events/publisher/log.py", "            yield Send(outbox, frames)\n",
                "            yield Send(outbox, frames)\n            yield Send(outbox, frames)\n"),))

QUEUE_FORGOTTEN_AT_THE_END = Mutant(
    id="queue-forgotten-at-the-end", scenario="test_publisher_has_still_to_send_when_the_engine_ends",
    bug="A publisher that is asked to leave gives up at once what still waits in its queue.",
    breaks=these("kv-sent-once/end"),
    edits=(Edit("engine/kv_events/publisher/life.py", "    yield Put(KV, None)\n",
                "    log.stop()\n    yield Put(KV, None)\n"),))

REST_OF_THE_FIRST_ANSWER = Mutant(
    id="rest-of-the-first-answer", scenario="test_two_ask_for_everything_and_one_asks_again",
    bug="Who asks again while it is answered gets the rest of the first answer, under the tag of the second question.",
    breaks=these("kv-answers-exact/batches"), along=these("kv-gap-seen", "kv-replay-complete", "kv-mirror-true"),
    edits=(Edit("engine/kv_events/publisher/replays.py",
                "                    earlier.ask(request)\n", "                    earlier.request = request\n"),))

STATE_WITHOUT_WHAT_WAS_LOST = Mutant(
    id="state-without-what-was-lost", scenario="test_last_batches_find_the_queue_full",
    bug="A publisher tells the state that its batches amount to, although some were lost.",
    breaks=these("kv-answers-exact/state"), along=these("kv-mirror-true"),
    edits=(Edit("engine/kv_events/publisher/state.py",
                "        if not known or upto > number:\n", "        if False:\n"),))

BLOCK_GIVEN_TWICE = Mutant(
    id="block-given-twice", scenario="test_nothing_goes_wrong",
    bug="The last block that is handed out stays among the free ones.",
    breaks=these("blocks-conserved/owner"), along=these("tokens-match-reference", "served-in-turn"),
    edits=(Edit("engine/core/block_pool.py", "            taken.append(block)\n        return taken\n",
                "            taken.append(block)\n"
                "        if taken:\n"
                "            self._free[taken[-1]] = None\n"
                "            self._free.move_to_end(taken[-1], last=False)\n"
                "        return taken\n"),))

COUNTS_FROM_THE_FIRST = Mutant(
    id="counts-from-the-first", scenario="test_batch_is_lost_behind_one_that_found_the_queue_full",
    bug="A publisher finds a batch by how far it is from the first one that it keeps, also where one between was lost.",
    breaks=these("kv-answers-exact/batches"),
    edits=(Edit("engine/kv_events/publisher/log.py",
                "        first = bisect_left(batches, request.start, key=itemgetter(0))\n",
                "        first = min(max(0, request.start - batches[0][0]), len(batches)) if batches else 0\n"),))

TAKEN_FOR_THE_NEXT_ONE_S = Mutant(
    id="taken-for-the-next-one-s", scenario="test_answer_is_to_a_question_that_nobody_asked",
    bug="A subscriber knows the end of an answer by the batch that it was asked from, whichever question that was of.",
    breaks=these("kv-asks-in-time"),
    not_in={"engine": "it asks a moment too soon, and when a real one has asked is known to a moment"},
    edits=(Edit("engine/kv_events/subscriber/question.py",
                "(asked.tag, asked.start) == (report.tag, report.start)", "asked.start == report.start"),))

KV_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
