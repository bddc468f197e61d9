"""The shipped ring under every interleaving, store order and crash of small cases, and flaws that must be found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.ipc.ring import RingReader, RingWriter
from tests.explorer.cases import BELL, EARLY, MOVES, ORDERS, SHORT
from tests.explorer.flaws import FLAWS, HARMLESS, Flaw, flawed, hunt
from tests.explorer.ring import Case, Explorer
from tests.explorer.table import Counterexample, Row


@pytest.mark.parametrize("case", SHORT + EARLY + MOVES, ids=str)
def test_every_reader_gets_an_exact_prefix_whoever_dies_where(case):
    explorer = Explorer(case)
    assert (found := explorer.explore()) is None, str(found)
    assert explorer.finished and (case.moves or explorer.finished == 1), "no interleaving reached the end"
    assert explorer.crashed_ends > case.messages * bool(case.crashes) - 1, "hardly a crash was played"


@pytest.mark.parametrize("case", BELL, ids=str)
def test_no_writer_sleeps_for_ever_though_readers_ring_only_where_it_may_wait(case):
    explorer = Explorer(case)
    assert (found := explorer.explore()) is None, str(found)
    assert explorer.finished, "no interleaving reached the end"


@pytest.mark.parametrize("order", ORDERS)
def test_steps_that_are_folded_together_hide_no_state(order):
    """What is reached between two operations is the same when each step is taken by itself."""
    case = Case(order, 2, 2, 3, 2)
    folded, plain = Explorer(case), Explorer(case, folded=False)
    assert folded.explore() is None
    assert plain.explore() is None
    assert plain.states > folded.states
    assert (plain.finished, plain.crashed_ends) == (folded.finished, folded.crashed_ends)
    assert plain.between_operations() == folded.between_operations()


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_flaw_is_found_and_its_table_shows_the_store(flaw):
    found = hunt(flaw.old, flaw.new, flaw.case)
    assert found is not None, "not found"
    assert flaw.says in found.violation, str(found)
    assert shows(found, flaw), str(found)


def shows(found: Counterexample, flaw: Flaw) -> bool:
    """Whether the culprit's store is seen, and in its operation the missing one is not seen before it."""
    if not flaw.culprit:
        return not any(seen(row, flaw.missing) for row in found.rows)
    at = max((place for place, row in enumerate(found.rows) if seen(row, flaw.culprit)), default=-1)
    return at >= 0 and not (flaw.missing and any(
        seen(row, flaw.missing) and (row.who, row.operation) == (found.rows[at].who, found.rows[at].operation)
        for row in found.rows[:at]))


def seen(row: Row, store: str) -> bool:
    return row.does.startswith(f"store {store} (") and not row.does.endswith("into its buffer")


@pytest.mark.parametrize("order", ORDERS)
def test_a_death_is_a_step_of_the_table(order):
    """With the old flag left up, readers take a message whose writer died before it had raised the flag."""
    flaw = next(flaw for flaw in FLAWS if flaw.name == "the flag is never reset")
    found = hunt(flaw.old, flaw.new, Case(order, 1, 1, 2, 1))
    if order == "PSO":  # there the flags are seen before the data even without a death
        assert "took" in found.violation
        return
    assert "never published" in found.violation
    died = [place for place, row in enumerate(found.rows) if row.does == "DIES"]
    assert [found.rows[place][:2] for place in died] == [("writer", "write 2")], str(found)
    assert any(seen(row, "readers") and row.operation == "write 2" for row in found.rows[:died[0]]), str(found)
    assert not any(seen(row, "written") and row.operation == "write 2" for row in found.rows), str(found)


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("case", [Case("PSO", 2, 2, 5, 3), Case("PSO", 1, 1, 3, 2)], ids=str)
def test_a_change_that_orders_nothing_between_stores_stays_right(name, case):
    """So that nobody reads more into a fence than it does; these matter to loads or to doorbells."""
    assert (found := hunt(*HARMLESS[name], case)) is None, str(found)


@pytest.mark.parametrize("name", ["no fence between a reader's two looks", "no fence before the data"])
def test_what_only_early_loads_show_is_right_where_loads_stay_in_order(name):
    flaw = next(flaw for flaw in FLAWS if flaw.name == name)
    assert hunt(flaw.old, flaw.new, flaw.case._replace(order="PSO")) is None


@pytest.mark.parametrize("name", ["no fence after the reset", "no fence before the flag",
                                  "a reader looks at written before its own flag"])
def test_what_only_weak_machines_show_is_right_where_stores_stay_in_order(name):
    flaw = next(flaw for flaw in FLAWS if flaw.name == name)
    assert hunt(flaw.old, flaw.new, flaw.case._replace(order="TSO")) is None


def test_the_fences_where_the_original_has_them_are_not_enough_under_pso():
    """Before and after the flag, and none after the reset: a reader takes an old message again."""
    flaw = FLAWS[0]
    assert "took 01 01 as message 3" in hunt(flaw.old, flaw.new, flaw.case).violation


def test_a_reader_that_was_taken_for_dead_and_holds_a_chunk_blocks_nobody_but_the_writer():
    """With one dead reader, the other one has all that was published wherever everything ends."""
    explorer = Explorer(Case("PSO", 2, 2, 6, 1))
    assert explorer.explore() is None
    ends = [locals_ for _, locals_ in explorer.between_operations() if any(local.dead for local in locals_[1:])]
    blocked = [locals_ for locals_ in ends if locals_[0].count < 6 and
               all(local.count == locals_[0].count for local in locals_[1:] if not local.dead)]
    assert any(local.dead and local.count == locals_[0].count - 2 for locals_ in blocked for local in locals_[1:])


def test_a_text_that_does_not_stand_in_the_ring_is_no_flaw():
    with pytest.raises(ValueError, match="0 times"):
        flawed("this does not stand there", "")


def test_a_search_that_grows_beyond_its_bound_says_so():
    with pytest.raises(RuntimeError, match="more than 50 states"):
        Explorer(Case("PSO", 2, 2, 4)).explore(most=50)


def test_the_shipped_ends_are_the_ones_that_are_searched():
    explorer = Explorer(Case("SC", 1, 2, 1))
    assert [party._make for party in explorer._parties] == [RingWriter, RingReader]


def test_the_command_refuses_what_it_does_not_know():
    said = subprocess.run([sys.executable, "-m", "tests.explorer", "--fulll"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert said.returncode == 3
    assert "--fulll" in said.stderr
