"""Histories about two data-parallel ranks on one base endpoint. The played engine is rank 0, its neighbour rank 1."""

from __future__ import annotations

from typing import Any

from scenarios.history.play import Beside, Options
from tests.guarantees.build import Builder, history, two_engines
from tests.guarantees.cases import accepts, outside, rejects, silent, unknown

SUBSCRIBER, OTHER = "subscriber.0", "subscriber.1"
CALM = [Beside(engine=1, served=True, touched=[])]


def _beside(world: str = "sim") -> Builder:
    h = history(world, topology=two_engines(subscribers=True)).lab(beside=CALM)
    return h.observes(SUBSCRIBER, "born", pid=9).observes(OTHER, "born", pid=19).started()


def _played(ranks: tuple[int, ...] = (0, 0, 0), world: str = "sim") -> Builder:
    """Three batches of rank 0, of which its subscriber hears these, by the ranks that they carry, and its mirror."""
    h = _beside(world)
    for seq in range(3):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    for seq, rank in enumerate(ranks):
        h.observes(SUBSCRIBER, "kv-batch", seq=seq, source="live", rank=rank)
    return h.observes("core.0", "kv-cache", hashes=[5]).observes(
        SUBSCRIBER, "kv-mirror", hashes=[5], next_seq=len(ranks), unknown_since=None)


def _neighbour(h: Builder, *seqs: int, published: int = 4, ranks: dict[int, int] | None = None, cache: tuple = (1, 2),
               mirror: tuple = (1, 2), unknown_since: int | None = None, lost: tuple = (),
               before: tuple[tuple[str, dict[str, Any]], ...] = ()) -> Builder:
    """What rank 1 published, and what its subscriber said: these batches, and its mirror."""
    for seq in range(published):
        h.observes("core.1", "kv-lost" if seq in lost else "kv-published", seq=seq, took=.0001)
    h.observes("core.1", "kv-cache", hashes=list(cache))
    for what, data in before:
        h.observes(OTHER, what, **data)
    for seq in seqs:
        h.observes(OTHER, "kv-batch", seq=seq, source="live", rank=(ranks or {}).get(seq, 1))
    return h.observes(OTHER, "kv-mirror", hashes=list(mirror), next_seq=seqs[-1] + 1 if seqs else 0,
                      unknown_since=unknown_since)


@accepts("kv-ranks-apart")
def each_hears_its_own_rank() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3)


@accepts("kv-ranks-apart")
def a_batch_of_one_is_lost_and_replayed_beside_the_other() -> Builder:
    h = _played((0,)).fires("drop", "core.0->subscriber.0/kv:receive")
    h.observes(SUBSCRIBER, "kv-gap", first=1, last=1)
    for seq in (1, 2):
        h.observes(SUBSCRIBER, "kv-batch", seq=seq, source="replay", rank=0)
    return _neighbour(h, 0, 1, 2, 3)


@accepts("kv-ranks-apart")
def one_dies_and_the_other_publishes_on() -> Builder:
    return _neighbour(_played((0, 0)).fires("kill", "core.0->subscriber.0/kv:send"), 0, 1, 2, 3)


@accepts("kv-ranks-apart")
def a_late_subscriber_of_the_neighbour_is_told_of_what_it_missed() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3, before=(("kv-gap", {"first": 0, "last": 3}),))


@accepts("kv-ranks-apart")
def a_batch_that_the_neighbour_lost_itself_is_not_waited_for() -> Builder:
    return _neighbour(_played(), 0, 1, 3, lost=(2,), mirror=(1,), cache=(1,))


@accepts("kv-ranks-apart")
def one_is_killed_and_started_again_beside_the_other() -> Builder:
    h = _played().promised(options=Options(kill_all_then_restart=True))
    h.observes("core.0", "born", pid=5).observes("core.0@1", "born", pid=6)
    h.observes("core.0@1", "kv-published", seq=0, took=.0001).observes(SUBSCRIBER, "kv-restarted", epoch=2)
    return _neighbour(h.observes(SUBSCRIBER, "kv-batch", seq=0, source="live", rank=0), 0, 1, 2, 3)


@rejects("kv-ranks-apart")
def the_neighbour_is_taken_for_a_second_life_of_ones_own_publisher() -> Builder:
    h = _played().observes("core.0", "born", pid=5).observes(SUBSCRIBER, "kv-restarted", epoch=2)
    return _neighbour(h.observes(SUBSCRIBER, "kv-batch", seq=0, source="live", rank=0), 0, 1, 2, 3)


@rejects("kv-ranks-apart")
def a_batch_of_the_neighbour_is_taken() -> Builder:
    return _neighbour(_played((0, 1, 0)), 0, 1, 2, 3)


@rejects("kv-ranks-apart")
def the_neighbours_subscriber_takes_a_batch_of_the_played_rank() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3, ranks={2: 0})


@rejects("kv-ranks-apart")
def nobody_publishes_where_the_neighbour_should() -> Builder:
    return _neighbour(_played())


@rejects("kv-ranks-apart")
def nobody_publishes_where_the_played_rank_should() -> Builder:
    return _neighbour(_played(()).wait(5).observes(SUBSCRIBER, "bye", reason="done"), 0, 1, 2, 3)


@rejects("kv-ranks-apart")
def the_neighbours_stream_ends_with_the_death_of_the_other() -> Builder:
    return _neighbour(_played((0, 0)).fires("kill", "core.0->subscriber.0/kv:send"), 0, 1)


@rejects("kv-ranks-apart")
def the_neighbours_batch_is_given_up() -> Builder:
    return _neighbour(_played(), 0, 1, 3)


@rejects("kv-ranks-apart")
def the_neighbours_batches_come_out_of_order() -> Builder:
    return _neighbour(_played(), 0, 2, 1, 3)


@rejects("kv-ranks-apart")
def the_neighbours_mirror_has_blocks_of_another_cache() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3, mirror=(1, 7))


@rejects("kv-ranks-apart")
def the_neighbours_mirror_does_not_know() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3, unknown_since=1)


@rejects("kv-ranks-apart")
def the_neighbours_subscriber_is_told_of_a_restart() -> Builder:
    return _neighbour(_played(), 0, 1, 2, 3, before=(("kv-restarted", {"epoch": 2}),))


@rejects("kv-ranks-apart")
def the_neighbour_dies_with_the_other() -> Builder:
    h = _neighbour(_played((0, 0)).fires("kill", "core.0->subscriber.0/kv:send"), 0, 1)
    return h.ends("core.1", exitcode=1)


@unknown("kv-ranks-apart")
def the_lab_starved_and_ended_the_neighbours_subscriber_early() -> Builder:
    return _neighbour(_played(world="engine"), 0, 1).lab(longest_starvation_s=1.0)


@silent("kv-ranks-apart")
def there_is_no_other_rank() -> Builder:
    h = history(subscribers=1).observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(3):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
        h.observes(SUBSCRIBER, "kv-batch", seq=seq, source="live", rank=0)
    return h


@silent("kv-ranks-apart")
def the_neighbour_published_nothing() -> Builder:
    return _neighbour(_played(), published=0)


@silent("kv-ranks-apart")
def the_neighbour_was_never_followed() -> Builder:
    return _played()


@silent("kv-ranks-apart")
def the_played_rank_died_before_it_published() -> Builder:
    return _neighbour(_beside().fires("kill", "core.0->subscriber.0/kv:send"), 0, 1, 2, 3)


@outside("kv-ranks-apart")
def a_batch_is_damaged_on_the_wire() -> Builder:
    return _neighbour(_played((0, 1, 0)).fires("corrupt", "core.0->subscriber.0/kv:receive"), 0, 1, 2, 3)
