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

NEWEST_FIRST = Mutant(
    id="newest-step-first", scenario="test_two_steps_in_flight",
    bug="Of the steps in flight the newest one's results are used first.",
    breaks=these("steps-in-order/order"), along=these("served-in-turn", "kv-never-stalls", "blocks-conserved"),
    edits=(Edit("engine/core/batch_queue.py", "self._steps.popleft()", "self._steps.pop()"),))

ONE_TOO_MANY_IN_FLIGHT = Mutant(
    id="one-too-many-in-flight", scenario="test_two_steps_in_flight",
    bug="The queue of steps takes one more than it is deep.",
    breaks=these("steps-in-order/depth"),
    edits=(Edit("engine/core/batch_queue.py", "len(self._steps) >= self.depth or",
                "len(self._steps) > self.depth or"),))

STEP_WITHOUT_SAMPLE = Mutant(
    id="step-without-sample", scenario="test_nothing_goes_wrong",
    bug="A core does not ask for the sample of one of its steps, and takes it for one that has brought nobody a token.",
    breaks=these("two-phase-paired/missing"),
    along=these("tokens-match-reference", "served-in-turn", "blocks-conserved", "death-is-told"),
    edits=(
        Edit("engine/core/batch_queue.py", "        if scheduled.num_scheduled_tokens:\n",
             "        if scheduled.num_scheduled_tokens and scheduled.step != 0:\n"),
        Edit("engine/core/batch_queue.py",
             "            raise RuntimeError(f\"step {scheduled.step}: the workers had nothing to sample\")\n",
             "            sevens = {name: [7] for name in scheduled.num_scheduled_tokens}\n"
             "            result = ModelRunnerOutput(scheduled.step, sevens)\n")))

STEP_BEHIND_A_FAILED_SAMPLE = Mutant(
    id="step-behind-a-failed-sample", scenario="test_rank_fails_to_sample_with_a_step_behind_it",
    bug="A rank that failed to sample executes the step that it was asked for behind it, whatever it has kept.",
    breaks=these("two-phase-paired/behind"),
    edits=(Edit("engine/worker/worker_loop.py", "if method in PHASES:", "if method in FORWARDS:"),
           Edit("engine/worker/phases.py", "        if self._kept is not None:\n", "        if False:\n")))

SAMPLE_OF_NOTHING = Mutant(
    id="sample-of-nothing", scenario="test_nothing_goes_wrong",
    bug="A core asks for a sample of a step that has no tokens.",
    breaks=these("two-phase-paired/alone"), along=these("ends-once", "death-is-told", "blocks-conserved"),
    edits=(Edit("engine/core/batch_queue.py", "        if scheduled.num_scheduled_tokens:\n", "        if True:\n"),))

SAMPLE_AWAITED_FIRST = Mutant(
    id="sample-awaited-first", scenario="test_worker_fails_with_its_sample_asked_for",
    bug="A core waits for a step's sample alone, and says what that was: nothing.",
    breaks=these("first-error-told"), along=these("death-is-told"),
    edits=(Edit("engine/core/batch_queue.py",
                "[executed, sampled]", "[sampled]"),))

ASKS_ON = Mutant(
    id="asks-on", scenario="test_rank_fails_to_sample_before_another_one_has_answered",
    bug="Of the steps in flight a core looks whether their execute has failed, and not their sample.",
    breaks=these("rpc-any-rank-fails-fast/closed"),
    edits=(Edit("engine/core/batch_queue.py",
                "self.executed.error is not None or (self.sampled is not None and self.sampled.error is not None)",
                "self.executed.error is not None"),))

ANOTHER_TOKEN_THAN_PROMISED = Mutant(
    id="another-token-than-promised", scenario="test_tokens_in_flight_are_promised",
    bug="A rank goes on with another token than the one that it sampled.",
    breaks=these("async-same-tokens"),
    along=these("tokens-match-reference", "served-in-turn", "blocks-conserved", "ends-once", "tokens-in-order",
                "placeholders-conserved"),
    edits=(Edit("engine/worker/model_runner.py", "                state.token_ids.append(token)\n",
                "                state.token_ids.append(token ^ 1)\n"),
           Edit("sim/nodes/model.py", "                known.says(token)\n",
                "                known.says(token ^ 1)\n")))

BEYOND_ITS_LENGTH = Mutant(
    id="beyond-its-length", scenario="test_tokens_in_flight_are_promised",
    bug="A core schedules a step for a request whose last token, by its length, is in flight.",
    breaks=these("placeholders-conserved/length"), along=these("served-in-turn", "blocks-conserved"),
    edits=(Edit("engine/core/scheduler.py",
                "        return (num_tokens - request.num_prompt_tokens >= request.max_tokens or num_tokens >= "
                "self.max_model_len\n",
                "        return (num_tokens >= self.max_model_len\n"),))

TOO_MUCH_BEHIND_A_STOP = Mutant(
    id="too-much-behind-a-stop", scenario="test_promised_tokens_end_streams",
    bug="The queue of steps takes one more than it is deep, and each is one more behind a token that ends a stream.",
    breaks=these("placeholders-conserved/stop"), along=these("steps-in-order"),
    edits=(Edit("engine/core/batch_queue.py", "len(self._steps) >= self.depth or",
                "len(self._steps) > self.depth or"),))

DEAF_TO_ABORTS = Mutant(
    id="deaf-to-aborts", scenario="test_abort_comes_with_its_step_in_flight",
    bug="A core uses the results of a step, and hears afterwards who was aborted while it was in flight.",
    breaks=these("steps-in-order/abort"), along=these("abort-is-final"),
    not_in={"engine": "whether an abort had come before a step was used is a matter of microseconds"},
    edits=(Edit("engine/core/engine_core.py",
                "        if self.in_flight.depth > 1:\n            yield from self._hear_aborts()\n", ""),))

FETCHED_IN_VAIN = Mutant(
    id="fetched-in-vain", scenario="test_sampled_token_cannot_be_fetched",
    bug="A rank that cannot fetch what it has sampled answers with nothing, as if that was all.",
    breaks=these("first-error-told"), along=these("thread-death-told", "rpc-matched", "death-is-told"),
    edits=(Edit("engine/worker/async_output.py",
                '                        status, value = ReplyStatus.FAILURE, f"{type(error).__name__}: {error}"\n'
                '                        yield Observe("rpc-raised", {"call": call_id, "method": "get_output", '
                '"error": value})\n',
                '                        yield Observe("rpc-raised", {"call": call_id, "method": "get_output", '
                '"error": str(error)})\n'
                '                        value = None\n'),))

FORGETS_WHOM_TO_FORGET = Mutant(
    id="forgets-whom-to-forget", scenario="test_requests_and_an_abort_come_with_a_step_in_flight",
    bug="While a step is in flight an abort of who is not there yet is heard, and forgotten.",
    breaks=these("abort-is-final/freed"), along=these("steps-in-order"),
    edits=(Edit("engine/core/engine_core.py",
                "                item = Abort([request_id for request_id in item.request_ids "
                "if request_id not in living])\n"
                "                if not item.request_ids:\n"
                "                    continue\n",
                "                continue\n"),))

TURNED_AROUND = Mutant(
    id="turned-around", scenario="test_requests_and_an_abort_come_with_a_step_in_flight",
    bug="What comes besides aborts while a step is in flight is handled the last one first.",
    breaks=these("served-in-turn"), along=these("abort-is-final"),
    edits=(Edit("engine/core/engine_core.py", "            self._unhandled.append(item)\n",
                "            self._unhandled.insert(0, item)\n"),))

PAUSED_AT_ONCE = Mutant(
    id="paused-at-once", scenario="test_scheduler_is_paused_with_two_steps_in_flight",
    bug="A core answers a pause while steps are in flight.",
    breaks=these("pause-exact/flight"), along=these("calls-answered"),
    edits=(Edit("engine/core/engine_core.py",
                "        self._allowance = 0\n        yield from self._use_all()\n        return self.steps\n",
                "        self._allowance = 0\n        return self.steps\n        yield\n"),))

IDLE_WITHOUT_ITS_QUEUE = Mutant(
    id="idle-without-its-queue", scenario="test_two_steps_in_flight",
    bug="A core that may schedule no more takes itself for idle, whatever is in flight.",
    breaks=these("calls-answered"), along=these("blocks-conserved", "served-in-turn", "steps-in-order"),
    edits=(Edit("engine/core/engine_core.py", "        return bool(self.in_flight) or self._may_schedule()\n",
                "        return self._may_schedule()\n"),))

CACHED_BEFORE_KNOWN = Mutant(
    id="cached-before-known", scenario="test_tokens_in_flight_are_promised",
    bug="Blocks can be found as soon as a step computes them, whatever token they end with.",
    breaks=these("async-same-tokens"), along=these("tokens-match-reference", "blocks-conserved"),
    edits=(Edit("engine/core/scheduler.py", "                cache.cache_blocks(request, num_computed)\n",
                "                cache.cache_blocks(request, request.num_computed_tokens)\n"),))

LIVES_WITHOUT_ITS_THREAD = Mutant(
    id="lives-without-its-thread", scenario="test_copy_thread_fails",
    bug="A worker lives on when the thread that gives its answers has ended.",
    breaks=these("thread-death-told/ends"), along=these("death-is-told", "health-is-true"),
    edits=(Edit("engine/worker/life.py", "            yield needed(COPY, ", "            yield beside(COPY, "),))

WAITS_FOR_ITS_ANSWER = Mutant(
    id="waits-for-its-answer", scenario="test_copy_thread_hangs",
    bug="A core waits for the answer to a step without a bound.",
    breaks=these("thread-death-told/hangs"),
    along=these("stall-is-told", "ring-bounded-wait", "rpc-matched", "health-is-true"),
    edits=(Edit("engine/executor/multiproc.py",
                "        call = self.table.open(method, output_rank, (yield Now()) + timeout_s)\n",
                "        call = self.table.open(method, output_rank, (yield Now()) + 1000 * timeout_s)\n"),
           Edit("engine/worker/async_output.py", "        if (yield Waiting(COPY)) >= self._most:\n",
                "        if (yield Waiting(COPY)) >= 1000 * self._most:\n")))

HEEDED_BEFORE_IT_CAME = Mutant(
    id="heeded-before-it-came", scenario="test_requests_and_an_abort_come_with_a_step_in_flight",
    bug="While a step is in flight an abort is heeded, also of who waits to be taken in behind that step.",
    breaks=these("abort-is-final/freed"),
    edits=(Edit("engine/core/engine_core.py",
                "                if living:\n                    yield from self._abort(living)\n",
                "                yield from self._abort(item.request_ids)\n                continue\n"),))

PROMISED_BEYOND_THE_CACHE = Mutant(
    id="promised-beyond-the-cache", scenario="test_request_outgrows_the_cache_with_a_promised_token",
    bug="A request that has outgrown the cache fails while its last token is promised, which nobody gets.",
    breaks=these("bad-request-isolated/alone"), along=these("served-in-turn"),
    edits=(Edit("engine/core/scheduler.py", "                or num_tokens > self.cache.capacity_tokens)\n",
                "                or num_tokens < 0)\n"),))

COMES_BEHIND_WHO_IS_THERE = Mutant(
    id="comes-behind-who-is-there", scenario="test_equally_urgent_requests_are_served_as_they_came",
    bug="Of equally urgent requests one goes behind as many as wait when it comes.",
    breaks=these("priority-kept/turn"), along=these("served-in-turn"),
    edits=(Edit("engine/core/request_queue.py", "request.came = next(self._numbers)",
                "request.came = len(self._requests)"),))

FORGETS_WHAT_CAME = Mutant(
    id="forgets-what-came", scenario="test_request_comes_while_a_pause_uses_what_is_in_flight",
    bug="What comes while a pause uses the steps in flight is put aside, and forgotten with what was there before.",
    breaks=these("nothing-without-cause"),
    edits=(Edit("engine/core/engine_core.py",
                "            self._unhandled = []\n"
                "            for item in items:\n                yield from self._handle(item)\n",
                "            for item in items:\n                yield from self._handle(item)\n"
                "            self._unhandled = []\n"),))

COMES_ANEW = Mutant(
    id="comes-anew", scenario="test_equally_urgent_requests_keep_their_turn_when_they_give_way",
    bug="Of equally urgent requests who gives way goes behind all that have come.",
    breaks=these("priority-kept/turn"), along=these("served-in-turn"),
    edits=(Edit("engine/core/request_queue.py",
                "        request.came = next(self._numbers)\n        self.give_back(request)\n\n"
                "    def give_back(self, request: Request) -> None:\n",
                "        self.give_back(request)\n\n    def give_back(self, request: Request) -> None:\n"
                "        request.came = next(self._numbers)\n"),))

ALLOWS_WHAT_IT_REFUSED = Mutant(
    id="allows-what-it-refused", scenario="test_steps_that_are_refused_change_nothing",
    bug="A call for no steps is refused, and ends those that run.",
    breaks=these("nothing-without-cause"), along=these("tokens-match-reference"),
    edits=(Edit("engine/core/engine_core.py", "        if steps < 1:\n            raise ValueError(f\"steps must",
                "        self._allowance = steps\n        if steps < 1:\n            raise ValueError(f\"steps must"),))

STEPS_MUTANTS = (
    COMES_ANEW, ALLOWS_WHAT_IT_REFUSED, FORGETS_WHAT_CAME,
    COMES_BEHIND_WHO_IS_THERE,
    OVERTAKES, IN_ORDER_OF_COMING, LAST_IN_GIVES_WAY, ONE_STEP_MORE, NEWEST_FIRST, ONE_TOO_MANY_IN_FLIGHT,
    STEP_WITHOUT_SAMPLE, STEP_BEHIND_A_FAILED_SAMPLE, SAMPLE_OF_NOTHING, SAMPLE_AWAITED_FIRST, ASKS_ON,
    ANOTHER_TOKEN_THAN_PROMISED, BEYOND_ITS_LENGTH,
    TOO_MUCH_BEHIND_A_STOP, DEAF_TO_ABORTS, FETCHED_IN_VAIN, FORGETS_WHOM_TO_FORGET, TURNED_AROUND, PAUSED_AT_ONCE,
    IDLE_WITHOUT_ITS_QUEUE, CACHED_BEFORE_KNOWN, LIVES_WITHOUT_ITS_THREAD, WAITS_FOR_ITS_ANSWER,
    HEEDED_BEFORE_IT_CAME, PROMISED_BEYOND_THE_CACHE)
