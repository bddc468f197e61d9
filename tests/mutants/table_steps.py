"""Bugs in who is served next, and in what a core does when it is asked for something."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

OVERTAKES = Mutant(
    id="overtakes", scenario="test_few_blocks_and_a_small_budget",
    bug="Of those who wait, whoever has the fewest tokens comes in first.",
    breaks=these("served-in-turn"),
    edits=(Edit("engine/core/scheduler.py", "            request = next(iter(waiting.values()))\n",
                "            request = min(waiting.values(), key=lambda each: each.num_tokens)\n"),))

ONE_STEP_MORE = Mutant(
    id="one-step-more", scenario="test_calls_of_the_core",
    bug="A core that is asked for some steps makes one more.",
    breaks=these("calls-answered"),
    edits=(Edit("engine/core/engine_core.py", "        self._allowance = steps\n",
                "        self._allowance = steps + 1\n"),))

STEPS_MUTANTS = (OVERTAKES, ONE_STEP_MORE)
