"""A connection that carries nothing any more, and of which neither end is told: by the same loops in both worlds.

    frontend.0   ROUTER, hears numbers            core.0   DEALER, sends a number every `EVERY_S`
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine.effects import Now, Receive, Send
from engine.ports import SocketSpec
from engine.topology import Channel, NodeKind, core, frontend, tensor_parallel
from faults.plan import Plan, PlanError, cut, drop, plan, until
from sim.simulation import Simulation
from tests.faults.stage import Stage

TOPOLOGY = tensor_parallel(1)
EDGE = "core.0->frontend.0/requests"
EVERY_S, MOST, LASTS_S, BEAT_S = 0.05, 40, 1.0, 0.05
#: How many numbers are sent in so much time, and by how many a busy machine may miss that.
IN_SILENCE, SLACK = round(LASTS_S / EVERY_S), 6
#: Until a socket that beats knows: five beats in silence, and up to one before the first of them.
BEATEN = round(6 * BEAT_S / EVERY_S)
RECONNECT = round(0.2 / EVERY_S)


def spec(bind: bool, address: str, heartbeat_s: float) -> SocketSpec:
    return SocketSpec(name="s", kind="ROUTER" if bind else "DEALER", bind=bind, address=address, linger_s=1.0,
                      peer_kind=NodeKind.CORE if bind else NodeKind.FRONTEND, send_channel=Channel.REQUESTS,
                      receive_channel=Channel.REQUESTS, identity=None if bind else b"\x00\x00",
                      heartbeat_s=heartbeat_s)


def hears(heard: list[int]):
    """Until nothing has come for longer than the silence lasts."""
    while True:
        found = yield Receive(("s",), (yield Now()) + LASTS_S + 1.0)
        if found is None:
            return
        heard.append(int(bytes(found[2][0])))


def sends():
    began = yield Now()
    for number in range(MOST):
        yield Send("s", [b"%d" % number])
        while (yield Now()) < began + (number + 1) * EVERY_S:
            yield Receive(("s",), began + (number + 1) * EVERY_S)


def play_sim(tmp_path: Any, given: Plan, beats: tuple[float, float]) -> list[int]:
    sim, heard = Simulation(TOPOLOGY, given), []

    def life(socket: SocketSpec, loop: Any):
        def main(process: Any):
            process.ports.open_socket(socket)
            yield from loop

        return main

    address = sim.host.network.reserve("tcp://127.0.0.1:*")
    sim.start_process(frontend(), life(spec(True, address, beats[0]), hears(heard)))
    sim.start_process(core(), life(spec(False, address, beats[1]), sends()))
    sim.run()
    return heard


def play_real(tmp_path: Any, given: Plan, beats: tuple[float, float]) -> list[int]:
    pytest.importorskip("zmq", reason="plays libzmq's sockets")
    from engine.process.real_ports import RealPorts
    from engine.process.shell import Process

    stage, heard = Stage(tmp_path, given, TOPOLOGY), []
    binder, connector = (Process(stage.ports(node, RealPorts(node))) for node in (frontend(), core()))
    binder.sockets["s"] = bound = binder.ports.open_socket(spec(True, "tcp://127.0.0.1:*", beats[0]))
    connector.sockets["s"] = connector.ports.open_socket(spec(False, bound.address, beats[1]))
    threads = [threading.Thread(target=process.run, args=(loop,), daemon=True)
               for process, loop in ((binder, hears(heard)), (connector, sends()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    for process in (connector, binder):
        process.close()
        process.ports.close()
    return heard


@pytest.fixture(params=[play_sim, play_real], ids=["sim", "real"])
def play(request, tmp_path):
    return lambda *faults, beats=(0.0, 0.0): request.param(tmp_path, plan(*faults), beats)


def _tail(heard: list[int]) -> int:
    """The first number behind the hole; before it came what was sent before the cut, behind it all to the last."""
    assert heard[:2] == [0, 1]
    assert heard[2:] == list(range(heard[2], MOST))
    return heard[2]


def test_without_beats_all_is_lost_until_the_connection_ends(play) -> None:
    """Neither end knows; the sender is told nothing, and sends on."""
    first = _tail(play(cut(EDGE, nth=3, until=until(seconds=LASTS_S), silent=True)))
    assert IN_SILENCE - SLACK <= first <= 2 + IN_SILENCE + SLACK


@pytest.mark.parametrize("beats", [(0.0, BEAT_S), (BEAT_S, BEAT_S)], ids=["connects", "both"])
def test_who_beats_knows_soon_and_keeps_what_is_sent_from_then_on(play, beats) -> None:
    """What it keeps leaves with the next connection."""
    first = _tail(play(cut(EDGE, nth=3, until=until(seconds=LASTS_S), silent=True), beats=beats))
    assert 2 + BEATEN - 3 <= first <= 2 + BEATEN + SLACK < IN_SILENCE


def test_beats_of_who_is_bound_help_the_other_end_nothing(play) -> None:
    first = _tail(play(cut(EDGE, nth=3, until=until(seconds=LASTS_S), silent=True), beats=(BEAT_S, 0.0)))
    assert first >= IN_SILENCE - SLACK


def test_a_silence_without_an_end_lets_nothing_through(play) -> None:
    assert play(cut(EDGE, nth=3, silent=True), beats=(BEAT_S, BEAT_S)) == [0, 1]


def test_a_cut_that_is_told_loses_what_was_on_its_way_and_no_more(play) -> None:
    """The sender keeps what it is given while there is no connection."""
    first = _tail(play(cut(EDGE, nth=3)))
    assert first <= 3 + RECONNECT


def test_beats_alone_change_nothing(play) -> None:
    assert play(drop(EDGE, nth=MOST + 1), beats=(BEAT_S, BEAT_S)) == list(range(MOST))


def test_only_a_cut_can_be_silent() -> None:
    import msgspec

    silent = plan(msgspec.structs.replace(drop(EDGE), silent=True))
    with pytest.raises(PlanError, match="only a cut is silent"):
        silent.check(TOPOLOGY)
