"""Bugs that programs meet which use parts of the engine by themselves."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

_NO_TWIN = {"sim": "the twin plays no program of its own"}

PUBLISHES_AFTER_ITS_END = Mutant(
    id="publishes-after-its-end", scenario="test_a_program_publishes_events_and_follows_them",
    bug="Who publishes through a publisher that was shut down is told nothing.",
    breaks=these("programs-are-answered/events"), not_in=_NO_TWIN,
    edits=(Edit("engine/kv_events/publisher/process.py", 'raise RuntimeError("Publisher is closed")', "return"),))

TWO_OF_A_RANK = Mutant(
    id="two-of-a-rank", scenario="test_a_program_has_queues_of_its_own",
    bug="A second reader of a rank is let in while the first one is there.",
    breaks=these("programs-are-answered/queues"), not_in=_NO_TWIN,
    edits=(Edit("engine/ipc/end.py", "(before := self.process.run(presence.state(reader))) != UNKNOWN:",
                "(before := self.process.run(presence.state(reader))) not in (UNKNOWN, ALIVE):"),))

LEFT_AND_NOT_ABORTED = Mutant(
    id="left-and-not-aborted", scenario="test_a_program_generates",
    bug="Who leaves a stream early leaves its request running.",
    breaks=these("programs-are-answered/generation"), not_in=_NO_TWIN,
    edits=(Edit("engine/frontend/async_llm.py", "        if not self._stream.ended:\n", "        if False:\n"),))

STILL_AND_THERE = Mutant(
    id="still-and-there", scenario="test_a_program_has_sockets_of_its_own",
    bug="A peer across a network is never asked whether it is there: one that stands still holds its connection.",
    breaks=these("programs-are-answered/sockets"), not_in=_NO_TWIN,
    edits=(Edit("engine/wire/sockets.py", "        if spec.heartbeat_s and spec.address.startswith(\"tcp://\"):\n",
                "        if False:\n"),))

WAITED_AND_BLAMED = Mutant(
    id="waited-and-blamed", scenario="test_a_program_has_its_ranks_compute_together",
    bug="A stage that gave up waits no longer, as far as others see: it is blamed for what it waited for.",
    breaks=these("programs-are-answered/ranks"), not_in=_NO_TWIN,
    edits=(Edit("engine/worker/parallel/shared_memory.py", "_FOR_GOOD = 1 << 63\n", "_FOR_GOOD = 0\n"),))

HOLDERS_ARE_NOT_LOOKED_AT = Mutant(
    id="holders-are-not-looked-at", scenario="test_books_are_damaged",
    bug="The self-check of a cache does not compare its counts with who holds its blocks.",
    breaks=these("self-checks-see"),
    edits=(Edit("engine/core/block_pool.py", "if count != held[block]:", "if False:"),))

PROGRAM_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
