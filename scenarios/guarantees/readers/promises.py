"""Promises about whoever reads KV events: what it asks and what it tells, by what reached it."""

from __future__ import annotations

from scenarios.guarantees.base import DEATHS, Envelope, Finding, Guarantee, Where, has_subscribers
from scenarios.guarantees.chapters.events.blocks import CHAPTER
from scenarios.guarantees.chapters.events.kv import SOURCE
from scenarios.guarantees.readers.asking import Asker
from scenarios.guarantees.readers.telling import Teller
from scenarios.history.events.followers import followers
from scenarios.history.history import Fate, History
from scenarios.history.play import Play

_ENVELOPE = Envelope(outside=(
    Where(DEATHS - {Fate.KILL, Fate.TERMINATE}, nodes="subscriber.*", why="the subscriber itself is hit"),
    Where(frozenset({Fate.CORRUPT}), sites="*/kv:*", why="the wire has no checksum"),
    Where(frozenset({Fate.CORRUPT}), sites="core.*/replay:*", why="the wire has no checksum"),
))


def hears_its_publisher(play: Play) -> bool:
    """Noise comes before what a publisher says: the moment at which that is heard is not on record."""
    return is_told_the_truth(play) and not play.options.noisy_publisher


def is_told_the_truth(play: Play) -> bool:
    """A number that nobody has given is no crossing of its own."""
    return has_subscribers(play) and not play.options.misnumbered_batch


def check_kv_asks_in_time(history: History) -> Finding:
    finding = Finding(history)
    for follower in followers(history):
        if follower.publisher and history.play.config.kv_events.replay:
            Asker(finding, follower).walk()
    return finding


def check_kv_tells_what_came(history: History) -> Finding:
    finding = Finding(history)
    for follower in followers(history):
        if follower.publisher:
            Teller(finding, follower).walk()
    return finding


GUARANTEES = (
    Guarantee(
        id="kv-asks-in-time", chapter=CHAPTER, source=SOURCE, check=check_kv_asks_in_time,
        applies=hears_its_publisher,
        sentence="A subscriber asks the replay socket one question at a time, from the first batch that it misses on: "
                 "at once where one is missing, for the whole state after a loss for good, and otherwise when its "
                 "publisher was silent for its poll. It waits for each answer as long as something comes of it.",
        wrong="asks nothing as long as no live batch tells it that it misses one",
        witness="a question was asked that was due, and none before",
        envelope=_ENVELOPE,
    ),
    Guarantee(
        id="kv-tells-what-came", chapter=CHAPTER, source=SOURCE, check=check_kv_tells_what_came,
        applies=is_told_the_truth,
        sentence="What a subscriber tells is what reached it: a batch when it has come and is the next one, a gap when "
                 "a later batch came before it or an answer told of it and live stayed empty, its end, a restart when "
                 "another life was heard, and of its mirror whether it is known.",
        wrong="takes a batch as it comes, and does not say that others were passed by",
        witness="batches were told as missing, and as healed or as lost, or one of who may have been away was verified",
        envelope=_ENVELOPE,
    ),
)
