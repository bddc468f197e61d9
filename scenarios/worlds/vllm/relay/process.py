"""The relay as a process of the lab's own: started for a play, asked by callers of vLLM for posts, gone with the lab.

    caller  -> {"target", "client", "channel"}  of the socket on which it will shake hands, or hears counts, one packet
            <- the address to connect to instead
"""

from __future__ import annotations

import os
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from engine.topology import Channel
from faults.real.board import open_board
from scenarios.worlds.vllm.host.recipe import Wish, address_of
from scenarios.worlds.vllm.relay.passage import Ends
from scenarios.worlds.vllm.relay.precedence import run_before_others
from scenarios.worlds.vllm.relay.relay import Relay

UP = b"up"
_PACKET_BYTES = 4096


class RelayRecipe(msgspec.Struct, frozen=True):
    folder: str  # of the run: its board, its journals
    name: str  # abstract, of the socket on which it is asked


def fresh_name() -> str:
    return f"ringtwin-relays-{os.getpid()}-{os.urandom(6).hex()}"


def main(data: bytes, lab: Connection) -> None:
    """Runs until the lab closes its end."""
    threading.current_thread().name = "relay"
    run_before_others()
    recipe = msgspec.msgpack.decode(data, type=RelayRecipe)
    board = open_board(Path(recipe.folder))
    relay = Relay(Ends(board, Path(recipe.folder)), board.topology)
    asked = Asked(recipe.name, relay)
    leash = Leash(lab)
    lab.send_bytes(UP)
    while not leash.is_over:
        relay.turn(asked, leash)
    asked.close()
    relay.close()


class Leash:
    """The lab's end of the pipe: it says nothing, and closes it."""

    def __init__(self, lab: Connection) -> None:
        self._lab = lab
        self.is_over = False

    def fileno(self) -> int:
        return self._lab.fileno()

    def on_readable(self) -> None:
        self.is_over = True


class Asked:
    """Where callers ask."""

    def __init__(self, name: str, relay: Any) -> None:
        self._relay = relay
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address_of(name))
        self._listener.listen(16)
        self.fileno, self.close = self._listener.fileno, self._listener.close

    def on_readable(self) -> None:
        caller, _ = self._listener.accept()
        with caller:
            caller.settimeout(1.0)
            wish = msgspec.msgpack.decode(caller.recv(_PACKET_BYTES), type=Wish)
            caller.send(self._relay.stand_before(Channel(wish.channel), wish.target, wish.client).encode())
