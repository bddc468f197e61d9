"""What a client has to know of engines that it did not start (pure): data that their launcher hands out."""

from __future__ import annotations

import msgspec

from engine.effects import Identity
from engine.errors import ConfigError


class ClientAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client binds its sockets: the cores have been told, and come there."""

    frontend: int  # whose they are
    requests: str
    outputs: dict[int, str]  # by core


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A process that somebody else owns: who it is, and the shared word of its heartbeat."""

    identity: Identity
    beat: str


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Running engines, for their clients: `clients` of them, in the order of their index."""

    clients: tuple[ClientAddresses, ...]
    cores: dict[int, Running]
    blocks: dict[int, int]  # KV-cache blocks of each core
    parallel_config: dict[str, int | str | bool]
    coordinator: Running | None = None
    stats: str | None = None  # where the coordinator tells its clients of the cores

    def index_of(self, frontend: int) -> int:
        """Raises ConfigError for a frontend that is none of their clients."""
        known = [client.frontend for client in self.clients]
        if frontend not in known:
            raise ConfigError(f"client {frontend} attaches to engines that were started for the clients "
                              f"{', '.join(map(str, known))}: give it one of these as its client_index")
        return known.index(frontend)

    def check(self, mine: dict[str, int | str | bool]) -> None:
        """Raises ConfigError that names the first key in which the parallel configuration of a client differs."""
        for name in sorted({*mine, *self.parallel_config}):
            if mine.get(name) != self.parallel_config.get(name):
                raise ConfigError(f"{name} is {mine.get(name)!r} here, and the running engines were started with "
                                  f"{self.parallel_config.get(name)!r}: attach with the configuration that they have")
