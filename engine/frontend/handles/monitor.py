"""When is the core dead? (pure)

Three witnesses, each sufficient: its own last message (ENGINE_CORE_DEAD), its sentinel, and a heartbeat that stands
still. A sentinel may come before the core's last outputs have been read: they have until its connection has ended and
all that came by it was read, and `grace_s` at most.
"""

from __future__ import annotations

from engine.process.liveness import Liveness

#: After the core's death its last frames may still be on their way through the kernel.
GRACE_S = 0.03
#: Meanwhile it is looked so often whether its connection has ended.
LOOK_S = 0.001


class CoreMonitor:
    """Told what is seen, it answers with the reason to treat the core as dead, or with None. A reason is given once."""

    def __init__(self, name: str, stall_s: float, now: float, grace_s: float = GRACE_S) -> None:
        self._name = name
        self._grace_s = grace_s
        self._liveness = Liveness(name, stall_s, now)
        self._gone_since: float | None = None
        self._looked_at = now
        self._exit = ""
        self.dead: str | None = None

    def on_notice(self) -> str | None:
        """ENGINE_CORE_DEAD was read."""
        return self._die(f"{self._name} said that it is leaving (ENGINE_CORE_DEAD)")

    def on_gone(self, how: str, now: float) -> None:
        """Its sentinel says that the process is no more; `how` says what is known of its end."""
        if self._gone_since is None:
            self._gone_since, self._exit = now, how

    def on_tick(self, beat: int, now: float, beaten_at: float | None = None) -> str | None:
        """Time passes; `beat` is what the heartbeat shows, `beaten_at` when that was, where it is known."""
        if self._gone_since is not None:
            self._looked_at = now
            return self.on_last_word() if now >= self._gone_since + self._grace_s else None
        stalled = self._liveness.on_tick(beat, now, beaten_at)
        return None if stalled is None else self._die(stalled)

    def on_last_word(self) -> str | None:
        """All that a core has said that is gone was read."""
        return self._die(f"{self._name} died{self._exit}")

    def gone(self) -> str | None:
        """Why nothing can be sent any more, where that is known: also while the last words are still waited for."""
        return None if self._gone_since is None else f"{self._name} died{self._exit}"

    def silent(self, now: float, longer_than_s: float) -> str | None:
        """What is to be said of one that lives, and has not been heard for so long."""
        still_s = self._liveness.still_s(now)
        if self.dead is not None or self._gone_since is not None or still_s <= longer_than_s:
            return None
        return f"{self._name} has been silent for {still_s:.2f} s"

    def deadline(self) -> float | None:
        """When `on_tick` should be asked at the latest, where it is known."""
        if self._gone_since is None or self.dead:
            return None
        return min(self._gone_since + self._grace_s, self._looked_at + LOOK_S)

    def _die(self, reason: str) -> str | None:
        if self.dead is not None:
            return None
        self.dead = reason
        return reason
