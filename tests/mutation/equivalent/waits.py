"""Of how real processes pass the time: `engine.ipc.wait`."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_WAIT = "engine/ipc/wait.py"
_PACE = ("how long it looks before it sleeps, and when it looks again: a wait ends with the word, or at its time-out, "
         "either way")
_TWICE = "who looks once more, or once less, before it waits for the bell finds the same there"
_UNASKED = "whoever waits looks then, whatever the wait says of itself"
_NUMBER = "any number that does not stand there wakes whoever saw another one"
_CALL = "a wake-up that nobody sleeps for: the system call finds no sleeper"
_X86 = "with loads that stay in order the fence between them does nothing"
_GUESS, _BELL_WAIT, _GLANCE = "_Habit.guess", "FutexDoorbell.wait", "FutexDoorbell.glance"
_RING, _SPIN = "FutexDoorbell.ring", "_spin"
_WARM = "what is made warm is the same when it is cold"
_USUAL = "self._new >= _REMEMBERED // 2 and len(self._waits) == _REMEMBERED"
_SOONER = "((self._new >= _REMEMBERED // 2) or (len(self._waits) == _REMEMBERED))"
_REGULAR = "high - low + 2 * WAKE_S <= low / 6"

#: function, operator, old, new (None: whatever it is), reason
_ROWS: tuple[tuple[str, str, str, str | None, str], ...] = (
    ("_Habit.__init__", "off-by-one", "0", None, _PACE),
    ("_Habit.forget", "statement-gone", "self._waits.clear()", None, _PACE),
    ("_Habit.forget", "off-by-one", "0", None, _PACE),
    (_GUESS, "branch-never-taken", "self.last", None, _PACE),
    (_GUESS, "condition-turned", "self.last", None, _PACE),
    (_GUESS, "statement-gone", "self._waits.append(self.last)", None, _PACE),
    (_GUESS, "off-by-one", "1", None, _PACE),
    (_GUESS, "branch-never-taken", _USUAL, None, _PACE),
    (_GUESS, "condition-turned", _USUAL, _SOONER, _PACE),
    (_GUESS, "off-by-one", "self._new >= _REMEMBERED // 2", None, _PACE),
    (_GUESS, "off-by-one", "2", None, _PACE),
    (_GUESS, "condition-turned", "len(self._waits) == _REMEMBERED", None, _PACE),
    (_GUESS, "branch-never-taken", "high <= SHORT_WAIT_S", None, _PACE),
    (_GUESS, "condition-turned", "high <= SHORT_WAIT_S", None, _PACE),
    (_GUESS, "off-by-one", "high <= SHORT_WAIT_S", None, _PACE),
    (_GUESS, "statement-gone", "self.windows = 2 * high + self._unknown[0], 0.0, 0.0", None, _PACE),
    (_GUESS, "off-by-one", "0", None, _PACE),
    (_GUESS, "branch-never-taken", _REGULAR, None, _PACE),
    (_GUESS, "condition-turned", _REGULAR, None, _PACE),
    (_GUESS, "off-by-one", _REGULAR, None, _PACE),
    (_GUESS, "off-by-one", "6", None, _PACE),
    (_GUESS, "statement-gone", "self.windows = self._unknown[0], low - WAKE_S, high + WAKE_S", None, _PACE),
    (_BELL_WAIT, "branch-never-taken", "line[0] != seen or timeout_s <= 0", None, _TWICE),
    (_BELL_WAIT, "branch-never-taken", "self._spin_s", None, _PACE),
    (_BELL_WAIT, "condition-turned", "self._spin_s", None, _PACE),
    (_BELL_WAIT, "branch-never-taken", "not rang and again", None, _PACE),
    (_BELL_WAIT, "condition-turned", "not rang and again", None, _PACE),
    (_BELL_WAIT, "branch-never-taken", "not rang", None, _PACE),
    (_BELL_WAIT, "condition-turned", "not rang", None, _PACE),
    (_BELL_WAIT, "branch-never-taken", "self.rehearse is not None", None, _WARM),
    (_BELL_WAIT, "statement-gone", "self.rehearse()", None, _WARM),
    (_BELL_WAIT, "statement-gone", "self._habit.last = rang - began", None, _PACE),
    (_BELL_WAIT, "statement-gone", "self._habit.forget()", None, _PACE),
    (_SPIN, "condition-turned", "now < until", None, _PACE),
    (_SPIN, "off-by-one", "now < until", None, _PACE),
    (_SPIN, "statement-gone", "_give_way()", None, _PACE),
    (_SPIN, "branch-never-taken", "now - before > _CROWDED_S", None, _PACE),
    (_SPIN, "condition-turned", "now - before > _CROWDED_S", None, _PACE),
    (_SPIN, "off-by-one", "now - before > _CROWDED_S", None, _PACE),
    (_SPIN, "statement-gone", "break", None, _PACE),
    (_GLANCE, "branch-never-taken", "self._spin_s and line is not None", None, _TWICE),
    (_GLANCE, "branch-never-taken", "line[0] != seen", None, _TWICE),
    (_GLANCE, "condition-turned", "line[0] != seen", None, _TWICE),
    (_GLANCE, "off-by-one", "0", None, _TWICE),
    (_GLANCE, "statement-gone", "return True", None, _TWICE),
    (_GLANCE, "statement-gone", "_give_way()", None, _TWICE),
    (_GLANCE, "statement-gone", "return line is not None and line[0] != seen", None, _TWICE),
    (_RING, "branch-never-taken", "anybody", None, _CALL),
    (_RING, "statement-gone", "line[1] = 0", None, _CALL),
    (_RING, "branch-never-taken", "_LOCK_IS_FULL_FENCE", None, _CALL),
    (_RING, "condition-turned", "_LOCK_IS_FULL_FENCE", None, _CALL),
    (_RING, "branch-never-taken", "not (anybody or line[1])", None, _CALL),
    (_RING, "off-by-one", "0x80000000", None, _NUMBER),
    ("FutexDoorbell.seen", "branch-never-taken", "_LOCK_IS_FULL_FENCE", None, _X86),
    ("FutexDoorbell.seen", "condition-turned", "_LOCK_IS_FULL_FENCE", None, _X86),
    ("FutexDoorbell.__init__", "off-by-one", "2", None, "a view of one word more, which nobody looks at"),
    (_BELL_WAIT, "statement-gone", "return line[0] != seen", None, _UNASKED),
    (_BELL_WAIT, "statement-gone", "return True", None, _UNASKED),
    (_BELL_WAIT, "statement-gone", "return False", None, _UNASKED),
    ("Spin.wait", "statement-gone", "return bell.seen() != seen", None, _UNASKED),
    ("Spin.wait", "condition-turned", "bell.seen() != seen", "bell.seen() == seen", _UNASKED),
    ("SpinThenNap.wait", "statement-gone", "return bell.seen() != seen", None, _UNASKED),
    ("Spin.wait", "statement-gone", "os.sched_yield()", None, _PACE),
    ("SpinThenNap.wait", "statement-gone", "os.sched_yield()", None, _PACE),
    ("SpinThenNap.wait", "statement-gone", "self._rang_at = now", None, _PACE),
    ("SpinThenNap.wait", "off-by-one", "now - self._rang_at < self._busy_s", None, _PACE),
)

WAITS: tuple[Equivalent, ...] = tuple(
    Equivalent(_WAIT, function, operator, old, reason, new) for function, operator, old, new, reason in _ROWS)
