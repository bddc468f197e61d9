"""What an operator wants to know, in the log of a process: each kind of it at most once in `LOG_S`."""

from __future__ import annotations

import logging
from typing import Any

from engine.ports import Clock

#: What is logged again and again is logged so often.
LOG_S = 10.0

logger = logging.getLogger(__name__)


class OperatorLog:
    """Lines of one process. Those passed over are counted, and told with the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: when, and how many were passed over since

    def warn(self, name: str, data: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        at, passed_over = self._logged.get(name, (now - LOG_S, 0))
        if now - at < LOG_S:
            self._logged[name] = at, passed_over + 1
            return
        self._logged[name] = now, 0
        more = f" ({passed_over} more since the last line)" if passed_over else ""
        logger.warning("%s: %s%s", name, ", ".join(f"{key} {value}" for key, value in data.items()), more)
