"""Parts of the engine that other programs use by themselves."""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import programs_are_answered, self_checks_see
from scenarios.history.play import BATCHES, BOOKS, Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.workloads import recorded

_REAL = Only("engine", "its programs are threads, sockets and files of their own, of which the twin has none")


def _asks(name: str, sentence: str, program: str, workload: str = "pair") -> Case:
    return Case(name, sentence, Plan(), (programs_are_answered,), only=_REAL, play={
        "options": Options(program=program), "workload": recorded(workload)})


globals().update(family(__name__, (
    _asks("test_a_program_publishes_events_and_follows_them",
          "It opens, iterates, leaves, closes and ends a publisher and its subscribers as their documentation has it.",
          "events"),
    _asks("test_a_program_has_queues_of_its_own",
          "Both ends of a queue: waits that rest and are ended, what is refused, and what is left.",
          "queues"),
    _asks("test_a_program_reads_from_another_host",
          "As far as its queue knows: by three addresses, further behind than it may be, without the key, and to the "
          "end.",
          "afar"),
    _asks("test_a_program_shares_a_queue_among_the_ranks_of_its_group",
          "Some on this host and some elsewhere, or with a writer outside; a group without a writer is refused.",
          "groups"),
    _asks("test_a_program_has_its_ranks_meet_beside_strangers",
          "By file and by port, in any order, where a file was left and ports are taken; who does not come is named.",
          "meetings"),
    _asks("test_a_program_generates",
          "By `LLM` and by `AsyncLLM`, with one prompt and with many, to the end and not, and until its core is lost.",
          "generation", "long"),
    _asks("test_a_program_begins_engines_and_ends_them",
          "It loses one, forgets one, drops one, is interrupted at a terminal and on its way out, and cannot start "
          "one.",
          "engines", "long"),
    _asks("test_a_program_serves_what_a_directory_says",
          "Directories that say the same model otherwise, and some that fit nothing.",
          "models"),
    _asks("test_a_program_has_its_ranks_compute_together",
          "By shared memory and by gloo, small tensors and large ones, from stage to stage; beside one that does not "
          "come, does something else, or dies.",
          "collectives"),
    _asks("test_a_program_has_sockets_of_its_own",
          "They lose nothing in silence, know who is connected and who has fallen silent, and leave nothing.",
          "sockets"),
    Case("test_books_are_damaged",
         "One table of a core, a client or a mirror is damaged, each in its turn: their self-check says what is wrong.",
         Plan(), (self_checks_see,), play={"options": Options(program=BOOKS), "workload": recorded("pair")}),
    Case("test_batches_are_those_of_a_program",
         "A program publishes what no engine does, and reads it: batches and events of its own types, some that cannot "
         "be encoded, blocks in many places, the original's format.",
         Plan(), (programs_are_answered,), play={"options": Options(program=BATCHES), "workload": recorded("pair")}),
), topology=tensor_parallel(1)))
