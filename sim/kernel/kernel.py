"""What everything of a play may know: its time, its choices, its costs, its plan and which faults have fired.

Promises: the same plan, seed and choices give the same play. Nothing here looks at the wall clock, at addresses or at
the order of a set, and nothing here knows a process, a socket or a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from faults.judge import Judge
from faults.plan import Fault, Plan
from sim.kernel.choices import Choices
from sim.kernel.costs import COSTS, Costs
from sim.kernel.time import VirtualTime


class Sleeper(Protocol):
    """Whoever waits in virtual time for something to happen: a thread."""

    @property
    def stands_still(self) -> bool:
        """Whether it is stopped, or hangs."""

    def wake(self) -> None:
        """It may have happened: look again, now."""

    def wake_after(self, delay_s: float) -> None:
        """The same, some time from now."""


class Scheduler(Protocol):
    """Whoever takes the processor from threads that do not wait."""

    def amid(self, loop: Any) -> Any:
        """The same loop on a thread that this happens to."""


class Kernel:
    """`time` and what is told of it, `choices`, `costs`, `plan`."""

    def __init__(self, plan: Plan | None = None, seed: int = 0, choices: Choices | Sequence[int] | None = (), *,
                 costs: Costs = COSTS, record: bool = True, scheduler: Scheduler | None = None) -> None:
        """`choices`: picks to repeat (then the first outcome each), a `Choices`, or None: drawn from the seed.

        `scheduler`: of threads; without one each runs on until it waits.
        """
        self.plan = plan or Plan()
        self.costs = costs
        self.record = record  # whether processes keep journals
        self.scheduler = scheduler
        if not isinstance(choices, Choices):
            choices = Choices((), Random(seed)) if choices is None else Choices(choices)
        self.choices = choices
        self.time = VirtualTime()
        self.call_at = self.time.call_at
        self.after = self.time.after
        self.fired: dict[str, float] = {}  # id of a fault -> when first
        self._judges: list[Judge] = []

    @property
    def now(self) -> float:
        return self.time._now

    # -- allowed outcomes

    def choose(self, count: int, label: str) -> int:
        """One of `count` allowed outcomes, 0 being the usual one."""
        return self.choices.choose(count, label) if count > 1 else 0

    def choose_amount(self, most: int, label: str, usual: int = 0) -> int:
        """How many of `most` things befell what may befall any prefix: none, all, one, half, all but one."""
        candidates = list(dict.fromkeys((usual, 0, most, most // 2, 1, most - 1)))
        candidates = [amount for amount in candidates if 0 <= amount <= most]
        return candidates[self.choose(len(candidates), label)]

    # -- faults

    def judge_of(self, node: str, life: int) -> Judge:
        """The judge of one process life. It is told of every fault that fired or will."""
        judge = Judge(self.plan, node, life)
        for fault_id in self.fired:
            judge.notice(fault_id)
        self._judges.append(judge)
        return judge

    def notice_fault(self, fault: Fault) -> None:
        """Tell every judge: faults that come after this one begin to count."""
        self.fired.setdefault(fault.id, self.now)
        for judge in self._judges:
            judge.notice(fault.id)
