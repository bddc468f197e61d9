"""Bugs in what stages hand to each other, and in what is told of one."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

TOKENS_OF_ANOTHER = Mutant(
    id="tokens-of-another", scenario="test_two_stages_of_promised_tokens",
    bug="The first stage gives the tokens that it is told of to the requests in another order.",
    breaks=these("pp-tokens-match/tokens"),
    along=these("tokens-match-reference", "async-same-tokens", "served-in-turn", "blocks-conserved", "ends-once",
                "tokens-in-order", "placeholders-conserved", "pp-no-stale-slot", "abort-is-final"),
    edits=(Edit("engine/worker/model_runner.py", "self.stage.hear_samples(step, len(states)), strict=True)",
                "self.stage.hear_samples(step, len(states))[::-1], strict=True)"),
           Edit("sim/nodes/model.py", "            for request, token in zip(requests, tokens, strict=True):\n",
                "            for request, token in zip(requests, tokens[::-1], strict=True):\n")))

ANOTHER_STEP = Mutant(
    id="another-step-than-its-own", scenario="test_two_stages",
    bug="A stage asks for another step than the one that it is in, and does not look what it gets.",
    breaks=these("pp-tokens-match/order"),
    edits=(Edit("engine/worker/parallel/stages.py",
                "        mine = self._group.receive(\"hidden_states\", step, mine)\n",
                "        mine = self._group.receive(\"hidden_states\", step + 1, mine)\n"),
           Edit("engine/worker/parallel/pipe.py", "            if found != (step, flat.numel()):\n",
                "            if found[1] != flat.numel():\n"),
           Edit("sim/nodes/model.py", "TakeOver(self._pipe, \"hidden_states\", step.step, ",
                "TakeOver(self._pipe, \"hidden_states\", step.step + 1, "),
           Edit("sim/transport/pipes.py", "        if found.step != step or len(found.content) != count:\n",
                "        if len(found.content) != count:\n")))

ONLY_WHO_ANSWERS_FAILS = Mutant(
    id="only-who-answers-fails", scenario="test_first_stage_fails_with_the_next_step_sent",
    bug="A rank that has not to answer keeps its exception to itself.",
    breaks=these("pp-stage-death-told/told"),
    along=these("rpc-any-rank-fails-fast", "rpc-matched", "first-error-told", "death-is-told"),
    edits=(Edit("engine/worker/worker_loop.py",
                "            yield from answers.give(call_id, ReplyStatus.FAILURE, text)\n"
                "            continue\n"
                "        if output_rank",
                "            if output_rank in (None, rank):\n"
                "                yield from answers.give(call_id, ReplyStatus.FAILURE, text)\n"
                "            continue\n        if output_rank"),))

NOBODY_NAMED = Mutant(
    id="nobody-named", scenario="test_middle_stage_stands_still",
    bug="A stage that waited in vain does not say for whom.",
    breaks=these("pp-stage-death-told/named"),
    edits=(Edit("engine/worker/parallel/pipe.py", "f\"{self._names[self._before]} did not send step {step}\")\n",
                "f\"step {step} did not come\")\n"),
           Edit("sim/process/answers/work.py", "f\"{other} did not send step {effect.step}\"",
                "f\"step {effect.step} did not come\"")))

BLOCKS_OF_BEFORE = Mutant(
    id="blocks-of-before", scenario="test_two_stages_of_promised_tokens",
    bug="Stages keep the blocks of a request that gave way, and go on in them when it comes back.",
    breaks=these("pp-no-stale-slot"),
    along=these("tokens-match-reference", "pp-tokens-match", "async-same-tokens", "served-in-turn", "blocks-conserved",
                "ends-once", "tokens-in-order", "placeholders-conserved", "abort-is-final"),
    edits=(Edit("engine/worker/model_runner.py",
                "        for request_id in output.preempted:\n            self.requests.pop(request_id, None)\n", ""),
           Edit("engine/worker/model_runner.py",
                "            self.requests[new.request_id] = CachedRequestState(",
                "            before = self.requests.get(new.request_id)\n"
                "            if before is not None:\n"
                "                new.block_ids[:len(before.block_ids)] = before.block_ids[:len(new.block_ids)]\n"
                "            self.requests[new.request_id] = CachedRequestState("),
           Edit("sim/nodes/model.py", "        for request_id in (*step.finished, *step.preempted):\n",
                "        for request_id in step.finished:\n"),
           Edit("sim/nodes/model.py",
                "            known[new.request_id] = Known(new, continuation, model.last_token)\n",
                "            before = known.get(new.request_id)\n"
                "            known[new.request_id] = Known(new, continuation, model.last_token)\n"
                "            if before is not None:\n"
                "                own = known[new.request_id].blocks\n"
                "                own[:len(before.blocks)] = before.blocks[:len(own)]\n")))

FIRST_RANK_ANSWERS = Mutant(
    id="first-rank-answers", scenario="test_two_stages",
    bug="A core waits for the answers of rank 0, which has nothing to sample from.",
    breaks=these("nothing-without-cause"), along=these("tokens-match-reference", "pp-tokens-match"),
    edits=(Edit("engine/executor/registry.py", "recipe.config.grid.output_rank)", "0)"),))

STAGES_MUTANTS = (
    TOKENS_OF_ANOTHER, ANOTHER_STEP, ONLY_WHO_ANSWERS_FAILS, NOBODY_NAMED, BLOCKS_OF_BEFORE, FIRST_RANK_ANSWERS)
