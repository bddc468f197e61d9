"""What becomes of a call that a rank could not read: it names it by its place, and executes no step behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.topology import Channel
from scenarios.history.history import History, Record
from scenarios.history.names import rank_of

#: How a rank says that it did not begin with a step.
_REFUSED = "no step is executed behind one that failed"


def unread(history: History) -> Iterator[tuple[str, str]]:
    """(node, what it has not done about it)"""
    yield from _untold(history)
    for worker, executed in history.executed.items():
        core = history.engine_of(worker).core
        taken = history.receives(f"{core}->{worker}/{Channel.RPC.value}")
        if len(taken) > len(executed):
            yield from _left(history, core, worker, executed, taken)


def _left(history: History, core: str, worker: str, executed: list[Record], taken: Sequence[Record],
          ) -> Iterator[tuple[str, str]]:
    """Messages that it took and did not execute."""
    calls = {record.data["call"] for record in executed}
    for reply in history.by_node("rpc-reply").get(core, ()):
        if reply.data["rank"] == rank_of(worker) and -1 - reply.data["call"] in calls:
            yield worker, f"it said that it could not read call {-1 - reply.data['call']}, which it executed"
    left = [one for one in taken if one.data["position"] not in calls and "fate" not in one.data]
    if not left:
        return
    refused = {record.data["call"] for record in history.by_node("rpc-raised").get(worker, ())
               if _REFUSED in record.data["error"]}
    for record in executed:
        if record.number > left[0].number and record.data["method"] == "execute_model" and \
                record.data["call"] not in refused:
            yield worker, f"it executed call {record.data['call']} behind one that it could not read"
            return
    if not history.play.config.scheduler.async_scheduling:  # where another thread answers
        yield from _unanswered(history, core, worker, left, taken)


def _unanswered(history: History, core: str, worker: str, left: list[Record], taken: Sequence[Record],
                ) -> Iterator[tuple[str, str]]:
    """It says so before it takes the next one, or waits for that."""
    sent = [send.number for send in history.sends(f"{worker}->{core}/{Channel.RESPONSE.value}")]
    waits = [wait for wait in history.by_node("queue-wait").get(worker, ()) if wait.data["ring"] == "rpc"]
    for one in left:
        ends = [*(other.number for other in taken if other.number > one.number),
                *(wait.number for wait in waits if wait.data["began"] > one.at)]
        if ends and not any(one.number < number < min(ends) for number in sent):
            yield worker, f"it could not read call {one.data['position']}, and did not say so"


def _untold(history: History) -> Iterator[tuple[str, str]]:
    """A rank that cannot read a call cannot name it, either: where one is open, that is its end, and it is told."""
    for core, replies in history.by_node("rpc-reply").items():
        for place, reply in enumerate(replies):
            call = -1 - reply.data["call"]  # by its place in the ring
            if call >= 0 and _is_open(history, core, call, replies[:place], reply.number) and not any(
                    told.number > reply.number for told in history.by_node("rpc-failed").get(core, ())):
                yield core, "it had a call that a rank could not read, and did not say that it had failed"
                return


def _is_open(history: History, core: str, number: int, replies: list[Record], until: int) -> bool:
    """Whether that call had not all the answers that it waits for before the core's record `until`."""
    call = next((call for call in history.by_node("rpc-call").get(core, ()) if call.data["call"] == number), None)
    if call is None:
        return False
    ended = any(told.data["call"] == number for told in history.by_node("rpc-failed").get(core, ())
                if told.number < until)
    wanted = history.ranks_of(core) if call.data["output_rank"] is None else 1
    return not ended and sum(reply.data["call"] == number for reply in replies) < wanted
