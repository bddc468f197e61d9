"""Requests with a value of another kind, of an engine that is not ours: they fail alone."""

from __future__ import annotations

from engine.config import LimitsConfig
from tests.guarantees.build import WORKLOAD, Builder, history
from tests.guarantees.cases import accepts, rejects, silent

ISOLATED = "bad-request-isolated"
#: The first is asked for oddly.
ODD = {**WORKLOAD, "requests": [
    {**WORKLOAD["requests"][0], "asked_params": {"kinds": {"seed": "a text"}, "params": {}}}, WORKLOAD["requests"][1]]}


def vllm(most: int = 1) -> Builder:
    return history(world="vllm", limits=LimitsConfig(max_requests=most)).started().promised(workload=ODD)


def failed(h: Builder) -> Builder:
    return h.called("a", 0, core=False).ended("a", "failed", reason="cannot be sent", error="RequestError")


def refused(h: Builder) -> Builder:
    return h.called("b", 1, core=False).ended("b", "refused", reason="the queue is full", error="RefusedError")


@accepts(ISOLATED)
def an_odd_request_fails_and_another_one_is_served() -> Builder:
    return failed(vllm()).called("b", 1, core=False).streams("b", [5, 6]).ended("b")


@silent(ISOLATED)
def an_odd_request_is_served() -> Builder:
    return vllm().called("a", 0, core=False).streams("a", [7, 8, 9]).ended("a").called("b", 1, core=False).ended("b")


@silent(ISOLATED)
def one_is_refused_where_too_many_are_open() -> Builder:
    return refused(failed(vllm()).called("c", 1, core=False))


@rejects(ISOLATED)
def one_is_refused_where_none_is_open() -> Builder:
    return refused(failed(vllm()))


@rejects(ISOLATED)
def another_one_fails_behind_an_odd_one() -> Builder:
    return failed(vllm()).called("b", 1, core=False).ended("b", "failed", reason="?", error="RequestError")
