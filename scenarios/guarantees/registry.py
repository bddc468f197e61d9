"""All guarantees, by id, in the order of their chapters: ours, and those that installed packages bring.

    [project.entry-points."ringtwin.guarantees"]
    mine = "my_package.promises:GUARANTEES"          # Guarantee objects; they are judged like ours
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from engine.errors import RingtwinError
from scenarios.guarantees.base import Guarantee
from scenarios.guarantees.chapters import (
    bad_frames,
    cleanliness,
    death,
    delivery,
    handshake,
    holdings,
    overload,
    programs,
    requests,
    text,
)
from scenarios.guarantees.chapters.events import blocks, kv, publishing, ranks
from scenarios.guarantees.chapters.rings import groups, missing, queue, ring, ring_waits, rpc
from scenarios.guarantees.chapters.serving import (
    apart,
    birth,
    clients,
    coordinator,
    cores,
    flight,
    load,
    modes,
    priority,
    promised,
    stages,
    steps,
    threads,
)
from scenarios.guarantees.chapters.serving.lockstep import first, pauses, turns, waves
from scenarios.guarantees.readers import promises as kv_readers
from scenarios.law import law

#: The entry points by which a package brings guarantees of its own.
GROUP = "ringtwin.guarantees"

#: id -> Guarantee. A promise that is not here is not judged; ids are frozen, plans and reports refer to them.
GUARANTEES: dict[str, Guarantee] = {
    guarantee.id: guarantee
    for chapter in (law, delivery, apart, handshake, bad_frames, requests, text, steps, priority, flight, promised,
                    pauses, threads, stages, cores, load, clients, coordinator, modes, waves, turns, first, missing,
                    ring, ring_waits, queue, rpc, groups, death, cleanliness, birth, holdings, blocks, kv, kv_readers,
                    publishing, ranks, overload, programs)
    for guarantee in chapter.GUARANTEES
}


def guarantee(name: str) -> Guarantee:
    """By id or Python name. Raises KeyError naming what there is."""
    found = GUARANTEES.get(name.replace("_", "-"))
    if found is None:
        raise KeyError(f"no guarantee {name!r}; there are: {', '.join(GUARANTEES)}")
    return found


class GuaranteeError(RingtwinError):
    """What an installed package brings is no guarantee. One line that names the entry point."""


def load_installed() -> None:
    """Take in what installed packages bring; calling it again changes nothing. Raises GuaranteeError."""
    for point in entry_points(group=GROUP):
        for entry in _brought(point):
            known = GUARANTEES.setdefault(entry.id, entry)
            if known is not entry:
                raise GuaranteeError(f"{_named(point)}: there is a guarantee {entry.id!r} already; give it another id")


def _brought(point: EntryPoint) -> tuple[Guarantee, ...]:
    try:
        brought = tuple(point.load())
    except Exception as error:
        raise GuaranteeError(f"{_named(point)}: cannot be loaded ({type(error).__name__}: {error}); mend the package "
                             "or uninstall it") from error
    strangers = [entry for entry in brought if not isinstance(entry, Guarantee)]
    if strangers:
        raise GuaranteeError(f"{_named(point)}: holds {strangers[0]!r}, which is no Guarantee")
    return brought


def _named(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "an installed package"
    return f"{package}, {GROUP}: {point.name} = {point.value!r}"
