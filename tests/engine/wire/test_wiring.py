"""Sockets of a core: what their specs owe to the bounds that somebody else keeps of it."""

import pytest

from engine.config import Bounds, EngineConfig
from engine.topology import frontend
from engine.wire.wiring import HANDSHAKE_LINGER_S, core_handshake_socket


@pytest.mark.parametrize("terminate_s", [0.5, 2.0, 5.0, 60.0])
def test_words_to_a_head_that_is_gone_are_given_up_before_their_core_is_killed(terminate_s: float) -> None:
    config = EngineConfig(model="", bounds=Bounds(terminate_s=terminate_s))
    linger_s = core_handshake_socket(config, "ipc:///nowhere", 0, frontend(0)).linger_s
    assert 0 < linger_s <= min(HANDSHAKE_LINGER_S, terminate_s / 2)
