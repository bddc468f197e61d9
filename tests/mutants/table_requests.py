"""Bugs in what a caller is told of a request: its tokens, its end, and why it was not served."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import SHORT_GUARD, Mutant, these

ABORT_UNTOLD = Mutant(
    id="abort-untold", scenario="test_nothing_goes_wrong",
    bug="A caller who aborts a request is not told that it has ended.",
    breaks=these("ends-once/forgets"), along=these("lost-request-is-bounded", "nothing-left-behind"),
    edits=(SHORT_GUARD, Edit(
        "engine/frontend/session.py",
                "        return [self._end(live, FinishReason.ABORT)], _aborts([live])\n",
                "        self._end(live, FinishReason.ABORT)\n"
                "        return [], _aborts([live])\n"),))

TOLD_TO_THE_FIRST = Mutant(
    id="told-to-the-first", scenario="test_two_clients_ask_for_more_than_the_cache_holds",
    bug="Whatever can never be served is told to the first client, whoever asked for it.",
    breaks=these("bad-request-isolated/alone", "client-routed"),
    along=these("lost-request-is-bounded", "bad-frame-isolated"),
    edits=(Edit("engine/core/scheduler.py",
                "            outputs.setdefault(request.client_index, []).append(EngineCoreOutput(\n"
                "                request.request_id, [], request",
                "            outputs.setdefault(0, []).append(EngineCoreOutput(\n"
                "                request.request_id, [], request"),))

STOPS_FOR_NO_REASON = Mutant(
    id="stops-for-no-reason", scenario="test_streams_end_by_themselves",
    bug="Who asked for an end at some tokens is not told which of them it was.",
    breaks=these("tokens-match-reference/end"),
    edits=(Edit("engine/core/request.py", "            return RequestStatus.FINISHED_STOPPED, token_id\n",
                "            return RequestStatus.FINISHED_STOPPED, None\n"),))

WAITS_FOR_SILENCE = Mutant(
    id="waits-for-silence", scenario="test_output_is_lost_and_tokens_go_on",
    bug="A missing output is waited for since the last one that came: as long as tokens come it may be late.",
    breaks=these("lost-request-is-bounded/wait"),
    not_in={"engine": "when a real output came is known to who read it alone"},
    edits=(Edit("engine/frontend/session.py",
                "            gap_s = now - min((at for at, _ in live.early.values()), default=now)\n",
                "            gap_s = now - max((at for at, _ in live.early.values()), default=now)\n"),))

LAST_CORE_ANSWERS = Mutant(
    id="last-core-answers", scenario="test_requests_come_one_after_another",
    bug="Of several cores it is the last one whose answer a caller is told.",
    breaks=these("calls-answered"),
    edits=(Edit("engine/frontend/session.py", "self.answers[min(self.answers)])", "self.answers[max(self.answers)])"),))

AS_IT_COMES = Mutant(
    id="as-it-comes", scenario="test_outputs_swap",
    bug="A stream takes each output as it comes, however many tokens stand before it.",
    breaks=these("tokens-in-order/order"), along=these("tokens-match-reference"),
    edits=(Edit("engine/frontend/session.py", "            if output.num_preceding > live.have:\n",
                "            if output.num_preceding > live.have and False:\n"),
           Edit("engine/frontend/session.py",
                "output.new_token_ids[known:] if known else output.new_token_ids", "output.new_token_ids")))

DOUBLES_DELIVERED = Mutant(
    id="doubles-delivered", scenario="test_output_is_doubled",
    bug="A doubled message of outputs is delivered twice.",
    breaks=these("tokens-in-order/once"), along=these("tokens-match-reference"),
    edits=(Edit("engine/frontend/session.py",
                "output.new_token_ids[known:] if known else output.new_token_ids", "output.new_token_ids"),))

SOMEBODY_ELSES = Mutant(
    id="somebody-elses", scenario="test_nothing_goes_wrong",
    bug="Outputs find their stream by the first letters of their request's id.",
    breaks=these("tokens-in-order/whose"),
    along=these("tokens-match-reference", "ends-once", "lost-request-is-bounded", "served-in-turn"),
    edits=(Edit("engine/frontend/session.py",
                "            live = self._by_internal.get(output.request_id)\n",
                "            live = next((each for name, each in self._by_internal.items()\n"
                "                         if name[0] == output.request_id[0]), None)\n"),))

TOKEN_BY_TOKEN = Mutant(
    id="token-by-token", scenario="test_text_is_shown_as_it_comes",
    bug="Each token is decoded by itself: halves of characters are shown, and spaces lost.",
    breaks=these("text-is-of-tokens/whole"), along=these("tokens-match-reference"),
    edits=(Edit("engine/frontend/text/detokenizer.py",
                "        self._ids.append(token_id)\n        pending = self._pending()\n",
                "        return self._decode([token_id], skip_special_tokens=True)\n        pending = \"\"\n"),))

STOPS_IN_ONE_TOKEN = Mutant(
    id="stops-in-one-token", scenario="test_text_is_shown_as_it_comes",
    bug="A stop string is looked for in what the last token has added.",
    breaks=these("text-is-of-tokens/stop"), along=these("tokens-match-reference"),
    edits=(Edit("engine/frontend/text/detokenizer.py", "find_stop(self._whole, self._stop, self._search_from)",
                "find_stop(self._whole, self._stop, len(self._whole) - len(fresh))"),))

STOP_UNTOLD = Mutant(
    id="stop-untold", scenario="test_text_is_shown_as_it_comes",
    bug="A stop string ends the stream, and the core computes on.",
    breaks=these("text-is-of-tokens/told"), along=these("lost-request-is-bounded"),
    edits=(Edit("engine/frontend/session.py",
                "return [self._end(live, FinishReason.STOP, stop_reason)], _aborts([live])",
                "return [self._end(live, FinishReason.STOP, stop_reason)], []"),))

SENT_UNSEEN = Mutant(
    id="sent-unseen", scenario="test_requests_that_no_engine_can_serve",
    bug="A prompt with an unknown token is sent, and left to the core.",
    breaks=these("bad-request-isolated/before"),
    along=these("served-in-turn"),
    edits=(Edit("engine/frontend/text/input_processor.py", "        self._check_prompt(request_id, token_ids)\n", ""),))

NO_REASON = Mutant(
    id="no-reason", scenario="test_request_that_cannot_be_served",
    bug="A request that cannot be served fails with a message that says nothing.",
    breaks=these("bad-request-isolated/why"),
    edits=(Edit("engine/frontend/session.py",
                "            return BadRequestError(live.request_id, str(output.stop_reason), may",
                "            return BadRequestError(live.request_id, \"invalid\", may"),))

CHECKS_END_THE_CORE = Mutant(
    id="checks-end-the-core", scenario="test_request_that_cannot_be_served",
    bug="A request that cannot be served raises where all are taken in, and the core ends by it.",
    breaks=these("bad-request-isolated/alone"), along=these("tokens-match-reference"),
    edits=(Edit("engine/core/scheduler.py",
                "            request.finish(RequestStatus.FINISHED_ERROR, reason)\n            self._failed[",
                "            raise ValueError(reason)\n            self._failed["),))

WAITS_FOR_EVER = Mutant(
    id="waits-for-ever", scenario="test_request_is_lost",
    bug="A client waits for a request's first output without an end.",
    breaks=these("lost-request-is-bounded/wait", "ends-once/forgets"), along=these("nothing-left-behind"),
    edits=(SHORT_GUARD, Edit("engine/frontend/session.py", "            elif silent_s > self.bounds.request_s:\n",
                "            elif silent_s > 1e9:\n"),))

EFFECT_UNTOLD = Mutant(
    id="effect-untold", scenario="test_request_is_lost",
    bug="A request that got no answer fails as if it had certainly had no effect.",
    breaks=these("lost-request-is-bounded/effect"),
    edits=(Edit("engine/frontend/session.py",
                "                live.request_id, text, may_have_taken_effect=True)))\n",
                "                live.request_id, text)))\n"),))

GIVEN_UP_IN_SILENCE = Mutant(
    id="given-up-in-silence", scenario="test_output_is_lost_and_the_core_stands_still",
    bug="A client that gives a request up does not tell the core, which computes it to its end.",
    breaks=these("lost-request-is-bounded/freed"),
    edits=(Edit("engine/frontend/session.py", "        return deliveries, _aborts(late)\n",
                "        return deliveries, []\n"),))

ABORTED_BY_WORD = Mutant(
    id="aborted-by-word", scenario="test_nothing_goes_wrong",
    bug="An abort is told to its caller and to nobody else: the stream goes on behind its end, and ends again.",
    breaks=these("tokens-in-order/after-end", "abort-is-final/silent", "ends-once/twice"),
    not_in={"engine": "a stream that has ended takes nothing more, so its reader gets no token and no second end"},
    edits=(
        Edit("engine/frontend/session.py",
             "        return [self._end(live, FinishReason.ABORT)], _aborts([live])\n",
             "        return [RequestEnd(request_id, FinishReason.ABORT, internal_id=live.internal_id)], []\n"),
        Edit("engine/frontend/streams.py",
             "            self._forget(end.request_id)\n            stream.put(output)\n",
             "            stream.put(output)\n"),
        Edit("engine/frontend/text/output_processor.py", "        state = self.requests.pop(request_id)\n",
             "        state = self.requests[request_id]\n")))

COMPUTES_ON = Mutant(
    id="computes-on", scenario="test_nothing_goes_wrong",
    bug="A request that runs is not ended by an abort: its blocks are kept until it has finished.",
    breaks=these("abort-is-final/freed"),
    edits=(Edit("engine/core/engine_core.py",
                "request in self.scheduler.abort_requests(request_ids)}\n",
                "request in self.scheduler.abort_requests(\n"
                "            [each for each in request_ids if each in self.scheduler.waiting])}\n"),))

ABORT_UNHEARD = Mutant(
    id="abort-unheard", scenario="test_nothing_goes_wrong",
    bug="An abort is read and forgotten.",
    breaks=these("abort-is-final/freed"),
    edits=(Edit("engine/core/engine_core.py", "            yield from self._abort(item.request_ids)\n",
                "            pass\n"),))

BYTES_UNCOUNTED = Mutant(
    id="bytes-uncounted", scenario="test_more_bytes_than_admitted",
    bug="The client counts the requests that are in flight, and not their bytes.",
    breaks=these("memory-bounded/bytes"),
    edits=(Edit("engine/frontend/session.py",
                "        if self.bytes_in_flight + encoded_bytes > self.limits.max_request_bytes:\n",
                "        if False:\n"),))

NAMELESS_REFUSAL = Mutant(
    id="nameless-refusal", scenario="test_more_requests_than_admitted",
    bug="A request beyond the limit fails like one that is wrong.",
    breaks=these("memory-bounded/named"),
    edits=(Edit("engine/frontend/session.py",
                "            raise RefusedError(request_id, f\"{len(self._by_id)} requests",
                "            raise BadRequestError(request_id, f\"{len(self._by_id)} requests"),))

WRONG_BLOCK = Mutant(
    id="wrong-block", scenario="test_nothing_goes_wrong",
    bug="A block that was found by its content is put into the table of a request in the wrong place.",
    breaks=these("tokens-match-reference/blocks"),
    not_in={"sim": "the twin's model knows the answers; it reads no cache"},
    edits=(Edit("engine/core/kv_cache.py",
                "            self._tables[request.request_id] = [*computed_blocks, *taken]\n",
                "            self._tables[request.request_id] = [*taken, *computed_blocks]\n"),))

PARTIAL_SUM = Mutant(
    id="partial-sum", scenario="test_nothing_goes_wrong",
    bug="One of the sums over all ranks is left out.",
    breaks=these("tokens-match-reference/sum"),
    not_in={"sim": "the twin's model knows the answers; it adds nothing"},
    edits=(Edit("engine/worker/layers.py",
                "        total = self.group.all_reduce(functional.linear(x, self.weight))\n",
                "        total = functional.linear(x, self.weight)\n"),))

LOOKS_BESIDE = Mutant(
    id="looks-beside", scenario="test_blocks_are_larger_than_prompts",
    bug="Requests that end in one block each look at all of it, whatever their length.",
    breaks=these("tokens-match-reference/blocks"),
    not_in={"sim": "the twin's model knows the answers; it reads no cache"},
    edits=(Edit("engine/worker/attention.py", "    if min(lengths) < longest:\n",
                "    if -(-min(lengths) // block_size) < width:\n"),))

NO_SEED = Mutant(
    id="no-seed", scenario="test_tokens_are_drawn",
    bug="The seed 0 counts as none.",
    breaks=these("tokens-match-reference/seed"),
    not_in={"sim": "the twin's model knows the answers; it draws nothing"},
    edits=(Edit("engine/worker/sampler.py", "    if params.seed is not None:\n", "    if params.seed:\n"),))

LEAST_TOKENS_ANEW = Mutant(
    id="least-tokens-anew", scenario="test_request_gives_way_and_may_not_end_sooner",
    bug="The tokens that a request must have are counted anew when it has given way.",
    breaks=these("tokens-match-reference/end"),
    not_in={"sim": "the twin's model knows the answers, and where they end"},
    edits=(Edit("engine/worker/model_runner.py", "        self.num_prompt_tokens = new.num_prompt_tokens\n",
                "        self.num_prompt_tokens = len(self.token_ids)\n"),))

SENT_IN_VAIN = Mutant(
    id="sent-in-vain", scenario="test_frontend_fails_and_closes",
    bug="A request whose sending failed stays with the client, whose caller does not wait for it: it cannot be closed.",
    breaks=these("nothing-without-cause"),
    edits=(Edit("engine/frontend/life.py",
                "            self.session.abort(request_id)  # its caller is told by what is raised, and by nothing",
                "            pass  #"),))

LENGTH_BEFORE_AN_END = Mutant(
    id="length-before-an-end", scenario="test_last_token_is_an_end",
    bug="Whether a request is as long as it may be is asked before whether its last token ends it.",
    breaks=these("tokens-match-reference/end"),
    edits=(Edit("engine/core/request.py", "    if num_output_tokens > params.min_tokens:\n",
                "    if num_output_tokens >= request.max_tokens:\n"
                "        return RequestStatus.FINISHED_LENGTH, None\n"
                "    if num_output_tokens > params.min_tokens:\n"),))

OF_ALL_THAT_MAY_BE_DRAWN = Mutant(
    id="of-all-that-may-be-drawn", scenario="test_tokens_are_drawn",
    bug="How probable tokens are is measured by all, and not by those that top-k keeps.",
    breaks=these("tokens-match-reference/end"), along=these("tokens-in-order"),
    not_in={"sim": "the twin draws nothing: its tokens follow from what it has in its cache"},
    edits=(Edit("engine/worker/sampler.py",
                "    scaled.masked_fill_(ranks >= column([draw.params.top_k or vocabulary for draw in draws]), "
                "float(\"-inf\"))\n    kept = (scaled - scaled[:, :1]).softmax(dim=-1)\n",
                "    kept = (scaled - scaled[:, :1]).softmax(dim=-1)\n"
                "    kept.masked_fill_(ranks >= column([draw.params.top_k or vocabulary for draw in draws]), 0.0)\n"),))

REQUEST_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
