"""Bugs of the ring and its waits that table.py does not have. What no machine here can show (a store that overtakes
another one) is found by the explorer: tests/explorer/flaws.py.
"""

from __future__ import annotations

from tests.explorer.flaws import DATA, FENCE, READERS, RESET, WRITE, WRITTEN
from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

FLAG_BEFORE_DATA = Mutant(
    id="H03", scenario="test_writer_stops_at_a_store[data]",
    bug="The flag can be seen before the data, as if the machine had swapped the stores.",
    breaks=these("ring-exact-prefix"),
    along=these("workers-in-step", "tokens-match-reference", "rpc-matched"),
    not_in={"engine": "readers that look within the same microsecond end the play before its fault; when is chance"},
    edits=(Edit("engine/ipc/ring.py", WRITE, RESET + FENCE + READERS + FENCE + WRITTEN + DATA + FENCE),))

WAITS_FOR_THE_DEAD = Mutant(
    id="H09", scenario="test_reader_dies_while_the_writer_waits_for_it",
    bug="A writer that finds no room waits without a deadline, and a reader's death does not end that.",
    breaks=these("ring-bounded-wait", "death-is-told"),
    along=these("health-is-true"),
    edits=(
        Edit("engine/ipc/queue.py", "self._look, self._sleep, deadline, self.no_room, self.stats)",
             "self._look, self._sleep, None, self.no_room, self.stats)"),
        Edit("engine/process/shell.py",
             "        if self.cancelled is not None:\n            raise self.cancelled if isinstance",
             "        if self.cancelled is not None and effect.deadline is not None:\n"
             "            raise self.cancelled if isinstance"),
        Edit("sim/process/answers/rings.py",
             "    if process.cancelled is not None:\n        raise process.cancellation()",
             "    if process.cancelled is not None and effect.deadline is not None:\n"
             "        raise process.cancellation()")))

RING_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
