"""Of executors, workers, the wire and processes."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_WORKERS, _WORKER, _CODEC = "engine/executor/workers.py", "engine/worker/life.py", "engine/wire/codec.py"
_LOGGED = "how a line for an operator is worded"
_FOR_AN_OPERATOR = "a line for an operator"
_NO_MORE_CALLS = ("a core has no more calls open than the two of each step that its queue holds and one beside them, "
                  "and puts no further step into a queue that is full")
_SAMPLED = ("of an execute with tokens that went well a rank has something to sample, and the error of one that did "
            "not is raised before this")
_PAIRED = ("a core asks for the sample behind each execute with tokens, and a rank that could not read that begins "
           "with no other step")
_RANK = "a step asks for the last stage's first rank, which every engine has, and all else asks for all ranks"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(_WORKERS, "Workers.start", "sent-twice",
               "yield TellParent(WorkersBorn(tuple(self._identities.values())))",
               "the same word again says the same"),
    Equivalent(_WORKERS, "Workers.connect", "sent-twice", """yield TellChild(node, WorkerRecipe(
                config=config, files=files, rank=rank, init_method="file://" + files.file("process-group"),
                rpc_handle=handle, frontend=recipe.frontend, engine_index=recipe.engine_index,
                local_dp_rank=recipe.local_dp_rank, across=across(rank)))""",
               "a child reads one recipe, and throws away what comes after it while it waits for its parent's end"),
    Equivalent("engine/executor/multiproc.py", "MultiprocExecutor._read_answers", "statement-gone", "return read_any",
               "ranks answer in the order of the calls, which are waited for in that order: behind one answer of each "
               "rank that has one, there is none to the call that is waited for"),
    Equivalent(_WORKERS, "Workers._watch", "effects-swapped",
               "yield Cancel(PeerDeadError(text))\n        yield Put(self._told, WorkerDeadError(text))",
               "both end the main thread, by the same words"),
    Equivalent(_WORKERS, "Workers._watch", "sent-twice", "yield Put(self._told, WorkerDeadError(text))",
               "the main thread ends by the first one"),
    Equivalent(_WORKERS, "Workers.stop", "no-deadline", "(yield Now()) + terminate_s", "who was killed is gone soon"),
    Equivalent("engine/wire/wiring.py", "overflow_socket", "off-by-one", "0",
               "who sends to all has no one peer", "1", behind="peer="),
    Equivalent(_WORKER, "worker_life", "off-by-one", "1", "any code but 0 is the same to its parent, who knows why",
               "2"),
    Equivalent(_WORKER, "worker_life", "effects-swapped",
               'yield MarkPoint(Mark.BORN)\n    yield beside("parent-watch", _watch_parent(recipe))',
               "neither is seen by what the other one does"),
    Equivalent(_WORKER, "_start", "sent-twice", "yield TellParent(WorkerReady(rank, handle))",
               "the same word again says the same"),
    Equivalent("engine/executor/calls.py", "CallTable.open", "statement-gone",
               'raise ValueError(f"output_rank must lie between 0 and {self.ranks - 1}, got {output_rank}")',
               "a step asks for rank 0, which every engine has, and all else asks for all ranks"),
    Equivalent("engine/executor/calls.py", "CallTable.expire", "statement-gone", "del self._open[call.call_id]",
               "a core whose call has expired leaves, and reads no more answers"),
    Equivalent("engine/executor/calls.py", "CallTable.expire", "off-by-one", "now >= call.deadline",
               "the instant itself: a clock has moved on by the next look", "now > call.deadline"),
    Equivalent("engine/process/liveness.py", "Liveness.__init__", "off-by-one", "1",
               "a beat that has been is no number below 0", "2"),
    Equivalent("engine/process/liveness.py", "Liveness.__init__", "statement-gone", "self._since = now",
               "beats count from 0, so the first tick sees one that it has not seen, and sets it"),
    Equivalent(_CODEC, "decode_request", "off-by-one", "8", _LOGGED, "9"),
    Equivalent("engine/wire/handshake.py", "_greeting", "statement-gone", 'return ""', "None is as empty as no text"),
    Equivalent("engine/wire/handshake.py", "_missing", "statement-gone", 'raise AssertionError("nothing is missing")',
               "it is called when something is"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "off-by-one", "1", _LOGGED, "2"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "off-by-one", "0", _LOGGED, "1"),
    Equivalent("engine/process/operator_log.py", "OperatorLog.line", "statement-gone",
               "self._logged[name] = at, passed_over + 1", _LOGGED),
    *(Equivalent("engine/worker/async_output.py", function, operator, old, _NO_MORE_CALLS, new)
      for function, operator, old, new in (
          ("LateAnswers.give", "statement-gone",
           'raise RuntimeError(f"{self._most} answers wait for the {COPY} thread, which may have no more: it hangs")',
           None),
          ("answers_of", "off-by-one", "2", "3"))),
    Equivalent("engine/core/batch_queue.py", "BatchQueue.oldest", "branch-never-taken", "result is None", _SAMPLED),
    Equivalent("engine/core/batch_queue.py", "BatchQueue.oldest", "statement-gone",
               'raise RuntimeError(f"step {scheduled.step}: the workers had nothing to sample")', _SAMPLED),
    Equivalent("engine/worker/phases.py", "Phases.execute", "branch-never-taken", "self._kept is not None", _PAIRED),
    Equivalent("engine/worker/phases.py", "Phases.execute", "statement-gone",
               'raise RuntimeError("the last step has not been sampled: sample_tokens comes before the next '
               'execute_model")', _PAIRED),
    Equivalent("engine/process/beside.py", "_or_leave", "exception-swallowed", "raise",
               "a thread whose wait is cancelled ends without a word to anybody, by that error or without"),
    Equivalent("engine/process/beside.py", "_or_leave", "effects-swapped",
               'yield LogLine(text, error)\n        yield Observe("bye", {"reason": text})', _FOR_AN_OPERATOR),
    Equivalent("engine/process/beside.py", "_or_leave", "statement-gone", "yield LogLine(text, error)",
               _FOR_AN_OPERATOR),
    Equivalent("engine/process/beside.py", "_or_leave", "off-by-one", "1",
               "any code but 0 is the same to its parent, who tells of its end by its name", "2"),
    Equivalent(_WORKER, "_start", "effects-swapped",
               "yield MakeWorker(config, rank, config.grid.size, recipe.init_method, recipe.across, "
               "recipe.local_dp_rank)\n    yield MarkPoint(Mark.LOADING)",
               "an object that has loaded nothing is seen by nobody"),
    Equivalent("engine/executor/calls.py", "CallTable.open", "branch-never-taken",
               "output_rank is not None and not 0 <= output_rank < self.ranks", _RANK),
    Equivalent("engine/executor/calls.py", "CallTable.open", "off-by-one", "1", _RANK, "2",
               behind="must lie between 0 and {self.ranks - "),
)
