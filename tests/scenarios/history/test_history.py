"""The history: pairing, order, operations, lives."""

import msgspec
import pytest

from faults.journal import Journal, journal_path
from faults.plan import Until
from scenarios.history.history import FOREVER, History
from scenarios.history.run import RunError, load_run, save
from tests.effort import lines_run
from tests.guarantees.build import OUTPUTS, REQUESTS, RPC, Builder, history

LINES_FOR_A_RECORD = 24


def _flow(h: History, name: str):  # noqa: ANN202
    return next(flow for flow in h.flows() if flow.name == name)


def test_a_receive_pairs_with_the_send_of_its_digest_and_occurrence() -> None:
    flow = _flow(history().sends(OUTPUTS, "a", "b", "a").receives(OUTPUTS, "b", "a").history(), OUTPUTS)
    assert [(send.digest, send.number) for send, _ in flow.pairs] == [("b", 1), ("a", 0)]
    assert [send.number for send in flow.unreceived] == [2]
    assert flow.unsent == []


def test_a_doubled_receive_has_no_send() -> None:
    flow = _flow(history().sends(OUTPUTS, "a").receives(OUTPUTS, "a", "a").history(), OUTPUTS)
    assert len(flow.pairs) == 1
    assert len(flow.unsent) == 1


def test_ring_messages_pair_by_position() -> None:
    h = history().writes(RPC[0], 0, "x").writes(RPC[0], 1, "x").reads(RPC[0], 1, "x").history()
    [(send, receive)] = _flow(h, RPC[0]).pairs
    assert send.data["position"] == receive.data["position"] == 1


def test_the_merged_order_puts_a_send_before_its_receive_even_when_the_clock_does_not() -> None:
    builder = history().receives(OUTPUTS, "a").observes("frontend.0", "tokens", request="a", offset=0, tokens=[1])
    builder.sends(OUTPUTS, "a").observes("core.0", "freed", request="a")
    order = [(node, record.site) for node, record in builder.history().merged()]
    assert order == [("core.0", f"{OUTPUTS}:send"), ("frontend.0", f"{OUTPUTS}:receive"), ("frontend.0", "tokens"),
                     ("core.0", "freed")]


def test_the_merged_order_goes_by_the_clock_where_nothing_else_speaks() -> None:
    builder = history().observes("core.0", "one").observes("frontend.0", "two").observes("core.0", "three")
    assert [record.site for _, record in builder.history().merged()] == ["one", "two", "three"]


def test_the_merged_order_holds_every_record_even_of_contradicting_journals() -> None:
    builder = history().receives(OUTPUTS, "a").sends(REQUESTS, "b").receives(REQUESTS, "b").sends(OUTPUTS, "a")
    assert len(builder.history().merged()) == 4


def test_what_follows_an_end_is_kept_apart_from_the_stream() -> None:
    [operation] = history().request("a", tokens=[[7]]).streams("a", [8], offset=1).history().operations
    assert operation.tokens == [7]
    assert len(operation.after_end) == 1


def test_a_reused_id_makes_two_operations() -> None:
    first, second = history().request("a").called("a", internal="a-1").streams("a", [7]).history().operations
    assert first.outcome == "finished"
    assert second.outcome is None
    assert second.tokens == [7]
    assert second.internal == "a-1"


def test_records_that_name_their_call_belong_to_it() -> None:
    builder = history().called("a", 0).observes("frontend.0", "call", request="a", index=1)
    builder.observes("frontend.0", "end", request="a", outcome="failed", index=1)
    first, second = builder.history().operations
    assert first.outcome is None
    assert second.outcome == "failed"


def test_a_later_life_has_sites_and_operations_of_its_own() -> None:
    h = history().started().started(life=1).called("a", node="frontend.0@1").history()
    assert {flow.name for flow in h.flows()} >= {
        "core.0->frontend.0/handshake", "core.0@1->frontend.0@1/handshake"}
    assert [s.node for s in h.startups] == ["frontend.0", "frontend.0@1"]
    assert h.operations[0].node == "frontend.0@1"


def test_a_kill_counts_from_its_receipt_and_an_exit_from_the_end_of_the_process() -> None:
    builder = history().fires("kill", "worker.1/mark:executing").fires("raise", "core.0/mark:step").wait(1)
    h = builder.ends("worker.1", "core.0").history()
    assert [(death.node, death.planned) for death in h.ends.deaths] == [("worker.1", True), ("core.0", True)]
    assert h.ends.at("worker.1") < 1.1
    assert h.ends.at("core.0") > 2
    assert h.ends.at("worker.0") == FOREVER


def test_processes_that_leave_after_closing_did_not_die() -> None:
    h = history().observes("frontend.0", "closing").wait(.1).ends("core.0", "worker.0").history()
    assert h.ends.deaths == []
    assert h.ends.at("core.0") < FOREVER


def test_what_the_lab_killed_did_not_end_by_itself() -> None:
    assert history().observes("core.0", "born").ends("core.0", killed_by_lab=True).history().ends == {}


def test_a_stall_lasts_until_its_release() -> None:
    builder = history().fires("stall", "core.0/mark:step", until=Until(seconds=1)).wait(1).releases()
    h = builder.history()
    [stall] = h.faults.stalls
    assert stall.until - stall.at == pytest.approx(1, abs=.01)
    assert h.faults.frozen_s("core.0", stall.at + .5, stall.at + 5) == pytest.approx(.5, abs=.01)


def test_a_run_directory_is_read_back(tmp_path) -> None:  # noqa: ANN001
    builder = history().started().request("a")
    save(tmp_path / "play.json", builder.play())
    save(tmp_path / "lab.json", builder.lab_seen())
    (tmp_path / "journals").mkdir()
    for file in builder.journals():
        with journal_path(tmp_path / "journals", file.node, file.life).open("wb") as out:
            clock = iter(record.at for record in file.records)
            journal = Journal(out.write, lambda clock=clock: next(clock))
            for r in file.records:
                journal.append(r.kind, r.site, nth=r.nth, digest=r.digest, occurrence=r.occurrence, data=r.data)
    assert [o.outcome for o in load_run(tmp_path).history.operations] == ["finished"]


def test_a_directory_that_is_no_run_is_an_error(tmp_path) -> None:  # noqa: ANN001
    with pytest.raises(RunError, match="play.json"):
        load_run(tmp_path)


def busy(requests: int = 8, steps: int = 16) -> Builder:
    """About what a calm play of the twin leaves behind."""
    h = history().started()
    for n in range(requests):
        h.called(f"r{n}", n % 2).carries(REQUESTS, f"add{n}")
    for step in range(steps):
        h.crosses("core.0/mark:step").crosses("core.0/mark:scheduled")
        h.observes("core.0", "rpc-call", call=step, method="execute_model", output_rank=0)
        h.writes(RPC[0], step).crosses(f"{RPC[1]}:send", f"m{step}", position=step, bytes=8, overflow=False)
        for rank in (0, 1):
            h.reads(RPC[rank], step).executes(f"worker.{rank}", call=step, method="execute_model", position=step)
            for _ in range(5):
                h.crosses(f"worker.{rank}/collective:enter")
        h.writes("worker.0->core.0/response", step, f"a{step}").reads("worker.0->core.0/response", step, f"a{step}")
        h.observes("core.0", "rpc-reply", call=step, rank=0, status=0).carries(OUTPUTS, f"out{step}")
        for n in range(requests):
            h.observes("frontend.0", "tokens", request=f"r{n}", offset=step, tokens=[step])
    for n in range(requests):
        h.observes("core.0", "freed", request=f"r{n}-0").ended(f"r{n}")
    h.observes("core.0", "blocks", free=8, used=0, cached=0, total=8, requests=0, errors=[])
    return h.observes("frontend.0", "closing")


def test_judging_a_schedule_costs_little_and_grows_with_its_records() -> None:
    """The twin plays and judges hundreds of plays a second: some lines of code for each record, for all promises."""
    from scenarios.guarantees.judge import judge

    def lines_for_a_record(builder: Builder) -> float:
        play, lab, journals = builder.play(), builder.lab_seen(), builder.journals()
        records = sum(len(file.records) for file in journals)
        assert records > 700
        judge(play, lab, journals)
        return lines_run(lambda: judge(play, lab, journals)) / records

    short, long = lines_for_a_record(busy()), lines_for_a_record(busy(steps=80))
    assert short < LINES_FOR_A_RECORD
    assert long < 1.1 * short


def test_judging_is_a_function_of_the_records() -> None:
    first, second = busy().judgement(), busy().judgement()
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
