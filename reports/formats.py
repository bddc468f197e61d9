"""Numbers as a reader says them: durations, counts, lists, ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def duration(seconds: float) -> str:
    """Three significant digits at most, in the unit that fits: 812 µs, 19 ms, 1.25 s, 2 min 5 s."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{_short(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{_short(seconds)} s"
    return f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def _short(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(seconds: float) -> str:
    """A moment within a run: seconds with milliseconds, 0.412 s."""
    return f"{seconds:.3f} s"


def clocks(moments: Sequence[float]) -> list[str]:
    """Moments in order, each with as many digits as tell it from its neighbours: 0.412 s, 0.4131 s, 0.4134 s.

    Up to microseconds: of those that are the same even then, all but the first are empty.
    """
    labels: list[str] = []
    for place, moment in enumerate(moments):
        near = [*moments[max(0, place - 1):place], *moments[place + 1:place + 2]]
        digits = next((n for n in (3, 4, 5) if f"{moment:.{n}f}" not in [f"{other:.{n}f}" for other in near]), 6)
        label = f"{moment:.{digits}f} s"
        labels.append("" if label in labels else label)
    return labels


def count(number: int, one: str, many: str | None = None) -> str:
    """1 promise, 2 promises, 1,200 promises."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Iterable[str], limit: int = 6) -> str:
    """a, b and c; beyond the limit: a, b and 5 more."""
    names = list(names)
    if len(names) > limit:
        names = [*names[: limit - 1], f"{len(names) - limit + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def ranges(numbers: Sequence[int]) -> str:
    """3, 7 to 9: sorted numbers with neighbours joined."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a:,} to {b:,}" for a, b in spans)
