"""How a core meets those who have to know of it (pure): the head of its group, and its own client.

    started by the head         one handshake, with it
    started by another client   with the head: where the coordinator is, how many ranks there are and where they meet;
                                then with its own client: where its requests come from and its outputs go
    headless                    one handshake, with the head, whose client it is asked by

Promises
- What it adopts and what it compares is `engine/wire/adoption.py`'s; where anything differs it says so, to the
  head as well, and does not start.
- It is ready to nobody before all with whom it shakes hands have answered, and agree.
"""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop, Now, OpenSocket, WhoAmI
from engine.errors import StartupError
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses
from engine.process.consensus.effects import Member
from engine.process.recipes import CoreRecipe
from engine.topology import Node, core
from engine.wire.adoption import MASTER_ADDRESS, Agreed, adopted, contradictions, parallel_config, with_adopted
from engine.wire.handshake import HANDSHAKE, LOCAL, Greeting, core_hello, core_ready, core_refuse, hash_of
from engine.wire.wiring import core_handshake_socket

#: The socket to a head that has not started this core.
HEAD = "head"


class Handshakes:
    """Of the core of this recipe."""

    config: EngineConfig  # from the greetings on: as all agree
    agreed: Agreed
    addresses: EngineZmqAddresses
    master_address: str | None = None  # where its ranks meet, where nobody has started them all

    def __init__(self, recipe: CoreRecipe) -> None:
        self._recipe = recipe
        self._greetings: dict[str, Greeting] = {}
        self._needed: list[Member] = []

    def greet(self) -> Loop[None]:
        """Raises StartupError where somebody does not answer, or is configured otherwise."""
        recipe = self._recipe
        mine = parallel_config(recipe.config)
        if recipe.head is None:
            metadata = yield from self._greet(HANDSHAKE, recipe.handshake_address, recipe.owner, LOCAL)
            self.agreed = adopted(mine, metadata.parallel_config) if recipe.config.is_spread else mine
            yield from self._compare(metadata, "the frontend")
            self.addresses = metadata.addresses
        else:
            yield from self._greet_head(mine)
        self.config = with_adopted(recipe.config, self.agreed)
        where = self.agreed.get(MASTER_ADDRESS)
        self.master_address = recipe.config.data_parallel.master_address if where is None else str(where)

    def _greet_head(self, mine: Agreed) -> Loop[None]:
        recipe, whom = self._recipe, str(self._recipe.greeted)
        me = Member(str(core(recipe.engine_index)), (yield WhoAmI()), recipe.beat)
        head = yield from self._greet(HEAD, recipe.handshake_address, recipe.greeted, Greeting(
            "HELLO", local=False, headless=recipe.is_headless, member=me))
        self.agreed = adopted(mine, head.parallel_config)
        yield from self._compare(head, whom)
        self.addresses = head.addresses
        coordinator = _member(head.coordinator)
        in_step = recipe.config.is_lockstep
        needed = (_member(head.head) if in_step or recipe.is_headless else None, coordinator if in_step else None)
        self._needed = [one for one in needed if one is not None]
        if recipe.client_handshake_address is None:
            return
        own = yield from self._greet(HANDSHAKE, recipe.client_handshake_address, recipe.owner, msgspec.structs.replace(
            LOCAL, stats=head.addresses.frontend_stats_publish_address, coordinator=coordinator))
        yield from self._compare(own, str(recipe.owner))
        self.addresses = msgspec.structs.replace(
            head.addresses, inputs=own.addresses.inputs, outputs=own.addresses.outputs)

    def _greet(self, inbox: str, address: str, whom: Node, greeting: Greeting) -> Loop[EngineHandshakeMetadata]:
        config, is_owner = self._recipe.config, whom == self._recipe.owner
        yield OpenSocket(core_handshake_socket(config, address, self._recipe.engine_index, whom, inbox))
        self._greetings[inbox] = greeting
        deadline = (yield Now()) + config.bounds.handshake_s
        return (yield from core_hello(deadline, inbox, greeting, "the frontend" if is_owner else str(whom)))

    def _compare(self, told: EngineHandshakeMetadata, whom: str) -> Loop[None]:
        wrong = contradictions(self.agreed, told.parallel_config, whom)
        if wrong:
            if HEAD in self._greetings:  # its own client is told by whoever has started it
                yield from core_refuse(HEAD, self._greetings[HEAD], wrong)
            raise StartupError(wrong)

    @property
    def needed(self) -> tuple[Member, ...]:
        """Without whom it cannot go on, of those who have not started it."""
        return tuple(self._needed)

    def ready(self, num_blocks: int) -> Loop[None]:
        """To all of them."""
        agreed = hash_of(self.agreed)
        yield from core_ready(num_blocks, {
            inbox: msgspec.structs.replace(greeting, parallel_config_hash=agreed) if inbox == HEAD else greeting
            for inbox, greeting in self._greetings.items()})


def _member(told: object) -> Member | None:
    return msgspec.convert(told, Member | None)
