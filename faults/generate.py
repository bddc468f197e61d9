"""Random plans from a seed: here, and nowhere later, randomness is spent.

Promises: the same arguments give the same plan; it passes `Plan.check`; no two of its faults are due at one
crossing; everything that a fault holds is let go within `longest_s`, so that a play can be judged after it has
healed. Whether each fault fires is up to the play: give `sites` as a map from site to its crossings in a calm
play, and no fault asks for more of them than there were.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from engine.topology import Topology
from faults.plan import BIRTH_WIRE, Fate, Fault, Plan, PlanError, Until, allowed_at

#: Without a count of crossings, faults are planted among the first few.
EARLY_CROSSINGS = 6
_VICTIM_FATES = (Fate.KILL, Fate.STALL, Fate.TERMINATE)
_BYTE_FATES = (Fate.CORRUPT, Fate.TRUNCATE)


def fates_at(site: str) -> tuple[Fate, ...]:
    """What may befall any crossing of this site, in a stable order. Few outputs have two frames to be swapped."""
    allowed = allowed_at(site) - ({Fate.SWAP} if "/outputs:" in site else set())
    return tuple(fate for fate in Fate if fate in allowed)


def generate_plan(topology: Topology, seed: int, size: int, sites: Mapping[str, int] | Sequence[str] | None = None,
                  fates: Collection[Fate] | None = None, longest_s: float = 0.5) -> Plan:
    """`size` faults at `sites` (None: all of the topology's), each with one of `fates` (None: all).

    Raises PlanError where these leave nothing to choose from.
    """
    dice = random.Random(f"{seed}/{size}")
    counts = sites if isinstance(sites, Mapping) else dict.fromkeys(sites or topology.sites(), EARLY_CROSSINGS)
    places = [(site, choices) for site, count in counts.items() if count > 0
              if (choices := [fate for fate in fates_at(site) if fates is None or fate in fates])]
    room = sum(counts[site] for site, _ in places)
    if size > room:
        raise PlanError(f"{size} faults do not fit: these sites have {room} crossings that one of the fates may befall")
    names = [str(node) for node in topology.nodes]
    faults: list[Fault] = []
    taken: set[tuple[str, int]] = set()
    while len(faults) < size:
        site, choices = dice.choice(places)
        nth = dice.randint(1, counts[site])
        if (site, nth) in taken:
            continue
        taken.add((site, nth))
        faults.append(_fault(dice, f"f{len(faults) + 1}", site, dice.choice(choices), nth, names, longest_s))
    plan = Plan(tuple(faults))
    plan.check(topology)
    return plan


def _fault(dice: random.Random, name: str, site: str, fate: Fate, nth: int, nodes: Sequence[str],
           longest_s: float) -> Fault:
    victim = dice.choice(nodes) if fate in _VICTIM_FATES and dice.random() < 0.2 else None
    holds = fate in (Fate.DELAY, Fate.STALL, Fate.HANG) or (fate is Fate.CUT and dice.random() < 0.5)
    holds = holds and not site.endswith(BIRTH_WIRE)
    return Fault(
        id=name, site=site, fate=fate, nth=nth, victim=victim,
        until=Until(seconds=round(dice.uniform(0.01, longest_s), 3)) if holds else None,
        byte=dice.randint(-1, 64) if fate in _BYTE_FATES else -1,
    )
