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

ABORTS_ITS_NAMESAKE = Mutant(
    id="aborts-its-namesake", scenario="test_a_program_generates",
    bug="Who closes a stream that has ended aborts the request that has its name by then.",
    breaks=these("programs-are-answered/generation"), not_in=_NO_TWIN,
    edits=(Edit("engine/frontend/async_llm.py", "        if not self._stream.ended:\n", "        if True:\n"),))

DEATH_BEFORE_TOKENS = Mutant(
    id="death-before-tokens", scenario="test_a_program_generates",
    bug="Who reads slowly is told of the death of its engine, and not of the tokens that it had been told before.",
    breaks=these("programs-are-answered/generation"), not_in=_NO_TWIN,
    edits=(Edit("engine/frontend/streams.py",
                "        output, self.latest = self.latest, None\n"
                "        if output is None and self.error is not None:\n            raise self.error\n",
                "        if self.error is not None:\n            raise self.error\n"
                "        output, self.latest = self.latest, None\n"),))

LEFT_FOR_THE_FIRST = Mutant(
    id="left-for-the-first", scenario="test_a_program_reads_from_another_host",
    bug="When a second reader of a rank, which was refused, leaves, the first one counts as gone.",
    breaks=these("programs-are-answered/queues"), not_in=_NO_TWIN,
    edits=(Edit("engine/ipc/presence.py", "_LEFT_SIGN and topic == first:", "_LEFT_SIGN and first is not None:"),))

STILL_AND_THERE = Mutant(
    id="still-and-there", scenario="test_a_program_has_sockets_of_its_own",
    bug="A peer across a network is never asked whether it is there: one that stands still holds its connection.",
    breaks=these("programs-are-answered/sockets"), not_in=_NO_TWIN,
    edits=(Edit("engine/wire/sockets.py", "        if spec.heartbeat_s and spec.address.startswith(\"tcp://\"):\n",
                "        if False:\n"),))

DEAD_AND_NOT_BURIED = Mutant(
    id="dead-and-not-buried", scenario="test_a_program_has_queues_of_its_own",
    bug="A process that is dead counts as alive as long as its parent has not asked for its end.",
    breaks=these("programs-are-answered/queues"), not_in=_NO_TWIN,
    edits=(Edit("engine/process/identity.py", 'return fields[_STATE] in (b"Z", b"X")',
                'return fields[_STATE] == b"X"'),
           Edit("engine/process/identity.py", "return bool(int(fields[_FLAGS]) & _PF_EXITING)", "return False")))

HELD_BY_ANOTHER_CHILD = Mutant(
    id="held-by-another-child", scenario="test_a_program_begins_engines_and_ends_them",
    bug="A child knows of its parent's end by their pipe alone, which another child of that parent may hold.",
    breaks=these("programs-are-answered/engines"), not_in=_NO_TWIN,
    edits=(Edit("engine/process/children.py",
                "            if not self._gone and self._connection.fileno() in readable(\n"
                "                    [self._connection.fileno(), self._sentinel], None):\n",
                "            if not self._gone:\n"),))

LOCKS_OF_CHILDREN = Mutant(
    id="locks-of-children", scenario="test_a_program_begins_engines_and_ends_them",
    bug="What an engine's children marked as theirs stays in shared memory.",
    breaks=these("programs-are-answered/engines"), not_in=_NO_TWIN,
    edits=(Edit("engine/process/runtime_dir.py",
                '    for lock in [*SHM.glob(f"{PREFIX}{engine_id}.*.lock"), _lock_path(engine_id)]:\n',
                "    for lock in [_lock_path(engine_id)]:\n"),))

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

GOES_ON_WHEN_CANCELLED = Mutant(
    id="goes-on-when-cancelled", scenario="test_a_program_generates",
    bug="A stream that is left gives its request up, and one whose task is cancelled does not.",
    breaks=these("programs-are-answered/generation"), not_in=_NO_TWIN,
    edits=(Edit("engine/frontend/async_llm.py", "        finally:\n            await stream.aclose()\n",
                "        except GeneratorExit:\n            await stream.aclose()\n            raise\n"),))

PROGRAM_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
