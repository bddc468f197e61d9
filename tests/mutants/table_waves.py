"""Bugs of cores that step together, and of who wakes them."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

WAVES, CORE = "engine/coordinator/waves.py", "engine/core/dp_engine_core.py"
#: What comes of a rank that waits for another one in vain: both end, and all that was asked with them.
ALL_END = these("tokens-match-reference", "blocks-conserved")

NO_DUMMIES = Mutant(
    id="no-dummies", scenario="test_one_request_wakes_all_ranks",
    bug="A rank without work counts a forward, and executes none.",
    breaks=these("dp-collectives-equal/dummies"), along=ALL_END | these("dp-work-wakes-all"),
    edits=(Edit(CORE, "            yield from self.executor.execute_dummy_batch(self._place())\n", ""),))

STEPS_OF_ITS_OWN = Mutant(
    id="steps-of-its-own", scenario="test_one_request_wakes_all_ranks",
    bug="Each rank adds up what is left to do at steps that its own number tells.",
    breaks=these("dp-collectives-equal/steps"), along=ALL_END | these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "self.step % self.interval == 0", "(self.step + self.rank) % self.interval == 0"),))

ITS_OWN_WORD = Mutant(
    id="its-own-word", scenario="test_one_request_wakes_all_ranks",
    bug="A rank goes by what it has to do itself, whatever all ranks have.",
    breaks=these("dp-collectives-equal/answer"), along=ALL_END,
    edits=(Edit(CORE, "        answer = yield Reduce(GROUP, votes, waves.op, deadline)\n",
                "        answer = (yield Reduce(GROUP, votes, waves.op, deadline)) and votes\n"),))

DEAF_WHILE_IT_WAITS = Mutant(
    id="deaf-while-it-waits", scenario="test_worker_fails_where_ranks_come_together",
    bug="A core waits for the others at an all-reduce while steps of its own workers are in flight.",
    breaks=these("rpc-any-rank-fails-fast/at-once"),
    along=these("death-is-told", "pp-stage-death-told", "nothing-without-cause"),
    edits=(Edit(CORE, "        waves = self.waves\n        yield from self._use_all()\n        wave, step",
                "        waves = self.waves\n        wave, step"),))

ANY_NUMBER = Mutant(
    id="any-number", scenario="test_start_comes_to_ranks_at_rest",
    bug="A rank takes over the number of whatever START it hears.",
    breaks=these("dp-wave-monotone/falls"), along=these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "        if wave != self.wave:\n            return\n", "        self.wave = wave\n"),))

ANY_START = Mutant(
    id="any-start", scenario="test_start_comes_to_ranks_at_rest",
    bug="A rank runs by any START, whichever wave it is of.",
    breaks=these("dp-wave-monotone/starts"), along=these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "        if wave != self.wave:\n            return\n", ""),))

NO_START = Mutant(
    id="no-start", scenario="test_one_request_wakes_all_ranks",
    bug="A rank at rest that gets a request tells nobody.",
    breaks=these("dp-work-wakes-all/start"), along=ALL_END | these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "        if not self.coordinated:\n            return []\n        report",
                "        if self.coordinated:\n            return []\n        report"),))

ONE_START = Mutant(
    id="one-start", scenario="test_start_to_a_rank_is_lost",
    bug="A coordinator says START once, and takes it for heard.",
    breaks=these("dp-work-wakes-all/repeat"), along=ALL_END | these("dp-coordinator-in-turn"),
    edits=(Edit("engine/coordinator/board.py", "        if self._repair and self.running:\n            said.append",
                "        if not self._repair and self.running:\n            said.append"),))

START_AND_CONNECTION = Mutant(
    id="start-lost-with-its-connection", scenario="test_connection_of_a_start_is_cut",
    bug="The same over tcp: what was on its way when a connection was cut is not said again.",
    breaks=these("dp-work-wakes-all/repeat"), along=ONE_START.along, edits=ONE_START.edits)

NEVER_QUIET = Mutant(
    id="never-quiet", scenario="test_one_request_wakes_all_ranks",
    bug="Ranks go on whatever they have left to do.",
    breaks=these("dp-quiet-when-idle/sum"), along=these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "        self.running = sums[0] > 0 or pausing % self.size != 0\n",
                "        self.running = True\n"),))

SELDOM_ASKED = Mutant(
    id="seldom-asked", scenario="test_ranks_come_to_rest",
    bug="Ranks add up what is left to do a third as often as configured.",
    breaks=these("dp-quiet-when-idle/interval"), along=these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "self.step % self.interval == 0", "self.step % (3 * self.interval) == 0"),))

REST_UNHEARD = Mutant(
    id="rest-unheard", scenario="test_clients_of_offline_ranks_know_that_all_rest",
    bug="A client does not take from its own core that a wave is over: it believes its group at work for ever.",
    breaks=these("dp-quiet-when-idle/offline"),
    edits=(Edit("engine/frontend/session.py", "            self.balance.completed(outputs.wave_complete)\n",
                "            pass\n"),))

RESTLESS = Mutant(
    id="restless", scenario="test_ranks_pause_and_go_on_together",
    bug="A rank that has requests executes forwards while all ranks rest.",
    breaks=these("pause-exact/ranks"), along=these("dp-rank-in-turn"),
    edits=(Edit(WAVES, "(self.running or (unfinished and not self.holds))", "(self.running or unfinished)"),))

SEAT = "engine/process/consensus/agreement.py"

WAITS_IN_VAIN = Mutant(
    id="waits-in-vain", scenario="test_one_of_three_ranks_stands_still_at_an_all_reduce",
    bug="Who waits for others in an all-reduce waits as long as they take.",
    breaks=these("dp-missing-is-named/bound"),
    edits=(Edit(CORE, "        deadline = (yield Now()) + self.config.bounds.collective_s\n",
                "        deadline = (yield Now()) + 60.0\n"),))

NAMES_ALL = Mutant(
    id="names-all", scenario="test_one_of_three_ranks_stands_still_at_an_all_reduce",
    bug="Who waits in vain names all others, those that wait themselves, too.",
    breaks=these("dp-missing-is-named/named"),
    edits=(Edit(SEAT, "            late = [rank for rank, turn in behind.items() if turn == least]\n",
                "            late = list(going)\n"),))

OWN_WORKER_IS_LATE = Mutant(
    id="own-worker-is-late", scenario="test_offline_rank_of_two_workers_has_no_request",
    bug="Who waits for other engines in a forward waits as long as they take, so its own core takes it for late.",
    breaks=these("dp-offline-ends"), along=these("dp-death-ends-group", "death-is-told"),
    edits=(Edit("engine/worker/worker.py", "across.where, bounds.collective_s, bounds.startup_s)",
                "across.where, 60.0, bounds.startup_s)"),
           Edit("sim/nodes/model.py", "asked.across.names, timeout_s, shared", "asked.across.names, 60.0, shared")))

ADDS_UP_EACH_STEP = Mutant(
    id="adds-up-each-step", scenario="test_two_ranks_step_together",
    bug="Ranks add up what is left to do at each step.",
    breaks=these("dp-rank-in-turn/steps"),
    edits=(Edit(WAVES, "self.due = self.step % self.interval == 0 or", "self.due = True or"),))

REPORTS_EACH_REQUEST = Mutant(
    id="reports-each-request", scenario="test_one_request_wakes_all_ranks",
    bug="A rank reports that it has work whenever a request comes.",
    breaks=these("dp-rank-in-turn/reports"),
    edits=(Edit(WAVES, "        if self.running or self.holds:\n", "        if self.holds:\n"),))

REPEATS_WHAT_WAS_HEARD = Mutant(
    id="repeats-what-was-heard", scenario="test_one_request_wakes_all_ranks",
    bug="A rank reports again and again that it has work, though it was heard.",
    breaks=these("dp-rank-in-turn/heard"),
    edits=(Edit(WAVES, "        self.unheard = None\n        if exclude", "        if exclude"),
           Edit(WAVES, "        self.due = False\n        self.unheard = None\n", "        self.due = False\n")))

STEERED_AT_ONCE = Mutant(
    id="steered-at-once", scenario="test_ranks_are_asked_at_the_wrong_moment",
    bug="A rank does what it is asked to as it hears it, amid a pause that not all have joined.",
    breaks=these("dp-rank-in-turn/steered"), along=ALL_END,
    edits=(Edit(CORE, "        return not _STEERING.isdisjoint(self._later)\n", "        return False\n"),))

TELLS_OF_WHAT_WAS_NOT_SENT = Mutant(
    id="tells-of-what-was-not-sent", scenario="test_old_first_request_cannot_be_sent",
    bug="A client tells the coordinator of a first request that it could not send.",
    breaks=these("dp-first-told/once"),
    edits=(Edit("engine/frontend/life.py",
                "        if was_sent:\n            self._link.sent(chosen)\n        else:\n",
                "        self._link.sent(chosen)\n        if not was_sent:\n"),))

ANY_START_WILL_DO = Mutant(
    id="any-start-will-do", scenario="test_report_of_a_start_is_lost_behind_a_late_start",
    bug="A rank takes a start of another wave for the answer to its report, and repeats that no more.",
    breaks=these("dp-work-wakes-all/repeat"), along=ALL_END,
    edits=(Edit("engine/coordinator/waves.py",
                "        if wave != self.wave:\n            return\n        self.unheard = None\n",
                "        self.unheard = None\n        if wave != self.wave:\n            return\n"),))

WAVES_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
