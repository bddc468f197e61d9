"""Histories of what clients tell a coordinator of requests to a group at rest."""

from __future__ import annotations

from typing import Literal

from engine.config import DataParallelConfig
from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

FIRST = "dp-first-told"
CLIENT, HUB = "frontend.0", "coordinator.0"


def group(protocol: Literal["old", "new"] = "old") -> Builder:
    options = DataParallelConfig(coordinator=True, lockstep=True, wave_protocol=protocol)
    return history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2, data_parallel=options)


def asks(h: Builder, core: int, request: str = "a") -> Builder:
    return h.observes(CLIENT, "accepted", request=request, internal=request, core=core)


def speaks(h: Builder, core: int, wave: int = 0) -> Builder:
    return h.observes(CLIENT, "first-request", rank=core, wave=wave)


def sends(h: Builder, core: int, wave: int = 0, **struck: str) -> Builder:
    return h.crosses(f"{CLIENT}->{HUB}/stats:send", first_request=core, wave=wave, **struck)


def sees(h: Builder, wave: int, *, running: bool) -> Builder:
    return h.observes(CLIENT, "view", counts=None, wave=wave, running=running)


def told(h: Builder, core: int, wave: int = 0) -> Builder:
    return sends(speaks(h, core, wave), core, wave)


@accepts(FIRST)
def the_first_one_is_told_and_the_next_one_when_all_rest_again() -> Builder:
    h = asks(told(asks(group(), 1), 1), 0, "b")
    return told(asks(sees(sees(h, 0, running=True), 1, running=False), 0, "c"), 0, 1)


@accepts(FIRST)
def an_old_notice_changes_nothing() -> Builder:
    h = told(asks(sees(group(), 2, running=False), 1), 1, 2)
    return sees(h, 1, running=False)


@rejects(FIRST)
def one_is_told_twice() -> Builder:
    return sends(told(asks(group(), 1), 1), 1)


@rejects(FIRST)
def one_is_told_and_nobody_says_so() -> Builder:
    return sends(asks(group(), 1), 1)


@rejects(FIRST)
def one_is_told_and_said_so_later() -> Builder:
    return speaks(sends(asks(group(), 1), 1), 1)


@rejects(FIRST)
def another_one_is_told_while_all_run() -> Builder:
    return told(asks(told(asks(group(), 1), 1), 0, "b"), 0)


@rejects(FIRST)
def one_is_told_of_a_core_that_was_asked_nothing() -> Builder:
    return told(asks(group(), 1), 0)


@rejects(FIRST)
def one_is_told_in_a_wave_that_is_over() -> Builder:
    return told(asks(sees(group(), 1, running=False), 1), 1, 0)


@rejects(FIRST)
def one_is_told_by_the_protocol_of_today() -> Builder:
    return told(asks(group("new"), 1), 1)


@silent(FIRST)
def nobody_has_to_be_told_today() -> Builder:
    return asks(group("new"), 1)


@silent(FIRST)
def all_run_already() -> Builder:
    return asks(sees(group(), 0, running=True), 1)


def _asks_in(wave: int, *, changed: str = "") -> Builder:
    """Told of wave 2, then late of wave 1, it asks in this wave. `changed`: where a message is on its way."""
    h = sees(sees(group("new"), 2, running=True), 1, running=True)
    h = asks(h.fires("corrupt", changed, node=CLIENT) if changed else h, 0, "a-0")
    return h.observes("core.0", "request", request="a-0", action="add", reason="", wave=wave)


@silent(FIRST)
def a_request_says_the_highest_wave_that_its_client_was_told_of() -> Builder:
    return _asks_in(2)


@silent(FIRST)
def outputs_that_were_changed_may_have_told_of_another_wave() -> Builder:
    return _asks_in(64, changed="core.1->frontend.0/outputs:receive")


@rejects(FIRST)
def a_notice_that_was_changed_is_seen_as_it_was_taken() -> Builder:
    return _asks_in(64, changed=f"{HUB}->{CLIENT}/stats:receive")


@rejects(FIRST)
def a_request_says_the_wave_that_its_client_was_told_of_last() -> Builder:
    return _asks_in(1)


def _cannot_be_sent(h: Builder) -> Builder:
    return asks(h, 0).ended("a", "failed", error="UnroutableError", internal="a")


@accepts(FIRST)
def the_next_one_is_told_where_one_cannot_be_sent() -> Builder:
    return told(asks(_cannot_be_sent(group()), 1, "b"), 1)


@rejects(FIRST)
def what_cannot_be_sent_is_told() -> Builder:
    return told(_cannot_be_sent(group()), 0)
