"""Ranks of a program that meet where nobody has told them of each other, beside strangers."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from typing import Any

from engine.errors import CollectiveError
from engine.process.consensus.effects import Card, Member
from engine.process.consensus.introductions import introduce
from engine.process.consensus.meeting import PORTS_TRIED, meeting_at
from engine.process.identity import own_identity
from scenarios.programs.asking import PATIENCE_S, Asking, held, no_more, until
from scenarios.programs.queues.opening import LOOPBACK
from scenarios.programs.ranks.groups import Group

#: For who waits in vain.
SOON_S = 0.3
NAMES = ["core.0", "core.1", "core.2"]
#: What a stranger says: nothing, no card, a length that nobody has, and half of what it has begun.
STRANGE = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4abcd", b"\xff\xff\xff\xff", b"\0\0\1\0half of it"]


def ask_meetings(ask: Asking) -> None:
    port = _free()
    ask("what two find at a free port", lambda: _store(port, (0, 1)), ["left here", "left here"])
    before = held()  # with what is loaded once and kept
    for where in (f"ipc://{ask.folder}/ranks.ipc", f"tcp://{LOOPBACK}:{_free()}", f"tcp://[::1]:{_free('::1')}"):
        _meet(ask, where)
    stale = f"{ask.folder}/stale.ipc"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(stale)
    ask("who meets where a file was left", lambda: _all(f"ipc://{stale}", (0, 1, 2)), [NAMES] * 3)
    ask("what is left there", lambda: os.path.exists(stale), False)
    ask.raised("a folder that is none", lambda: _introduce("ipc:///nowhere/at/all", 0, 2), CollectiveError,
               "nobody can meet at")
    _find(ask)
    ask("what is left of all meetings", lambda: no_more(before), True)


def _meet(ask: Asking, where: str) -> None:
    kind = where.partition(":")[0]
    for order in ((0, 1, 2), (2, 1, 0)):
        ask(f"who meets by {kind} in the order {order}", lambda: _all(where, order), [NAMES] * 3)
    for said in STRANGE:
        ask(f"who meets by {kind} beside one that says {said!r}", lambda: _all(where, (0, 1, 2), said), [NAMES] * 3)
    ask(f"who hears by {kind} that two are rank 1", lambda: ["both came as rank 1" in told
                                                            for told in _all(where, (0, 1, 1))], [True] * 3)
    ask(f"who hears by {kind} that two are rank 0", lambda: ["both came as rank 0" in told
                                                            for told in _all(where, (0, 0))], [True] * 2)
    ask(f"who is missed by {kind}", lambda: ["core.2 (rank 2) of 3 did not come" in told
                                            for told in _all(where, (0, 1), within_s=SOON_S)], [True] * 2)
    ask(f"who misses the first by {kind}", lambda: ["core.0 (rank 0) of 3 did not answer" in told
                                                   for told in _all(where, (1, 2), within_s=SOON_S)], [True] * 2)


def _introduce(where: str, rank: int, size: int, within_s: float = PATIENCE_S, name: int | None = None) -> list[str]:
    card = Card(Member(f"core.{rank if name is None else name}", own_identity()), rank, {"size": size})
    return [one.member.name for one in introduce(
        card, size, where, time.monotonic() + within_s,
        lambda descriptors, seconds: select.select(descriptors, [], [], seconds), time.monotonic)]


def _all(where: str, ranks: tuple[int, ...], stranger: bytes | None = None, within_s: float = PATIENCE_S) -> list[Any]:
    """All at once, of three; where there is a stranger it speaks with the first before another one comes."""
    size, found = 2 if ranks == (0, 0) else 3, list[Any]([None] * len(ranks))

    def one(place: int) -> None:
        try:
            rank, name = ranks[place], ranks[place] + ranks[:place].count(ranks[place])
            within = within_s if place == 0 or 0 not in ranks else PATIENCE_S  # the first one says it to all
            found[place] = _introduce(where, rank, size, within, name)
        except Exception as error:
            found[place] = str(error)

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(ranks))]
    with contextlib.ExitStack() as stack:
        for place, thread in enumerate(threads):
            if place == 1 and stranger is not None:
                stack.enter_context(_connected(where)).sendall(stranger)
            thread.start()
        for thread in threads:
            thread.join()
    return found


def _connected(where: str) -> socket.socket:
    """To whoever listens there, as soon as somebody does."""
    found: list[socket.socket] = []

    def connect() -> bool:
        with contextlib.suppress(OSError):
            if where.startswith("ipc://"):
                found.append(socket.socket(socket.AF_UNIX))
                found[-1].connect(where.removeprefix("ipc://"))
            else:
                host, _, port = where.removeprefix("tcp://").rpartition(":")
                found.append(socket.create_connection((host.strip("[]"), int(port))))
            return True
        return False

    until(connect)
    for one in found[:-1]:
        one.close()
    return found[-1]


def _free(host: str = LOOPBACK) -> int:
    """The first of some ports in a row that nobody has, and that no system hands out: each program begins elsewhere."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for first in range(20_000 + os.getpid() % 1000 * 10, 30_000, PORTS_TRIED):
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + PORTS_TRIED):
                taken.enter_context(socket.create_server((host, port), family=family))
            return first
    raise OSError("no ports in a row are free")


def _find(ask: Asking) -> None:
    """The store of a group, at a port that others have, and where strangers listen."""
    first = _free()
    with socket.create_server((LOOPBACK, first)), socket.create_server((LOOPBACK, first + 1)) as another:
        speaking = threading.Thread(target=_say, args=(another, b"another group 5\n"))
        speaking.start()
        ask("what two find behind ports of others", lambda: _store(first, (0, 1)), ["left here", "left here"])
        another.shutdown(socket.SHUT_RDWR)
        speaking.join()
        another.close()
        ask("who knows of no group", lambda: _store(first, (1,), within_s=SOON_S), ["TimeoutError"])
        with contextlib.ExitStack() as others:
            for port in range(first + 1, first + PORTS_TRIED):
                others.enter_context(socket.create_server((LOOPBACK, port)))
            ask("who finds all ports taken", lambda: _store(first, (0,)), ["OSError"])


def _say(listener: socket.socket, line: bytes) -> None:
    """To all that come, until nobody listens any more."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as asking:
                asking.sendall(line)


def _store(port: int, ranks: tuple[int, ...], within_s: float = PATIENCE_S) -> list[str]:
    """What each reads there that the first one has left."""
    met = threading.Barrier(len(ranks))

    def one(rank: int) -> str:
        with meeting_at(f"tcp://{LOOPBACK}:{port}", rank, 2, "a group", time.monotonic() + within_s) as (store, _):
            if rank == 0:
                store.set("what", "left here")
            found: str = store.get("what").decode()
            met.wait(PATIENCE_S)
            return found

    return Group(len(ranks)).run(lambda place: one(ranks[place]))
