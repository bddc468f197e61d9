"""Effects that only loops of the twin yield: its frontend, and the stand-in for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.effects import Effect, Loop
from sim.transport.collectives import CollectiveGroup
from sim.transport.pipes import Pipe


class Sleep(Effect):
    """Let virtual time pass, as work does. -> None"""

    seconds: float


class Enter(Effect):
    """Take part in `count` collectives of a group, one after the other. -> None

    `operation` is what they are called in the journal. `at`: the wave and step that the others have to be at, too.

    Raises CollectiveError where a peer is dead or does not come.
    """

    group: CollectiveGroup
    count: int = 1
    operation: str = "all_reduce"
    at: tuple[int, int] | None = None


class Hand(Effect):
    """Send `content` to the next rank of a pipe, for a step; `what` it is, for the journal. -> None

    Raises CollectiveError where that rank does not take what came before.
    """

    pipe: Pipe
    what: str
    step: int
    content: Sequence[int]


class TakeOver(Effect):
    """Wait for what the rank before sent for a step: `count` words. -> they

    Raises CollectiveError where that is dead, does not send, or sent something else.
    """

    pipe: Pipe
    what: str
    step: int
    count: int


class AwaitCondition(Effect):
    """Wait until `condition()` holds, asked whenever the process is woken, or `deadline`. -> whether it does"""

    condition: Callable[[], bool]
    deadline: float


class TakeRecipe(Effect):
    """Wait until whoever started this process tells it what it is. -> the recipe, as it came"""


class RunLoop(Effect):
    """Run a loop in place of this effect: `yield from`, without what that costs each of its effects. -> its result"""

    loop: Loop[Any]
