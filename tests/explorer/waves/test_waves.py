"""The shipped waves, board and balance under every interleaving of small groups, and flaws that must be found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.explorer.waves.cases import SHORT, TWICE
from tests.explorer.waves.crossings import ALL, CLIENT, FAULT, PAUSE
from tests.explorer.waves.flaws import FLAWS, LOST, OLD, flawed, hunt
from tests.explorer.waves.nodes import Case, Rank
from tests.explorer.waves.search import Explorer
from tests.explorer.waves.states import SHIPPED
from tests.explorer.waves.subscriptions import explore_start


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_ranks_stay_in_step_and_no_wake_up_is_lost(case):
    explorer = Explorer(case)
    assert (found := explorer.explore()) is None, str(found)
    assert explorer.ends, "no interleaving reached the end"
    assert max(board.wave for board in explorer.boards.states) >= min(3, case.requests), "too few waves"
    print(f"{case}: {explorer.states:,} states in {explorer.seconds:.1f} s")


def test_every_known_crossing_is_reached():
    """One that is not is not searched, whatever the number of states."""
    counts: Counter[str] = Counter()
    for case in (Case(requests=2), Case(requests=1, pauses=1), Case(requests=1, faults=1),
                 Case(requests=2, client=True)):
        explorer = Explorer(case)
        assert explorer.explore() is None
        counts += explorer.crossings
    assert {letter for letter in ALL if not counts[letter]} == set()


@pytest.mark.parametrize(("letters", "case"), [(FAULT, Case(requests=2, client=True)), (CLIENT, Case(requests=2)),
                                               (PAUSE, Case(requests=2, faults=1))], ids=str)
def test_a_crossing_that_cannot_be_is_not_counted(letters, case):
    explorer = Explorer(case)
    assert explorer.explore() is None
    assert not any(explorer.crossings[letter] for letter in letters)


@pytest.mark.parametrize("case", TWICE, ids=str)
def test_what_makes_a_search_smaller_hides_no_end(case):
    plain, reduced = Explorer(case), Explorer(case._replace(reduced=True))
    assert ends(plain) == ends(reduced)
    assert plain.explore() is None
    assert reduced.explore() is None
    assert plain.states > reduced.states


def ends(explorer: Explorer) -> set[tuple[Any, ...]]:
    """How ranks and board stand where nothing is left to happen; ranks above 0 in any order."""
    found = set()
    for state in explorer.terminal():
        first, *others = (stands(info.rank) for info in explorer.infos(state))
        board = explorer.boards.states[(state >> explorer.at_board) & 0xFFFF]
        found.add((first, tuple(sorted(others)), board.wave, board.running))
    return found


def stands(rank: Rank) -> tuple[Any, ...]:
    waves = rank.waves
    return (waves.wave, waves.step, waves.running, waves.due, waves.pausing, waves.paused,
            waves.unheard is not None, rank.fresh, rank.old, rank.stage, rank.phase)


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_flaw_is_found(flaw):
    found = hunt(flaw)
    assert found is not None, "not found"
    assert flaw.says in found.violation, str(found)
    assert Explorer(flaw.case).explore() is None, "it is not the flaw that is found"


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if "leaves anybody out" not in flaw.name],
                         ids=lambda flaw: flaw.name)
def test_what_makes_a_search_smaller_hides_no_flaw(flaw):
    """It tells not apart whom a START leaves out, and says so; all else is found, perhaps by another property."""
    assert hunt(flaw._replace(case=flaw.case._replace(reduced=True))) is not None


@pytest.mark.parametrize("name", OLD)
def test_the_old_protocol_loses_wake_ups_and_the_new_one_does_not(name):
    case, says = OLD[name]
    found = Explorer(case).explore()
    assert found is not None, "not found"
    assert says in found.violation, str(found)
    assert Explorer(case._replace(protocol="new")).explore() is None


def test_nobody_is_woken_by_a_client_that_believes_the_group_runs_in_the_wave_that_all_rest_in():
    """The known hang: the number is equal, so the rank reports nothing, and the client has told nobody."""
    case, _ = OLD["what a client tells of its first request is lost: it believes that the group runs, in the wave that "
                  "all rest in"]
    explorer = Explorer(case)
    found = explorer.explore()
    assert found is not None
    assert any(row.startswith("LOST: the coordinator hears of a first request") for row in found.rows), str(found)
    assert "0.0 rests" in found.rows[-1], str(found)


def test_without_repeats_a_message_that_is_lost_stops_the_group():
    found = Explorer(LOST._replace(repair=False)).explore()
    assert found is not None
    assert "waits for ever in the all-reduce" in found.violation, str(found)
    assert any(row.startswith("LOST") for row in found.rows), str(found)


def test_without_a_coordinator_a_rank_without_a_request_stops_the_others():
    found = Explorer(Case(requests=1, coordinated=False)).explore()
    assert found is not None
    assert found.violation == "rank 0 waits for ever in the all-reduce of step 1 of wave 0"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ready_is_said_after_every_rank_s_own_subscription_whatever_else_comes(ranks):
    orders, broken = explore_start(ranks, SHIPPED)
    assert not broken
    assert orders >= ranks


@pytest.mark.parametrize("change", ["self.subscribed.add(len(self.subscribed))",
                                    "self.subscribed |= {*range(rank + 1)}",
                                    "self.subscribed.symmetric_difference_update({rank})"])
def test_subscriptions_that_are_counted_without_their_identity_are_found(change):
    _, broken = explore_start(2, flawed("board", (("self.subscribed.add(rank)", change),)))
    assert "it says" in broken


def test_a_counterexample_tells_each_move_and_how_all_stand_after_it():
    found = Explorer(LOST._replace(repair=False)).explore()
    assert found is not None
    assert [row[:68].strip() for row in found.rows] == [
        "rank 0 gets a request, sent in wave 0", "rank 0 executes a step",
        "LOST: the coordinator hears rank 0 start wave 0"]
    assert found.rows[0][68:].split("  ")[0] == "0.0 runs (1)"
    assert found.rows[2][68:].split() == ["0.1", "in", "0.0", "rests", "board", "0"]


def test_a_text_that_does_not_stand_in_the_file_is_no_flaw():
    with pytest.raises(ValueError, match="0 times"):
        flawed("waves", (("this does not stand there", ""),))


def test_a_search_that_grows_beyond_its_bound_says_so():
    with pytest.raises(RuntimeError, match="more than 50 states"):
        Explorer(Case(requests=2)).explore(most=50)
