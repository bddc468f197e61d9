"""What is publicly known of engines of this shape: number, what it says in our words, and how it looks in a play."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Known(msgspec.Struct, frozen=True):
    number: str  # as the project writes it: vllm#55510
    says: str
    breaks: tuple[str, ...] = ()  # guarantees; none: it is told of a finding, and recognized by nothing
    fates: tuple[str, ...] = ()  # of what befell a process; none: whatever it was
    victims: tuple[str, ...] = ()  # kinds of processes

    def looks_like(self, breaks: Iterable[str], fates: Iterable[str], victims: Iterable[str]) -> bool:
        return not set(self.breaks).isdisjoint(breaks) and (
            not self.fates or not set(self.fates).isdisjoint(fates)) and (
            not self.victims or not set(self.victims).isdisjoint(victims))


_TOLD = ("ends-once", "death-is-told")
KILLED_CALLER = Known("vllm#55510", "core and workers outlive an API server that was killed, and keep its devices",
                      ("no-orphans",), ("kill",), ("frontend",))
KILLED_CALLER_MEND = Known("vllm#55846", "a proposed change: a core ends with the process that started it")
TERMINATED_IN_SHUTDOWN = Known(
    "vllm#50529", "a proposed change: a second SIGTERM ends a core amid its shutdown, and its workers stay",
    ("no-orphans",), ("stall",), ("worker",))
WEDGED_WORKER = Known("vllm#54553", "a proposed change: a worker that hangs keeps a failed engine from ending",
                      ("no-orphans", "stall-is-told"), ("stall",), ("worker",))
START_WITHOUT_BOUND = Known("vllm#50039", "a proposed change: the wait for a start of cores has no bound",
                            ("start-ends",))
START_ORPHANS = Known("vllm#44751", "a proposed change: who gives up a start leaves workers behind",
                      ("no-orphans",), (), ("core",))

KNOWN = (
    KILLED_CALLER, KILLED_CALLER_MEND, TERMINATED_IN_SHUTDOWN, WEDGED_WORKER, START_WITHOUT_BOUND, START_ORPHANS,
    Known("vllm#32116", "a start that takes too long is given up by its callers, and its cores go on", ("start-ends",)),
    Known("vllm#5801", "at a full ring an end goes on to another slot than its next one",
          ("ring-exact-prefix", "ring-bounded-wait")),
    Known("vllm#27858", "a reader sees a flag before the data behind it", ("frames-intact", "ring-exact-prefix")),
    Known("vllm#45224", "a reader that sleeps misses its only notice, and has no other way to wake",
          ("ring-bounded-wait",)),
    Known("vllm#45644", "who writes into a full ring waits for a reader that has died", ("ring-bounded-wait",),
          ("kill", "exit")),
    Known("vllm#23985", "an error of a rank that does not answer is told to nobody", (*_TOLD, "stall-is-told"),
          ("raise",), ("worker",)),
    Known("vllm#41357", "a deadline that has passed turns into a wait without end", ("ring-bounded-wait",)),
    Known("vllm#57846", "an answer that came too late is taken for that of the next call", ("rpc-matched",)),
    Known("vllm#28053", "forked workers keep open the pipes by which others would hear of their parent's end",
          ("no-orphans", "start-ends"), ("kill",), ("core",)),
    Known("vllm#21728", "a core that is killed is noticed by none of its clients", (*_TOLD, "health-is-true"),
          ("kill",), ("core",)),
    Known("vllm#50053", "a large frame is used again before it was sent", ("frames-intact",)),
    Known("vllm#30895", "one request that cannot be read ends the thread that reads them", ("bad-request-isolated",)),
    Known("vllm#27987", "an abort reaches the next request of the same name", ("ends-once", "bad-request-isolated")),
    Known("vllm#22543", "workers do not hear who has finished where nothing is scheduled", ("blocks-conserved",)),
    Known("vllm#49146", "a request is aborted before it has a block", ("bad-request-isolated",)),
    Known("vllm#45174", "batches that are sent again lack their topic", ("kv-seq",)),
)


def alike(breaks: Iterable[str], fates: Iterable[str], victims: Iterable[str]) -> list[Known]:
    """Those that a play looks like in which these were broken, by what befell whom."""
    breaks, fates, victims = list(breaks), list(fates), list(victims)
    return [one for one in KNOWN if one.looks_like(breaks, fates, victims)]
