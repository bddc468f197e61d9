"""Bugs of what a process and whoever started it tell each other while it is born."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

WAITS_AS_LONG_AS_ITS_OWNER = Mutant(
    id="waits-as-long-as-its-owner", scenario="test_worker_s_ready_is_dropped",
    bug="A core waits for its workers as long as it may take itself: its client gives it up first.",
    breaks=these("birth-told/whose"),
    edits=(Edit("engine/executor/workers.py",
                "        return last if start_by is None else min(last, start_by - told_s)\n",
                "        return last + told_s\n"),))

GARBLED_WORD_PASSED_OVER = Mutant(
    id="garbled-word-passed-over", scenario="test_worker_s_ready_is_damaged",
    bug="A core passes over what a worker says and it cannot read, and waits on.",
    breaks=these("birth-told/damaged"),
    edits=(Edit("engine/executor/workers.py", "            if isinstance(word, Garbled):\n",
                "            if isinstance(word, Garbled):\n                continue\n"),))

IMPATIENT_START = Mutant(
    id="impatient-start", scenario="test_worker_s_ready_is_late[worker.1->core.0/birth]",
    bug="A core gives a worker up when half of what it may take to load has passed.",
    breaks=these("birth-told/late"), along=these("handshake-order", "tokens-match-reference"),
    edits=(Edit("engine/executor/workers.py", "        handles = yield from self._hear_ready(deadline)\n",
                "        handles = yield from self._hear_ready((yield Now()) + config.bounds.startup_s / 20)\n"),))

OPENED_AS_THEY_CAME = Mutant(
    id="opened-as-they-came", scenario="test_worker_s_ready_is_late[worker.0->core.0/birth]",
    bug="A core takes the answers of the worker that was ready first for those of rank 0.",
    breaks=these("nothing-without-cause"), along=these("tokens-match-reference", "ring-exact-prefix"),
    edits=(Edit("engine/executor/workers.py", "        return [handles[rank] for rank in sorted(handles)]\n",
                "        return list(handles.values())\n"),))

DIED_AND_LIVES = Mutant(
    id="died-and-lives", scenario="test_coordinator_s_addresses_are_lost[truncate]",
    bug="A coordinator whose word cannot be read is said to have died.",
    breaks=these("start-ends/named"),
    not_in={"engine": "it is ended for that at once: who was dead a moment before and who was not look alike"},
    edits=(Edit("engine/frontend/handles/coordinator.py",
                "            raise StartupError(f\"what {self.name} says cannot be read: {heard[1].error}\")\n", ""),))

BIRTH_MUTANTS: tuple[Mutant, ...] = (
    DIED_AND_LIVES,
    WAITS_AS_LONG_AS_ITS_OWNER, GARBLED_WORD_PASSED_OVER, IMPATIENT_START, OPENED_AS_THEY_CAME)
