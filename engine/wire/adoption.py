"""What both sides of a handshake must have in common, and what one side takes over from the other (pure).

Promises
- What only the head of a group can know, or says for all, is taken over: how many ranks there are, where they meet.
- Every other key that one side speaks of is compared by the other; a contradiction names each that differs, with both
  values.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.config import EngineConfig

#: What both sides of a handshake must agree on, by name.
Agreed = dict[str, int | str | bool]
SIZE, MASTER_ADDRESS = "data_parallel_size", "data_parallel_master_address"
#: Said by the head alone.
ADOPTED = (SIZE, MASTER_ADDRESS)


def parallel_config(config: EngineConfig) -> Agreed:
    """As this side is configured."""
    agreed: Agreed = {"tensor_parallel_size": config.tensor_parallel_size,
                      "pipeline_parallel_size": config.pipeline_parallel_size, SIZE: config.data_parallel_size,
                      "coordinator": config.has_coordinator, "lockstep": config.is_lockstep,
                      "wave_protocol": config.data_parallel.wave_protocol}
    if config.is_spread:
        options = config.data_parallel
        agreed |= {"load_balancing": options.load_balancing, "sync_interval": options.sync_interval}
    return agreed


def adopted(mine: Agreed, head: Mapping[str, int | str | bool]) -> Agreed:
    """Mine, with what the head says for all."""
    return {**mine, **{name: head[name] for name in ADOPTED if name in head}}


def contradictions(mine: Mapping[str, int | str | bool], told: Mapping[str, int | str | bool], whom: str) -> str:
    """What differs from what `whom` has told, by name and value; nothing where all agree, or it has not told."""
    return "; ".join(f"{name} is {mine.get(name)!r} here, and {told.get(name)!r} of {whom}"
                     for name in sorted(told) if mine.get(name) != told.get(name))


def with_adopted(config: EngineConfig, agreed: Agreed) -> EngineConfig:
    """The configuration that follows from what was taken over."""
    return msgspec.structs.replace(config, data_parallel_size=agreed[SIZE])
