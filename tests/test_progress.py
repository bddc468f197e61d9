"""What takes long says how far it has come, also where nobody has a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tests.progress import tracked


def said(every_s: float, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    assert list(tracked(iter("abc"), "letters", 3, console, every_s)) == ["a", "b", "c"]
    return file.getvalue()


def test_a_line_now_and_then_without_a_terminal() -> None:
    assert [line.partition(",")[0] for line in said(0.0, False).splitlines()] == [
        "letters: 1 of 3", "letters: 2 of 3", "letters: 3 of 3"]
    assert said(60.0, False) == ""


def test_a_bar_on_a_terminal() -> None:
    assert "100%" in said(0.0, True)
