"""What an operator wants to know, for the log of a process: each kind of it at most once in `LOG_S`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What is logged again and again is logged so often.
LOG_S = 10.0


class OperatorLog:
    """Lines of one process. Those passed over are counted, and told with the next one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: when, and how many were passed over since

    def line(self, name: str, data: dict[str, Any]) -> str | None:
        """What to write of it; None: it is passed over."""
        now = self._now()
        at, passed_over = self._logged.get(name, (now - LOG_S, 0))
        if now - at < LOG_S:
            self._logged[name] = at, passed_over + 1
            return None
        self._logged[name] = now, 0
        more = f" ({passed_over} more since the last line)" if passed_over else ""
        return f"{name}: {', '.join(f'{key} {value}' for key, value in data.items())}{more}"
