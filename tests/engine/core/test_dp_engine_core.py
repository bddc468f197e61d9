"""Cores that step together, stepped by hand: two loops, each taken as far as it comes alone, and who wakes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.config import DataParallelConfig
from engine.coordinator.board import Start
from engine.coordinator.sockets import COORDINATOR
from engine.coordinator.waves import Waves
from engine.core.dp_engine_core import GROUP, CountedEngineCore, DPEngineCore
from engine.core.engine_core import EngineCore
from engine.core.io.items import INPUT, OUTPUT, Outgoing, Terminate
from engine.core.scheduler import Scheduler
from engine.effects import Effect, Loop, Take
from engine.executor.uniproc import UniProcExecutor
from engine.messages import EngineCoreRequest, SamplingParams
from engine.process.consensus.effects import Reduce
from engine.wire.codec import Utility
from tests.engine.core.loops import Hand
from tests.engine.core.test_core_loop import CONFIG, Model

INTERVAL = 4


class DummyModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.forwards: list[tuple[int, int, bool]] = []  # wave, step, whether it was a dummy one

    def execute_model(self, step: Any) -> Any:
        if step.at is not None:
            self.forwards.append((*step.at, False))
        return super().execute_model(step)

    def execute_dummy_batch(self, at: tuple[int, int]) -> None:
        self.forwards.append((*at, True))


class Rank:
    """One core of a group, and where it stands: `waits` for inputs, or `brings` votes."""

    def __init__(self, rank: int, size: int) -> None:
        config = msgspec.structs.replace(CONFIG, data_parallel_size=size, data_parallel=DataParallelConfig(
            lockstep=True, sync_interval=INTERVAL))
        self.hand, self.model = Hand(), DummyModel()
        self.hand.worker = self.model
        scheduler = Scheduler(config.scheduler, config.cache, 32, 4, 128, vocab_size=100)
        self.core = DPEngineCore(config, scheduler, UniProcExecutor(config.bounds), engine_index=rank,
                                 waves=Waves(rank, size, interval=INTERVAL))
        self.loop: Loop[str] = self.core.busy_loop()
        self.reduce: Reduce | None = None
        self.left: str | None = None
        self._answer: Any = None

    def goes_on(self, most: int = 1000) -> bool:
        """Until nobody says anything, it has something to bring, it has left, or executed so many forwards.

        -> whether it did anything
        """
        if self.left is not None or self.reduce is not None:
            return False
        first = len(self.model.forwards)
        began = len(self.model.forwards), len(self.hand.marks), len(self.hand.queues[INPUT])
        try:
            while True:
                effect = self.loop.send(self._answer)
                self._answer = None
                if isinstance(effect, Reduce):
                    self.reduce = effect
                    return True
                if isinstance(effect, Take) and len(self.model.forwards) - first >= most:
                    self._answer = self.hand.answer(msgspec.structs.replace(effect, deadline=0.0))
                    return True
                idle = isinstance(effect, Take) and effect.deadline and not self.hand.queues[INPUT]
                self._answer = self.hand.answer(effect)
                if idle:
                    return began != (len(self.model.forwards), len(self.hand.marks), 0)
        except StopIteration as stop:
            self.left = stop.value
            return True

    def agrees(self, answer: list[int]) -> None:
        self.reduce, self._answer = None, answer

    def said(self) -> Iterator[Outgoing]:
        while self.hand.queues[OUTPUT]:
            yield self.hand.queues[OUTPUT].popleft()


class Ranks:
    def __init__(self, size: int = 2) -> None:
        self.ranks = [Rank(rank, size) for rank in range(size)]
        self.agreed: list[list[int]] = []
        self.outgoing: list[list[Outgoing]] = [[] for _ in range(size)]

    def say(self, rank: int, *items: Any) -> Ranks:
        self.ranks[rank].hand.queues[INPUT].extend(items)
        return self

    def say_all(self, *items: Any) -> Ranks:
        for rank in range(len(self.ranks)):
            self.say(rank, *items)
        return self

    def run(self) -> Ranks:
        """Until all wait for inputs, or some wait for others that never come."""
        while any([rank.goes_on() for rank in self.ranks]) or self._meet():
            self._deliver()
        return self

    def _deliver(self) -> None:
        for index, rank in enumerate(self.ranks):
            for outgoing in rank.said():
                self.outgoing[index].append(outgoing)
                start = outgoing.outputs.start_wave
                if outgoing.client_index == COORDINATOR and start is not None:
                    self.say_all(Start(start, index))

    def run_to(self, forwards: int) -> Ranks:
        """Until the first rank has executed so many, and stands at what it does next."""
        while len(self.ranks[0].model.forwards) < forwards:
            for rank in self.ranks:
                rank.goes_on(forwards - len(rank.model.forwards))
            self._deliver()
            self._meet()
        return self

    def go_on(self, rounds: int) -> Ranks:
        """So many times each rank executes a forward, where it comes to one."""
        for _ in range(rounds):
            for rank in self.ranks:
                rank.goes_on(1)
            self._deliver()
            self._meet()
        return self

    def _meet(self) -> bool:
        brought = [rank.reduce for rank in self.ranks if rank.reduce is not None]
        if len(brought) < len(self.ranks):
            return False
        answer = [sum(values) for values in zip(*(reduce.values for reduce in brought), strict=True)]
        assert {reduce.group for reduce in brought} == {GROUP}
        self.agreed.append(answer)
        for rank in self.ranks:
            rank.agrees(answer)
        return True

    @property
    def forwards(self) -> list[list[tuple[int, int]]]:
        return [[(wave, step) for wave, step, _ in rank.model.forwards] for rank in self.ranks]

    def answers(self, rank: int) -> list[Any]:
        return [(o.outputs.utility_output.call_id, o.outputs.utility_output.failure, o.outputs.utility_output.result)
                for o in self.outgoing[rank] if o.outputs.utility_output is not None]

    def reports(self, rank: int) -> list[Any]:
        return [o.outputs for o in self.outgoing[rank] if o.client_index == COORDINATOR]


def request(name: str, tokens: int = 3, wave: int = 0) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2, 3], SamplingParams(max_tokens=tokens), current_wave=wave)


def call(number: int, method: str, *args: Any) -> Utility:
    return Utility(0, number, method, list(args))


def test_who_has_no_work_executes_as_many_forwards_and_all_rest_at_once() -> None:
    ranks = Ranks().run().say(0, request("a")).run()
    assert ranks.forwards[0] == ranks.forwards[1] == [(0, step) for step in range(4)]
    assert [dummy for _, _, dummy in ranks.ranks[0].model.forwards] == [False, False, False, True]
    assert all(dummy for _, _, dummy in ranks.ranks[1].model.forwards)
    assert ranks.agreed == [[1, 0], [0, 0]], "behind the first step, and behind each fourth"
    assert [rank.core.waves.wave for rank in ranks.ranks] == [1, 1]
    assert not any(rank.core.waves.running for rank in ranks.ranks)


def test_a_start_is_reported_by_who_has_work_and_a_wave_s_end_by_the_first() -> None:
    ranks = Ranks().run().say(1, request("a")).run()
    assert [report.start_wave for report in ranks.reports(1) if report.start_wave is not None] == [0]
    assert [report.wave_complete for report in ranks.reports(0) if report.wave_complete is not None] == [0]
    assert not any(report.wave_complete is not None for report in ranks.reports(1))


def test_counts_are_told_when_they_change_with_the_place_at_which_they_were_taken() -> None:
    ranks = Ranks().run().say(0, request("a", tokens=2)).run()
    told = [(report.scheduler_stats.num_waiting, report.scheduler_stats.num_running, report.counted_at)
            for report in ranks.reports(0) if report.scheduler_stats is not None]
    assert told[:2] == [(1, 0, (0, 0)), (0, 1, (0, 1))], "before the step, which may take its time, and behind it"
    assert [count[:2] for count in told[2:]] == [(0, 0)] and told[2][2] >= (0, 2)
    assert not any(report.scheduler_stats for report in ranks.reports(1))


def test_a_start_that_comes_too_late_wakes_nobody() -> None:
    ranks = Ranks().run().say(0, request("a")).run().say(1, Start(0, None)).run()
    assert len(ranks.forwards[1]) == 4
    heard = [data for name, data in ranks.ranks[1].hand.observed if name == "start-heard"]
    assert heard[0] == {"wave": 0, "exclude": 0, "at": 0, "runs": True}
    assert heard[-1] == {"wave": 0, "exclude": None, "at": 1, "runs": False}


def test_a_pause_is_answered_when_all_have_agreed_and_nobody_steps_until_all_go_on() -> None:
    ranks = Ranks().run().say(0, request("a", tokens=50)).run_to(6).say(0, call(1, "pause_scheduler")).run_to(14)
    assert ranks.answers(0) == [], "the other one was not asked"
    assert [dummy for _, _, dummy in ranks.ranks[0].model.forwards[-4:]] == [True] * 4
    ranks.say(1, call(1, "pause_scheduler")).run()
    assert [ranks.answers(rank) for rank in (0, 1)] == [[(1, None, ranks.ranks[0].core.steps)],
                                                        [(1, None, ranks.ranks[1].core.steps)]]
    resting = [list(found) for found in ranks.forwards]
    ranks.say(1, request("b"), Start(9, None)).run()
    assert ranks.forwards == resting
    ranks.say(0, call(2, "resume_scheduler")).run()
    assert ranks.forwards == resting and ranks.ranks[0].reduce is not None, "it waits for the other one"
    ranks.say(1, call(2, "resume_scheduler")).run()
    assert ranks.forwards[0] == ranks.forwards[1] and len(ranks.forwards[0]) > len(resting[0])
    assert [ranks.answers(rank)[-1][0] for rank in (0, 1)] == [2, 2]
    assert all(not rank.core.scheduler.has_unfinished_requests() for rank in ranks.ranks)


def test_a_number_of_steps_is_run_by_all_out_of_a_pause() -> None:
    ranks = Ranks().run().say_all(call(1, "pause_scheduler")).run()
    began = len(ranks.forwards[0])
    ranks.say(0, request("a", tokens=50)).say_all(call(2, "run_steps", 5)).run()
    assert [len(found) - began for found in ranks.forwards] == [5, 5]
    assert all(rank.core.waves.paused for rank in ranks.ranks)
    assert [ranks.answers(rank)[-1][:2] for rank in (0, 1)] == [(2, None), (2, None)]
    ranks.say_all(call(3, "run_steps", 2)).run()
    assert [len(found) - began for found in ranks.forwards] == [7, 7] and ranks.forwards[0] == ranks.forwards[1]


def test_steps_that_are_asked_for_before_all_rest_are_counted_from_then_on() -> None:
    ranks = Ranks().run().say(0, request("a", tokens=50))
    ranks.say_all(call(1, "pause_scheduler"), call(2, "run_steps", 3)).run()
    rested = [data for mark, data in ranks.ranks[0].hand.marks if mark == "paused"]
    assert len(rested) == 2, "by agreement, and behind the steps"
    assert sum(wave == 1 for wave, _ in ranks.forwards[0]) == 3 and ranks.forwards[0] == ranks.forwards[1]


def test_steps_end_early_where_nobody_has_work() -> None:
    ranks = Ranks().run().say_all(call(1, "pause_scheduler")).run()
    began = len(ranks.forwards[0])
    ranks.say_all(call(2, "run_steps", 5)).run()
    assert [len(found) - began for found in ranks.forwards] == [0, 0]
    assert [ranks.answers(rank)[-1][:2] for rank in (0, 1)] == [(2, None), (2, None)]


def test_steps_are_counted_out_of_a_pause_only() -> None:
    ranks = Ranks().run().say(0, call(1, "run_steps", 3)).run()
    assert "out of a pause only" in ranks.answers(0)[-1][1]


@pytest.mark.parametrize("between", [0, 1, 2, 3, 4])
def test_what_is_asked_in_one_breath_all_ranks_do_at_the_same_places(between: int) -> None:
    """One rank hears all of it at once, and the other one call after another, some forwards apart."""
    calls = [call(1, "pause_scheduler"), call(2, "pause_scheduler"), call(3, "run_steps", 3), call(4, "run_steps", 2),
             call(5, "resume_scheduler"), call(6, "resume_scheduler"), call(7, "pause_scheduler"),
             call(8, "resume_scheduler")]
    ranks = Ranks().run().say(1, request("a", tokens=60)).run_to(2).say(0, *calls)
    for one in calls:
        ranks.say(1, one).go_on(between)
    ranks.run()
    assert ranks.forwards[0] == ranks.forwards[1]
    for rank in (0, 1):
        assert [answer[:2] for answer in ranks.answers(rank)] == [(n, None) for n in range(1, 9)]


def test_who_is_asked_to_leave_stays_until_the_wave_is_over() -> None:
    ranks = Ranks().run().say(0, request("a", tokens=6)).run_to(2).say(1, Terminate()).run()
    assert ranks.ranks[1].left == "SIGTERM" and ranks.ranks[0].left is None
    assert ranks.forwards[0] == ranks.forwards[1] and not ranks.ranks[0].core.scheduler.has_unfinished_requests()


def test_who_is_asked_to_leave_rests_behind_the_same_step_as_all() -> None:
    ranks = Ranks().run().say_all(call(1, "pause_scheduler")).run()
    began = len(ranks.forwards[0])
    ranks.say(1, request("a", tokens=50)).say_all(call(2, "run_steps", 5)).run_to(began + 2).say(1, Terminate()).run()
    assert [len(found) - began for found in ranks.forwards] == [5, 5]


def test_a_core_that_steps_alone_tells_its_counts_and_nothing_else() -> None:
    hand, model = Hand(), Model()
    hand.worker = model
    scheduler = Scheduler(CONFIG.scheduler, CONFIG.cache, 32, 4, 128, vocab_size=100)
    config = msgspec.structs.replace(CONFIG, data_parallel_size=4, data_parallel=DataParallelConfig(coordinator=True))
    core = CountedEngineCore(config, scheduler, UniProcExecutor(config.bounds), engine_index=3)
    hand.queues[INPUT].append(request("a", tokens=2))
    idle = 0

    def idles(effect: Effect) -> bool:
        nonlocal idle
        idle += isinstance(effect, Take) and bool(effect.deadline) and not hand.queues[INPUT]
        return idle > 0

    hand.run(core.busy_loop(), until=idles)
    told = [o.outputs for o in hand.queues[OUTPUT] if o.client_index == COORDINATOR]
    assert [(one.engine_index, one.scheduler_stats.num_running, one.counted_at) for one in told] == [
        (3, 0, None), (3, 1, None), (3, 0, None)]
    assert all(step.at is None for step in model.steps) and isinstance(core, EngineCore)
