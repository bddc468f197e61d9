"""A socket at its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import zmq

from engine.ports import SocketSpec
from engine.topology import NodeKind
from engine.wire.sockets import ZmqSocket

LONG_S, SHORT_S = 30.0, 0.05


def opened(context: zmq.Context, folder: Path, linger_s: float, *, watched: bool = False) -> ZmqSocket:
    return ZmqSocket(context, SocketSpec(name="told", kind="PUSH", peer_kind=NodeKind.FRONTEND, bind=False,
                                         address=f"ipc://{folder}/nobody", linger_s=linger_s, watched=watched))


@pytest.mark.parametrize(("spec_s", "linger_s"), [(LONG_S, SHORT_S), (SHORT_S, LONG_S), (SHORT_S, None)])
def test_what_nobody_takes_keeps_a_socket_for_the_shorter_of_two_times(
        tmp_path: Path, spec_s: float, linger_s: float | None) -> None:
    context = zmq.Context()
    socket = opened(context, tmp_path, spec_s)
    socket.send([b"to nobody"])
    began = time.monotonic()
    socket.close(linger_s)
    context.term()
    assert SHORT_S / 2 < time.monotonic() - began < LONG_S / 2


@pytest.mark.parametrize("watched", [False, True])
def test_a_socket_is_closed_twice(tmp_path: Path, watched: bool) -> None:
    context = zmq.Context()
    socket = opened(context, tmp_path, SHORT_S, watched=watched)
    socket.close(SHORT_S)
    socket.close()
    context.term()
