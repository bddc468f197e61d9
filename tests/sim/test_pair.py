"""Faults on two hand-written nodes: each fate of the plan does in the twin what it would do to real processes."""

from faults.journal import Kind
from faults.plan import (
    Fate,
    Fault,
    Until,
    corrupt,
    delay,
    drop,
    duplicate,
    exits,
    hang,
    kill,
    plan,
    raises,
    reorder,
    stall,
    terminate,
    until,
)
from sim.kernel.time import Ended
from tests.sim.pair import OUTPUTS, REQUESTS, Pair

ANSWERS = [b"answer %d" % number for number in range(5)]
STEPS = [b"step %d" % number for number in range(5)]


def test_a_calm_play_answers_everything_and_ends_quietly():
    """Without faults each request is answered, each step is read, and then nothing is left to happen."""
    pair = Pair().run()
    assert (pair.answers, pair.read, pair.ended) == (ANSWERS, STEPS, Ended.QUIET)
    assert pair.frontend.exitcode == 0 and pair.core.alive


def test_the_same_play_leaves_the_same_bytes():
    """Same plan and seed, same journals byte for byte."""
    faults = plan(stall("core.0", at=f"{REQUESTS}:receive", nth=3, until=Until(seconds=0.2)), drop(OUTPUTS, nth=3))
    assert Pair(faults, seed=7).run().sim.journals() == Pair(faults, seed=7).run().sim.journals()


def test_a_send_and_its_receive_carry_one_digest():
    """Each request's receive pairs with its send by edge, digest and occurrence."""
    pair = Pair().run()
    sent = [(r.digest, r.occurrence) for r in pair.records("frontend.0") if r.site == f"{REQUESTS}:send"]
    received = [(r.digest, r.occurrence) for r in pair.records("core.0") if r.site == f"{REQUESTS}:receive"]
    assert len(sent) == 5 and sent == received


def test_ring_crossings_say_where_in_the_ring():
    """A ring message's crossings hold its position, its bytes and whether it overflowed."""
    records = [r for r in Pair().run().records("worker.0") if r.site == "core.0->worker.0/rpc:receive"]
    assert [r.data for r in records][:2] == [{"position": n, "bytes": 6, "overflow": False} for n in range(2)]


def test_a_kill_at_a_receive_ends_the_process_there():
    """The core dies at its third request: it crossed, left a receipt, and did nothing with it."""
    pair = Pair(plan(kill("core.0", at=f"{REQUESTS}:receive", nth=3))).run()
    assert pair.answers == ANSWERS[:2] and pair.read == STEPS[:2]
    assert pair.core.exitcode == -9
    last = pair.records("core.0")[-1]
    assert (last.kind, last.site, last.data["victim"]) == (Kind.RECEIPT, "f1", "core.0")


def test_a_kill_at_a_send_keeps_the_message():
    """A process that dies at a send dies before the message leaves."""
    pair = Pair(plan(kill("core.0", at=f"{OUTPUTS}:send", nth=3))).run()
    assert pair.answers == ANSWERS[:1] and pair.read[:1] == STEPS[:1]  # the first send is hello


def test_requests_to_a_dead_core_are_unroutable_once_that_was_noticed():
    """The mandatory ROUTER raises in the sender as soon as the closed connection was seen."""
    pair = Pair(plan(kill("core.0", at=f"{REQUESTS}:receive", nth=3))).run()
    assert type(pair.frontend.error).__name__ == "Unroutable" and pair.frontend.exitcode == 1


def test_another_nodes_crossing_can_kill():
    """A fault's victim may be another node than the one that crosses."""
    pair = Pair(plan(kill("worker.0", at=f"{REQUESTS}:receive", nth=3))).run()
    assert pair.worker.exitcode == -9 and pair.answers == ANSWERS and pair.read == STEPS[:2]


def test_a_fault_whose_victim_is_gone_does_not_fire():
    """The second kill finds nobody: it leaves no receipt, and the crossing says nothing of it."""
    pair = Pair(plan(kill("worker.0", at=f"{REQUESTS}:receive", nth=3),
                     kill("worker.0", at=f"{REQUESTS}:receive", nth=4))).run()
    assert [r.site for r in pair.records("core.0") if r.kind is Kind.RECEIPT] == ["f1"]
    assert [r.data.get("fault") for r in pair.records("core.0") if r.site == f"{REQUESTS}:receive"][2:] == [
        "f1", None, None]


def test_a_stalled_core_answers_late():
    """Stopped for 200 ms at its third request, the core answers it when it goes on."""
    pair = Pair(plan(stall("core.0", at=f"{REQUESTS}:receive", nth=3, until=Until(seconds=0.2)))).run()
    assert pair.answers == ANSWERS
    assert [seconds > 0.2 for seconds in pair.asked] == [False, False, True, False, False]
    assert [r.kind for r in pair.records("core.0") if r.site == "f1"] == [Kind.RECEIPT, Kind.RELEASE]


def test_deadlines_pass_while_a_process_is_stopped():
    """A frontend that is stopped past its deadline has no answer when it goes on, although one had been sent."""
    pair = Pair(plan(stall("frontend.0", at=f"{REQUESTS}:receive", nth=2, until=Until(seconds=2.0)))).run()
    assert pair.asked[1] > 2.0 and pair.answers == ANSWERS[:4]  # each later request finds its predecessor's answer


def test_a_stall_without_an_end_is_a_hang():
    """When nothing is left to happen and the frontend still waits, its operation is open for ever."""
    pair = Pair(plan(stall("core.0", at=f"{REQUESTS}:receive", nth=3)), patience_s=float("inf")).run(1e9)
    assert pair.ended is Ended.QUIET and pair.frontend.alive and len(pair.answers) == 2


def test_a_hanging_thread_lets_its_process_live():
    """A hang holds one thread until it is released."""
    pair = Pair(plan(hang("core.0", at="core.0/mark:step", nth=2, until=Until(seconds=0.3)))).run()
    assert pair.answers == ANSWERS and pair.asked[1] > 0.3


def test_an_exception_is_thrown_into_the_loop():
    """`raise` ends a loop that does not catch it, and with the main thread the process."""
    pair = Pair(plan(raises("core.0", at="core.0/mark:step", nth=2, text="boom"))).run()
    assert str(pair.core.error) == "boom" and pair.core.exitcode == 1 and pair.answers == ANSWERS[:1]


def test_exit_ends_the_process_with_its_code():
    """`exit` is sys.exit in the thread that crosses."""
    assert Pair(plan(exits("core.0", at="core.0/mark:step", nth=2, code=7))).run().core.exitcode == 7


def test_terminate_runs_the_handler_or_ends_the_process():
    """Without a handler a SIGTERM of its own ends the process there and then."""
    pair = Pair(plan(terminate("core.0", at="core.0/mark:step", nth=2))).run()
    assert pair.core.exitcode == -15 and pair.answers == ANSWERS[:1]


def test_a_dropped_request_is_never_read():
    """The core reads four of five requests."""
    pair = Pair(plan(drop(REQUESTS, nth=2))).run()
    assert pair.read == [STEPS[0], *STEPS[2:]] and pair.asked[1] >= 0.5


def test_a_delayed_request_comes_behind_the_crossing_it_waits_for():
    """The second request is held until the core has received a third one."""
    pair = Pair(plan(delay(REQUESTS, nth=2, until=until(REQUESTS, 3)))).run()
    assert sorted(pair.read) == STEPS and pair.read.index(b"step 1") > pair.read.index(b"step 2")


def test_a_doubled_request_is_read_twice():
    pair = Pair(plan(duplicate(REQUESTS, nth=2))).run()
    assert pair.read.count(b"step 1") == 2


def test_a_reordered_request_comes_behind_its_successor():
    pair = Pair(plan(reorder(REQUESTS, nth=2))).run()
    assert pair.read == [b"step %d" % n for n in (0, 2, 1, 3, 4)]


def test_a_corrupted_request_differs_in_its_last_frame():
    """What arrives is not what was sent, and the receive says which fate it met."""
    pair = Pair(plan(corrupt(OUTPUTS, nth=3))).run()
    assert pair.answers[1] != ANSWERS[1] and len(pair.answers) == 5
    fates = [r.data["fate"] for r in pair.records("frontend.0") if r.kind == Kind.CROSSING and "fate" in r.data]
    assert fates == ["corrupt"]


def test_a_writer_killed_before_its_flag_has_published_nothing():
    """All stores before the fatal one are done, none after it: the reader sees an exact prefix."""
    for store in ("reset", "data", "readers", "written"):
        pair = Pair(plan(kill("core.0", at=f"core.0/rpc:store.{store}", nth=3))).run()
        assert pair.read == STEPS[:2], store
        data = pair.sim.host.segments["ring"].buffer[2 * 64 + 1:2 * 64 + 7]
        assert (data == b"step 2") == (store in ("readers", "written"))


def test_a_writer_stalled_between_two_stores_goes_on_there():
    """The operation is run again up to the store at which it stopped, and every message is read once."""
    for store in ("reset", "data", "readers", "written"):
        fault = stall("core.0", at=f"core.0/rpc:store.{store}", nth=3, until=Until(seconds=0.2))
        pair = Pair(plan(fault)).run()
        assert (pair.read, pair.answers) == (STEPS, ANSWERS), store
        assert pair.asked[2] > 0.2


def test_a_reader_killed_before_its_flag_leaves_the_chunk_in_use():
    """The chunk it took stays unread for the writer."""
    pair = Pair(plan(kill("worker.0", at="worker.0/rpc:store.read", nth=2))).run()
    assert pair.read == STEPS[:1]


def test_a_reader_stalled_before_its_flag_still_has_its_message():
    """It is given the loads it had recorded, even where the chunk has changed meanwhile."""
    fault = stall("worker.0", at="worker.0/rpc:store.read", nth=2, until=Until(seconds=0.2))
    assert Pair(plan(fault), patience_s=0.5).run().read == STEPS


def test_a_lost_doorbell_costs_a_recheck():
    """The sleeping reader finds the message when it looks again by itself."""
    fault = Fault(id="", site="core.0/rpc:doorbell", fate=Fate.DROP, nth=5)
    pair = Pair(plan(fault), recheck_s=0.05).run()
    assert pair.read == STEPS
    arrived = [r.at for r in pair.records("worker.0") if r.site.endswith("rpc:receive")]
    sent = [r.at for r in pair.records("core.0") if r.site.endswith("rpc:send")]
    assert 0.001 < arrived[4] - sent[4] <= 0.05


def test_a_buffer_that_is_written_to_behind_its_send_arrives_as_it_is_then():
    """As a socket that does not copy sends it: the digests of the two ends differ."""
    def ends(pair: Pair) -> list[bool]:
        sent = [r.digest for r in pair.records("frontend.0") if r.site == f"{REQUESTS}:send"]
        return [sent[n] == r.digest for n, r in enumerate(
            r for r in pair.records("core.0") if r.site == f"{REQUESTS}:receive")]

    assert ends(Pair().run()) == [True] * 5
    assert ends(Pair(buffer=bytearray(70_000)).run()) == [False] * 5


def test_a_fault_may_wait_for_another():
    """`after` begins to count once the other fault has fired, in whichever process that was."""
    first = drop(REQUESTS, nth=2)
    second = Fault(id="", site=f"{OUTPUTS}:receive", fate=Fate.DROP, nth=1, after="f1")
    pair = Pair(plan(first, second)).run()
    assert pair.answers == [ANSWERS[0], *ANSWERS[3:]]


def test_heal_ends_what_the_plan_holds_for_ever():
    """The lab can end a stall that has no end of its own."""
    pair = Pair(plan(stall("core.0", at=f"{REQUESTS}:receive", nth=3)))
    pair.sim.after(0.3, pair.sim.holds.heal)
    assert pair.run().answers == ANSWERS
