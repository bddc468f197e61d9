"""`ringtwin list`: scenarios, guarantees, sites and faults, a line each, made to be searched with grep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from engine.topology import Topology
from faults.generate import fates_at
from faults.plan import FATES_AT, Fate
from scenarios.lab.catalogue import catalogue

#: What each fate does, as `faults.plan` means it, and what it needs to be told.
FATES = {
    Fate.DROP: "the message or doorbell never arrives",
    Fate.DELAY: "the message is held until another crossing, or for some seconds ('until')",
    Fate.DUPLICATE: "the message arrives twice",
    Fate.REORDER: "the message arrives after the next one of its edge",
    Fate.CORRUPT: "bytes of the message or of the ring are changed ('byte')",
    Fate.TRUNCATE: "the message is cut off ('byte')",
    Fate.OMIT: "the last frame of the message never arrives",
    Fate.SWAP: "the last two frames of the message change places",
    Fate.KILL: "SIGKILL ('victim': another process than the one that crosses)",
    Fate.STALL: "SIGSTOP, until another crossing or for some seconds ('until'); 'victim' as above",
    Fate.RAISE: "an exception in the process ('text')",
    Fate.EXIT: "sys.exit ('code')",
    Fate.TERMINATE: "SIGTERM; 'victim' as above",
    Fate.HANG: "the thread does not return, or not before 'until'",
    Fate.CUT: "the connection is closed on the wire, and refused until 'until'",
}


def lines(what: str, topology: Topology, folders: Sequence[Path] = (), world: str | None = None) -> Iterator[str]:
    """`world`: whose sites; of vLLM's each says whether a fault reaches it, and why not.

    Raises CatalogueError where the scenarios cannot be read.
    """
    found: dict[str, Callable[[], Iterator[str]]] = {
        "scenarios": lambda: _scenarios(folders), "guarantees": _guarantees, "faults": _faults,
        "sites": lambda: _sites(topology, world)}
    return found[what]()


def _scenarios(folders: Sequence[Path]) -> Iterator[str]:
    found = catalogue(*folders)
    width = max((len(scenario.name) for scenario in found), default=0)
    for scenario in found:
        where = f"  [{scenario.only.world} only: {scenario.only.reason}]" if scenario.only else ""
        yield f"{scenario.name:{width}}  {scenario.title}{where}"


def _guarantees() -> Iterator[str]:
    from scenarios.guarantees.registry import GUARANTEES

    width = max(map(len, GUARANTEES))
    for entry in GUARANTEES.values():
        yield f"{entry.id:{width}}  {entry.sentence}"


def _sites(topology: Topology, world: str | None) -> Iterator[str]:
    from scenarios.worlds.vllm.sites import fates_within_reach, why_out_of_reach

    sites = topology.sites()
    width = max(map(len, sites))
    for site in sites:
        why = why_out_of_reach(site) if world == "vllm" else None
        fates = fates_within_reach(site) if world == "vllm" else fates_at(site)
        yield f"{site:{width}}  {f'out of reach: {why}' if why else ' '.join(sorted(fate.value for fate in fates))}"


def _faults() -> Iterator[str]:
    for fate, sentence in FATES.items():
        places = [operation for operation, fates in FATES_AT.items() if fate in fates]
        yield f"{fate.value:10} {sentence}; at: {', '.join(places)}"
