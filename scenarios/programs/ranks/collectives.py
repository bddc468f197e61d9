"""Ranks of a program that compute together: by shared memory and by gloo, what one piece holds and what it does not,
beside one that does not come, does something else, or dies.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import torch

from engine.errors import CollectiveError, ConfigError
from engine.ipc.message_queue import MessageQueue
from engine.worker.parallel.coordinator import STAR_BYTES
from engine.worker.parallel.distributed import ProcessGroup, choose_backend, choose_device
from engine.worker.parallel.pipe import PIECE_BYTES, slots_of
from engine.worker.parallel.shared_memory import LOOK_S, SLOT_BYTES
from scenarios.programs.asking import PATIENCE_S, Asking, is_near

#: Elements of tensors, 4 bytes each: what goes through one rank and what does not, what a slot holds and what it does
#: not.
SIZES = (2, STAR_BYTES // 4, STAR_BYTES // 4 + 1, SLOT_BYTES // 4 + 1)
#: The rank that one broadcast comes from.
SOURCE = 1
#: For those that wait in vain.
SOON_S = 0.6
CARRIERS = ("shm", "gloo")
#: How often something is measured, and how much later the second one comes.
TURNS, LATER_S = 15, 0.003

#: What a rank does: with its group, its rank and how many there are. -> what it has of it, in words
_Work = Callable[[ProcessGroup, int, int], dict[str, Any]]


def ask_collectives(ask: Asking) -> None:
    for carrier in CARRIERS:
        _computes(ask, carrier)
        _hands_on(ask, carrier)
    _waits_in_vain(ask)
    _is_quick(ask)
    _is_not_agreed(ask)
    _loses_one(ask)
    _loses_a_stage(ask)
    _takes_nothing(ask)
    _shares_nothing(ask)
    _is_alone(ask)
    _chooses(ask)


def _told(ask: Asking, work: _Work, ranks: int, carrier: str = "shm", tp: int | None = None) -> list[dict[str, Any]]:
    """-> what each rank has of it, each a process; nothing where one has ended"""
    context = get_context("fork")
    meet = f"file://{ask.folder}/meeting-{time.monotonic_ns()}"

    def one(rank: int, connection: Connection) -> None:
        made: list[ProcessGroup] = []
        error, _, missing = _fails(lambda: made.append(ProcessGroup(
            rank, ranks, meet, "cpu", PATIENCE_S, carrier, tp)), "device_communicator 'shm'")  # type: ignore[arg-type]
        if not made:
            connection.send({"why not": [error, missing]})
            return
        [group] = made
        connection.send(work(group, rank, ranks))
        connection.recv()  # it is there for the others until all have said what they have
        group.close()

    children = []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        children.append((context.Process(target=one, args=(rank, theirs)), ours))
        children[-1][0].start()
        theirs.close()
    found = []
    for _, ours in children:
        try:
            found.append(ours.recv() if ours.poll(PATIENCE_S) else {})
        except EOFError:
            found.append({})
    for child, ours in children:
        with contextlib.suppress(OSError):  # it has ended
            ours.send(True)
        child.join(PATIENCE_S)
        child.kill()
        child.join()
    return found


def _ask_all(ask: Asking, words: str, told: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    for rank, one in enumerate(told):
        for what, answer in wanted.items():
            ask(f"{what} {words}, on rank {rank} of {len(told)}", lambda: one.get(what), answer)


# -- what they compute ------------------------------------------------------------------------------------------------


def _computes(ask: Asking, carrier: str) -> None:
    for ranks in (2, 3):
        _ask_all(ask, f"by {carrier}", _told(ask, _compute, ranks, carrier),
                 {"what carries it": carrier} | _sums(ranks))


def _sums(ranks: int) -> dict[str, Any]:
    """What each of them is to have, where rank r gives r + 1."""
    given = [rank + 1.0 for rank in range(ranks)]
    return {
        **{f"the sum of {size} elements": [sum(given), sum(given), size] for size in SIZES},
        **{f"{size} elements of all": [given, [1, ranks * size]] for size in SIZES},
        **{f"{size} elements of one": [SOURCE + 1.0, SOURCE + 1.0, size] for size in SIZES},
        "rows of all": [[one, one] for one in given],
        "what the first of them has": [1.0] * 2,
        "whether it waits for the last": True,
        "an object of the first": {"of": 0},
        "whether it has left, and may again": [False, None],
    }


def _compute(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
    told, mine = dict[str, Any](), rank + 1.0
    told["what carries it"] = group.carrier
    for size in SIZES:
        total = group.all_reduce(torch.full((size,), mine))
        told[f"the sum of {size} elements"] = [total[0].item(), total[-1].item(), total.numel()]
        joined = group.all_gather(torch.full((1, size), mine))
        told[f"{size} elements of all"] = [joined[0, ::size].tolist(), list(joined.shape)]
        same = group.broadcast(torch.full((size,), mine), SOURCE)
        told[f"{size} elements of one"] = [same[0].item(), same[-1].item(), same.numel()]
    told["rows of all"] = group.all_gather(torch.full((1, 2), mine), dim=0).tolist()
    told["what the first of them has"] = group.broadcast(torch.full((2,), mine)).tolist()
    group.barrier()
    began = time.monotonic()
    if rank == ranks - 1:
        time.sleep(0.2)
    group.barrier()
    told["whether it waits for the last"] = is_near(time.monotonic() - began, 0.2)
    group.world.make_broadcaster(MessageQueue)
    told["an object of the first"] = group.world.broadcast_object({"of": rank} if rank == 0 else None)
    group.barrier()
    group.close()
    told["whether it has left, and may again"] = [torch.distributed.is_initialized(), group.close()]
    return told


# -- what goes from stage to stage ------------------------------------------------------------------------------------


def _hands_on(ask: Asking, carrier: str) -> None:
    """Each of three stages sends as many pieces as may be on their way, and one that needs several."""
    _ask_all(ask, f"by {carrier}", _told(ask, _hand_on, 3, carrier, tp=1),
             {"whether all came of the stage before": [True] * (slots_of(3) + 1)})


def _hand_on(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
    size_of, before, came = {slots_of(ranks): PIECE_BYTES // 4 + 1}, (rank - 1) % ranks, []
    for steps in (range(slots_of(ranks)), (slots_of(ranks),)):
        for step in steps:
            group.send("hidden_states", step, torch.full((size_of.get(step, step + 1),), float(step + rank)))
        for step in steps:
            found = group.receive("hidden_states", step, torch.empty(size_of.get(step, step + 1)))
            came.append(bool((found == float(step + before)).all()))
    return {"whether all came of the stage before": came}


# -- who does not come ------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Callable[[ProcessGroup], Any]] = {
    "all_reduce": lambda group: group.all_reduce(torch.ones(2)),
    "all_gather": lambda group: group.all_gather(torch.ones(2)),
    "broadcast": lambda group: group.broadcast(torch.ones(2), SOURCE),
    "barrier": lambda group: group.barrier(),
}


def _fails(work: Callable[[], Any], *parts: str) -> list[Any]:
    """-> by which error, how long after it began, which of the parts that does not say"""
    began, told, missing = time.monotonic(), "nothing", list(parts)
    try:
        work()
    except Exception as error:
        told, missing = type(error).__name__, [part for part in parts if part not in str(error)]
    return [told, time.monotonic() - began, missing]


def _impatient(group: ProcessGroup) -> None:
    """The ranks had their time to meet."""
    for shared in (group.tp._shared, group.pp._pipe):
        if shared is not None:
            shared.timeout_s = SOON_S


def _waits_in_vain(ask: Asking) -> None:
    """For the last one."""
    def work(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
        told = dict[str, Any]()
        _impatient(group)
        for name, operation in _OPERATIONS.items() if rank != ranks - 1 else ():
            error, took_s, missing = _fails(lambda: operation(group), name, f"rank {ranks - 1} did not enter",
                                            str(SOON_S))
            told[name] = [error, missing, is_near(took_s, SOON_S)]
        return told

    *others, _ = _told(ask, work, 3)
    _ask_all(ask, "that the last one does not enter", others, dict.fromkeys(
        _OPERATIONS, [CollectiveError.__name__, [], True]))


def _is_quick(ask: Asking) -> None:
    """Whoever waits for another one, which comes later, is woken by it, and does not only look from time to time."""
    def waits(group: ProcessGroup, rank: int, _: int) -> None:
        group.barrier()

    def hands_on(group: ProcessGroup, rank: int, step: int) -> None:
        for receives in (True, False) if rank else (False, True):
            if receives:
                group.receive("hidden_states", step, torch.empty(2))
            else:
                group.send("hidden_states", step, torch.ones(2))

    def turns(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
        took: list[float] = []
        for turn in range(TURNS):
            began = time.monotonic()
            if rank:
                time.sleep(LATER_S)
            (waits if group.tp.world_size > 1 else hands_on)(group, rank, turn)
            took.append(time.monotonic() - began - LATER_S)
        return {"took": min(took)}

    for tp, words in ((2, "meeting one that comes later"), (1, "handing something to and fro")):
        for rank, told in enumerate(_told(ask, turns, 2, tp=tp)):
            ask.took(f"{words}, on rank {rank}", told.get("took", PATIENCE_S), LOOK_S / 2)


def _is_not_agreed(ask: Asking) -> None:
    """Each of them is told, by what all do: other operations, and other sizes."""
    for words, last in (("do something else", _OPERATIONS["barrier"]),
                        ("bring more", lambda group: group.all_reduce(torch.ones(3)))):
        def work(group: ProcessGroup, rank: int, ranks: int, last: Callable[[ProcessGroup], Any] = last,
                 ) -> dict[str, Any]:
            told, _, missing = _fails(lambda: (last if rank == ranks - 1 else _OPERATIONS["all_reduce"])(group),
                                      "do not agree", "rank 0 enters all_reduce with 8 bytes", f"rank {ranks - 1}")
            return {"what is told": [told, missing]}

        _ask_all(ask, f"where some {words}", _told(ask, work, 3), {"what is told": [CollectiveError.__name__, []]})


def _loses_one(ask: Asking) -> None:
    """Before it has entered: the others know at once; and what it had entered before counts."""
    def work(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
        total = group.all_reduce(torch.ones(1)).item()
        if rank == 0:
            os._exit(0)
        told, took_s, missing = _fails(lambda: group.all_reduce(torch.ones(1)), "rank 0 died before it entered")
        return {"the last sum": total, "what is told": [told, missing], "whether at once": took_s < PATIENCE_S / 4}

    _, *others = _told(ask, work, 3)
    _ask_all(ask, "behind one that died", others, {
        "the last sum": 3.0, "what is told": [CollectiveError.__name__, []], "whether at once": True})


def _loses_a_stage(ask: Asking) -> None:
    """The first of three dies, or sends nothing: the second says so, at once or in time; the third, which waits for one
    that waited, too, has twice the time.
    """
    for how in ("dies", "stands still"):
        def work(group: ProcessGroup, rank: int, ranks: int, dies: bool = how == "dies") -> dict[str, Any]:
            _impatient(group)
            if rank == 0:
                return os._exit(0) if dies else {}
            told, took_s, missing = _fails(
                lambda: group.receive("hidden_states", 5, torch.empty(2)), f"rank {rank - 1} did not send step 5",
                "died" if dies and rank == 1 else str(SOON_S))
            return {"what is told": [told, missing], "how long": is_near(took_s, rank * SOON_S) or (
                dies and rank == 1 and took_s < SOON_S)}

        _, *others = _told(ask, work, 3, tp=1)
        _ask_all(ask, f"behind a stage that {how}", others,
                 {"what is told": [CollectiveError.__name__, []], "how long": True})


def _takes_nothing(ask: Asking) -> None:
    """A stage that waits for another step takes none, and who goes on sending is told so."""
    def work(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
        _impatient(group)
        if rank == 0:
            told, _, missing = _fails(lambda: [group.send("hidden_states", step, torch.ones(2))
                                               for step in range(1 + slots_of(ranks))], "rank 1 did not take")
        else:
            told, _, missing = _fails(lambda: group.receive("hidden_states", 5, torch.empty(2)),
                                      "do not agree", "sent step 0", "step 5")
        return {"what is told": [told, missing]}

    _ask_all(ask, "of a step that nobody takes", _told(ask, work, 2, tp=1),
             {"what is told": [CollectiveError.__name__, []]})


def _shares_nothing(ask: Asking) -> None:
    """Where ranks cannot share memory: by gloo, unless shared memory is asked for by name."""
    def work(group: ProcessGroup, rank: int, ranks: int) -> dict[str, Any]:
        return {"what carries it": group.carrier, "the sum": group.all_reduce(torch.ones(1)).item()}

    with patch("engine.worker.parallel.coordinator.share_memory", lambda *_: None):
        _ask_all(ask, "where nothing can be shared", _told(ask, work, 2, "auto"),
                 {"what carries it": "gloo", "the sum": 2.0})
        _ask_all(ask, "where it has to be", _told(ask, work, 2, "shm"),
                 {"why not": [ConfigError.__name__, []]})


# -- one alone, and where it computes ---------------------------------------------------------------------------------


def _is_alone(ask: Asking) -> None:
    alone = ProcessGroup(0, 1, "", "cpu", PATIENCE_S)
    ask("what one alone has of all of them", lambda: [
        alone.all_reduce(torch.tensor([3])).tolist(), alone.all_gather(torch.tensor([4])).tolist(),
        alone.broadcast(torch.tensor([5])).tolist(), alone.barrier(), alone.close()], [[3], [4], [5], None, None])
    ask("its backend", lambda: [alone.backend, alone.carrier, torch.distributed.is_initialized()],
        ["none", "none", False])


def _chooses(ask: Asking) -> None:
    """As where there are two GPUs, and where there is none."""
    with patch("torch.cuda.device_count", lambda: 2):
        for words, arguments, wanted in (
                ("who wants none", ("cpu", 0, 2), "cpu"), ("the second", ("auto", 1, 2), "cuda:1"),
                ("the third, which shares one", ("auto", 2, 3), "cuda:0"),
                ("the first of a second engine", ("cuda", 0, 1, 1), "cuda:1")):
            ask(f"the device of {words}", lambda: choose_device(*arguments), wanted)  # type: ignore[arg-type]
        ask.raised("three ranks that want a GPU each of two", lambda: choose_device("cuda", 0, 3), ConfigError,
                   "3 ranks", "2 CUDA")
        ask("the backends of two and of three ranks", lambda: [
            choose_backend("cuda:0", 2), choose_backend("cuda:0", 3), choose_backend("cpu", 2)],
            ["nccl", "gloo", "gloo"])
    with patch("torch.cuda.device_count", lambda: 0):
        ask("the device where there is none", lambda: choose_device("auto", 1, 2), "cpu")
        ask.raised("a device that is not there", lambda: choose_device("cuda", 0), ConfigError, "cuda")
