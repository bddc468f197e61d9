"""Real processes meet their fates at the very crossing, and the lab lets stopped ones go on."""

import os
import signal
import time

import pytest

from engine.topology import Mark
from faults.journal import Kind
from faults.plan import Fate, Fault, exits, hang, kill, plan, raises, stall, terminate, until
from faults.real.processes import Supervisor, is_alive, is_stopped, send_signal, start_ticks
from tests.faults.real.test_ports import ring_of
from tests.faults.stage import OUTPUTS, Stage, core, end_of, push, response_ring, rpc_ring, wait_for, worker


def five_steps(ports):
    for _ in range(5):
        ports.mark(Mark.STEP)
    ports.observe("bye")


STEP = "core.0/mark:step"


@pytest.mark.parametrize(("fault", "code", "crossings"), [
    (kill("core.0", at=STEP, nth=3), -signal.SIGKILL, 3),
    (terminate("core.0", at=STEP, nth=3), -signal.SIGTERM, 3),
    (exits("core.0", at=STEP, nth=3, code=9), 9, 3),
    (raises("core.0", at=STEP, nth=3), 71, 3),
], ids=lambda value: value.fate.value if isinstance(value, Fault) else "")
def test_a_process_ends_at_its_crossing_and_all_is_on_record(tmp_path, fault, code, crossings):
    play = Stage(tmp_path, plan(fault))
    assert end_of(play.fork(core(), five_steps)) == code
    records = play.records("core.0")
    assert [r.nth for r in records if r.kind is Kind.CROSSING] == list(range(1, crossings + 1))
    assert records[-1].kind is Kind.RECEIPT
    assert play.board.fired() == ("f1",)


def test_twenty_kills_at_one_site_leave_the_same_last_words(tmp_path):
    outcomes = set()
    for repeat in range(20):
        path = tmp_path / str(repeat)
        path.mkdir()
        play = Stage(path, plan(kill("core.0", at=STEP, nth=4)))
        assert end_of(play.fork(core(), five_steps)) == -signal.SIGKILL
        outcomes.add(tuple((r.kind, r.site, r.nth) for r in play.records("core.0")))
    assert len(outcomes) == 1


def write_a_message(node, spec):
    def work(ports):
        from engine.ipc.ring import RingWriter

        layout, ring = ring_of(ports, spec)
        RingWriter(layout, ring.memory, ring.fence).try_write([b"x"])

    return node, work


def send_a_message(ports):
    ports.open_socket(push()).send([b"x"])


def join_a_collective(ports):
    ports.process_group(1, 2, "", "cpu", 1.0, "gloo").all_reduce(1)


def ring_a_bell(ports):
    layout, ring = ring_of(ports, rpc_ring())
    ports.doorbell("rpc", ring.memory, layout.readers_bell_offset).ring()


def read_a_message(ports):
    ports.ring_crossing(rpc_ring(), "receive", 0, [b"x"], False)


SITES = {
    f"{OUTPUTS}:send": (core(), send_a_message),
    "core.0/rpc:store.written": write_a_message(core(), rpc_ring()),
    "worker.1/response:store.data": write_a_message(worker(1), response_ring()),
    "core.0/rpc:doorbell": (core(), ring_a_bell),
    "core.0->worker.1/rpc:receive": (worker(1), read_a_message),
    "worker.1/collective:enter": (worker(1), join_a_collective),
    "core.0/mark:step": (core(), lambda ports: ports.mark(Mark.STEP)),
}


@pytest.mark.parametrize("site", SITES)
def test_sigkill_at_each_kind_of_site(tmp_path, site):
    node, work = SITES[site]
    play = Stage(tmp_path, plan(kill(str(node), at=site)))
    assert end_of(play.fork(node, work)) == -signal.SIGKILL
    assert play.records(str(node))[-1].data["site"] == site
    play.network.close()


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("fate", [Fate.STALL, Fate.HANG])
def test_a_stall_and_a_hang_end_at_each_kind_of_site(tmp_path, fate, site):
    """It holds until the frontend's mark, then the process goes on and ends well."""
    node, work = SITES[site]
    play = Stage(tmp_path, plan(Fault(id="f1", site=site, fate=fate, until=until("frontend.0/mark:idle"))))
    supervisor = Supervisor(play.board, play.plan)
    pid = play.fork(node, work)
    ticks = start_ticks(pid)
    wait_for(lambda: play.board.fired() and (is_stopped(pid, ticks) or fate is Fate.HANG))
    assert supervisor.tick() == ()
    assert is_alive(pid, ticks)
    play.board.seat("frontend.0").crossed("frontend.0/mark:idle", 1)
    gone = wait_for(lambda: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])
    assert gone == pid
    assert [r.site for r in play.records(str(node), Kind.RELEASE)] == ["f1"]
    play.network.close()


def test_a_stopped_process_does_nothing_until_the_lab_continues_it(tmp_path):
    play = Stage(tmp_path, plan(stall("core.0", at=STEP, nth=2, until=until("frontend.0/mark:idle", 3))))
    supervisor = Supervisor(play.board, play.plan)
    pid = play.fork(core(), five_steps)
    ticks = start_ticks(pid)
    wait_for(lambda: is_stopped(pid, ticks))
    before = len(play.records("core.0"))
    for count in (1, 2):
        play.board.seat("frontend.0").crossed("frontend.0/mark:idle", count)
        assert supervisor.tick() == ()
    assert is_stopped(pid, ticks)
    assert supervisor.stopped() == ("core.0",)
    assert len(play.records("core.0")) == before
    play.board.seat("frontend.0").crossed("frontend.0/mark:idle", 3)
    assert supervisor.tick() == ("f1",)
    wait_for(lambda: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])
    assert len(play.records("core.0", Kind.CROSSING)) == 5
    assert supervisor.stopped() == ()


def test_a_stall_may_last_so_many_seconds(tmp_path):
    play = Stage(tmp_path, plan(stall("core.0", at=STEP, until=until(seconds=0.05))))
    supervisor = Supervisor(play.board, play.plan)
    pid = play.fork(core(), five_steps)
    wait_for(lambda: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])
    fired, released = play.records("core.0", Kind.RECEIPT)[0].at, play.records("core.0", Kind.RELEASE)[0].at
    assert released - fired >= 0.05


def test_a_process_that_is_continued_before_it_stopped_is_continued_again(tmp_path):
    """The board says `fired` before the stop; a lab that is quicker than that must not give up."""
    play = Stage(tmp_path, plan(stall("core.0", at=STEP, until=until("frontend.0/mark:idle"))))
    supervisor = Supervisor(play.board, play.plan)
    play.board.seat("frontend.0").crossed("frontend.0/mark:idle", 1)
    play.board.seat("core.0").fired("f1", time.monotonic())
    assert supervisor.tick() == ("f1",)
    pid = play.fork(core(), five_steps)
    wait_for(lambda: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])


@pytest.mark.parametrize("fault", [
    kill("core.0", at="worker.1/mark:executing"), stall("core.0", at="worker.1/mark:executing"),
], ids=["kill", "stall"])
def test_another_s_crossing_kills_or_stops_before_it_ends(tmp_path, fault):
    play = Stage(tmp_path, plan(fault))
    pid = play.fork(core(), lambda ports: signal.pause())
    ticks = start_ticks(pid)
    play.ports(worker(1)).mark(Mark.EXECUTING)
    if fault.fate is Fate.KILL:
        assert not is_alive(pid, ticks)
    else:
        assert is_stopped(pid, ticks)
        os.kill(pid, signal.SIGKILL)
    assert end_of(pid) == -signal.SIGKILL
    assert play.records("worker.1", Kind.RECEIPT)[0].data["victim"] == "core.0"


def test_a_process_stopped_by_another_s_crossing_tells_of_its_release(tmp_path):
    fault = stall("core.0", at="worker.1/mark:executing", until=until("worker.1/mark:executing", 2))
    play = Stage(tmp_path, plan(fault))
    supervisor = Supervisor(play.board, play.plan)

    def work(ports):
        while not ports.board.released_at("f1"):
            time.sleep(0.001)
        ports.mark(Mark.IDLE)

    pid = play.fork(core(), work)
    other = play.ports(worker(1))
    other.mark(Mark.EXECUTING)
    assert is_stopped(pid, start_ticks(pid))
    other.mark(Mark.EXECUTING)
    wait_for(lambda: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])
    assert [r.site for r in play.records("core.0", Kind.RELEASE)] == ["f1"]


def test_a_fault_whose_victim_is_gone_or_not_born_does_not_fire(tmp_path):
    play = Stage(tmp_path, plan(kill("core.0", at="worker.1/mark:executing", nth=2)))
    other = play.ports(worker(1))
    other.mark(Mark.EXECUTING)
    end_of(play.fork(core(), lambda ports: None))
    other.mark(Mark.EXECUTING)
    assert play.board.fired() == ()
    assert play.records("worker.1", Kind.RECEIPT) == []
    assert "fate" not in (play.records("worker.1", Kind.CROSSING)[1].data or {})


def test_the_lab_heals_holds_that_nothing_else_would_end(tmp_path):
    play = Stage(tmp_path, plan(hang("core.0", at=STEP), stall("worker.1", at="worker.1/mark:executing")))
    supervisor = Supervisor(play.board, play.plan)
    hanging = play.fork(core(), five_steps)
    stopped = play.fork(worker(1), lambda ports: ports.mark(Mark.EXECUTING))
    wait_for(lambda: len(play.board.fired()) == 2 and is_stopped(stopped, start_ticks(stopped)))
    assert supervisor.release_all() == ("f1", "f2")
    for pid in (hanging, stopped):
        wait_for(lambda pid=pid: (supervisor.tick(), os.waitpid(pid, os.WNOHANG))[1][0])
    assert len(play.records("core.0", Kind.CROSSING)) == 5


def test_a_hang_does_not_outlive_the_lab(tmp_path):
    """Nobody could release it or remove it: it ends itself."""
    play = Stage(tmp_path, plan(hang("core.0", at=STEP)))
    lab = os.fork()
    if lab == 0:
        Supervisor(play.board, play.plan)
        signal.pause()
        os._exit(0)
    wait_for(lambda: play.board.process("lab"))
    pid = play.fork(core(), five_steps)
    wait_for(play.board.fired)
    os.kill(lab, signal.SIGKILL)
    end_of(lab)
    assert end_of(pid) == -signal.SIGKILL


def test_a_reused_process_id_is_never_signalled():
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    ticks = start_ticks(pid)
    assert not send_signal(pid, ticks + 1, signal.SIGKILL)
    assert is_alive(pid, ticks)
    assert send_signal(pid, ticks, signal.SIGKILL)
    assert end_of(pid) == -signal.SIGKILL
    assert not send_signal(pid, ticks, signal.SIGKILL)
