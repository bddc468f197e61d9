"""Histories of layers in stages."""

from engine.config import CacheConfig, SchedulerConfig
from tests.guarantees.build import REQUESTS, Builder, bounds, history
from tests.guarantees.cases import accepts, outside, rejects, silent
from tests.guarantees.cases_steps import A, B, step

MATCH, TOLD, STALE = "pp-tokens-match", "pp-stage-death-told", "pp-no-stale-slot"
LAST = "worker.1"


def stages(pp: int = 2, **config: object) -> Builder:
    return history(tp=1, pp=pp, cache=CacheConfig(num_gpu_blocks=6, block_size=2),
                   scheduler=SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2), **config).started(blocks=6)


def hands_over(h: Builder, *steps: int, sender: str = "worker.0", taker: str = LAST) -> Builder:
    for number in steps:
        h.crosses(f"{sender}/pipe:send", what="hidden_states", step=number)
        h.crosses(f"{taker}/pipe:receive", what="hidden_states", step=number)
    return h


def abort(h: Builder, request: str) -> Builder:
    return h.observes("core.0", "request", request=request, action="abort", reason="")


def uses(h: Builder, number: int) -> Builder:
    return h.crosses("core.0/mark:executed", step=number)


# -- what one hands to the next


def aborted(tokens: list[list[int]] | None = None, *, in_flight: bool = True) -> Builder:
    """"a" is served to its end; "b" is aborted with its step in flight, or behind it."""
    h = hands_over(stages(), 0, 1).request("a", tokens=tokens).called("b", 1)
    step(h, new=((B, [3], 1, [2], 0, 1),), used=not in_flight, node=LAST)
    abort(h, B)
    if in_flight:
        uses(h, 0)
    return h.ended("b", "aborted")


@accepts(MATCH)
def one_is_aborted_with_its_step_in_flight() -> Builder:
    return aborted()


@accepts(MATCH)
def one_gives_way_with_its_step_in_flight() -> Builder:
    h = hands_over(stages(), 0, 1).request("a").called("b", 1)
    step(h, new=((B, [3], 1, [2], 0, 1),), used=False, node=LAST)
    step(h, preempted=(B,), used=False, node=LAST)
    return uses(uses(h, 0), 1)


@rejects(MATCH)
def the_tokens_are_others() -> Builder:
    return aborted([[7, 8, 4]])


@rejects(MATCH)
def a_stage_takes_another_step_than_was_sent() -> Builder:
    h = hands_over(aborted(), 2, 3)
    h.crosses("worker.0/pipe:send", what="hidden_states", step=4)
    return h.crosses(f"{LAST}/pipe:receive", what="hidden_states", step=5)


@rejects(MATCH)
def the_first_stage_hears_of_another_step() -> Builder:
    h = aborted().crosses(f"{LAST}/pipe:send", what="sampled_tokens", step=4)
    return h.crosses("worker.0/pipe:receive", what="sampled_tokens", step=3)


@silent(MATCH)
def nobody_left_with_a_step_in_flight() -> Builder:
    return aborted(in_flight=False)


@outside(MATCH)
def a_request_was_changed_on_its_way() -> Builder:
    return aborted([[7, 8, 4]]).fires("corrupt", f"{REQUESTS}:receive")


# -- whose end is told


def struck(fate: str, *, reason: str | None, site: str = "worker.0/pipe:send", waits: bool = True, after: float = .02,
           released: bool = False, **config: object) -> Builder:
    """"a" is asked, a stage meets that fate, and callers are told so (None: nothing)."""
    h = hands_over(stages(**{"bounds": bounds(collective_s=0.5), **config}), 0).called("a")
    h.crosses("worker.0/pipe:send", what="hidden_states", step=1, fate=fate, fault="f1")
    if waits:
        h.crosses(f"{LAST}/pipe:receive", what="hidden_states", step=1)
    h.fires(fate, site, nth=2)
    if fate == "kill":
        h.ends("worker.0", exitcode=-9)
    h.wait(after)
    if released:
        h.releases()
    if reason is None:
        return h.wait(3.0)
    return h.observes("frontend.0", "engine-dead", reason=reason).dies("a").observes("frontend.0", "closing")


NAMED = "core.0 said that it is leaving: worker.0 (pid 12) died"
BY_WHO_WAITED = ("core.0 said that it is leaving: worker.1 failed in execute_model: CollectiveError: rank 0 did not "
                 "send step 1 within 0.5 s")


@accepts(TOLD)
def who_died_is_named() -> Builder:
    return struck("kill", reason=NAMED)


@accepts(TOLD)
def who_failed_is_named() -> Builder:
    return struck("raise", reason="worker.0 failed in execute_model: RuntimeError: planted by the plan")


@accepts(TOLD)
def who_stands_still_is_named_by_who_waited() -> Builder:
    return struck("stall", reason=BY_WHO_WAITED, after=.6)


@accepts(TOLD)
def who_waited_is_named_where_nobody_knows_better() -> Builder:
    return struck("stall", reason="no answer to execute_model from worker.1 by its deadline", after=1.02,
                  device_communicator="gloo")


@rejects(TOLD)
def who_waited_is_named() -> Builder:
    return struck("raise", reason="worker.1 failed in execute_model: CollectiveError: step 1 did not come")


@rejects(TOLD)
def who_waited_for_who_stands_still_is_named() -> Builder:
    return struck("stall", reason="no answer to execute_model from worker.1 by its deadline", after=.6)


@rejects(TOLD)
def it_is_told_when_who_waited_has_given_up() -> Builder:
    return struck("raise", reason=BY_WHO_WAITED, after=.6)


@rejects(TOLD)
def it_is_never_told() -> Builder:
    return struck("kill", reason=None)


@silent(TOLD)
def nobody_waited_for_it() -> Builder:
    return struck("kill", reason=NAMED, waits=False)


@silent(TOLD)
def it_goes_on_in_time() -> Builder:
    h = hands_over(stages(), 0).called("a").fires("stall", "worker.0/pipe:send", nth=2).wait(.1).releases()
    return h.streams("a", [7, 8, 9]).ended("a")


@silent(TOLD)
def the_core_is_who_was_struck() -> Builder:
    return hands_over(stages(), 0).called("a").fires("raise", "core.0/mark:scheduled").dies("a")


@outside(TOLD)
def who_should_tell_is_killed() -> Builder:
    return hands_over(stages(), 0).called("a").fires("kill", "core.0/mark:scheduled").ends("core.0").dies("a")


# -- that no past reaches a present


def reused(tokens: list[list[int]] | None = None, *, in_flight: bool = True, outcome: str = "finished") -> Builder:
    """"b" is aborted, and "a" is given its block: with b's step in flight, or behind it."""
    h = stages().called("b", 1)
    step(h, new=((B, [3], 1, [0], 0, 1),), used=not in_flight, node=LAST)
    abort(h, B).ended("b", "aborted")
    h.called("a")
    step(h, new=((A, [1, 2], 2, [0], 0, 2),), finished=(B,), used=False, node=LAST)
    if in_flight:
        uses(h, 0)
    return uses(h, 1).streams("a", *(tokens or [[7, 8, 9]])).ended("a", outcome)


@accepts(STALE)
def a_block_changes_hands_with_a_step_in_flight() -> Builder:
    return reused()


@accepts(STALE)
def one_more_block_is_one_that_changed_hands() -> Builder:
    h = stages().called("a").called("b", 1)
    step(h, new=((A, [1, 2], 2, [1], 0, 2), (B, [3], 1, [0], 0, 1)), used=False, node=LAST)
    abort(h, B).ended("b", "aborted")
    step(h, cached=((A, [7], [0], 2, 1),), finished=(B,), used=False, node=LAST)
    return uses(uses(h, 0), 1).streams("a", [7, 8, 9]).ended("a")


@rejects(STALE)
def its_new_owner_has_other_tokens() -> Builder:
    return reused([[7, 4, 9]])


@silent(STALE)
def it_changes_hands_behind_the_step() -> Builder:
    return reused(in_flight=False)


@silent(STALE)
def its_new_owner_was_never_served() -> Builder:
    return reused([[7]], outcome="aborted")


@outside(STALE)
def the_request_was_changed_on_its_way() -> Builder:
    return reused([[7, 4, 9]]).fires("corrupt", f"{REQUESTS}:receive")
