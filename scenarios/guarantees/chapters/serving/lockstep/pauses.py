"""Promises about a scheduler that was paused, of one core and of cores that step together."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from engine.topology import Channel, Mark
from faults.journal import Record
from scenarios.guarantees.base import MEMORY, MESSAGE, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.rings.rpc_calls import PHASES
from scenarios.guarantees.chapters.serving.flight import CHAPTER, has_depth, passed
from scenarios.guarantees.chapters.serving.lockstep.waves import judge_rest
from scenarios.guarantees.readers.group.lockstep import is_lockstep
from scenarios.history.history import FOREVER, EngineLife, History
from scenarios.history.play import Play

SOURCE = "vLLM V1 engine core"
_PAUSE, _GO_ON = "pause_scheduler", ("resume_scheduler", "run_steps")


class _Pause(NamedTuple):
    """Asked for, answered, and over: when the client asked for steps again, or the core began to leave."""

    node: str
    asked_at: float
    answered: Record
    over_at: float


def check_pause_exact(history: History) -> Finding:
    finding = Finding(history)
    judge_rest(finding)
    for engine in history.engines:
        pauses = list(_pauses(history, engine))
        executed = [] if not pauses else sorted((record for node, phases in _who_executes(history, engine)
                           for record in passed(history, node, Mark.EXECUTING)
                           if record.data["method"] in phases), key=lambda record: record.at)
        for pause in pauses:
            step = next((record for record in executed if pause.answered.at < record.at < pause.over_at), None)
            if step is not None:
                finding.broke("a step was executed {:.4f} s after {} was told that the scheduler is paused",
                              step.at - pause.answered.at, pause.node, at=step.at, node=pause.node)
                return finding
            running = sum(operation.node == pause.node and any(d.at < pause.asked_at for d in operation.deliveries)
                          and (operation.ended_at or FOREVER) > pause.answered.at for operation in history.operations)
            if running:
                finding.witness("{} was told that the scheduler is paused with {} requests amid their tokens",
                                pause.node, running, at=pause.answered.at, node=pause.node)
    return finding


def _may_have_more_in_flight(play: Play) -> bool:
    return has_depth(play) or is_lockstep(play)


def _who_executes(history: History, engine: EngineLife) -> list[tuple[str, tuple[str, ...]]]:
    """And which calls of it are a step's: all ranks compute together, and only one is waited for when they sample."""
    ranks, output = history.ranks_of(engine.core), history.grid_of(engine.core).output_rank
    return [(engine.worker(rank), PHASES if rank == output else PHASES[:1]) for rank in range(ranks)] if ranks > 1 \
        else [(engine.core, PHASES)]


def _pauses(history: History, engine: EngineLife) -> Iterator[_Pause]:
    """Those that were in force when they were answered: nobody had asked for steps meanwhile."""
    leaves_at = min((record.at for name in ("draining", "dying") for record in
                     history.by_node(name).get(engine.core, ())), default=FOREVER)
    for node, asks in history.by_node("ask").items():
        if not history.is_of(node, engine):
            continue
        answers: dict[int, deque[Record]] = defaultdict(deque)  # who is asked to serve again counts its calls anew
        for record in history.by_node("utility").get(node, ()):
            answers[record.data["ticket"]].append(record)
        for place, ask in enumerate(asks):
            answered = answers[ask.data["ticket"]]
            answer = answered.popleft() if answered else None
            if ask.data["method"] != _PAUSE or answer is None or answer.data["failure"]:
                continue
            over_at = next((later.at for later in asks[place + 1:] if later.data["method"] in _GO_ON), FOREVER)
            if over_at > answer.at:
                yield _Pause(node, ask.at, answer, min(over_at, leaves_at))


GUARANTEES = (
    Guarantee(
        id="pause-exact", chapter=CHAPTER, source=SOURCE, check=check_pause_exact,
        applies=_may_have_more_in_flight,
        sentence="Between the answer to a pause and the next call for steps no step is executed, however many were in "
                 "flight; of cores that step together none executes a forward from when all rest until all go on.",
        wrong={"flight": "answers a pause while steps are in flight",
               "ranks": "executes what it has while the ranks that it steps with rest"},
        witness="a pause was answered while requests had some of their tokens, or a request or a START came to a rank "
                "while all rested",
        envelope=Envelope(outside=(
            MEMORY, Where(MESSAGE, sites=f"*/{Channel.REQUESTS.value}:*", why="calls come in another order, or not"),
            Where(MESSAGE, sites=f"*/{Channel.OUTPUTS.value}:*", why="answers come in another order, or not"))),
    ),
)
