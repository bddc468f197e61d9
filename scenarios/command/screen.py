"""What the command line shows while it plays: a line per play, and on a terminal a bar below them.

Everything goes to stderr, so that stdout carries answers alone. Without a terminal there are plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scenarios.lab.player import ScenarioResult

#: Words of a result, and their colours on a terminal. A word says it, the colour only helps.
_COLOURS = {"as declared": "green", "BROKEN": "red", "harness failed": "red", "not known": "yellow",
            "not played": "yellow"}


class Screen:
    """A context manager around `total` plays."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._total, self._done = total, 0
        self._began = time.monotonic()
        self._progress: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                                      TimeElapsedColumn(), console=self._console, transient=True)
            self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Screen:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def playing(self, scenario: str, world: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=f"{words(scenario)} ({world})")

    def recording(self, workload: str, count: int) -> None:
        """So many answers of the reference are there."""
        if self._progress is not None:
            self._progress.update(self._task, description=f"recording {workload}: {count} answers")

    def played(self, result: ScenarioResult, word: str, why: Sequence[str] = ()) -> None:
        """`word` is the result in a word of `_COLOURS`, `why` has a line for each reason."""
        self._done += 1
        width = len(str(self._total))
        line = f"{self._done:{width}}/{self._total}  {result.world:6}  {words(result.scenario)}"
        colour = _COLOURS[word]
        self._console.print(f"{escape(line)}  [{colour}]{word}[/{colour}]  {result.seconds:.2f} s")
        for reason in why:
            self._console.print(f"      {escape(reason)}")
        if self._progress is not None:
            self._progress.advance(self._task)

    def say(self, text: str) -> None:
        self._console.print(escape(text))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def words(name: str) -> str:
    """A scenario's name as words."""
    return name.removeprefix("test_").replace("_", " ")

