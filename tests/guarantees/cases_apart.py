"""Histories of what travels beside a request's body, and of what should."""

from __future__ import annotations

from typing import Any

from engine.config import SocketConfig
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent

APART = "large-apart"
REQUESTS = "frontend.0->core.0/requests"
FEW, MANY = list(range(8)), list(range(16))


def client() -> Builder:
    """What has 64 bytes and more has a frame of its own."""
    return history(tp=1, sockets=SocketConfig(own_frame_bytes=64))


def sends(h: Builder, frames: int) -> Builder:
    """So many beside the body."""
    return h.crosses(f"{REQUESTS}:send", **({"buffers": frames} if frames else {}))


def asks(h: Builder, frames: int, *, prompt: int) -> Builder:
    h.observes("frontend.0", "call", request="a", index=0, prompt=prompt, max_tokens=3)
    return sends(h.observes("frontend.0", "accepted", request="a", internal="a-0", core=0), frames)


def calls(h: Builder, frames: int, *args: Any) -> Builder:
    return sends(h.observes("frontend.0", "ask", method="ping", ticket=1, args=list(args)), frames)


@accepts(APART)
def a_long_prompt_and_lists_of_numbers_have_frames() -> Builder:
    h = asks(client(), 1, prompt=16)
    return calls(h, 3, MANY, ["text", {"more": [MANY, FEW]}], FEW, [MANY, "text"], [1 << 40] * 16)


@accepts(APART)
def no_message_has_more_than_it_may_have() -> Builder:
    return calls(client(), 64, [MANY] * 70)


@accepts(APART)
def what_is_too_deep_stays_where_it_is() -> Builder:
    return calls(client(), 1, [[[[[[[MANY, [MANY]]]]]]]])


@rejects(APART)
def a_short_prompt_has_a_frame() -> Builder:
    return asks(client(), 1, prompt=15)


@rejects(APART)
def a_long_prompt_has_none() -> Builder:
    return asks(client(), 0, prompt=16)


@rejects(APART)
def what_is_within_has_none() -> Builder:
    return calls(client(), 1, MANY, [[MANY, "text"]])


@silent(APART)
def nothing_is_large() -> Builder:
    return calls(asks(client(), 0, prompt=15), 0, FEW)


@silent(APART)
def nothing_has_a_frame_of_its_own() -> Builder:
    return asks(history(tp=1, sockets=SocketConfig(own_frame_bytes=0)), 0, prompt=400)


@outside(APART)
def the_sender_dies_in_between() -> Builder:
    return asks(client(), 0, prompt=16).fires("kill", f"{REQUESTS}:send")
