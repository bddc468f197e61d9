"""A core among others that nobody has started together (pure): it finds them, and misses them.

Promises
- They meet before any of them loads anything: who does not come, comes as another one's rank or is configured otherwise
  is named to all that have come, within `handshake_s`.
- From then on the end of any of them is noticed by all others, also while nobody has anything to do.
"""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.effects import IsAlive, Loop, Now, Observe, Take, WhoAmI
from engine.process.consensus.effects import Card, Introduce, Member
from engine.process.recipes import CoreRecipe
from engine.topology import core

#: Takes a word when the core leaves.
LEAVING = "leaving"
#: Of the bound within which a death is told: so often it is looked.
_LOOK = 1 / 8


def must_agree(config: EngineConfig) -> dict[str, int | str]:
    """What all ranks have to have in common, or they could not step together."""
    return {"data_parallel_size": config.data_parallel_size, "tensor_parallel_size": config.tensor_parallel_size,
            "pipeline_parallel_size": config.pipeline_parallel_size,
            "sync_interval": config.data_parallel.sync_interval, "wave_protocol": config.data_parallel.wave_protocol}


def meet_others(recipe: CoreRecipe, where: str) -> Loop[CoreRecipe]:
    """-> its recipe, with all ranks. Raises CollectiveError."""
    config = recipe.config
    me = Member(str(core(recipe.engine_index)), (yield WhoAmI()), recipe.beat)
    cards: tuple[Card, ...] = yield Introduce(
        Card(me, recipe.rank, must_agree(config), recipe.files.path), config.data_parallel_size, where,
        (yield Now()) + config.bounds.handshake_s)
    yield Observe("ranks-met", {"ranks": [card.member.name for card in cards]})
    return msgspec.structs.replace(recipe, ranks=tuple(card.member for card in cards), meets_in=cards[0].path)


def watch_others(others: tuple[Member, ...], detection_s: float) -> Loop[str | None]:
    """-> the name of one that is gone; None: this core leaves itself"""
    while not (yield Take(LEAVING, (yield Now()) + detection_s * _LOOK)):
        for member in others:
            if member.process is not None and not (yield IsAlive(member.process)):
                return member.name
    return None
