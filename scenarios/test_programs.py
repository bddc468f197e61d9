"""Parts of the engine that other programs use by themselves."""

from __future__ import annotations

from engine.topology import tensor_parallel
from scenarios.guarantees.all import programs_are_answered
from scenarios.history.play import Options
from scenarios.lab.catalogue import only
from scenarios.workloads import recorded

_NO_TWIN = "its programs are threads, sockets and files of their own, of which the twin has none"


@only("engine", reason=_NO_TWIN)
def test_a_program_publishes_events_and_follows_them(world):
    """It opens, iterates, leaves, closes and ends a publisher and its subscribers as their documentation has it."""
    world.play(topology=tensor_parallel(1), workload=recorded("pair"), options=Options(program="events")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_has_queues_of_its_own(world):
    """Both ends of a queue: waits that rest and are ended, what is refused, and what is left."""
    world.play(topology=tensor_parallel(1), workload=recorded("pair"), options=Options(program="queues")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_reads_from_another_host(world):
    """As far as its queue knows: by three addresses, further behind than it may be, without the key, and to the end."""
    world.play(topology=tensor_parallel(1), workload=recorded("pair"), options=Options(program="afar")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_shares_a_queue_among_the_ranks_of_its_group(world):
    """Some on this host and some elsewhere, or with a writer outside; a group without a writer is refused."""
    world.play(topology=tensor_parallel(1), workload=recorded("pair"), options=Options(program="groups")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_generates(world):
    """By `LLM` and by `AsyncLLM`, with one prompt and with many, to the end and not, and until its core is lost."""
    world.play(topology=tensor_parallel(1), workload=recorded("long"), options=Options(program="generation")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_begins_engines_and_ends_them(world):
    """It loses one, forgets one, drops one, is interrupted at a terminal and on its way out, and cannot start one."""
    world.play(topology=tensor_parallel(1), workload=recorded("long"), options=Options(program="engines")).holds(
        programs_are_answered)


@only("engine", reason=_NO_TWIN)
def test_a_program_serves_what_a_directory_says(world):
    """Directories that say the same model otherwise, some that fit nothing, and the collectives of its ranks."""
    world.play(topology=tensor_parallel(1), workload=recorded("pair"), options=Options(program="models")).holds(
        programs_are_answered)
