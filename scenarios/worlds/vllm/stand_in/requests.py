"""What one rank knows of requests (pure): their tokens, their blocks, and what it says next.

Reads vLLM's `SchedulerOutput` by the names of its fields, so a test may hand it any object that has them.
"""

from __future__ import annotations

from typing import Any

from scenarios.worlds.vllm.stand_in.words import MASK, Slots, next_token, words


class Known:
    """One request: `blocks` of its only group."""

    __slots__ = ("blocks", "num_prompt_tokens", "tokens")

    def __init__(self, tokens: list[int], blocks: list[int]) -> None:
        self.tokens, self.blocks = tokens, blocks
        self.num_prompt_tokens = len(tokens)


class Requests:
    """Of one rank. `execute` writes what a step computes into the cache, and says the tokens that follow."""

    def __init__(self, block_size: int, vocabulary: int) -> None:
        self._slots = Slots(block_size)
        self._vocabulary = vocabulary
        self._known: dict[str, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def execute(self, step: Any) -> dict[str, list[int]]:
        """-> by request of the step: the token that follows, or none where its prompt goes on in a later step."""
        for name in step.finished_req_ids:
            self._known.pop(name, None)
        computed = self._take_in(step)
        return {name: self._compute(self._known[name], computed[name], count)
                for name, count in step.num_scheduled_tokens.items()}

    def _take_in(self, step: Any) -> dict[str, int]:
        """-> how much of each request is computed"""
        computed = {}
        for new in step.scheduled_new_reqs:
            self._known[new.req_id] = Known(list(new.prompt_token_ids), list(new.block_ids[0]))
            computed[new.req_id] = new.num_computed_tokens
        again = step.scheduled_cached_reqs
        for place, name in enumerate(again.req_ids):
            known, blocks = self._known[name], again.new_block_ids[place]
            if name in again.resumed_req_ids:  # what it said and nobody heard is said again
                known.blocks = list(blocks[0])
                del known.tokens[known.num_prompt_tokens + again.num_output_tokens[place]:]
            elif blocks is not None:
                known.blocks += blocks[0]
            computed[name] = again.num_computed_tokens[place]
        return computed

    def _compute(self, known: Known, start: int, count: int) -> list[int]:
        end, own = start + count, words(known.tokens)
        self._slots.write(known.blocks, start, own[start:end])
        if end < len(known.tokens):
            return []
        found = self._slots.read(known.blocks, end)
        said = next_token(own[-1] if found == own else hash(tuple(found)) & MASK, self._vocabulary)
        known.tokens.append(said)
        return [said]
