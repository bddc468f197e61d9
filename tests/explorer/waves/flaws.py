"""Small changes to the waves' code, each with what must become of it under the explorer.

A flaw is a text that stands exactly once in one of the shipped files, and what it is replaced by; the changed source is
run as a module of its own. One that no longer fits is an error.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import NamedTuple

from tests.explorer.waves.nodes import Case, Code
from tests.explorer.waves.search import Explorer
from tests.explorer.waves.states import SHIPPED
from tests.explorer.waves.told import Counterexample


class Flaw(NamedTuple):
    name: str
    file: str  # waves or board
    changes: tuple[tuple[str, str], ...]
    case: Case  # a small one in which it shows
    says: str  # part of the violation


def flawed(file: str, changes: tuple[tuple[str, str], ...]) -> Code:
    """Raises ValueError where a text does not stand exactly once."""
    source = inspect.getsource(getattr(SHIPPED, file))
    for old, new in changes:
        if (count := source.count(old)) != 1:
            raise ValueError(f"the text to change stands {count} times in {file}.py, not once:\n{old}")
        source = source.replace(old, new)
    module = ModuleType(f"flawed_{file}")
    exec(compile(source, module.__name__, "exec", dont_inherit=True), module.__dict__)
    return SHIPPED._replace(**{file: module})


def hunt(flaw: Flaw) -> Counterexample | None:
    return Explorer(flaw.case, flawed(flaw.file, flaw.changes)).explore()


ONE, TWO = Case(requests=1), Case(requests=2)
ABORT = Case(requests=1, aborts=1, repair=False)
PAUSE = Case(requests=1, pauses=1)
LOST = Case(requests=1, faults=1)

_DUE = '        self.due = self.step % self.interval == 0 or (self.protocol == "new" and self.step == 1)\n'
_OWN = "        self.running = True  # itself: the START that answers the report leaves its sender out\n"
_TELLS = "        return self._start()\n"
_NEXT = "        self.wave += 1\n"
_FLAG = ' and not (self.protocol == "new" and self.paused)'
_THIS_WAVE = "        if wave != self.wave:\n            return\n"
_ENDS = "[WaveComplete(ended)] if self.rank == 0 or not self.coordinated else []"
_STALE_START = "        if wave < self.wave:\n            return [Start(wave, rank)]\n"
_RUNS = "wave == self.wave and self.running else"
_STALE_END = "        if wave < self.wave:\n            return []\n        self.wave, self.running"
_WAITS = "waits for ever in the all-reduce"
_BARRIER = "        self._resuming = self.due = True\n        return []\n"

FLAWS = (
    Flaw("no wave numbers in START", "waves", ((_THIS_WAVE, ""),), TWO, _WAITS),
    Flaw("a START is taken for one of the wave before it, too", "waves",
         ((_THIS_WAVE, _THIS_WAVE.replace("wave != self.wave", "wave < self.wave - 1")),), TWO, _WAITS),
    Flaw("the sender is left out and does not run itself", "waves", ((_OWN, ""),), ABORT, _WAITS),
    Flaw("a START that leaves anybody out is heeded by nobody", "waves",
         (("if exclude != self.rank and", "if exclude is None and"),), ONE._replace(repair=False), _WAITS),
    Flaw("no ignore flag at pause", "waves", ((_FLAG, ""),), PAUSE, "executes a step, and not all have resumed"),
    Flaw("wave_complete by every rank, with a coordinator", "waves", ((_ENDS, "[WaveComplete(ended)]"),), ONE,
         "rank 1: of no wave it is to report the end"),
    Flaw("wave_complete by nobody", "waves", ((_ENDS, "[]"),), ONE, "rank 0: of [0] it is to report the end"),
    Flaw("a rank misses the increment", "waves", ((_NEXT, "        self.wave += self.rank == 0\n"),), TWO,
         "it rests, and its wave 0 is not over"),
    Flaw("a rank keeps its step over the wave's end", "waves",
         ((_NEXT + "        self.step = 0\n", _NEXT + "        self.step *= self.rank\n"),), TWO,
         "at different (wave, step)"),
    Flaw("the cadence hangs on cached answers of a rank's own", "waves",
         ((_DUE, _DUE.replace("(self.protocol", "not getattr(self, '_worked', True) or (self.protocol")),
          ("        working = int(", "        working = self._worked = int(")), TWO, "at different (wave, step)"),
    Flaw("a request to wave 0 starts nothing", "waves",
         ((_OWN + _TELLS, _OWN + "        return self._start() if self.wave else []\n"),), ONE, _WAITS),
    Flaw("a request starts its rank only if it is late", "waves",
         (("        if self.protocol == \"old\":\n            return self._start() if wave < self.wave and not "
           "self.running else []\n", "        if wave == self.wave:\n            return []\n"),), ONE, _WAITS),
    Flaw("a request at a paused rank wakes it", "waves",
         (("if self.running or self.holds:", "if self.running:"),), PAUSE, "executes a step, and not all have resumed"),
    Flaw("a pause is agreed by a rank alone", "waves", ((" or pausing % self.size != 0", ""),), PAUSE,
         "executes a step, and not all have resumed"),
    Flaw("held requests keep a pause from being agreed", "waves",
         (("int(unfinished and not self.holds)", "int(unfinished)"),), PAUSE, "it goes on though all are to pause"),
    Flaw("no barrier at resume", "waves", ((_BARRIER, "        self.running = True\n        return []\n"),), PAUSE,
         "executes a step, and not all have resumed"),
    Flaw("behind a resume a rank knows of its own work alone", "waves",
         (("self.running = sums[0] > 0 or", "self.running = (self.running if resumed else sums[0] > 0) or"),), PAUSE,
         _WAITS),
    Flaw("a report of a start is not repeated", "waves", (("        if self._repair:\n", "        if False:\n"),), LOST,
         _WAITS),
    Flaw("a START is not repeated", "board", (("if self._repair and self.running:", "if False:"),), LOST, _WAITS),
    Flaw("START is repeated to all ranks but one", "board",
         (("said.append(Start(self.wave, None))", "said.append(Start(self.wave, 1))"),), LOST, _WAITS),
    Flaw("a late start opens a wave again that is over", "board",
         ((_STALE_START, ""),), TWO, "its wave falls from 1 to 0"),
    Flaw("a start of a wave that seems over is kept to itself", "board",
         ((_STALE_START, _STALE_START.replace("[Start(wave, rank)]", "[]")),), ONE._replace(faults=1, misread=True),
         _WAITS),
    Flaw("a late end ends a later wave", "board", ((_STALE_END, _STALE_END.split("\n", 2)[2]),),
         TWO, "wave 1 rests, and it is not over"),
    Flaw("the coordinator takes the next wave's start for this one's", "board",
         ((_RUNS, "self.running else"),),
         TWO._replace(repair=False), _WAITS),
)

#: How the first protocol loses wake-ups. The first takes no more than a client that sends in one task and tells in
#: another.
OLD = {
    "a first request is told when its wave is over: the rank that has it no more is left out":
        (Case(requests=2, protocol="old", client=True, repair=False), _WAITS),
    "a request is aborted before its rank's first step: the rank that has it no more is left out":
        (Case(requests=1, aborts=1, protocol="old", client=True, repair=False), _WAITS),
    "what a client tells of its first request is lost: it believes that the group runs, in the wave that all rest in":
        (Case(requests=2, faults=1, protocol="old", client=True), _WAITS),
    "a START comes to a rank that is paused":
        (Case(requests=1, pauses=1, protocol="old", client=True, repair=False), "not all have resumed"),
}
