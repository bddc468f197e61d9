"""What a follower keeps of a question, while it is under way and until its answer is judged. Pure."""

from __future__ import annotations

import msgspec

from engine.kv_events.codec import EndReport, LivedBatch


class Asked(msgspec.Struct):
    """The question under way."""

    start: int
    tag: int | None
    deadline: float
    arrivals: int  # messages that had come when it was asked
    next: int  # what was to be applied then
    is_ours: bool = False  # the answer holds a batch that is known (where there are no epochs)
    is_near: bool = False  # it holds a batch that has been heard, of whichever life
    is_late: bool = False  # it comes from a life that is over
    waiting: list[tuple[int, LivedBatch]] = msgspec.field(default_factory=list)  # until it is ours
    numbers: set[int] = msgspec.field(default_factory=set)  # that its answer brought
    snapshot: bool = False


class Verdict(msgspec.Struct):
    """An answer that has ended, while live batches that it overtook may still come. `report`: None, if it has none."""

    asked: Asked
    report: EndReport | None
