"""Where the sockets of an engine are bound (pure): a file in its directory, or a port of this host.

    ends       sockets                                              vLLM's rule for them
    cores      handshake, requests, outputs, waves, reports         ipc only where all cores are on the client's host
    clients    stats: what a coordinator says to its clients        ipc unless clients balance by themselves

With `SocketConfig.transport` "tcp" those of the ends in `SocketConfig.remote` speak tcp, the others ipc. What is bound
is told on: nobody predicts a port.
"""

from __future__ import annotations

from engine.config import SocketConfig
from engine.process.files import EngineFiles

#: All sockets that are not named here are of the cores.
_OF_CLIENTS = frozenset({"stats"})
#: Who says nothing for so many beats is gone, where a socket beats (`SocketSpec.heartbeat_s`).
SILENT_BEATS = 5


def place_of(sockets: SocketConfig, files: EngineFiles, name: str) -> str:
    """The address to bind for the socket of this short name."""
    ends = "clients" if name in _OF_CLIENTS else "cores"
    if sockets.transport == "tcp" and ends in sockets.remote:
        return f"tcp://{host_in_address(sockets.host)}:*"
    return files.socket(f"{name}.ipc")


def host_in_address(host: str) -> str:
    """As it stands in an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_chosen_by_the_system(address: str) -> bool:
    """Whether a port is still to be picked."""
    return address.startswith("tcp://") and address.endswith((":*", ":0"))
