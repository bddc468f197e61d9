"""Of executors, workers, the wire and processes."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_WORKERS, _WORKER, _CODEC = "engine/executor/workers.py", "engine/worker/life.py", "engine/wire/codec.py"
_LOGGED = "how a line for an operator is worded"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(_WORKERS, "Workers.start", "sent-twice",
               "yield TellParent(WorkersBorn(tuple(self._identities.values())))",
               "the same word again says the same"),
    Equivalent(_WORKERS, "Workers._watch", "effects-swapped",
               "yield Cancel(PeerDeadError(text))\n        yield Put(self._told, WorkerDeadError(text))",
               "both end the main thread, by the same words"),
    Equivalent(_WORKERS, "Workers._watch", "sent-twice", "yield Put(self._told, WorkerDeadError(text))",
               "the main thread ends by the first one"),
    Equivalent(_WORKERS, "Workers.stop", "no-deadline", "(yield Now()) + terminate_s", "who was killed is gone soon"),
    Equivalent(_WORKER, "worker_life", "sent-twice",
               "yield TellParent(StartFailure(type(error).__name__, str(error)))",
               "a parent reads the first word only"),
    Equivalent(_WORKER, "worker_life", "off-by-one", "1", "any code but 0 is the same to its parent, who knows why",
               "2"),
    Equivalent(_WORKER, "worker_life", "effects-swapped",
               'yield MarkPoint(Mark.BORN)\n    yield beside("parent-watch", _watch_parent(recipe))',
               "neither is seen by what the other one does"),
    Equivalent(_CODEC, "decode_request", "off-by-one", "8", _LOGGED, "9"),
    Equivalent(_CODEC, "decode_outputs", "statement-gone", 'raise BadFrameError("an output without frames")',
               "a message of a socket has a frame"),
    Equivalent(_CODEC, "decode_outputs", "branch-never-taken", "not frames", "a message of a socket has a frame"),
    Equivalent("engine/wire/handshake.py", "_greeting", "statement-gone", 'return ""', "None is as empty as no text"),
    Equivalent("engine/wire/handshake.py", "_missing", "statement-gone", 'raise AssertionError("nothing is missing")',
               "it is called when something is"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "off-by-one", "1", _LOGGED, "2"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "off-by-one", "0", _LOGGED, "1"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "statement-gone",
               "self._logged[name] = at, passed_over + 1", _LOGGED),
)
