"""Groups of real processes: what they leave behind, where they meet, and whom a wait is blamed on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  the processes are forked from this one: none of them has to import it

from engine.effects import Identity, Now
from engine.errors import CollectiveError
from engine.process.consensus.agreement import FRAME_WORDS, SILENT_S, Seat, agreed, frame, told_in
from engine.process.consensus.effects import JoinGroup, LeaveGroup, Member, Reduce
from engine.process.consensus.meeting import PORTS_TRIED
from engine.process.identity import own_identity, start_time
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.topology import core
from tests.contracts.consensus_worlds import Ask, Real
from tests.engine.engine_lab import lingering
from tests.engine.worker.model_driver import in_child

ROOT = Path(__file__).parents[3]

# -- whom a wait is blamed on


class Table:
    """A group whose members say what the test has them say."""

    def __init__(self, size: int) -> None:
        self.words = [bytearray(64) for _ in range(size)]
        names = [f"core.{rank}" for rank in range(size)]
        self.seats = [Seat("dp", "file:///dp", rank, names, self.words) for rank in range(size)]

    def all_enter(self, now: float, *ranks: int) -> None:
        for rank in ranks or range(len(self.seats)):
            self.seats[rank].enter("sum", now)

    def text(self, now: float, deadline: float = 1.0, dead: dict[int, float] | None = None, broken: bool = False,
             ) -> str | None:
        trouble = self.seats[0].trouble(now, deadline, dead or {}, broken)
        return None if trouble is None else str(trouble).removeprefix("sum, turn 1 of dp: ")


def test_before_the_deadline_nobody_is_blamed() -> None:
    table = Table(3)
    table.all_enter(0.0, 0)
    assert table.text(0.99) is None
    assert table.text(1.0) == "core.1 and core.2 did not enter within 1 s"


def test_who_is_behind_is_blamed_and_not_who_waits_or_stands_still_inside() -> None:
    table = Table(3)
    table.all_enter(0.0, 0, 2)
    assert table.text(1.0) == "core.1 did not enter within 1 s"


def test_of_those_behind_the_one_that_is_furthest_behind_is_blamed() -> None:
    table = Table(3)
    for turn in range(3):
        table.all_enter(float(turn), *((0, 1, 2) if turn == 0 else (0, 1) if turn == 1 else (0,)))
    assert str(table.seats[0].trouble(9.0, 9.0, {})) == "sum, turn 3 of dp: core.2 did not enter within 7 s"


def test_of_those_inside_the_one_that_does_not_say_that_it_waits_is_blamed() -> None:
    table = Table(3)
    table.all_enter(0.0)
    table.seats[2].waits(1.0 - SILENT_S / 2)
    assert table.text(1.0) == "core.1 entered and stands still, no answer within 1 s"
    table.seats[1].waits(1.0)
    assert table.text(1.0) == "all that say where they are wait in it, and it has no answer within 1 s"


def test_a_death_before_entering_is_told_at_once_and_one_inside_when_its_part_may_have_come() -> None:
    table = Table(2)
    table.all_enter(0.0, 0)
    assert table.text(0.1, dead={1: 0.1}) == "core.1 died before it entered"
    table.all_enter(0.1, 1)
    assert table.text(0.1, dead={1: 0.1}) is None
    assert table.text(0.1, dead={1: 0.1}, broken=True) == "core.1 died in it"
    assert table.text(0.2, dead={1: 0.1}) == "core.1 died in it"


def test_who_gave_up_waiting_for_another_is_not_the_one_to_blame() -> None:
    table = Table(3)
    table.all_enter(0.0, 0, 2)
    table.seats[2].give_up("it was late")
    assert table.text(0.1) == "core.1 did not enter, and core.2 gave up"
    trouble = table.seats[0].trouble(0.1, 2.0, {})
    assert trouble is not None and not trouble.follows  # it knows whose fault it is
    assert table.text(0.1, dead={2: 0.0}) == "core.1 did not enter, and core.2 gave up"
    assert table.text(0.1, dead={1: 0.05, 2: 0.0}) == "core.1 died before it entered"


def test_who_left_with_its_answer_is_no_trouble_and_who_left_before_is() -> None:
    table = Table(2)
    table.all_enter(0.0)
    table.seats[1].come_out()
    table.seats[1].close()
    assert table.text(0.5) is None
    table.seats[0].come_out()
    table.seats[0].enter("sum", 0.6)
    trouble = table.seats[0].trouble(0.7, 2.0, {})
    assert str(trouble) == "sum, turn 2 of dp: core.1 gave up" and trouble is not None and trouble.follows


def test_what_a_member_said_in_another_group_is_nothing_to_this_one() -> None:
    """A group is made anew, under another store, and one of the old members has not come yet."""
    table = Table(2)
    table.all_enter(0.0)
    table.seats[1].give_up("it was late")
    again = Seat("dp", "file:///dp.1", 0, ["core.0", "core.1"], table.words)
    again.enter("meeting", 2.0)
    assert again.trouble(2.5, 3.0, {}) is None
    assert str(again.trouble(3.0, 3.0, {})) == "meeting, turn 1 of dp: core.1 did not enter within 1 s"


def test_a_heartbeat_tells_a_monitor_where_its_process_waits() -> None:
    memory = bytearray(64)
    seat = Seat("dp", "file:///dp", 0, ["core.0"], [memory])
    assert told_in(memory).turn == 0 and not told_in(memory).waits(0.0)
    seat.enter("sum", 5.0)
    assert told_in(memory).turn == 1 and told_in(memory).waits(5.0) and not told_in(memory).waits(5.1 + SILENT_S)
    seat.come_out()
    assert told_in(memory).turn == 1 and not told_in(memory).inside
    assert bytes(memory[:16]) == bytes(16) and bytes(memory[32:]) == bytes(32)


def test_frames_of_one_size_hold_whatever_is_entered() -> None:
    frames = [frame(7, "sum", [1, -2], 2), frame(7, "sum", [10, 1], 2)]
    assert {len(one) for one in frames} == {FRAME_WORDS}
    assert agreed("it", ["a", "b"], frames) == [11, -1]
    for other in (frame(8, "sum", [1, 2], 2), frame(7, "max", [1, 2], 2), frame(7, "sum", [1], 2),
                  frame(7, "sum", [1, 2], 3)):
        with pytest.raises(CollectiveError, match=r"a enters turn 7 of 2, sum of 2 values, b enters turn . of "):
            agreed("it", ["a", "b"], [frames[0], other])


# -- what they leave


def loop_of(rank: int, members: tuple[Member, ...], where: str, rounds: int, seen: list[Any]) -> Any:
    yield JoinGroup("dp", rank, members, where, (yield Now()) + 20.0)
    for turn in range(rounds):
        assert (yield Reduce("dp", [turn, 1], "sum", (yield Now()) + 20.0)) == [2 * turn, 2]
        if turn == 10:
            seen.append(belongings())
    seen.append(belongings())
    yield LeaveGroup("dp")


def belongings() -> tuple[int, int, int]:
    """-> how many descriptors, threads of Python and threads at all this process has"""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))


def test_a_thousand_turns_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    def call() -> None:
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        pid = os.fork()
        rank, pipe = (1, theirs) if pid == 0 else (0, ours)
        pipe.send(own_identity())
        others = pipe.recv()
        members = tuple(Member(f"core.{place}", own_identity() if place == rank else others) for place in range(2))
        ports = RealPorts(core(rank))
        process, seen = EngineProcess(ports), [belongings()]
        process.run(loop_of(rank, members, f"file://{tmp_path}/store", 1000, seen))
        until = time.monotonic() + 5.0
        while belongings() != seen[0] and time.monotonic() < until:
            time.sleep(0.001)  # a thread that was joined may be there a moment longer
        seen.append(belongings())
        process.close()
        ports.close()
        before, early, late, after = seen
        assert early == late, seen
        assert before == after, seen
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    in_child(call)


def test_a_member_that_is_killed_is_named_before_it_is_gone(tmp_path: Path) -> None:
    """Its connection is taken from it first: that alone names nobody."""
    where = f"file://{tmp_path}/store"

    def call() -> None:
        other = multiprocessing.get_context("fork").Process(target=joins_and_sleeps, args=(where,))
        _, last = lingering(other.start)
        members = (Member("core.0", own_identity()), Member("core.1", Identity(other.pid, start_time(other.pid), 0)))
        process = EngineProcess(RealPorts(core(0)))

        def loop() -> Any:
            yield JoinGroup("dp", 0, members, where, (yield Now()) + 60.0)
            other.kill()
            yield Reduce("dp", [1], "sum", (yield Now()) + 60.0)

        try:
            with pytest.raises(CollectiveError, match="core.1 died in it"):
                process.run(loop())
            assert other.is_alive()
        finally:
            other.kill()
            last.wait()
            other.join()

    in_child(call)


_STUCK = """
import sys
from engine.effects import Cancel, Now, StartThread, Take
from engine.errors import QueueCancelledError
from engine.process.consensus.effects import JoinGroup, Member, Reduce
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.topology import core
def cancel():
    yield Take("nothing", (yield Now()) + 0.2)
    yield Cancel(QueueCancelledError("over"))
def loop():
    assert "torch" not in sys.modules, "a process that joins no group needs none"
    yield JoinGroup("dp", 0, (Member("core.0"), Member("core.1")), sys.argv[1], (yield Now()) + 60.0)
    yield StartThread("canceller", cancel())
    try:
        yield Reduce("dp", [1], "sum", (yield Now()) + 60.0)
    except QueueCancelledError:
        print("cancelled", flush=True)
ports = RealPorts(core(0))
process = EngineProcess(ports)
process.run(loop())
if sys.argv[2] == "closed":
    process.close()
    ports.close()
print("leaves", flush=True)
"""


def joins_and_sleeps(where: str) -> None:
    def loop() -> Any:
        yield JoinGroup("dp", 1, (Member("core.0"), Member("core.1")), where, (yield Now()) + 60.0)

    EngineProcess(RealPorts(core(1))).run(loop())
    signal.pause()


@pytest.mark.parametrize("how", ["closed", "as it is"])
def test_a_process_ends_though_gloo_still_waits(tmp_path: Path, how: str) -> None:
    where = f"file://{tmp_path}/store"
    other = multiprocessing.get_context("fork").Process(target=joins_and_sleeps, args=(where,), daemon=True)
    other.start()
    try:
        with subprocess.Popen([sys.executable, "-c", _STUCK, where, how], cwd=ROOT, stdout=subprocess.PIPE,
                              text=True) as stuck:
            assert stuck.stdout is not None
            assert [stuck.stdout.readline().strip() for _ in range(2)] == ["cancelled", "leaves"]
            began = time.monotonic()
            assert stuck.wait(30) == 0
            assert time.monotonic() - began < 10, "gloo would wait for a minute"
    finally:
        other.kill()
        other.join()


# -- where they meet


@contextlib.contextmanager
def successive_ports(count: int) -> Iterator[list[socket.socket]]:
    """Sockets that listen at ports one after the other; at those that others of this machine have it begins anew."""
    while True:
        with contextlib.ExitStack() as all_of_them:
            try:
                taken = [all_of_them.enter_context(socket.create_server(("127.0.0.1", 0)))]
                for place in range(1, count):
                    at = taken[0].getsockname()[1] + place
                    taken.append(all_of_them.enter_context(socket.create_server(("127.0.0.1", at))))
            except (OSError, OverflowError):
                continue
            yield taken
            return


def point_elsewhere(listener: socket.socket) -> None:
    """As another group's first member would, and never to this one's store."""
    while True:
        with contextlib.suppress(OSError), listener.accept()[0] as asking:
            asking.sendall(b"another group 1\n")


@pytest.mark.parametrize("size", [2, 4])
def test_members_meet_over_tcp_beside_a_stranger_and_another_group(tmp_path: Path, size: int) -> None:
    with successive_ports(2) as (stranger, second):
        first = stranger.getsockname()[1]
        other = multiprocessing.get_context("fork").Process(target=point_elsewhere, args=(second,), daemon=True)
        other.start()
        try:
            told = Real(tmp_path, f"tcp://127.0.0.1:{first}").play(
                {rank: [Ask(values=[rank, turn]) for turn in range(3)] for rank in range(size)})
        finally:
            other.kill()
            other.join()
    for one in told.values():
        assert one is not None and [ask.answer for ask in one] == [
            [size * (size - 1) // 2, size * turn] for turn in range(3)]


def test_where_every_port_is_taken_all_members_are_told(tmp_path: Path) -> None:
    with successive_ports(PORTS_TRIED) as taken:
        first = taken[0].getsockname()[1]
        told = Real(tmp_path, f"tcp://127.0.0.1:{first}").play(
            {rank: [Ask(values=[rank])] for rank in range(2)}, join_s=10.0)
    assert f"ports {first} to {first + PORTS_TRIED - 1} of 127.0.0.1 are taken" in told[0][0].text
    assert told[1][0].text == "meeting, turn 1 of dp: core.0 gave up"
    assert told[1][0].took_s < 5.0
