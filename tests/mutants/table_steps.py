"""Bugs in who is served next, and in what a core does when it is asked for something."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

OVERTAKES = Mutant(
    id="overtakes", scenario="test_few_blocks_and_a_small_budget",
    bug="Of those who wait, whoever has the fewest tokens comes in first.",
    breaks=these("served-in-turn"),
    edits=(Edit("engine/core/scheduler.py", "            request = waiting.first()\n",
                "            request = min(waiting.values(), key=lambda each: each.num_tokens)\n"),))

IN_ORDER_OF_COMING = Mutant(
    id="in-order-of-coming", scenario="test_urgent_requests_go_first",
    bug="Who waits comes in in the order in which it came, whatever its priority.",
    breaks=these("priority-kept/turn"), along=these("served-in-turn"),
    edits=(Edit("engine/core/scheduler.py", "            request = waiting.first()\n",
                "            request = min(waiting.values(), key=lambda each: each.came)\n"),))

LAST_IN_GIVES_WAY = Mutant(
    id="last-in-gives-way", scenario="test_urgent_requests_go_first",
    bug="Where blocks run out whoever came in last gives way, whatever its priority.",
    breaks=these("priority-kept/way"), along=these("served-in-turn"),
    edits=(Edit("engine/core/request_queue.py", "        insort(running, request, key=_place)\n",
                "        running.append(request)\n"),))

ONE_STEP_MORE = Mutant(
    id="one-step-more", scenario="test_calls_of_the_core",
    bug="A core that is asked for some steps makes one more.",
    breaks=these("calls-answered"),
    edits=(Edit("engine/core/engine_core.py", "        self._allowance = steps\n",
                "        self._allowance = steps + 1\n"),))

STEPS_MUTANTS = (OVERTAKES, IN_ORDER_OF_COMING, LAST_IN_GIVES_WAY, ONE_STEP_MORE)
