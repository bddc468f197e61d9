"""Bugs of a coordinator, and of those who have one."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

COUNTED = Mutant(
    id="subscriptions-counted", scenario="test_subscription_of_a_rank_is_doubled",
    bug="A coordinator counts subscriptions as they come, and does not look whose they are.",
    breaks=these("dp-start-needs-all/count"),
    edits=(Edit("engine/coordinator/board.py", "        self.subscribed: set[int] = set()\n",
                "        self.subscribed: list[int] = []\n"),
           Edit("engine/coordinator/board.py", "        self.subscribed.add(rank)\n",
                "        self.subscribed.append(rank)\n")))

READY_UNHEARD = Mutant(
    id="ready-unheard", scenario="test_subscription_of_a_rank_is_late",
    bug="A core subscribes, and does not wait for an answer.",
    breaks=these("dp-start-needs-all/waits"),
    edits=(Edit("engine/core/life.py", "            until = (yield Now()) + every_s\n",
                "            return\n"),))

UNWATCHED = Mutant(
    id="coordinator-unwatched", scenario="test_coordinator_of_dense_cores_dies",
    bug="A client watches its cores, and not their coordinator.",
    breaks=these("dp-coordinator-death-is-told"),
    edits=(Edit("engine/frontend/handles/manager.py",
                "        for handle in self.all:\n            handle.watch(now)\n",
                "        for handle in self.cores.values():\n            handle.watch(now)\n"),
           Edit("engine/frontend/handles/manager.py", "        self.nodes = tuple(handle.node for handle in started)\n",
                "        self.nodes = tuple(handle.node for handle in self.cores.values())\n")))

VIEW_SAID_ONCE = Mutant(
    id="view-said-once", scenario="test_counts_to_a_client_are_lost",
    bug="A coordinator publishes counts when they have changed, and never again.",
    breaks=these("dp-view-converges/repeat"), along=these("dp-coordinator-in-turn"),
    edits=(Edit("engine/coordinator/board.py", "self._changed_s if self._changed else self._unchanged_s",
                "self._changed_s if self._changed else 1000 * self._unchanged_s"),))

VIEW_NEVER_FALLS = Mutant(
    id="view-never-falls", scenario="test_counts_to_a_client_are_lost",
    bug="A core tells how much it has to do when that has grown.",
    breaks=these("dp-view-converges/falls"),
    edits=(Edit("engine/core/dp_engine_core.py", "            self._counted = counts\n            yield",
                "            grown = sum(counts) > sum(self._counted)\n            self._counted = counts\n"
                "            if not grown:\n                return\n            yield"),))

VIEW_BY_SUMS = Mutant(
    id="view-by-sums", scenario="test_counts_change_as_requests_begin",
    bug="A core tells how much it has to do when that is more or less in all, and not when some of it has begun.",
    breaks=these("dp-view-converges/begins"),
    edits=(Edit("engine/core/dp_engine_core.py", "counts != self._counted:", "sum(counts) != sum(self._counted):"),))

VIEW_OF_WAVES = Mutant(
    id="view-of-waves", scenario="test_counts_of_ranks_in_step_are_late",
    bug="A client takes the counts of cores that step, and none of cores at rest.",
    breaks=these("dp-view-converges/rests"),
    edits=(Edit("engine/frontend/link.py", "            self._session.on_notice(self._own(notice))\n",
                "            if not notice.running:\n"
                "                notice = type(notice)(None, notice.wave, False)\n"
                "            self._session.on_notice(notice)\n"),))

BOARD = "engine/coordinator/board.py"

STARTS_WHAT_RUNS = Mutant(
    id="starts-what-runs", scenario="test_ranks_come_to_rest",
    bug="A coordinator starts a wave whenever it is asked for one that is not over, also while it runs.",
    breaks=these("dp-coordinator-in-turn/once"),
    edits=(Edit(BOARD, "wave == self.wave and self.running else", "False else"),))

KEEPS_STARTS = Mutant(
    id="keeps-starts", scenario="test_report_of_a_start_comes_when_its_wave_is_over",
    bug="A coordinator keeps a START to itself of a wave that seems over.",
    breaks=these("dp-coordinator-in-turn/passes"),
    edits=(Edit(BOARD, "            return [Start(wave, rank)]\n", "            return []\n"),))

STEPS_MIXED = Mutant(
    id="steps-mixed", scenario="test_ranks_come_to_rest",
    bug="A coordinator tells whatever counts it has, some of them of the next step.",
    breaks=these("dp-coordinator-in-turn/whole"),
    edits=(Edit(BOARD, "        counts, self._whole_step = self._whole_step, None\n",
                "        counts, self._whole_step = None, None\n"),))

ALL_AS_SELDOM = Mutant(
    id="all-as-seldom", scenario="test_ranks_come_to_rest",
    bug="A coordinator tells of counts that have changed as seldom as of those that have not.",
    breaks=these("dp-coordinator-in-turn/soon"),
    edits=(Edit(BOARD, "(self._changed_s if self._changed else self._unchanged_s)", "self._unchanged_s"),))

LINK = "engine/frontend/link.py"

TOLD_TWICE = Mutant(
    id="first-request-told-twice", scenario="test_old_one_request_wakes_all_ranks",
    bug="A client tells of each first request twice, since nobody says that it was heard.",
    breaks=these("dp-first-told/once"),
    edits=(Edit(LINK, "                yield Send(STATS, encode_first_request(",
                "                for _ in range(2):\n                    yield Send(STATS, encode_first_request("),))

TOLD_TODAY = Mutant(
    id="first-request-told-today", scenario="test_notices_to_a_client_are_lost_and_late",
    bug="A client tells of first requests, whatever the protocol of its group is.",
    breaks=these("dp-first-told/today"),
    edits=(Edit(LINK, ' and config.data_parallel.wave_protocol == "old"\n', "\n"),))

LEAVES_IT_ALL = Mutant(
    id="leaves-it-all", scenario="test_coordinator_is_all_that_is_left",
    bug="A coordinator whose client is gone leaves the files of the engine to the others, of whom nobody is left.",
    breaks=these("nothing-left-behind/survivor"),
    edits=(Edit("engine/coordinator/life.py", "            yield RemoveFiles(self._recipe.files)\n",
                "            pass\n"),))

WAVE_FALLS = Mutant(
    id="wave-falls", scenario="test_notices_to_a_client_are_lost_and_late",
    bug="A client believes in the wave that it was told of last, though it knows of a later one.",
    breaks=these("dp-first-told/falls"),
    not_in={"engine": "whether a later notice comes before a request is chance"},
    edits=(Edit("engine/frontend/balance.py", "        if wave >= self.wave:\n            self.wave",
                "        if True:\n            self.wave"),))

WAKES_WHOM_NOBODY_STEPS_WITH = Mutant(
    id="start-for-nobody", scenario="test_report_speaks_of_a_wave_that_nobody_steps_in",
    bug="A coordinator of cores that step alone believes in a wave, and a core that hears its START falls over that.",
    breaks=these("nothing-without-cause"), along=these("bad-frame-isolated", "first-error-told", "death-is-told"),
    not_in={"engine": "which byte of a real report speaks of a wave depends on the numbers in it"},
    edits=(Edit("engine/coordinator/board.py", "None if self._lockstep else Odd(", "None if self else Odd("),
           Edit("engine/core/io/loops.py", "        if not in_step:\n", "        if in_step is None:\n")))

COORDINATOR_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
