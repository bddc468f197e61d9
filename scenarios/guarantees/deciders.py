"""Which record decides each promise, and who wrote it: a judge does not consult the accused where another one saw it.

    the fault layer   crossings of messages, stores and marks, written around the engine's ports, at both ends
    the caller        what the program that asks was told: calls, tokens, ends, answers, health
    the lab           how processes ended, what they left, when they were started again
    the plan          which fault fired, where, and when it let go; the workload and its reference tokens
    itself            what a process of the engine says of itself; nobody else could know it
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Writer(StrEnum):
    LAYER = "the fault layer"
    CALLER = "the caller"
    LAB = "the lab"
    PLAN = "the plan"
    ITSELF = "the engine itself"


class Decider(NamedTuple):
    """`record`: what decides. `writers`: who wrote it; `blind`: what a lie, or a silence, of the engine would hide."""

    record: str
    writers: tuple[Writer, ...]
    blind: str = ""


_L, _C, _B, _P, _I = Writer.LAYER, Writer.CALLER, Writer.LAB, Writer.PLAN, Writer.ITSELF

DECIDERS: dict[str, Decider] = {
    "nothing-without-cause": Decider(
        "ends of requests, calls and processes; what lies about; errors that processes tell, and those that are "
        "printed because nobody took them", (_C, _B, _P, _I),
        "an error that a process swallows and that nobody outside feels"),
    "hwm0-no-loss": Decider("each send and its receive, by digest", (_L,)),
    "edge-fifo": Decider("sends and receives in their order", (_L,)),
    "unroutable-is-known": Decider("sends without a receive, cuts, and what the caller got", (_L, _P, _C)),
    "frames-intact": Decider("digests at both ends", (_L,), "what a decoder makes of whole bytes"),
    "large-apart": Decider("how many frames each request has as it crosses; what its caller asked", (_L, _C)),
    "handshake-order": Decider("handshake messages before the first request; both sides' `ready`", (_L, _I)),
    "bad-frame-isolated": Decider("frames that were sent or hit, ends, deaths; the word of who dropped one",
                                  (_P, _C, _B, _I)),
    "ends-once": Decider("calls and ends", (_C,)),
    "tokens-in-order": Decider("tokens as the stream delivered them", (_C,)),
    "tokens-match-reference": Decider("tokens, against those that transformers chose", (_C, _P)),
    "abort-is-final": Decider("ends and tokens; when the core freed the request", (_C, _I),
                              "a core that says that it freed what it holds"),
    "bad-request-isolated": Decider("ends, against what the workload says of each request", (_C, _P)),
    "lost-request-is-bounded": Decider("calls, tokens and ends; when the core freed the request", (_C, _I)),
    "text-is-of-tokens": Decider("text and tokens as the stream delivered them, what the tokens decode to at once",
                                 (_C, _I), "a core that says that it heard of an end"),
    "served-in-turn": Decider("steps as the rank that answers read them, against what was asked; in which order the "
                              "core took that", (_I, _C, _P), "a request that the core never speaks of"),
    "calls-answered": Decider("questions and answers; steps as the rank that answers read them", (_C, _P, _I)),
    "priority-kept": Decider("steps as the rank that answers read them, against what was asked; in which order the "
                             "core took that", (_I, _C, _P), "a request that the core never speaks of"),
    "steps-in-order": Decider("marks that the core passed, and the workers", (_L,), "a core that passes its marks in "
                              "another order than it uses results"),
    "two-phase-paired": Decider("calls as each rank came to them; the tokens of each step", (_L,)),
    "first-error-told": Decider("a rank's exception, and what callers were told", (_I, _C)),
    "async-same-tokens": Decider("tokens, against those that transformers chose", (_C, _P)),
    "placeholders-conserved": Decider("steps as the rank that answers read them, against what was asked", (_I, _P)),
    "pause-exact": Decider("when the client asked and was answered; when each rank came to rest, to a step, to an "
                           "all-reduce", (_C, _L)),
    "thread-death-told": Decider("which fault struck which thread, and what callers were told", (_P, _C)),
    "pp-tokens-match": Decider("tokens, against those that transformers chose; which step each stage sent and took",
                               (_C, _P, _L)),
    "pp-stage-death-told": Decider("which fault struck whom, what callers were told; what each stage sent and took",
                                   (_P, _C, _L)),
    "pp-no-stale-slot": Decider("tokens, against those that transformers chose; whose blocks, as the rank that answers "
                                "read it", (_C, _P, _I)),
    "dp-dead-never-chosen": Decider("what the client told of the core, and then sent", (_C, _L)),
    "dp-death-ends-group": Decider("what callers were told, of which core", (_C,)),
    "dp-rank-as-asked": Decider("what was asked for, and what the client says which core it chose", (_C,),
                                "a client that says another one than it sends to"),
    "dp-burst-spreads": Decider("what the client says which core it chose", (_C,), "a client that says another one "
                                "than it sends to"),
    "dp-counts-used": Decider("counts as the client says it was told, and which core it says it chose", (_C,),
                              "a client that says another one than it sends to"),
    "dp-chosen-in-turn": Decider("which core each request was sent to; what its client says that it was told, and how "
                                 "requests ended", (_C, _I), "a client that says that it was told what it was not"),
    "client-routed": Decider("what each client says it was sent for others, and what its callers were told; what cores "
                             "say they have finished", (_C, _I)),
    "client-isolated": Decider("the end of a client; what callers of others were told, and what cores say they have "
                               "freed", (_P, _C, _I)),
    "client-returns": Decider("when a client that came back started; what its callers were told", (_P, _C)),
    "launcher-says": Decider("the end of a process, or a stop; what its launcher says of it", (_P, _I)),
    "notice-to-all": Decider("the end of a process, and what each client said of it", (_P, _C)),
    "dp-start-needs-all": Decider("whose subscriptions the coordinator says it has seen; when each core heard it, and "
                                  "was ready", (_I, _L), "a coordinator that says it has seen who was not there"),
    "dp-coordinator-death-is-told": Decider("which fault struck the coordinator, its end, and what the client said",
                                            (_P, _B, _C)),
    "dp-view-converges": Decider("requests that each core says it took in and was done with; counts as the client says "
                                 "it was told", (_I, _P), "a client that says that it knows what it does not use"),
    "dp-coordinator-in-turn": Decider("what cores and clients told the coordinator; what it says it says", (_L, _I),
                                      "a coordinator that says what it does not send"),
    "dp-handshakes-agree": Decider("handshake messages before the first request; what each side says it goes by, and "
                                   "why it did not start", (_L, _I, _P),
                                   "a core that says that it goes by what it does not use"),
    "dp-collectives-equal": Decider("forwards and all-reduces as each rank came to them; what it says that it brought "
                                    "and was answered", (_L, _I)),
    "dp-wave-monotone": Decider("waves as the ranks and their coordinator tell them, and as forwards have them",
                                (_L, _I), "a rank that runs by a START and says that it does not"),
    "dp-work-wakes-all": Decider("when a core took a request; when each rank came to a forward", (_I, _L)),
    "dp-quiet-when-idle": Decider("dummy batches as each rank came to them; when its requests came and ended",
                                  (_L, _I), "a core that says that it has a request"),
    "dp-rank-in-turn": Decider("what each rank says that it was told, does and reports; forwards and reports as "
                               "they cross", (_I, _L), "a rank that says that it was told what it was not"),
    "dp-first-told": Decider("what a client says that it was told, has sent and tells; its words as they cross",
                             (_C, _L), "a client that believes what it was not told"),
    "dp-missing-is-named": Decider("when each core came to an all-reduce; whom it says that it waited for", (_I, _P)),
    "dp-offline-ends": Decider("who came to the forwards of each wave; what clients asked, and were told", (_L, _C)),
    "ring-exact-prefix": Decider("digests at both ends, positions", (_L,)),
    "ring-no-overwrite": Decider("stores of writer and readers", (_L,)),
    "ring-overflow-ordered": Decider("ring crossings and payloads", (_L,)),
    "ring-no-lost-wakeup": Decider("the store of a message; when its reader's wait ended", (_L, _I),
                                   "a reader that does not tell of a wait"),
    "ring-bounded-wait": Decider("how waits ended, calls without an answer", (_I, _L),
                                 "a wait that is not told of, unless a call hangs by it"),
    "queue-hands-over": Decider("objects as their writer put them in and their readers got them", (_C,)),
    "queue-counts": Decider("ring crossings and waits, against what an end says that it counted", (_L, _I)),
    "queue-ends-meet": Decider("what a handle led to, bytes in memory, when ends came and were ready", (_C, _B)),
    "rpc-matched": Decider("calls and replies as the core took them", (_I,), "a core that tells of other calls"),
    "rpc-any-rank-fails-fast": Decider("a rank's exception, the core's call, what callers were told", (_I, _C)),
    "workers-in-step": Decider("calls as each worker read them, and as the core made them", (_I,)),
    "groups-agree": Decider("when each rank came to a collective, and to which", (_L,)),
    "dead-notice": Decider("the notice on its way, and read", (_L, _I)),
    "death-is-told": Decider("the end of a process, and what callers got", (_B, _P, _C)),
    "stall-is-told": Decider("a stop, and what callers got", (_P, _C)),
    "health-is-true": Decider("health as the caller got it, deaths and stops", (_C, _B, _P)),
    "no-orphans": Decider("ends of processes", (_B,)),
    "nothing-left-behind": Decider("what the lab finds", (_B,)),
    "start-ends": Decider("how a start was told to end, deaths before", (_I, _B)),
    "drain": Decider("the signal, and how requests ended", (_P, _C)),
    "two-on-one-host": Decider("what became of the engine beside", (_B, _C)),
    "birth-told": Decider("words at birth as they met their fates, how a start was told to end", (_P, _L, _I)),
    "nothing-grows": Decider("what the lab sees of each process from outside, before and after", (_B,)),
    "rests-when-idle": Decider("processor time as the lab sees it from outside; turns of a twin's threads", (_B,)),
    "blocks-conserved": Decider("the core's own books when idle, against what its steps have left", (_I, _P)),
    "kv-seq": Decider("numbers as they were handed over, and as subscribers met them", (_I,)),
    "kv-gap-seen": Decider("batches that were published, and what the subscriber took and told", (_I,)),
    "kv-replay-complete": Decider("batches that were published, and what the subscriber took and told", (_I,)),
    "kv-gap-too-old": Decider("batches that were published, and what the subscriber told", (_I,)),
    "kv-mirror-true": Decider("the subscriber's mirror against the core's cache", (_I,),
                              "a cache and a mirror that are wrong alike"),
    "kv-never-stalls": Decider("how long each hand-over took", (_I,), "a hand-over that measures itself wrongly"),
    "kv-asks-in-time": Decider("messages that reached the subscriber, and its questions, by what they say", (_L,),
                               "a loss that it tells of and that was none"),
    "kv-tells-what-came": Decider("messages that reached the subscriber, against all that it told", (_L, _I)),
    "kv-sent-once": Decider("batches as they got their numbers, and as they went out", (_I, _L)),
    "kv-answers-exact": Decider("questions as they came in, and all that went out", (_L, _I)),
    "kv-ranks-apart": Decider("batches of each rank, and who took them", (_I, _L)),
    "memory-bounded": Decider("requests that a caller had open at once, refusals", (_C, _I)),
    "no-foreign-code": Decider("ends of processes after a pickle that ends whoever executes it", (_P, _B, _I)),
    "programs-are-answered": Decider("what a program was answered, against what is documented", (_C,)),
    "self-checks-see": Decider("what was done to a table, and what the self-check of its books says", (_C, _I)),
}
