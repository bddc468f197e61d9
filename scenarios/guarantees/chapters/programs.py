"""Promises about parts of the engine that a program uses by themselves (`Options.program`)."""

from __future__ import annotations

from scenarios.guarantees.base import Envelope, Finding, Guarantee
from scenarios.history.history import History
from scenarios.history.play import BOOKS, Play

CHAPTER = "Programs"


def is_of_a_program(play: Play) -> bool:
    return play.options.program not in ("", BOOKS)


def is_of_books(play: Play) -> bool:
    return play.options.program == BOOKS


def check_programs_are_answered(history: History) -> Finding:
    finding = Finding(history)
    for node, records in history.by_node("asked").items():
        for record in records:
            data = record.data
            if data["answer"] != data["wanted"]:
                finding.broke("{} asked {} and was answered {}, not {}", node, data["words"], data["answer"],
                              data["wanted"], at=record.at, node=node)
        for record in history.by_node("took").get(node, ()):
            finding.took("{} of {}", record.data["words"], node, bound=record.data["bound"], at=record.at, node=node,
                         measured=record.data["measured"])
        if node in history.by_node("bye"):
            finding.witness("{} asked {} things", node, len(records), at=records[-1].at, node=node)
    return finding


def check_self_checks_see(history: History) -> Finding:
    finding = Finding(history)
    for node, records in history.by_node("self-check").items():
        for record in records:
            of, state, named, found = (record.data[name] for name in ("of", "state", "named", "found"))
            if not named and found:
                finding.broke("{} found {} in the books of {}, to which {}", node, found, of, state, at=record.at,
                              node=node)
            elif named and not any(named in sentence for sentence in found):
                finding.broke("{} looked at the books of {}, where {}, and found {}", node, of, state,
                              found or "nothing", at=record.at, node=node)
            elif named:
                finding.witness("in the books of {} {}, and {} found that {}", of, state, node, found[0], at=record.at,
                                node=node)
    return finding


GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee(
        id="programs-are-answered", chapter=CHAPTER, source="this project", applies=is_of_a_program,
        check=check_programs_are_answered,
        sentence="What a program may use by itself does as it is documented: publisher and subscriber of KV events, "
                 "both ends of a queue, sockets, collectives of ranks, `LLM` and `AsyncLLM`. It rests while it waits, "
                 "refuses what it must refuse, and leaves nothing open when it is closed, dropped or forgotten.",
        wrong={
            "events": "takes batches from who has shut its publisher down",
            "queues": "lets two readers of one rank into a queue",
            "generation": "goes on with a request whose stream was left",
            "sockets": "takes a peer that stands still for one that is there",
            "engines": "does not notice that its program was killed whose child holds what the program had open",
            "ranks": "blames a rank that waited, too, for what it waited for",
        },
        witness="a program asked all that it asks, and left",
        envelope=Envelope(),
        blind_in={f"{half} in sim": "a program's threads, sockets and files are its own, and the twin has none of them"
                  for half in ("events", "queues", "generation", "sockets", "engines", "ranks")},
    ),
    Guarantee(
        id="self-checks-see", chapter=CHAPTER, source="this project", applies=is_of_books, check=check_self_checks_see,
        sentence="Who looks at its own books finds what a stray write or a bug has done to one of their tables, and "
                 "says what it is; in books to which nothing was done it finds nothing.",
        wrong="counts its blocks and does not look whose they are",
        witness="a table was damaged, and the self-check said how",
        envelope=Envelope(),
    ),
)
