"""How ranks that nobody has told of each other meet: who comes, who does not, and who is none of them."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.effects import IsAlive, Now, Observe, Take, WhoAmI
from engine.errors import CollectiveError
from engine.process.consensus.effects import Card, Introduce, Member
from engine.process.consensus.introductions import introduce
from engine.process.consensus.offline import meet_others, must_agree, watch_others
from engine.process.consensus.register import Register
from engine.process.files import EngineFiles
from engine.process.identity import own_identity
from engine.process.recipes import CoreRecipe
from scenarios.lab.settings import lab_config

AT = "ipc:///where"
SOON_S, LONG_S = 0.3, 20.0


def card(rank: int, size: int = 2, name: str = "", **agrees: Any) -> Card:
    return Card(Member(name or f"core.{rank}", own_identity(), f"beat.{rank}"), rank, {"size": size, **agrees}, "path")


# -- the register, by hand


def test_nobody_is_let_in_before_all_have_come() -> None:
    register = Register(2, AT)
    register.come(card(1))
    assert register.cards is None and not register.refusal
    register.come(card(0))
    assert register.cards == (card(0), card(1))


def test_who_goes_away_again_is_not_there_and_may_come_back() -> None:
    register = Register(2, AT)
    register.come(card(1))
    register.leave(card(1))
    register.come(card(0))
    assert register.cards is None
    register.come(card(1))
    assert register.cards == (card(0), card(1))


def test_who_goes_away_under_another_one_s_rank_takes_nobody_s_place() -> None:
    register = Register(2, AT)
    register.come(card(1))
    register.leave(card(1, name="core.7"))
    register.come(card(0))
    assert register.cards == (card(0), card(1))


@pytest.mark.parametrize(("cards", "said"), [
    ((card(0), card(2)), r"core\.2 came as rank 2, of 2"),
    ((card(0), card(-1)), r"core\.-1 came as rank -1, of 2"),
    ((card(1), card(1, name="core.7")), r"core\.1 \(pid \d+\) and core\.7 \(pid \d+\) both came"),
    ((card(0), card(1, size=3)), r"size is 2 of core\.0 and 3 of core\.1"),
    ((card(0), card(1, interval=16)), r"interval is None of core\.0 and 16 of core\.1"),
])
def test_what_keeps_them_from_meeting_is_named(cards: tuple[Card, ...], said: str) -> None:
    register = Register(2, AT)
    for one in cards:
        register.come(one)
    assert register.cards is None
    pytest.raises(CollectiveError, _refuse, register).match(f"ranks that meet at {AT} cannot step together: {said}")


def _refuse(register: Register) -> None:
    raise CollectiveError(register.refusal)


def test_the_first_reason_stays() -> None:
    register = Register(2, AT)
    register.come(card(5))
    register.come(card(0))
    register.come(card(1, size=3))
    register.give_up(1.0)
    assert "core.5 came as rank 5" in register.refusal and "size" not in register.refusal


def test_all_who_have_not_come_are_named_with_the_time_that_they_had() -> None:
    register = Register(4, AT)
    register.come(card(0, 4))
    register.come(card(2, 4))
    register.give_up(2.5)
    assert register.refusal.endswith("core.1 (rank 1) and core.3 (rank 3) of 4 did not come within 2.5 s")


def test_who_has_all_gives_nobody_up() -> None:
    register = Register(1, AT)
    register.come(card(0, 1))
    register.give_up(1.0)
    assert register.cards == (card(0, 1),)


# -- real sockets


def wait(descriptors: list[int], seconds: float) -> None:
    select.select(descriptors, [], [], seconds)


class Cancelled(Exception):
    pass


def cancel(descriptors: list[int], seconds: float) -> None:
    raise Cancelled


Meets = Callable[..., "Future[tuple[Card, ...]]"]


@pytest.fixture(params=["ipc", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "ipc":
        yield f"ipc://{tmp_path}/ranks.ipc"
        assert list(tmp_path.iterdir()) == []
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield f"tcp://127.0.0.1:{port}"
    socket.create_server(("127.0.0.1", port)).close()  # nobody holds it any more


@pytest.fixture
def meets(where: str) -> Iterator[Meets]:
    with ThreadPoolExecutor(8) as pool:
        def meet(one: Card, size: int = 2, within_s: float = LONG_S) -> Future[tuple[Card, ...]]:
            return pool.submit(introduce, one, size, where, time.monotonic() + within_s, wait, time.monotonic)

        yield meet


def names(future: Future[tuple[Card, ...]]) -> list[str]:
    return [one.member.name for one in future.result(LONG_S)]


def connected(where: str) -> socket.socket:
    """To whoever listens there, as soon as somebody does."""
    until = time.monotonic() + LONG_S
    while True:
        try:
            if where.startswith("ipc://"):
                found = socket.socket(socket.AF_UNIX)
                found.connect(where.removeprefix("ipc://"))
                return found
            return socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2])))
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.005)  # nothing tells that somebody listens


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_all_hear_of_all_in_the_order_of_their_ranks(meets: Meets, order: tuple[int, ...]) -> None:
    found = [meets(card(rank, 3), 3) for rank in order]
    assert [names(one) for one in found] == [["core.0", "core.1", "core.2"]] * 3


def test_two_that_come_as_rank_0_are_both_told(meets: Meets) -> None:
    for one in (meets(card(0), 2), meets(card(0, name="core.7"), 2)):
        with pytest.raises(CollectiveError, match=r"both came as rank 0"):
            one.result(LONG_S)


@pytest.mark.parametrize("attempt", range(20))
def test_of_two_that_listen_at_the_same_moment_one_is_the_first(tmp_path: Path, attempt: int) -> None:
    where, together = f"ipc://{tmp_path}/ranks.ipc", threading.Barrier(2)

    def meet(name: str) -> tuple[Card, ...]:
        together.wait()
        return introduce(card(0, name=name), 2, where, time.monotonic() + LONG_S, wait, time.monotonic)

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(meet, "core.0"), pool.submit(meet, "core.7")]:
            with pytest.raises(CollectiveError, match=r"both came as rank 0"):
                one.result(LONG_S)


def test_two_that_come_as_another_rank_are_told_with_all_others(meets: Meets) -> None:
    for one in (meets(card(0, 3), 3), meets(card(1, 3), 3), meets(card(1, 3, name="core.7"), 3)):
        with pytest.raises(CollectiveError, match=r"both came as rank 1"):
            one.result(LONG_S)


def test_ranks_that_believe_in_other_sizes_are_told_of_both(meets: Meets) -> None:
    for one in (meets(card(0, 2), 2), meets(card(1, 3), 3)):
        with pytest.raises(CollectiveError, match=r"size is 2 of core\.0 and 3 of core\.1"):
            one.result(LONG_S)


def test_who_never_comes_is_named_to_all_that_have_come(meets: Meets) -> None:
    first, second = meets(card(0, 3), 3, SOON_S), meets(card(1, 3), 3)
    for one in (first, second):
        with pytest.raises(CollectiveError, match=r"core\.2 \(rank 2\) of 3 did not come within 0\.[23]"):
            one.result(LONG_S)


def test_where_nobody_listens_rank_0_is_missed(meets: Meets) -> None:
    with pytest.raises(CollectiveError, match=r"core\.0 \(rank 0\) of 2 did not answer within 0\.[23]"):
        meets(card(1), 2, SOON_S).result(LONG_S)


@pytest.mark.parametrize("garbage", [
    b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4abcd", b"\xff\xff\xff\xff", b"\0\0\1\0half of it",
    b"\0\0\0\1" + msgspec.msgpack.encode([])], ids=["nothing", "http", "no card", "too long", "half", "empty"])
def test_a_stranger_keeps_nobody_from_meeting(meets: Meets, where: str, garbage: bytes) -> None:
    first = meets(card(0))
    with connected(where) as stranger:
        stranger.sendall(garbage)
        second = meets(card(1))
        assert names(first) == names(second) == ["core.0", "core.1"]


def test_who_has_come_and_died_is_waited_for_as_if_it_had_not(meets: Meets, where: str) -> None:
    first = meets(card(0, 3), 3)
    connected(where).close()
    with pytest.raises(Cancelled):
        introduce(card(1, 3, name="core.7"), 3, where, time.monotonic() + LONG_S, cancel, time.monotonic)
    others = [meets(card(1, 3), 3), meets(card(2, 3), 3)]
    assert [names(one) for one in (first, *others)] == [["core.0", "core.1", "core.2"]] * 3


@pytest.mark.parametrize("where", ["ipc:///nowhere/at/all/ranks.ipc", "tcp://192.0.2.1:9"])
def test_an_address_that_cannot_be_bound_is_named(where: str) -> None:
    with pytest.raises(CollectiveError, match="nobody can meet at"):
        introduce(card(0), 2, where, time.monotonic() + LONG_S, wait, time.monotonic)


def test_a_socket_file_of_a_group_that_was_killed_is_in_nobody_s_way(tmp_path: Path) -> None:
    left = tmp_path / "ranks.ipc"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    assert left.exists()
    assert introduce(card(0, 1), 1, f"ipc://{left}", time.monotonic() + LONG_S, wait, time.monotonic)
    assert not left.exists()


def test_a_wait_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        introduce(card(0), 2, f"ipc://{tmp_path}/ranks.ipc", time.monotonic() + LONG_S, cancel, time.monotonic)
    assert list(tmp_path.iterdir()) == []


# -- the core's own loop, by hand


CONFIG = lab_config(data_parallel_size=2)


def test_a_core_shows_what_all_must_agree_in_and_takes_over_whom_it_has_met() -> None:
    recipe = CoreRecipe(config=CONFIG, files=EngineFiles("path.1", "segment"), handshake_address="", beat="beat.1",
                        frontend=own_identity(), engine_index=1, dp_rank=1)
    loop = meet_others(recipe, AT)
    assert isinstance(next(loop), WhoAmI)
    assert isinstance(loop.send(own_identity()), Now)
    asked = loop.send(5.0)
    assert isinstance(asked, Introduce) and asked.size == 2 and asked.where == AT
    assert asked.deadline == 5.0 + CONFIG.bounds.handshake_s
    assert asked.card.rank == 1 and asked.card.agrees == must_agree(CONFIG) and asked.card.path == recipe.files.path
    told = loop.send((card(0), card(1)))
    assert told == Observe("ranks-met", {"ranks": ["core.0", "core.1"]})
    with pytest.raises(StopIteration) as end:
        next(loop)
    assert [member.name for member in end.value.value.ranks] == ["core.0", "core.1"]
    assert end.value.value.meets_in == "path"


def test_a_core_looks_at_the_others_until_one_is_gone() -> None:
    loop = watch_others((card(1).member, card(2).member), 0.8)
    assert isinstance(next(loop), Now)
    waits = loop.send(1.0)
    assert isinstance(waits, Take) and waits.deadline == pytest.approx(1.1)
    assert loop.send(None) == IsAlive(card(1).member.process)
    assert isinstance(loop.send(True), IsAlive)
    with pytest.raises(StopIteration) as end:
        loop.send(False)
    assert end.value.value == "core.2"


def test_a_core_that_leaves_looks_no_more() -> None:
    loop = watch_others((card(1).member,), 0.8)
    next(loop)
    loop.send(1.0)
    with pytest.raises(StopIteration) as end:
        loop.send(True)
    assert end.value.value is None
