"""Promises about tokens in flight: with async scheduling a step is scheduled before the last one's tokens are known."""

from __future__ import annotations

from collections.abc import Iterator

from engine.topology import Mark
from scenarios.guarantees.base import DAMAGE, MEMORY, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.serving.flight import CHAPTER, passed
from scenarios.guarantees.tokens import check_tokens_match_reference
from scenarios.history.history import EngineLife, Fate, History
from scenarios.history.play import Play
from scenarios.history.steps import Step, asked_of, steps_of

SOURCE = "vLLM V1 scheduler"
_OTHER_REQUESTS = Where(DAMAGE, sites="*/requests:receive", why="changed bytes may be another request")
_OTHER_TOKENS = Where(frozenset({Fate.CORRUPT}), sites="*/outputs:receive", why="changed bytes may be other tokens")


def check_async_same_tokens(history: History) -> Finding:
    finding = Finding(history)
    found = check_tokens_match_reference(history)
    finding.breaks, finding.broken, finding.unknowns = found.breaks, found.broken, found.unknowns
    for engine in history.engines:
        _look_for_promises(finding, engine)
    return finding


def _look_for_promises(finding: Finding, engine: EngineLife) -> None:
    """Whether a token was computed with that was not known when that was scheduled."""
    history = finding.history
    asked, count, last = asked_of(history, engine), 0, dict[str, int]()
    used = [record.number for record in passed(history, engine.core, Mark.EXECUTED)]
    for place, step in enumerate(steps_of(history, engine)):
        count += sum(_is_unknown(last.get(request), step, used) and request in asked and
                     computed >= len(asked[request].prompt) for request, _, _, computed in step.known)
        last.update(dict.fromkeys(step.scheduled, place))
    if count:
        finding.witness("{} tokens of {} were computed with before the core knew them", count, engine.core, times=count)


def _is_unknown(last: int | None, step: Step, used: list[int]) -> bool:
    """Whether what the step in that place has sampled was not used when this one was scheduled."""
    return last is not None and last < len(used) and step.number < used[last]


def check_placeholders_conserved(history: History) -> Finding:
    finding = Finding(history)
    behind = history.play.config.batch_queue_size - 1
    for engine in history.engines:
        asked, computed = asked_of(history, engine), dict[str, int]()
        for step in steps_of(history, engine):
            for request, until in _ends(step):
                computed[request] = max(until, computed.get(request, 0))
        for request, until in computed.items():
            if request not in asked:
                continue
            one = asked[request]
            needed, most = len(one.prompt) + one.answers - 1, one.most
            if most is not None and until > len(one.prompt) + most - 1:
                finding.broke("{} computed {} tokens of {!r}, whose end is token {}", engine.core, until, request,
                              len(one.prompt) + most, node=engine.core)
            elif until > needed + behind:
                finding.broke("{} computed {} tokens of {!r} behind the one that ended it, {} may be in flight",
                              engine.core, until - needed, request, behind, node=engine.core)
            elif until >= needed and most is not None and most > 1:
                finding.witness("{!r} was computed to its end, and {} tokens beyond", request, until - needed)
    return finding


def _ends(step: Step) -> Iterator[tuple[str, int]]:
    """(request, up to which token it is computed) of all that are in it."""
    for request, computed in [(entry.request, entry.computed) for entry in step.came] + [
            (request, computed) for request, _, _, computed in step.known]:
        yield request, computed + step.scheduled.get(request, 0)


def _promises(play: Play) -> bool:
    return play.config.scheduler.async_scheduling


GUARANTEES = (
    Guarantee(
        id="async-same-tokens", chapter=CHAPTER, source=SOURCE, check=check_async_same_tokens, applies=_promises,
        sentence="With async scheduling a workload has the tokens, ends and reasons that it has without.",
        wrong="goes on with another token than the one that was in flight",
        witness="a step computed with a token that the core did not know when it scheduled that step",
        envelope=Envelope(outside=(MEMORY, _OTHER_REQUESTS, _OTHER_TOKENS)),
    ),
    Guarantee(
        id="placeholders-conserved", chapter=CHAPTER, source=SOURCE, check=check_placeholders_conserved,
        applies=_promises,
        sentence="With async scheduling nothing is computed beyond a length that ends a request, and beyond a token "
                 "that ends it no more than what was in flight.",
        wrong={"length": "goes on beyond max_tokens as long as the last tokens are not known",
               "stop": "has more in flight behind a token that ends a request than it may"},
        witness="a request of several tokens was computed to its end",
        envelope=Envelope(outside=(MEMORY, _OTHER_REQUESTS)),
    ),
)
