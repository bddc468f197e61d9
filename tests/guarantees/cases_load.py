"""Histories of requests that a client spreads over several cores, by what it has there and what others have."""

from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_cores import asks, two

ASKED, BURST, COUNTS, TURN = "dp-rank-as-asked", "dp-burst-spreads", "dp-counts-used", "dp-chosen-in-turn"


def burst(*cores: int) -> Builder:
    h = two()
    names = [f"r{place}" for place in range(len(cores))]
    for name, core in zip(names, cores, strict=True):
        asks(h, name, core)
    for name in names:
        h.ended(name)
    return h


@accepts(BURST)
def four_requests_go_to_two_cores() -> Builder:
    return burst(0, 1, 1, 0)


@accepts(BURST)
def one_gets_one_more_than_its_share() -> Builder:
    return burst(0, 1, 0, 0)


@rejects(BURST)
def one_gets_all_of_them() -> Builder:
    return burst(1, 1, 1, 1)


@silent(BURST)
def there_are_too_few_to_tell() -> Builder:
    return burst(0, 1)


@silent(BURST)
def one_of_them_is_on_its_way_out() -> Builder:
    h = two().observes("core.1", "dying", reason="it failed", queued=0).wait(.01)
    for name in ("a", "b", "c", "d"):
        asks(h, name, 0)
    return h


@rejects(BURST)
def one_of_them_goes_when_all_is_sent() -> Builder:
    return burst(0, 0, 0, 0).wait(.01).observes("core.1", "dying", reason="it failed", queued=0)


def asked_for(rank: int, *cores: int) -> Builder:
    """All ask for that rank, and these get them."""
    h = two()
    names = [f"r{place}" for place in range(len(cores))]
    for name, core in zip(names, cores, strict=True):
        asks(h, name, core, rank)
    for name in names:
        h.ended(name)
    return h


@silent(BURST)
def all_ask_for_the_same_one() -> Builder:
    return asked_for(1, 1, 1, 1, 1)


@accepts(ASKED)
def who_is_asked_for_gets_them() -> Builder:
    return asked_for(1, 1, 1, 1)


@rejects(ASKED)
def another_one_gets_what_was_asked_of_the_second() -> Builder:
    return asked_for(1, 1, 0, 1)


@silent(ASKED)
def nobody_asks_for_any() -> Builder:
    return burst(0, 1, 1, 0)


def of_two_clients(*cores: int) -> Builder:
    """They ask in turn, and these get it."""
    h = history(tp=1, topology=data_parallel(2, clients=2), data_parallel_size=2)
    for place, core in enumerate(cores):
        client, name = f"frontend.{place % 2}", f"r{place}"
        h.observes(client, "call", request=name, index=0, prompt=2, max_tokens=3)
        h.observes(client, "accepted", request=name, internal=f"{name}-{client}", core=core)
    return h


@accepts(BURST)
def each_of_two_clients_has_one_more_than_its_share() -> Builder:
    return of_two_clients(0, 0, 1, 1, 0, 0, 0, 0)


@rejects(BURST)
def two_clients_ask_the_same_one_together() -> Builder:
    return of_two_clients(0, 0, 0, 0, 0, 0, 0, 1)


@silent(BURST)
def two_clients_ask_for_too_little() -> Builder:
    return of_two_clients(0, 1, 1, 0)


def told(*counts: int) -> Builder:
    """So many requests there are of others, as the coordinator has said."""
    h = history(tp=1, topology=data_parallel(2, coordinated=True), data_parallel_size=2)
    return says(h, *counts)


def says(h: Builder, *counts: int) -> Builder:
    return h.observes("frontend.0", "view", counts=[[0, count, 0.0] for count in counts], wave=0, running=False)


@accepts(COUNTS)
def who_has_nothing_to_do_gets_it() -> Builder:
    return asks(told(3, 0), "a", 1).ended("a")


@rejects(COUNTS)
def who_has_three_from_others_gets_it() -> Builder:
    return asks(told(3, 0), "a", 0).ended("a")


@rejects(COUNTS)
def an_older_view_is_gone_by() -> Builder:
    return asks(says(told(0, 3), 3, 0), "a", 0).ended("a")


@accepts(COUNTS)
def the_other_one_has_got_one_since() -> Builder:
    return asks(asks(told(1, 0), "a", 1), "b", 0).ended("a").ended("b")


@accepts(COUNTS)
def the_other_one_is_dead() -> Builder:
    h = asks(told(1, 0), "a", 1).ended("a").observes("frontend.0", "engine-dead", reason="core.1 died", core=1)
    return asks(says(h, 1, 0), "b", 0).ended("b")


@accepts(COUNTS)
def the_other_one_is_on_its_way_out_and_that_is_not_told_yet() -> Builder:
    h = asks(told(1, 0), "a", 1).ended("a").observes("core.1", "dying", reason="it failed", queued=0).wait(.01)
    return asks(says(h, 1, 0), "b", 0).ended("b")


@rejects(COUNTS)
def the_other_one_went_when_it_was_chosen() -> Builder:
    h = asks(told(3, 0), "a", 0).wait(.01)
    return h.observes("core.1", "dying", reason="it failed", queued=0).ended("a")


@accepts(COUNTS)
def its_caller_asked_for_who_is_busy() -> Builder:
    return asks(asks(told(3, 0), "a", 0, rank=0).ended("a"), "b", 1).ended("b")


@silent(COUNTS)
def all_that_is_to_do_is_its_own() -> Builder:
    h = asks(told(0, 0), "a", 0)
    return asks(says(h, 1, 0), "b", 1).ended("a").ended("b")


@accepts(COUNTS)
def who_has_less_gets_it_though_it_does_not_rest() -> Builder:
    return asks(told(3, 1), "a", 1).ended("a")


@rejects(COUNTS)
def who_has_more_gets_it() -> Builder:
    return asks(told(3, 1), "a", 0).ended("a")


@silent(COUNTS)
def the_other_one_has_no_room() -> Builder:
    h = told(3, 1).observes("frontend.0", "view", counts=[[0, 3, 0.1], [0, 1, 0.6]], wave=0, running=False)
    return asks(h, "a", 0).ended("a")


@silent(COUNTS)
def what_it_was_told_of_is_its_own_and_has_ended() -> Builder:
    return asks(says(asks(told(0, 0), "a", 0), 1, 0).ended("a"), "b", 0).ended("b")


@accepts(TURN)
def equal_ones_get_theirs_in_turn_and_who_is_done_the_next() -> Builder:
    h = asks(asks(asks(two(), "a", 0), "b", 1), "c", 0).ended("b")
    return asks(asks(h.ended("a"), "d", 1), "e", 0)


@accepts(TURN)
def counts_that_have_come_count() -> Builder:
    return asks(asks(told(1, 0), "a", 1), "b", 1)


@accepts(TURN)
def a_core_that_is_gone_may_be_passed_over_before_that_is_told() -> Builder:
    return asks(asks(asks(two(), "a", 0).ends("core.1", exitcode=-9), "b", 0), "c", 0).ended("a")


@accepts(TURN)
def a_core_that_says_that_it_goes_may_be_passed_over() -> Builder:
    h = asks(two(), "a", 0).observes("core.1", "dying", reason="it failed", queued=0).wait(.01)
    return asks(asks(h, "b", 0), "c", 0).ended("a")


@rejects(TURN)
def a_core_is_passed_over_before_it_goes() -> Builder:
    h = asks(asks(two(), "a", 0), "b", 0).wait(.01)
    return h.observes("core.1", "dying", reason="it failed", queued=0)


@accepts(TURN)
def what_cannot_be_sent_counts_where_it_was_not_sent() -> Builder:
    h = asks(asks(two(), "a", 0), "b", 1)
    h.observes("frontend.0", "unroutable", request="b", utility=None, edge="requests")
    h.ended("b", "failed", error="UnroutableError")
    return asks(h, "c", 0)


def _aborts(h: Builder, request: str) -> Builder:
    """It may die before it has told its caller of that end."""
    return h.observes("frontend.0", "abort", request=request, internal=f"{request}-0")


@accepts(TURN)
def an_abort_counts_whose_end_is_never_told() -> Builder:
    h = _aborts(asks(asks(two(), "a", 0), "b", 1), "b")
    return asks(h, "c", 1).fires("kill", "frontend.0->core.1/requests:send", node="frontend.0")


@rejects(TURN)
def an_abort_whose_end_is_never_told_counts_elsewhere() -> Builder:
    h = _aborts(asks(asks(two(), "a", 0), "b", 1), "b")
    return asks(h, "c", 0).fires("kill", "frontend.0->core.0/requests:send", node="frontend.0")


@silent(COUNTS)
def what_it_was_told_of_it_has_aborted_since() -> Builder:
    h = says(asks(asks(told(0, 0), "a", 0), "b", 0), 2, 1)
    return asks(_aborts(_aborts(h, "a"), "b"), "c", 0)


@rejects(COUNTS)
def what_it_was_told_of_it_has_not_aborted() -> Builder:
    h = says(asks(asks(told(0, 0), "a", 0), "b", 0), 2, 1)
    return asks(h, "c", 0)


@silent(TURN)
def all_that_it_knows_of_its_cores_is_the_same() -> Builder:
    return asks(two(), "a", 0).ended("a")


@rejects(TURN)
def the_first_of_equal_ones_gets_it_again() -> Builder:
    return asks(asks(two(), "a", 0).ended("a"), "b", 0).ended("b")


@rejects(TURN)
def who_has_more_of_its_own_gets_it() -> Builder:
    return asks(asks(asks(two(), "a", 0), "b", 1), "c", 1)


@rejects(TURN)
def what_has_ended_counts_on() -> Builder:
    return asks(asks(asks(two(), "a", 0), "b", 1).ended("a"), "c", 1)


@rejects(TURN)
def what_the_coordinator_has_said_does_not_count() -> Builder:
    return asks(told(2, 0), "a", 0)


@rejects(TURN)
def an_end_counts_twice() -> Builder:
    return asks(asks(asks(asks(two(), "a", 0), "b", 1), "c", 0).ended("a"), "d", 0)
