"""A workload with the answers that the stand-in gives (pure): as long as they were, other tokens."""

from __future__ import annotations

import msgspec

from scenarios.workloads.workload import RecordedRequest, Workload
from scenarios.worlds.vllm.stand_in.words import continuation


def with_references(workload: Workload, vocabulary: int, longest: int) -> Workload:
    """`longest`: so many tokens a request may have, prompt and answer."""
    return msgspec.structs.replace(workload, requests=[
        msgspec.structs.replace(request, reference_token_ids=_reference(request, vocabulary, longest))
        for request in workload.requests])


def _reference(request: RecordedRequest, vocabulary: int, longest: int) -> list[int]:
    """Up to the length that was asked for, or to a token that ends it."""
    params = request.sampling_params
    count = min(params.get("max_tokens") or longest, longest - len(request.prompt_token_ids))
    if request.unservable or not request.prompt_token_ids or count < 1:
        return []
    said, stops = continuation(request.prompt_token_ids, count, vocabulary), set(params.get("stop_token_ids") or ())
    for number, token in enumerate(said, 1):
        if number > (params.get("min_tokens") or 0) and token in stops:
            return said[:number]
    return said
