"""All planted bugs, and which promise each world sees them by: data, for tests and for whoever reports it."""

from __future__ import annotations

from scenarios.guarantees.registry import GUARANTEES
from tests.mutants import table
from tests.mutants.table import WORLDS
from tests.mutants.table_birth import BIRTH_MUTANTS
from tests.mutants.table_coordinator import COORDINATOR_MUTANTS
from tests.mutants.table_cores import CORES_MUTANTS
from tests.mutants.table_delivery import DELIVERY_MUTANTS
from tests.mutants.table_ends import ENDS_MUTANTS
from tests.mutants.table_foreign import FOREIGN_MUTANTS
from tests.mutants.table_kv import KV_MUTANTS
from tests.mutants.table_modes import MODES_MUTANTS
from tests.mutants.table_programs import PROGRAM_MUTANTS
from tests.mutants.table_requests import REQUEST_MUTANTS
from tests.mutants.table_ring import RING_MUTANTS
from tests.mutants.table_stages import STAGES_MUTANTS
from tests.mutants.table_steps import STEPS_MUTANTS
from tests.mutants.table_waves import WAVES_MUTANTS

MUTANTS = (*table.MUTANTS, *DELIVERY_MUTANTS, *REQUEST_MUTANTS, *RING_MUTANTS, *KV_MUTANTS, *ENDS_MUTANTS,
           *STEPS_MUTANTS, *STAGES_MUTANTS, *CORES_MUTANTS, *COORDINATOR_MUTANTS, *WAVES_MUTANTS, *MODES_MUTANTS,
           *PROGRAM_MUTANTS, *FOREIGN_MUTANTS, *BIRTH_MUTANTS)


def seen_red() -> dict[str, dict[str, tuple[str, ...] | str]]:
    """-> by part of a promise (`Guarantee.parts`) and world: the mutants that break it there, or why there are none.

    An empty tuple: none was planted, and nobody says why.
    """
    found: dict[str, dict[str, tuple[str, ...] | str]] = {}
    for guarantee in GUARANTEES.values():
        for part in guarantee.parts:
            found[part] = {}
            for world in WORLDS:
                reason = guarantee.blindness(part, world)
                found[part][world] = reason if reason is not None else tuple(
                    mutant.id for mutant in MUTANTS if part in mutant.breaks and world in mutant.worlds)
    return found
