"""Bugs of the ring and its waits that table.py does not have. What no machine here can show (a store that overtakes
another one) is found by the explorer: tests/explorer/flaws.py.
"""

from __future__ import annotations

from tests.explorer.flaws import DATA, FENCE, READERS, RESET, WRITE, WRITTEN
from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

FLAG_BEFORE_DATA = Mutant(
    id="H03", scenario="test_writer_stops_at_a_store[data]",
    bug="The flag can be seen before the data, as if the machine had swapped the stores.",
    breaks=these("ring-exact-prefix/whole"),
    along=these("workers-in-step", "tokens-match-reference", "rpc-matched", "served-in-turn"),
    not_in={"engine": "readers that look within the same microsecond end the play before its fault; when is chance"},
    edits=(Edit("engine/ipc/ring.py", WRITE, RESET + FENCE + READERS + FENCE + WRITTEN + DATA + FENCE),))

FLAG_BEFORE_FLAGS = Mutant(
    id="flag-before-flags", scenario="test_writer_stops_in_the_first_round",
    bug="A message is one before its readers' flags are down: who has read it by then is asked to read it again.",
    breaks=these("tokens-match-reference/end", "nothing-without-cause"),
    along=these("ring-exact-prefix", "workers-in-step", "rpc-matched", "served-in-turn"),
    edits=(Edit("engine/ipc/ring.py", WRITE, RESET + FENCE + DATA + WRITTEN + FENCE + READERS + FENCE),))

WHERE_ANOTHER_LIES = Mutant(
    id="where-another-lies", scenario="test_queue_is_asked_about_itself",
    bug="A large message takes the place of the last one, whether or not that has been read.",
    breaks=these("queue-ends-meet"), along=these("nothing-without-cause"),
    not_in={"engine": "only the twin plays this scenario"},
    edits=(Edit("engine/ipc/ring.py", "            if 0 not in flags:\n                places",
                "            if True:\n                places"),))

FREED_BEFORE_IT_IS_TAKEN = Mutant(
    id="freed-before-it-is-taken", scenario="test_reader_dies_between_read_and_flag",
    bug="A reader says that it has read a message, and takes it out of its chunk then.",
    breaks=these("nothing-without-cause"),
    not_in={"engine": "no writer is as fast as to write anew what is taken a microsecond later"},
    edits=(Edit("engine/ipc/ring.py",
                """        try:
            taken = take(memory[data if place == 1 else self._moved(place)])
        except Exception:
            # Not for BaseException: a process on its way out must not mark as read what it did not take.
            self._free(own)
            raise
        self._free(own)
        return taken
""",
                """        view = memory[data if place == 1 else self._moved(place)]
        self._free(own)
        return take(view)
"""),))

WAITS_FOR_THE_DEAD = Mutant(
    id="H09", scenario="test_reader_dies_while_the_writer_waits_for_it",
    bug="A writer that finds no room waits without a deadline, and a reader's death does not end that.",
    breaks=these("ring-bounded-wait/dead-reader", "death-is-told/pending"),
    along=these("health-is-true"),
    edits=(
        Edit("engine/ipc/queue.py", "self._look, self._sleep, deadline, self.no_room, self.stats)",
             "self._look, self._sleep, None, self.no_room, self.stats)"),
        Edit("engine/process/shell.py",
             "        self._check()\n        bell = self.bells",
             "        if effect.deadline is not None:\n            self._check()\n        bell = self.bells"),
        Edit("sim/process/answers/rings.py",
             "    if process.cancelled is not None:\n        raise process.cancellation()",
             "    if process.cancelled is not None and effect.deadline is not None:\n"
             "        raise process.cancellation()")))

FIRST_READER = Mutant(
    id="first-reader", scenario="test_reader_stalls_until_the_ring_is_full",
    bug="A writer waits until one of its readers has read the chunk, and then writes over it.",
    breaks=these("ring-no-overwrite"),
    along=these("ring-exact-prefix", "workers-in-step", "rpc-matched", "tokens-match-reference", "edge-fifo"),
    edits=(
        Edit("engine/ipc/ring.py", "        return not flags[0] or 0 not in flags\n",
             "        return not flags[0] or 1 in flags[1:]\n"),
        Edit("engine/ipc/ring.py", "        if flags[0] and 0 in flags:\n",
             "        if flags[0] and 1 not in flags[1:]:\n")))

FAILS_OPEN = Mutant(
    id="fails-open", scenario="test_silent_rank_raises",
    bug="An engine goes on after a rank has failed, as if only the step had been lost.",
    breaks=these("rpc-any-rank-fails-fast/closed"),
    along=these("death-is-told", "served-in-turn", "groups-agree"),
    edits=(
        Edit("engine/core/engine_core.py",
             "        scheduled, result = yield from self.in_flight.oldest()\n",
             "        oldest = self.in_flight._steps[0].scheduled\n"
             "        try:\n"
             "            scheduled, result = yield from self.in_flight.oldest()\n"
             "        except RpcError:\n"
             "            self.scheduler.abort_requests(list(oldest.num_scheduled_tokens))\n"
             "            return\n"),))

SPARED_RANK = Mutant(
    id="spared-rank", scenario="test_nothing_goes_wrong",
    bug="A rank does not execute what it has not to answer.",
    breaks=these("workers-in-step"), along=these("tokens-match-reference", "ring-bounded-wait", "blocks-conserved"),
    edits=(Edit("engine/worker/worker_loop.py",
                "        if method == \"execute_model\" and output_rank == rank:\n",
                "        if output_rank not in (None, rank):\n            continue\n"
                "        if method == \"execute_model\" and output_rank == rank:\n"),))

OWN_ORDER = Mutant(
    id="own-order", scenario="test_nothing_goes_wrong",
    bug="The rank that answers gathers the logits by a sum, and the others as they should.",
    breaks=these("groups-agree/order"),
    along=these("tokens-match-reference", "blocks-conserved", "workers-in-step", "nothing-left-behind", "ends-once",
                "death-is-told"),
    edits=(Edit("engine/worker/models/llama.py",
                "        return self.group.all_gather(part, -1)[:, : self.config.vocab_size].float()\n",
                "        if self.group.rank == 0:\n"
                "            return self.group.all_reduce(part).repeat(1, 2)[:, : self.config.vocab_size].float()\n"
                "        return self.group.all_gather(part, -1)[:, : self.config.vocab_size].float()\n"),
           Edit("sim/nodes/model.py", '            yield Enter(group, 1, "all_gather")\n        self._phases',
                '            yield Enter(group, 1, "all_gather" if self._rank else "all_reduce")\n'
                '        self._phases')))

EARLY_LEAVE = Mutant(
    id="early-leave", scenario="test_collective_hangs",
    bug="A rank leaves a collective as soon as it has brought its own part.",
    breaks=these("groups-agree/early"),
    along=these("tokens-match-reference", "blocks-conserved", "workers-in-step", "nothing-left-behind", "ends-once",
                "death-is-told"),
    edits=(Edit("engine/worker/parallel/shared_memory.py", "        if self._missing(turn):\n",
                "        if turn % 7:\n            return\n        if self._missing(turn):\n"),
           Edit("sim/transport/collectives.py", "        if len(inside) == self._size:\n",
                "        if len(inside) == self._size or number % 5:\n")))

# -- a queue that programs use without an engine -----------------------------------------------------------------------

BUFFER_TAKEN_AGAIN = Mutant(
    id="buffer-taken-again", scenario="test_queue_hands_over_objects",
    bug="A reader's object lies in a buffer that the next message of the same size is received into.",
    breaks=these("queue-hands-over"),
    not_in={"engine": "where crossings are counted a reader copies what it reads from the ring"},
    edits=(Edit("engine/ipc/framing.py", "if len(buffer) == size and sys.getrefcount(buffer) <= _UNUSED:",
                "if len(buffer) == size:"),))

COPIED_INTO_THE_PICKLE = Mutant(
    id="copied-into-the-pickle", scenario="test_queue_hands_over_objects",
    bug="Large buffers of an object do not travel beside its pickle.",
    breaks=these("queue-hands-over"),
    edits=(Edit("engine/ipc/framing.py", "OUT_OF_BAND_BYTES = 64 << 10", "OUT_OF_BAND_BYTES = 64 << 20"),))

COUNTS_TWICE = Mutant(
    id="counts-twice", scenario="test_queue_hands_over_objects",
    bug="An end counts each of its waits twice.",
    breaks=these("queue-counts"),
    edits=(Edit("engine/ipc/handle.py", "        self.waits += 1\n", "        self.waits += 2\n"),))

WAITS_FOR_NOBODY = Mutant(
    id="waits-for-nobody-afar", scenario="test_queue_reaches_another_host",
    bug="A writer says that all are there before its reader on another host has come.",
    breaks=these("queue-ends-meet"), along=these("queue-hands-over", "queue-counts", "ring-exact-prefix"),
    edits=(Edit("engine/ipc/presence.py", "return [rank for rank in self._ranks if rank not in self._came]",
                "return []"),))

PATIENT_ONCE = Mutant(
    id="patient-once", scenario="test_overflow_payloads_overtake_each_other_again",
    bug="Patience with a payload that is overtaken begins with the first one that ever was.",
    breaks=these("nothing-without-cause"), not_in={"engine": "the play takes six seconds, and nothing is to be seen"},
    edits=(Edit("engine/ipc/queue.py", "                self.owed, self._gap_began, self._torn = None, None, False\n",
                "                self.owed, self._torn = None, False\n"),))

KEEPS_PAYLOADS = Mutant(
    id="keeps-payloads", scenario="test_payload_of_an_answer_comes_twice_and_another_one_late",
    bug="A reader keeps payloads of messages that are over: they seem to have overtaken whatever comes late.",
    breaks=these("tokens-match-reference/end"),
    not_in={"engine": "the play takes six seconds, and nothing is to be seen"},
    edits=(Edit("engine/ipc/queue.py", "        elif position >= self.position:\n", "        else:\n"),))

RING_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
