"""Histories about text: what is shown of the tokens, and requests that the workload knows to be bad."""

from typing import Any

from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

#: What each token adds: two halves of a character are none by themselves.
SAID = ("on", "e st", "op", " \ufffd", "é", "!")


def decoded(count: int) -> str:
    return "".join(SAID[:count]).replace("\ufffdé", "é")


def _asked(stop: tuple[str, ...] = (), tokens: int = 6, **params: Any) -> Builder:
    """A request of tokens 0, 1, 2, ..., each of which says its piece."""
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "reference_token_ids": list(range(tokens)),
                              "sampling_params": {"max_tokens": 6, "stop": stop, **params}}]}
    return history(skip_tokenizer_init=False).started().promised(workload=workload).called("a")


def _shows(h: Builder, *texts: str | None) -> Builder:
    """The texts after one token, two, ...; None: with the end."""
    for place, text in enumerate(texts):
        told = {} if text is None else {"text": text}
        h.observes("frontend.0", "tokens", request="a", offset=place, tokens=[place], decoded=[decoded(place + 1)],
                   **told)
    return h


def _ends(h: Builder, text: str, finish: str = "length", stop: str | int | None = None, **data: Any) -> Builder:
    told = {} if stop is None else {"stop_reason": stop}
    return h.ended("a", error="", finish_reason=finish, text=text, **told, **data)


def _stops(h: Builder, text: str, stop: str) -> Builder:
    return _ends(h, text, "stop", stop).observes("core.0", "request", request="a-0", action="abort", reason="")


WHOLE = ("on", "one st", "one stop", "one stop ", "one stop é")


@accepts("text-is-of-tokens")
def a_character_of_two_tokens_is_shown_when_it_is_whole() -> Builder:
    return _ends(_shows(_asked(), *WHOLE, None), "one stop é!")


@rejects("text-is-of-tokens")
def half_a_character_is_shown() -> Builder:
    return _ends(_shows(_asked(), *WHOLE[:3], "one stop \ufffd", "one stop é", None), "one stop é!")


@rejects("text-is-of-tokens")
def a_text_comes_a_token_late() -> Builder:
    return _ends(_shows(_asked(), "", "on", "one st", "one stop", "one stop ", None), "one stop é!")


@rejects("text-is-of-tokens")
def the_last_word_is_kept_back() -> Builder:
    return _ends(_shows(_asked(), *WHOLE, None), "one stop é")


@accepts("text-is-of-tokens")
def a_stop_string_over_two_tokens_ends_the_text_before_it() -> Builder:
    return _stops(_shows(_asked(("stop",)), "on", "one ", None), "one ", "stop")


@accepts("text-is-of-tokens")
def the_stop_string_that_is_complete_first_counts_and_the_longest_of_two() -> Builder:
    return _stops(_shows(_asked(("stop \u00e9", "op", "stop")), "on", "one ", None), "one ", "stop")


@rejects("text-is-of-tokens")
def a_shorter_stop_string_is_named() -> Builder:
    return _stops(_shows(_asked(("op", "stop")), "on", "one ", None), "one st", "op")


@rejects("text-is-of-tokens")
def the_beginning_of_a_stop_string_is_shown() -> Builder:
    return _stops(_shows(_asked(("stop",)), "on", "one st", None), "one ", "stop")


@rejects("text-is-of-tokens")
def more_is_kept_back_than_may_become_a_stop_string() -> Builder:
    return _stops(_shows(_asked(("stop",)), "on", "one", None), "one ", "stop")


@rejects("text-is-of-tokens")
def a_stop_string_is_passed_over() -> Builder:
    return _ends(_shows(_asked(("stop",)), "on", "one ", "one stop", "one stop ", "one stop é", None), "one stop é!")


@rejects("text-is-of-tokens")
def a_stop_string_is_seen_a_token_late() -> Builder:
    return _stops(_shows(_asked(("stop",)), "on", "one ", None, None), "one ", "stop")


@rejects("text-is-of-tokens")
def a_stop_string_is_shown() -> Builder:
    return _stops(_shows(_asked(("stop",)), "on", "one ", None), "one stop", "stop")


@rejects("text-is-of-tokens")
def the_core_is_not_told_of_a_stop_string() -> Builder:
    return _ends(_shows(_asked(("stop",)), "on", "one ", None), "one ", "stop", "stop")


@accepts("text-is-of-tokens")
def a_stop_string_within_the_first_tokens_does_not_count() -> Builder:
    return _stops(_shows(_asked(("on", "op"), min_tokens=2), "on", "one st", None), "one st", "op")


@rejects("text-is-of-tokens")
def a_stop_string_within_the_first_tokens_counts() -> Builder:
    return _stops(_shows(_asked(("on",), min_tokens=2), None), "", "on")


@accepts("text-is-of-tokens")
def the_token_that_ends_a_request_is_no_text() -> Builder:
    return _ends(_shows(_asked(tokens=3, stop_token_ids=[2]), "on", "one st", None), "one st", "stop", 2)


@rejects("text-is-of-tokens")
def the_token_that_ends_a_request_is_shown() -> Builder:
    return _ends(_shows(_asked(tokens=3, stop_token_ids=[2]), "on", "one st", None), "one stop", "stop", 2)


@rejects("text-is-of-tokens")
def a_token_that_ends_a_request_is_passed_over() -> Builder:
    return _ends(_shows(_asked(stop_token_ids=[2]), *WHOLE, None), "one stop é!")


@rejects("text-is-of-tokens")
def a_token_ends_a_request_that_is_not_to_end_there() -> Builder:
    return _ends(_shows(_asked(tokens=3, stop_token_ids=[4]), "on", "one st", None), "one st", "stop", 2)


@accepts("text-is-of-tokens")
def a_token_within_the_first_ones_does_not_end_a_request() -> Builder:
    return _ends(_shows(_asked(stop_token_ids=[0], min_tokens=1), *WHOLE, None), "one stop é!")


@silent("text-is-of-tokens")
def whole_characters_and_no_stop_string() -> Builder:
    return _ends(_shows(_asked(tokens=2), "on", None), "one st")


@silent("text-is-of-tokens")
def an_abort_shows_what_was_kept_back() -> Builder:
    h = _shows(_asked(("stop",)), "on", "one ").observes("frontend.0", "abort", request="a")
    return _ends(h, "one st", "abort", outcome="aborted")


@rejects("text-is-of-tokens")
def an_abort_takes_back_what_was_shown() -> Builder:
    h = _shows(_asked(), "on", "one st").observes("frontend.0", "abort", request="a")
    return _ends(h, "on", "abort", outcome="aborted")


@silent("text-is-of-tokens")
def an_engine_without_a_tokenizer_has_no_text() -> Builder:
    return history().started().request("a")


def _unservable(**end: Any) -> Builder:
    workload = {"requests": [
        {"index": 0, "prompt_token_ids": [1], "sampling_params": {}, "reference_token_ids": [7]},
        {"index": 1, "prompt_token_ids": [1], "sampling_params": {}, "reference_token_ids": [], "unservable": "empty"}]}
    h = history().started().promised(workload=workload).called("a")
    return h.observes("frontend.0", "call", request="b", index=1).ended("b", **end).streams("a", [7]).ended("a")


@accepts("bad-request-isolated")
def what_cannot_be_served_is_refused_for_the_reason_that_the_workload_knows() -> Builder:
    return _unservable(outcome="failed", error="BadRequestError", reason="the prompt is empty")


@rejects("bad-request-isolated")
def what_cannot_be_served_is_refused_for_another_reason() -> Builder:
    return _unservable(outcome="failed", error="BadRequestError", reason="the prompt is too long")


@rejects("bad-request-isolated")
def what_cannot_be_served_is_served() -> Builder:
    return _unservable()


@rejects("bad-request-isolated")
def what_cannot_be_served_is_sent() -> Builder:
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "sampling_params": {}, "reference_token_ids": [],
                              "unservable": "empty"}]}
    return history().started().promised(workload=workload).called("a").ended(
        "a", "failed", error="BadRequestError", reason="empty")
