"""What the lab knows of vLLM's processes from outside: the gate, processes that are orphaned, what can be asked for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.topology import data_parallel, offline, tensor_parallel
from faults.plan import delay, drop, kill, plan, raises, stall, until
from scenarios.command.listing import lines
from scenarios.guarantees.registry import GUARANTEES
from scenarios.guarantees.theirs import THEIRS, is_promised
from scenarios.history.play import OTHERS, Options
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import raw, recorded, utility
from scenarios.worlds.base import NotHereError
from scenarios.worlds.registry import EVERY, WORLDS, worlds_of
from scenarios.worlds.vllm import environment
from scenarios.worlds.vllm.arguments import BOUNDS, arguments_of, environment_of, longest, with_bounds
from scenarios.worlds.vllm.family import Family
from scenarios.worlds.vllm.sites import (
    check,
    check_config,
    check_topology,
    needs_relay,
    needs_tripwire,
    needs_watch,
)
from scenarios.worlds.vllm.stand_in.gate import Gate, Gates

ORPHANS = """
import os, sys
pid = os.fork()
if not pid:
    os.execvp("sleep", ["sleep", "60"])
print(pid, flush=True)
sys.stdin.read()
"""


def test_a_gate_lets_so_many_steps_through(tmp_path: Path) -> None:
    caller, core = Gate(str(tmp_path), 0), Gate(str(tmp_path), 0)
    assert not core.counts()  # open
    caller.allow(2)
    assert not core.counts()
    core.has_run(3)
    assert not caller.is_done()
    assert core.counts()  # the last
    core.has_run(3)
    assert caller.is_done()
    caller.open()
    assert not core.counts()


def test_a_gate_is_done_where_nothing_is_left(tmp_path: Path) -> None:
    gate = Gate(str(tmp_path), 0)
    gate.allow(9)
    gate.counts()
    assert not gate.is_done()
    gate.has_run(0)
    assert gate.is_done()


def test_an_orphan_still_belongs_to_its_play() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    family = Family()
    assert parent.stdout is not None and parent.stdin is not None
    try:
        family.adopt(parent.pid)
        child = int(parent.stdout.readline())
        assert sorted(family.living()) == sorted([parent.pid, child])
        fd = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert family.living() == [child]
        assert family.end() == [child]
        assert select.select([fd], [], [], 5.0)[0] and not family.living()
        os.close(fd)
    finally:
        family.end()
        parent.stdin.close()
        parent.stdout.close()


@pytest.mark.parametrize("fault", [
    raises("core.0", at="core.0->frontend.0/outputs:send"), kill("core.0", at="core.0/mark:idle"),
    kill("worker.0", at="core.0->worker.0/rpc:receive"), raises("core.0", at="core.0/rpc:store.written", nth=2),
    stall("core.0", at="core.0/rpc:doorbell")],
    ids=lambda fault: fault.site)
def test_what_is_out_of_reach_is_said(fault: object) -> None:
    with pytest.raises(NotHereError, match="of vLLM|vLLM's|is over before"):
        check(plan(fault), Options())  # type: ignore[arg-type]


def test_a_ring_is_watched_where_a_plan_names_a_store_of_it() -> None:
    reads, stores = (kill(node, at=f"{node}/rpc:store.{store}") for node, store in (
        ("worker.1", "read"), ("core.0", "reset")))
    for fault in (reads, stores):
        check(plan(fault), Options())
        assert needs_watch(plan(fault)) and not needs_relay(plan(fault), Options())
    assert needs_tripwire(plan(stores)) and not needs_tripwire(plan(reads))
    assert not needs_watch(plan(kill("core.0", at="core.0/mark:scheduled")))
    check_topology(tensor_parallel(2), plan(stores))
    with pytest.raises(NotHereError, match="the flags of 2 readers"):
        check_topology(tensor_parallel(4), plan(stores))
    with pytest.raises(NotHereError, match="in plays of their own"):
        check(plan(stores), Options(relayed=True))


def test_a_relay_is_there_where_a_plan_names_a_message_or_somebody_asks_for_it() -> None:
    outputs = "core.0->frontend.0/outputs"
    stop = stall("core.0", at="core.0/mark:scheduled", until=until(outputs, 9))
    for faults in (plan(drop(outputs)), plan(stop), plan(kill("core.0", at="frontend.0->core.0/handshake:send"))):
        check(faults, Options())
        assert needs_relay(faults, Options())
    assert needs_relay(plan(), Options(relayed=True))
    assert not needs_relay(plan(kill("core.0", at="core.0/mark:scheduled")), Options())
    with pytest.raises(NotHereError, match="lives twice"):
        check(plan(delay("core.0@1->frontend.0/outputs", until=until(seconds=1))), Options())


def test_each_site_says_whether_it_is_within_reach() -> None:
    told = dict(line.split(None, 1) for line in lines("sites", tensor_parallel(2), world="vllm"))
    assert set(told) == set(tensor_parallel(2).sites())
    assert told["frontend.0->core.0/requests:wire"] == "cut"
    assert told["core.0->frontend.0/outputs:send"] == "kill stall terminate"
    assert "drop" in told["core.0->frontend.0/outputs:receive"]
    assert told["core.0/rpc:store.written"] == "kill stall terminate"
    assert told["core.0/rpc:store.data"] == "corrupt"
    assert told["core.0/rpc:doorbell"].startswith("out of reach: ")
    assert "out of reach" not in "".join(lines("sites", tensor_parallel(2)))


def test_what_is_within_reach_is_taken() -> None:
    check(plan(kill("worker.1", at="core.0/mark:scheduled", nth=3), stall("core.0", at="worker.0/mark:executing")),
          Options(await_death_s=1.0))
    check_topology(tensor_parallel(2, pp=2))
    check_config(lab_config(cache={"num_gpu_blocks": 20}, scheduler={"async_scheduling": True}), recorded("pair"))


@pytest.mark.parametrize("options", [Options(kill_all_then_restart=True), Options(noisy_publisher=True)], ids=str)
def test_options_that_nobody_plays_there_are_refused(options: Options) -> None:
    with pytest.raises(NotHereError):
        check(plan(), options)


def test_steps_of_several_cores_are_done_when_those_with_requests_are(tmp_path: Path) -> None:
    cores = [Gate(str(tmp_path), index) for index in range(2)]
    gates = Gates([Gate(str(tmp_path), index) for index in range(2)])
    gates.allow(1, {1})
    assert not gates.is_done()
    assert cores[1].counts()
    cores[1].has_run(1)
    assert gates.is_done()
    assert cores[0].counts()  # it had nothing to do, and may step as often
    gates.allow(1, {0, 1})
    cores[1].counts()
    cores[1].has_run(1)
    assert not gates.is_done()


def test_marks_of_a_rank_are_passed_by_a_core_that_has_no_workers() -> None:
    struck = plan(kill("core.1", at="core.1/mark:executing"))
    check_topology(data_parallel(2, coordinated=True), struck)
    check_topology(data_parallel(2, lockstep=True), plan(kill("coordinator.0", at="core.0/mark:dummy")))
    with pytest.raises(NotHereError, match="does not pass it"):
        check_topology(data_parallel(2, tp=2), struck)


@pytest.mark.parametrize("topology", [offline(2), data_parallel(2, clients=2), data_parallel(2, subscribers=1)],
                         ids=["offline", "two clients", "subscribers of ranks"])
def test_topologies_that_are_not_played_yet_are_refused(topology: object) -> None:
    with pytest.raises(NotHereError):
        check_topology(topology)  # type: ignore[arg-type]


def test_settings_that_vllm_does_not_know_are_refused() -> None:
    for config, workload in ((lab_config(sockets={"transport": "tcp"}), recorded("pair")),
                             (lab_config(device_communicator="gloo"), recorded("pair")),
                             (lab_config(), recorded("pair").then(raw(b"x"))),
                             (lab_config(), recorded("pair").then(utility("ping", "a")))):
        with pytest.raises(NotHereError):
            check_config(config, workload)


def test_vllm_is_asked_for_what_the_lab_is_configured_for() -> None:
    config = with_bounds(lab_config(scheduler={"async_scheduling": True}))
    told = arguments_of(config, tensor_parallel(2, pp=2))
    assert (told["tensor_parallel_size"], told["pipeline_parallel_size"], told["async_scheduling"]) == (2, 2, True)
    assert told["distributed_executor_backend"] == "mp" and "hf_overrides" not in told
    single = arguments_of(config, data_parallel(2, lockstep=True))
    assert (single["data_parallel_size"], single["distributed_executor_backend"]) == (2, "uni")
    assert single["hf_overrides"]["num_experts"] and "hf_overrides" not in arguments_of(config, data_parallel(2))
    assert told["scheduler_cls"].endswith("CountedAsyncScheduler") and told["max_model_len"] == longest(config) == 400
    there = environment_of(config, "/somewhere")
    assert there["VLLM_RPC_BASE_PATH"] == "/somewhere" and there["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    assert int(there["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]) == config.bounds.step_s
    spawned = with_bounds(lab_config(start_method="spawn"))
    assert spawned.bounds.startup_s > config.bounds.startup_s


def test_what_befalls_the_lab_s_own_subscriber_is_within_reach() -> None:
    edge = "core.0->subscriber.0/kv"
    check(plan(drop(edge, nth=2), kill("subscriber.0", at=f"{edge}:receive", nth=3)), Options(late_subscriber=True))
    check_topology(tensor_parallel(2, subscribers=1))
    with pytest.raises(NotHereError):
        check(plan(stall("core.0", at=f"{edge}:send")), Options())


def test_vllm_is_told_where_its_events_go() -> None:
    events = {"enable_kv_cache_events": True, "endpoint": "ipc:///there/kv", "replay_endpoint": "ipc:///there/replay"}
    one = tensor_parallel(2, subscribers=1)
    assert "kv_events_config" not in arguments_of(lab_config(), one)
    told = arguments_of(lab_config(kv_events={**events, "buffer_steps": 3}), one)["kv_events_config"]
    assert (told["endpoint"], told["replay_endpoint"], told["buffer_steps"]) == (*list(events.values())[1:], 3)
    assert arguments_of(lab_config(kv_events={**events, "replay": False}), one)["kv_events_config"][
        "replay_endpoint"] is None


def test_a_client_of_several_engines_is_told_of_a_death_when_the_others_have_left() -> None:
    told = [with_bounds(lab_config(), one).bounds.detection_s for one in (tensor_parallel(2), data_parallel(2))]
    assert told[0] < told[1] < BOUNDS["terminate_s"] + BOUNDS["detection_s"]


def test_nobody_plays_it_who_has_not_asked_for_it_by_name() -> None:
    assert "vllm" not in worlds_of(EVERY) and "vllm" not in worlds_of(None)
    assert worlds_of("vllm") == ("vllm",)


def test_what_others_promise_is_known_and_says_where() -> None:
    assert set(THEIRS) == OTHERS <= set(WORLDS)
    for world, promises in THEIRS.items():
        assert set(promises) <= set(GUARANTEES)
        assert all(promise.source for promise in promises.values())
        assert is_promised("ends-once", world) and not is_promised("rpc-matched", world)
    assert is_promised("rpc-matched", "engine")


def test_an_interpreter_without_vllm_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.VARIABLE, sys.executable)
    assert environment.obstacle() == f"{sys.executable} has no vLLM"
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "python"))
    assert "cannot be asked for its vLLM" in (environment.obstacle() or "")
    monkeypatch.delenv(environment.VARIABLE)
    monkeypatch.setattr(environment, "BUILT", tmp_path / "none")
    assert "make vllm" in (environment.obstacle() or "")


def test_its_processes_find_the_stand_in_and_nothing_else_of_the_lab(tmp_path: Path) -> None:
    path = environment.make_path(tmp_path)
    code = ("import importlib.metadata as m; print([e.value for group in ('platform', 'general')"
            " for e in m.entry_points(group=f'vllm.{group}_plugins')])")
    told = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(path)}, capture_output=True,
                          text=True, check=True)
    assert told.stdout.count("scenarios.worlds.vllm.stand_in:") == 2
    assert sorted(entry.name for entry in path.iterdir()) == [
        "engine", "faults", "ringtwin_vllm-1.dist-info", "scenarios"]
