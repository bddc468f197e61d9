"""Ports of this host that are kept for sockets which other processes will bind.

Promises
- The system gives such a port to nobody who asks it to pick one, as long as who reserved it lives.
- Whoever is told of it can bind there at once, and again after an end of its own: a socket that allows its address to
  be reused, as libzmq's do, shares it with one that does not listen.
"""

from __future__ import annotations

import socket

from engine.errors import ConfigError


def reserve(address: str) -> tuple[socket.socket, str]:
    """-> (what keeps it until it is closed, the address with its port). Raises ConfigError for a host not here."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(place)
        except BaseException:
            taken.close()
            raise
    except OSError as error:
        raise not_here(address, error) from None
    port = taken.getsockname()[1]
    return taken, f"{address.rpartition(':')[0]}:{port}"


def not_here(address: str, why: object) -> ConfigError:
    """What whoever asks for an address is told that this host does not have."""
    return ConfigError(f"{address} is no address of this host ({why}): set sockets.host to one that it has")
