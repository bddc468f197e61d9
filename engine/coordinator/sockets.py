"""How a coordinator is joined with its clients and its cores (pure): its sockets, and theirs to it.

    stats      XPUB -> XSUB of each client     what the cores have to do; subscriptions run back
    waves      XPUB -> XSUB of each core       READY, START; subscriptions run back
    reports    PULL <- PUSH of each core       counts, starts and ends of waves

Neither XPUB waits for whoever does not read: beyond libzmq's usual high-water mark a message is lost to that one,
without a word. So nothing that is said here may be needed (`engine/coordinator/board.py`), and nobody who leaves
lingers for it.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.config import SocketConfig
from engine.ports import SocketSpec
from engine.topology import Channel, NodeKind
from engine.wire.subscriptions import USUAL_HWM, first_number_of, subscriber_of
from engine.wire.wiring import identity_of

STATS, WAVES, REPORTS = "stats", "waves", "reports"
#: By this index a core's outputs are the coordinator's.
COORDINATOR = -1
#: To the cores: all have subscribed.
READY = b"READY"


def coordinator_sockets(sockets: SocketConfig, address: Callable[[str], str]) -> list[SocketSpec]:
    """All bound."""
    return [
        _hub(sockets, STATS, NodeKind.FRONTEND, Channel.STATS, address),
        _hub(sockets, WAVES, NodeKind.CORE, Channel.WAVE, address),
        SocketSpec(name=REPORTS, kind="PULL", peer_kind=NodeKind.CORE, bind=True, address=address(REPORTS),
                   receive_channel=Channel.REPORT, sender_of=first_number_of, heartbeat_s=sockets.heartbeat_s),
    ]


def stats_socket(sockets: SocketConfig, address: str, index: int, hub: int = 0) -> SocketSpec:
    """Of client `index`."""
    return _spoke(sockets, STATS, Channel.STATS, address, index, hub)


def core_sockets(sockets: SocketConfig, waves: str, reports: str, engine_index: int, hub: int = 0) -> list[SocketSpec]:
    """Of a core, to its coordinator."""
    return [
        _spoke(sockets, WAVES, Channel.WAVE, waves, engine_index, hub),
        SocketSpec(name=REPORTS, kind="PUSH", peer_kind=NodeKind.COORDINATOR, peer=hub, bind=False, address=reports,
                   send_channel=Channel.REPORT, sender_of=first_number_of, heartbeat_s=sockets.heartbeat_s),
    ]


def _hub(sockets: SocketConfig, name: str, peers: NodeKind, channel: Channel,
         address: Callable[[str], str]) -> SocketSpec:
    return SocketSpec(name=name, kind="XPUB", peer_kind=peers, bind=True, address=address(name), send_channel=channel,
                      receive_channel=channel, send_hwm=USUAL_HWM, receive_hwm=USUAL_HWM, sender_of=subscriber_of,
                      heartbeat_s=sockets.heartbeat_s)


def _spoke(sockets: SocketConfig, name: str, channel: Channel, address: str, index: int, hub: int) -> SocketSpec:
    return SocketSpec(name=name, kind="XSUB", peer_kind=NodeKind.COORDINATOR, peer=hub, bind=False, address=address,
                      identity=identity_of(index), send_channel=channel, receive_channel=channel,
                      send_hwm=USUAL_HWM, receive_hwm=USUAL_HWM, sender_of=subscriber_of,
                      heartbeat_s=sockets.heartbeat_s)
