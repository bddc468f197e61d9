"""The kernel's own promises: exits, sentinels, collectives, cuts, choices, stops of threads that wait."""

import msgspec
import pytest

from engine.effects import Attempt, Call, Now, Observe, Put, Receive, RingBell, Send, Take, WaitBell
from engine.errors import PeerDeadError, QueueCancelledError
from engine.ports import SocketSpec
from engine.topology import Channel, NodeKind, core, frontend, tensor_parallel, worker
from faults.plan import Until, cut, hang, kill, plan, stall
from sim.kernel.choices import Choices, enumerate_choices
from sim.kernel.time import Ended
from sim.process.effects import Enter, Sleep
from sim.simulation import Simulation
from sim.transport.collectives import CollectiveError


def push_spec(**rest):
    return SocketSpec(name="outputs", kind="PUSH", peer_kind=NodeKind.FRONTEND, send_channel=Channel.OUTPUTS,
                      bind=False, address="ipc:///run/out", **rest)


def pull_spec():
    return SocketSpec(name="outputs", kind="PULL", peer_kind=NodeKind.CORE, receive_channel=Channel.OUTPUTS,
                      bind=True, address="ipc:///run/out")


class Outputs:
    """core.0 pushes `count` messages (all at once, or one each `gap_s`); frontend.0 reads until `deadline`."""

    def __init__(self, the_plan=None, choices=(), *, count=6, gap_s=0.0, linger_s=0.0, deadline=2.0, reads=True):
        self.sim = Simulation(tensor_parallel(2), the_plan, 0, choices)
        self.count, self.gap_s, self.linger_s, self.deadline, self.reads = count, gap_s, linger_s, deadline, reads
        self.got = []
        self.told_at = None
        self.frontend = self.sim.start_process(frontend(), self._frontend if reads else None)
        self.core = self.sim.start_process(core(), self._core)
        self.frontend.watch(self.core, self._told)
        self.ended = self.sim.run()

    def _told(self):
        self.told_at = self.sim.now

    def _frontend(self, process):
        process.ports.open_socket(pull_spec())
        while True:
            found = yield Receive(("outputs",), self.deadline)
            if found is None:
                return
            self.got.append(int(found[2][0]))

    def _core(self, process):
        process.ports.open_socket(push_spec(linger_s=self.linger_s))
        yield Sleep(0.2)
        for number in range(self.count):
            yield Send("outputs", [b"%d" % number])
            if self.gap_s:
                yield Sleep(self.gap_s)


def test_a_leaving_process_waits_for_its_linger():
    """What is unsent when the main loop is over still arrives, and only then the process is gone."""
    outputs = Outputs(linger_s=4.0)
    assert outputs.got == list(range(6)) and outputs.core.exitcode == 0


def test_linger_without_a_peer_takes_all_of_it():
    """Nobody ever binds: the process stays for its whole linger, and not longer."""
    outputs = Outputs(linger_s=4.0, reads=False)
    assert outputs.core.ended_at == pytest.approx(4.215, abs=0.01)


def test_a_sentinel_tells_of_a_death_once_and_soon():
    outputs = Outputs(plan(kill("core.0", at="core.0->frontend.0/outputs:send", nth=3)), gap_s=0.01)
    assert 0 < outputs.told_at - outputs.core.ended_at < 0.002


def test_any_prefix_of_what_was_on_its_way_at_a_death_may_arrive():
    """Five messages were just sent when the sender dies: the plays differ in how many of them arrive."""
    def play(choices):
        return tuple(Outputs(plan(kill("core.0", at="core.0->frontend.0/outputs:send", nth=6)), choices).got)

    outcomes = {got for _, got in enumerate_choices(play)}
    assert outcomes == {(), (0,), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4)}


def test_choices_drawn_from_the_seed_repeat():
    """With `choices=None` outcomes come from the seed: the same seed, the same picks."""
    the_plan = plan(kill("core.0", at="core.0->frontend.0/outputs:send", nth=6))

    def picks(seed):
        sim = Simulation(tensor_parallel(2), the_plan, seed, None)
        return [sim.kernel.choose(5, "any") for _ in range(20)]

    assert picks(1) == picks(1) != picks(2)


def test_enumeration_visits_every_outcome_once():
    """Two points with two and three outcomes make six plays, the usual one first."""
    def play(choices: Choices):
        return choices.choose(2, "first"), choices.choose(3, "second")

    outcomes = [result for _, result in enumerate_choices(play, 20)]
    assert outcomes[0] == (0, 0) and sorted(outcomes) == [(a, b) for a in range(2) for b in range(3)]


def test_a_cut_wire_loses_its_message_and_reconnects():
    """The connection breaks at the third message and stands again after libzmq's retry."""
    outputs = Outputs(plan(cut("core.0->frontend.0/outputs", nth=3)), gap_s=0.05, count=8)
    assert outputs.got[:2] == [0, 1] and 2 not in outputs.got and outputs.got[-1] == 7


def test_a_cut_wire_stays_cut_until_its_end():
    """New connections are refused until the cut is over; a connecting PUSH keeps what it was given meanwhile."""
    the_plan = plan(cut("core.0->frontend.0/outputs", nth=3, until=Until(seconds=0.5)))
    outputs = Outputs(the_plan, gap_s=0.05, count=8, linger_s=4.0)
    assert outputs.got == [0, 1, 3, 4, 5, 6, 7]


# -- collectives ---------------------------------------------------------------------------------------------


class Ranks:
    """Workers that call `work`, whose handler enters two collectives of their group and says when it was over."""

    def __init__(self, the_plan=None, choices=(), tp=2, timeout_s=1.0, shared=True, operations=()):
        self.sim = Simulation(tensor_parallel(tp), the_plan, 0, choices)
        nodes = [worker(rank) for rank in range(tp)]
        self.group = self.sim.host.collective("tp", nodes, timeout_s, shared=shared)
        self.operations = dict(operations)
        self.over = {}
        for node in nodes:
            process = self.sim.start_process(node, self._main)
            process.call_handler = self._work
        self.sim.run()

    def _main(self, process):
        try:
            yield Call("work", (), {})
            self.over[process.name] = self.sim.now
        except CollectiveError as error:
            self.over[process.name] = str(error)

    def _work(self, thread, method, args, kwargs):
        yield Sleep(0.001)
        yield Enter(self.group, 2, self.operations.get(thread.process.name, "all_reduce"))


def test_a_collective_is_over_for_all_at_once():
    ranks = Ranks(tp=4)
    assert len(set(ranks.over.values())) == 1 and len(ranks.over) == 4


def test_a_dead_rank_raises_in_its_neighbours_within_ten_milliseconds():
    ranks = Ranks(plan(kill("worker.1", at="worker.1/collective:enter", nth=2)))
    assert "connection closed by worker.1" in ranks.over["worker.0"]


def test_a_hung_rank_raises_in_the_others_at_the_time_out():
    """And so it does for a stopped one."""
    for fate in (hang, stall):
        ranks = Ranks(plan(fate("worker.1", at="worker.1/collective:enter", nth=2)))
        assert "worker.1 did not enter within 1.0 s" in ranks.over["worker.0"] and "worker.1" not in ranks.over


def test_a_distant_rank_may_or_may_not_be_told_of_a_death():
    """With four ranks the one opposite to the dead is told at once in one play and at the time-out in another."""
    def play(choices):
        return Ranks(plan(kill("worker.1", at="worker.1/collective:enter", nth=2)), choices, tp=4,
                     shared=False).over["worker.3"]

    said = {text.rpartition(": ")[2].split(" ")[0] for _, text in enumerate_choices(play)}
    assert said == {"connection", "timed"}


def test_all_ranks_that_share_memory_are_told_of_a_death():
    ranks = Ranks(plan(kill("worker.1", at="worker.1/collective:enter", nth=2)), tp=4)
    assert all("connection closed by worker.1" in ranks.over[f"worker.{rank}"] for rank in (0, 2, 3))


def test_ranks_that_enter_different_collectives_all_raise():
    """Over gloo nobody looks, and numbers of one collective are taken for another one's."""
    operations = {"worker.1": "all_gather"}
    ranks = Ranks(operations=operations)
    assert all("worker.0 enters all_reduce, worker.1 enters all_gather" in told for told in ranks.over.values())
    assert not any(isinstance(told, str) for told in Ranks(operations=operations, shared=False).over.values())


# -- threads and waits ---------------------------------------------------------------------------------------


def one(main, the_plan=None):
    """A single core whose main loop is `main(process)`."""
    sim = Simulation(tensor_parallel(2), the_plan)
    process = sim.start_process(core(), main)
    return sim, process


def test_threads_of_a_process_share_queues():
    """What one thread puts the other takes, in order, after the time of a wake-up."""
    taken = []

    def main(process):
        def other():
            while True:
                taken.extend((yield Take("q", None)))

        process.start("other", other())
        for number in range(3):
            yield Put("q", number)
            yield Sleep(0.001)

    sim, _ = one(main)
    assert sim.run() is Ended.QUIET and taken == [0, 1, 2]


def test_a_look_costs_time():
    """A deadline in the past looks once, finds nothing, and time has moved."""
    sim, process = one(lambda process: (yield Take("q", 0.0)))
    sim.run()
    assert process.ended_at > sim.costs.process_start_s and process.error is None


def test_a_loop_that_never_waits_is_put_on_record_and_ended():
    def main(process):
        while True:
            yield Now()

    sim = Simulation(tensor_parallel(2))
    process = sim.start_process(core(), main)
    sim.run()
    assert (process.exitcode, process.alive) == (1, False)
    assert [(record.site, record.data["why"]) for record in process.records] == [("thread-ended", "endless")]


def test_a_bell_that_rang_between_look_and_sleep_is_not_lost():
    """The wait compares with the look, not with its own beginning."""
    woken = []

    def main(process):
        process.ports.add_bell("b", "shared")
        yield Attempt("ring", lambda: False)
        yield Observe("between", {})
        yield RingBell("b")
        woken.append((yield WaitBell("b", None)))

    sim, _ = one(main)
    sim.run()
    assert woken == [True]


def test_a_sleeping_reader_looks_again_within_its_recheck_bound():
    answers = []

    def main(process):
        process.ports.add_bell("b", "shared")
        process.recheck_s = 0.25
        answers.append((yield WaitBell("b", None)))
        answers.append(process.sim.now)

    sim, _ = one(main)
    sim.run()
    assert answers == [False, pytest.approx(0.265)]


def test_cancel_ends_waits_for_bells_and_messages():
    """A wait on a bell raises QueueCancelledError, a wait for a message what was given."""
    raised = []

    def main(process):
        process.ports.add_bell("b", "shared")
        process.ports.open_socket(pull_spec())

        def listen():
            try:
                yield Receive(("outputs",), None)
            except PeerDeadError as error:
                raised.append(error)

        process.start("listen", listen())
        process.sim.after(0.1, process.cancel, PeerDeadError("worker.1 is dead"))
        try:
            yield WaitBell("b", None)
        except QueueCancelledError as error:
            raised.append(error)
        yield Sleep(0.1)

    sim, _ = one(main)
    sim.run()
    assert [str(error) for error in raised] == ["worker.1 is dead"] * 2


def test_leave_ends_all_threads():
    """When the main thread's loop is over, by its end or by SystemExit, the others do nothing more."""
    went_on = []

    def main(process):
        def other():
            yield Sleep(0.2)
            went_on.append(True)

        process.start("other", other())
        yield Sleep(0.1)
        raise SystemExit(3)

    sim, process = one(main)
    sim.run()
    assert process.exitcode == 3 and not went_on


def test_a_stop_holds_all_threads_of_the_process_and_no_other():
    """While core.0 is stopped none of its threads moves; its timers are answered when it goes on."""
    times = {}

    def main(process):
        process.ports.open_socket(push_spec())

        def other():
            yield Sleep(0.05)
            times["other"] = process.sim.now

        process.start("other", other())
        yield Sleep(0.01)
        yield Send("outputs", [b"x"])
        times["main"] = process.sim.now
        yield Sleep(0.01)

    sim, _ = one(main, plan(stall("core.0", at="core.0->frontend.0/outputs:send", until=Until(seconds=1.0))))
    sim.start_process(frontend(), lambda process: (yield Sleep(0.05)))
    sim.run()
    assert times == {"main": pytest.approx(1.025), "other": pytest.approx(1.025)}
    assert sim.process("frontend.0").ended_at < 0.1


def test_a_killed_process_leaves_its_files_and_a_clean_one_does_not():
    """Bound ipc paths outlive a SIGKILL."""
    def main(process):
        process.ports.open_socket(pull_spec())
        yield Sleep(0.1)

    sim, process = one(main)
    sim.after(0.05, process.kill)
    sim.run()
    assert sim.leftovers() == ["file /run/out"]
    sim, process = one(main)
    sim.run()
    assert sim.leftovers() == []


def test_the_next_life_of_a_node_has_its_own_journal():
    sim, first = one(lambda process: (yield Observe("born", {})))
    sim.run()
    sim.start_process("core.0@1", lambda process: (yield Observe("born", {})))
    sim.run()
    assert sorted(sim.journals()) == ["core.0@0.journal", "core.0@1.journal"]
    assert sim.process("core.0").life == 1


def test_a_fault_hits_its_victim_in_the_life_that_it_names():
    sim = Simulation(tensor_parallel(2))
    killed = kill("worker.0", at="core.0/mark:step")
    first = sim.start_process("worker.0")
    assert sim.struck_by(killed) is first
    first.kill()
    again = sim.start_process("worker.0@1")
    assert sim.struck_by(killed) is None
    assert sim.struck_by(msgspec.structs.replace(killed, victim="worker.0@1")) is again


def test_who_goes_on_finds_what_became_of_others_meanwhile():
    """The end of a child is there to be seen before any thread that had stopped makes a step."""
    found = []

    def main(process):
        yield Sleep(0.01)
        found.append((yield Now()))

    sim = Simulation(tensor_parallel(2))
    parent, child = sim.start_process(frontend(), main, delay_s=0.0), sim.start_process(core(), delay_s=0.0)
    parent.watch(child, lambda: found.append("ended"))
    sim.after(0.005, parent.freeze, stall("frontend.0", at="frontend.0/mark:born", until=Until(seconds=1.0)), bool)
    sim.after(0.006, child.kill)
    sim.run()
    assert found == ["ended", 1.005]
