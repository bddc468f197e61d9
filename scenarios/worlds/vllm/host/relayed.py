"""Has the cores of a caller shake hands through the lab's relay, which then tells them of posts for all other sockets.

vLLM hands the address of the handshake to whoever starts its cores (`CoreEngineProcManager`): that is given the relay's
instead; and so is who asks the coordinator for where it tells counts. All else is as vLLM has it.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.engine import utils

from engine.topology import Channel
from scenarios.worlds.vllm.host.recipe import Wish, granted

#: Of an argument of vLLM's that is such an address.
_ADDRESSES = ("handshake_address", "client_handshake_address")


def shake_hands_through(relay: str, client: int) -> None:
    """`relay`: the name by which it is asked; `client`: the caller's index. For this process, from now on."""
    manager = utils.CoreEngineProcManager

    class RelayedProcManager(manager):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **named: Any) -> None:
            for name in _ADDRESSES:
                if named.get(name):
                    named[name] = granted(relay, Wish(named[name], client))
            super().__init__(*args, **named)

    utils.CoreEngineProcManager = RelayedProcManager
    address = utils.DPCoordinator.get_stats_publish_address

    def get_stats_publish_address(self: Any) -> str:
        return granted(relay, Wish(address(self), client, Channel.STATS.value))

    utils.DPCoordinator.get_stats_publish_address = get_stats_publish_address
