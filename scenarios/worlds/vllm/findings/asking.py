"""Findings of what callers ask: calls, values of another kind, programs that generate and wait."""

from __future__ import annotations

from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.known import Known

_EXECUTOR, _CORE, _CLIENT = ("vllm/v1/executor/multiproc_executor.py", "vllm/v1/engine/core.py",
                             "vllm/v1/engine/core_client.py")
_DEAD = f"{_CLIENT}, BackgroundResources and its monitor of cores: who waits is told EngineDeadError"
_PENDING = Known("vllm#56416", "a proposed change: calls that are open fail when nothing more is received")

ASKING = (
    Finding(
        id="answers-of-older-calls", release="0.33.0",
        title="A collective_rpc is given the answer, or the failure, of an older one",
        breaks=("calls-answered", "nothing-without-cause"),
        source="vllm/v1/executor/abstract.py, collective_rpc: the results of this call, or TimeoutError after the time "
               f"that was given; {_CORE}, _invoke_utility_method: what a call fails by is handed to who asked",
        rows=("test_vllm_call_is_late", "test_vllm_call_behind_one_that_failed", "test_vllm_call_fails_in_two_stages",
              "test_vllm_first_request_behind_a_call_that_failed"),
        mechanism="Answers in the workers' rings have no number. What comes after a time-out stays there, and so do "
                  "the answers of the other ranks when the first one failed: the next call reads them. Of two stages "
                  "it is the next step, which ends the engine.",
        control="answers-in-their-turn", by_hand="rings.late_answer",
        known=(Known("vllm#49972", "failures of the other ranks stay in their rings"),
               Known("vllm#57846", "an answer that came too late is taken for that of the next call"))),
    Finding(
        id="open-call-outlives-its-core", release="0.33.0",
        title="A call that is open when its core dies never ends", breaks=("calls-answered",),
        source=f"vllm/v1/engine/exceptions.py, EngineDeadError: raised when the core dies; {_DEAD}",
        rows=("test_vllm_call_is_open_when_its_core_dies", "test_vllm_pause_is_open_when_a_worker_dies",
              "test_vllm_program_asks_and_the_core_is_killed"),
        mechanism="Neither the receiver of outputs as it ends nor the monitor of cores looks at the calls that wait.",
        control="open-calls-end-with-the-core", by_hand="open_call", known=(_PENDING,)),
    Finding(
        id="program-waits-for-a-dead-core", release="0.33.0",
        title="SIGKILL of the core amid LLM.generate: it waits for ever, though its client has noted the death",
        breaks=("ends-once", "death-is-told"), source=_DEAD, rows=("test_vllm_program_waits_for_a_core",),
        mechanism="The thread that receives outputs leaves without a word to who waits for its queue, and that wait "
                  "has no bound.",
        control="waits-and-looks", by_hand="program_waits", known=(_PENDING,)),
    Finding(
        id="stream-outlives-its-client", release="0.33.0",
        title="AsyncLLM.shutdown amid a request: its stream never ends", breaks=("ends-once",),
        source="vllm/config/vllm.py, shutdown_timeout: what is left at its end is aborted; vllm/v1/engine/async_llm.py"
               ", generate: a stream ends with its last output or with an error",
        rows=("test_vllm_is_closed_amid_a_request",),
        mechanism="The handler of outputs is cancelled, and tells that to nobody; what the core still says of the end "
                  "is read by nobody.",
        control="streams-end-with-their-client", by_hand="closed_amid_a_request", by_http=True,
        known=(Known("vllm#24885", "what a shutdown means is under discussion"),)),
    Finding(
        id="undecodable-request-deafens", release="0.33.0",
        title="One request that the core cannot decode, and it hears nothing any more; its health is true",
        breaks=("ends-once",),
        source=f"{_CORE}, _handle_request_preproc_error: an error of one request in the thread that reads them is "
               "answered to this request alone",
        rows=("test_vllm_is_deaf_by_*",),
        mechanism="The decoding of a request stands before what is guarded in the thread that reads them: it ends.",
        control="undecodable-request-fails-alone", by_hand="undecodable_request",
        known=(Known("vllm#26139", "one request ends the thread that reads them"),)),
    Finding(
        id="unsendable-answer-silences", release="0.33.0",
        title="One answer that cannot be encoded, and the core says nothing any more; its health is true",
        breaks=("calls-answered", "ends-once"),
        source="vllm/v1/serial_utils.py, MsgpackEncoder: names what cannot be encoded and what would permit it; "
               "vllm/v1/engine/__init__.py, UtilityOutput: a call that failed says so",
        rows=("test_vllm_answer_cannot_be_sent",),
        mechanism="Encoding is guarded by nothing in the thread that sends answers: it ends, and its core goes on.",
        control="unsendable-answer-is-told", by_hand="unsendable_answer"),
    Finding(
        id="unsent-request-is-counted", release="0.33.0",
        title="Requests that could not be sent take up the room for good ones for ever",
        breaks=("bad-request-isolated", "nothing-without-cause"),
        source="vllm/config/scheduler.py, max_num_queued_reqs: how many requests may be unfinished",
        rows=("test_vllm_counts_what_it_never_sent", "test_vllm_server_counts_what_it_never_sent"),
        mechanism="A request is registered before it is encoded and sent, and stays so where that fails.",
        control="unsent-request-is-forgotten", by_hand="unsent_request", by_http=True),
    Finding(
        id="program-waits-for-what-was-never-sent", release="0.33.0",
        title="LLM.generate fails of a request that cannot be sent, and the next one waits for it for ever",
        breaks=("ends-once",),
        source="vllm/entrypoints/common/offline.py, _render_and_add_requests: when one cannot be added, those of the "
               "call are aborted and the error is raised: the next call begins anew",
        rows=("test_vllm_program_goes_on_after_an_error",),
        mechanism="The engine of a program registers a request before it sends it; it is not among those that are "
                  "aborted when that fails, so something seems to be unfinished.",
        control="unsent-request-is-not-waited-for", by_hand="program_goes_on"),
)
