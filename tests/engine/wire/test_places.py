"""Where sockets are bound, by what is configured."""

from __future__ import annotations

import pytest

from engine.config import SocketConfig
from engine.coordinator.sockets import REPORTS, STATS, WAVES, coordinator_sockets, core_sockets, stats_socket
from engine.process.files import EngineFiles
from engine.topology import frontend
from engine.wire.places import is_chosen_by_the_system, place_of
from engine.wire.wiring import core_handshake_socket, core_output_socket, core_request_socket, frontend_sockets
from scenarios.lab.settings import lab_config

FILES = EngineFiles("id", "/run/x")
OF_CORES = ["handshake", "requests", "outputs", "client.1.outputs.0", WAVES, REPORTS]


def over_tcp(*remote: str, host: str = "127.0.0.1") -> dict[str, bool]:
    """Of each socket whether it speaks tcp."""
    sockets = SocketConfig(transport="tcp", remote=remote, host=host)
    return {name: place_of(sockets, FILES, name).startswith("tcp://") for name in [*OF_CORES, STATS]}


def test_each_end_that_may_be_remote_has_its_sockets_on_tcp_and_no_other() -> None:
    assert over_tcp("cores", "clients") == {**dict.fromkeys(OF_CORES, True), STATS: True}
    assert over_tcp("cores") == {**dict.fromkeys(OF_CORES, True), STATS: False}
    assert over_tcp("clients") == {**dict.fromkeys(OF_CORES, False), STATS: True}


def test_ipc_is_a_file_of_the_engine_and_tcp_a_port_that_the_system_picks() -> None:
    assert place_of(SocketConfig(), FILES, "requests") == "ipc:///run/x/requests.ipc"
    assert place_of(SocketConfig(transport="tcp"), FILES, "requests") == "tcp://127.0.0.1:*"
    assert place_of(SocketConfig(transport="tcp", host="::1"), FILES, "requests") == "tcp://[::1]:*"


def test_a_port_is_still_to_be_picked_where_none_stands() -> None:
    assert is_chosen_by_the_system("tcp://[::1]:*") and is_chosen_by_the_system("tcp://host:0")
    assert not any(map(is_chosen_by_the_system, ("tcp://127.0.0.1:80", "tcp://[::]:10", "ipc:///run/x:0")))


def test_every_socket_between_them_beats_as_it_is_configured() -> None:
    config = lab_config(sockets={"transport": "tcp", "heartbeat_s": 0.25})
    specs = [*frontend_sockets(config, str), core_handshake_socket(config, "a", 0, frontend()),
             core_request_socket(config, "a"), core_output_socket(config, "a"),
             *coordinator_sockets(config.sockets, str), *core_sockets(config.sockets, "a", "b", 0),
             stats_socket(config.sockets, "a", 0)]
    assert {spec.name: spec.heartbeat_s for spec in specs} == dict.fromkeys((spec.name for spec in specs), 0.25)


@pytest.mark.parametrize(("asked", "told"), [
    ({"io_threads": 0}, "io_threads must be 1 or more"),
    ({"heartbeat_s": -1.0}, "heartbeat_s"),
    ({"heartbeat_s": 0.0001}, "a millisecond or more"),
    ({"host": "*"}, "host must be one address"),
    ({"host": ""}, "host must be one address"),
    ({"host": "[::1]"}, "host must be one address"),
    ({"transport": "tcp", "remote": ()}, "needs somebody who may be remote"),
])
def test_what_cannot_be_is_refused_by_name(asked, told) -> None:
    with pytest.raises(ValueError, match=told):
        SocketConfig(**asked)
