"""Controls: the suspected mechanism of a finding mended, so that the same play turns green if it was that.

A mend is no proposal of a patch. It changes as little as shows where the fault lies.
"""

from __future__ import annotations

import msgspec

from scenarios.worlds.vllm.edits.edit import Edit, begins, both, called_by, does, reads, rescues


class Mend(msgspec.Struct, frozen=True):
    sentence: str
    edits: tuple[Edit, ...]


#: A thread that waits for the end of whoever started this process, and then has it leave as if it had been asked to.
_LEAVES_WITH_ITS_PARENT = """
import os, select, signal, threading
_parent = os.pidfd_open(os.getppid())
threading.Thread(target=lambda: (select.select([_parent], [], []), os.kill(os.getpid(), signal.{signal})),
                 daemon=True).start()
"""
_KEPT_OPEN = """
import os
return [os.pidfd_open(process.pid) for process in self.processes]
"""

#: The wait of a start for its cores, with the time-out that is documented for it.
_IN_TIME = """
import time as _time
from vllm import envs as _envs
_until = _time.monotonic() + _envs.VLLM_ENGINE_READY_TIMEOUT_S
def _poll(poller, milliseconds):
    if _time.monotonic() > _until:
        raise TimeoutError("a core was not ready in time")
    return poller.poll(min(milliseconds, 200))
"""
#: Answers of one worker come in the order of the calls that it has to answer: what is left of an older one is passed.
_IN_TURN = """
_all = kv_output_aggregator or ec_output_aggregator or unique_reply_rank is None
_due = {}
for _queue in (self.response_mqs if _all else [self.response_mqs[unique_reply_rank]]):
    _queue.asked = _due[id(_queue)] = getattr(_queue, "asked", 0) + 1
def _answer_of(queue, timeout):
    while True:
        answer = queue.dequeue(timeout=timeout)
        queue.read = getattr(queue, "read", 0) + 1
        if queue.read == _due[id(queue)]:
            return answer
"""
#: Whoever waits for a call when the last word of the core's process has come is told that it is dead.
_OPEN_CALLS_END = """
from concurrent.futures import Future as _Waited
_manager, _calls = self.resources.engine_manager, self.utility_results
_watch = _manager.monitor_engine_liveness
def _end(future):
    if not future.done():
        future.set_exception(EngineDeadError())
def _watched():
    _watch()
    for future in list(_calls.values()):
        if isinstance(future, _Waited):
            _end(future)
        else:
            future.get_loop().call_soon_threadsafe(_end, future)
_manager.monitor_engine_liveness = _watched
"""
_LOOKS_WHILE_IT_WAITS = """
import time
while self.outputs_queue.empty():
    if self.resources.engine_dead:
        raise EngineDeadError()
    time.sleep(0.005)
"""
_STREAMS_END = """
from vllm.v1.engine.exceptions import EngineDeadError as _Dead
if getattr(self, "output_processor", None) is not None:
    self.output_processor.propagate_error(_Dead())
"""
_FAILS_ALONE = """
import types as _types
import msgspec as _msgspec
known = _msgspec.msgpack.decode(data_frames[0].buffer)
self._handle_request_validation_error(_types.SimpleNamespace(request_id=known[0], client_index=0),
                                      VLLMValidationError("it cannot be decoded"))
continue
"""
_SAYS_SO = """
from vllm.v1.engine import UtilityOutput as _Said
if outputs.utility_output is None:
    raise
outputs.utility_output = _Said(outputs.utility_output.call_id, failure_message=f"cannot be sent: {_error}")
buffer = bytearray()
buffers = encoder.encode_into(outputs, buffer)
"""
_FORGETS_IT = "self.output_processor.abort_requests([request.request_id], internal=True)\nraise"
#: A coordinator's end is what a core's end is.
_IS_WATCHED = """
import asyncio as _asyncio
import multiprocessing.connection as _connection
import threading as _threading
import time as _time
_coordinator, _loop = self.resources.coordinator, _asyncio.get_running_loop()
def _watch_coordinator():
    _connection.wait([_coordinator.proc.sentinel])
    if self._finalizer.alive:
        self.resources.engine_dead = True
        _loop.call_soon_threadsafe(self.outputs_queue.put_nowait, EngineDeadError())
        _time.sleep(0.1)
        self.shutdown()
if _coordinator is not None:
    _threading.Thread(target=_watch_coordinator, daemon=True).start()
"""
#: Before a manager asks others to leave because one of its cores has died, its client is told.
_TOLD_FIRST = """
import asyncio as _asyncio
_manager, _loop = self.resources.engine_manager, _asyncio.get_running_loop()
_leave = _manager.shutdown
def _tell_and_leave(timeout=None):
    if self._finalizer.alive and not self.resources.engine_dead:
        self.resources.engine_dead = True
        heard = _asyncio.run_coroutine_threadsafe(_put(self.outputs_queue), _loop)
        heard.result(1.0)
    _leave(timeout)
async def _put(queue):
    queue.put_nowait(EngineDeadError())
    await _asyncio.sleep(0.1)
_manager.shutdown = _tell_and_leave
"""
_NOT_PAUSED = """
from vllm.v1.core.sched.interface import PauseState as _PauseState
if self.scheduler.pause_state == _PauseState.UNPAUSED and not (self.pending_pause or self.ignore_start_dp_wave):
    return None
"""
#: One thread alone uses the socket: the first one that comes.
_ONCE = """
_me = object()
if self.__dict__.setdefault("_cancelled_by", _me) is not _me:
    return None
"""

_CLIENT = "vllm.v1.engine.core_client"
_CORE, _PROCESSES = "vllm.v1.engine.core", "vllm.v1.engine.utils"
_EXECUTOR = "vllm.v1.executor.multiproc_executor"

MENDS = {
    "core-watches-its-caller": Mend(
        "A core waits for the end of the process that started it, and leaves then.",
        (Edit(_CORE, "EngineCoreProc.run_engine_core", begins(_LEAVES_WITH_ITS_PARENT.format(signal="SIGTERM"))),)),
    "core-ends-its-workers": Mend(
        "A core that is leaving does not end by a signal before its workers have ended.",
        (Edit(_CORE, "EngineCoreProc.run_engine_core", reads("SIG_DFL", "SIG_IGN")),)),
    "start-looks-at-the-core-itself": Mend(
        "The start waits for the core's process and not for a pipe that its workers hold open, too; a worker looks at "
        "its parent from its first moment.",
        (Edit(_PROCESSES, "CoreEngineProcManager.sentinels", does(_KEPT_OPEN)),
         Edit(_EXECUTOR, "WorkerProc.worker_main", begins(_LEAVES_WITH_ITS_PARENT.format(signal="SIGKILL"))))),
    "cancels-once": Mend(
        "Of the threads that end a worker's waits for its ring one alone sends on the socket that they share.",
        (Edit("vllm.distributed.device_communicators.shm_broadcast", "SpinCondition.cancel", begins(_ONCE)),)),
    "start-has-a-bound": Mend(
        "A start waits for its cores no longer than the time-out of a start that is documented.",
        (Edit(_PROCESSES, "wait_for_engine_startup", both(called_by("poller.poll", "_poll"), begins(_IN_TIME))),)),
    "answers-in-their-turn": Mend(
        "A call passes over answers that older calls have left in the rings.",
        (Edit(_EXECUTOR, "MultiprocExecutor.collective_rpc",
              both(called_by("mq.dequeue", "_answer_of"), begins(_IN_TURN))),)),
    "open-calls-end-with-the-core": Mend(
        "The end of a core's process ends the calls that its client waits for.",
        (Edit(_CLIENT, "MPClient.start_engine_core_monitor", begins(_OPEN_CALLS_END)),)),
    "waits-and-looks": Mend(
        "A program that waits for outputs looks whether its engine lives.",
        (Edit(_CLIENT, "SyncMPClient.get_output", begins(_LOOKS_WHILE_IT_WAITS)),)),
    "streams-end-with-their-client": Mend(
        "A client that is closed ends its streams first.",
        (Edit("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", begins(_STREAMS_END)),)),
    "undecodable-request-fails-alone": Mend(
        "A request that cannot be decoded fails, and the thread that reads them goes on.",
        (Edit(_CORE, "EngineCoreProc.process_input_sockets", rescues("add_request_decoder.decode", _FAILS_ALONE)),)),
    "unsendable-answer-is-told": Mend(
        "Of an answer that cannot be encoded its caller is told so, and the thread that sends them goes on.",
        (Edit(_CORE, "EngineCoreProc.process_output_sockets", rescues("encoder.encode_into", _SAYS_SO)),)),
    "unsent-request-is-forgotten": Mend(
        "A request that could not be sent is counted no more.",
        (Edit("vllm.v1.engine.async_llm", "AsyncLLM._add_request", rescues(
            "self.engine_core.add_request_async", _FORGETS_IT)),)),
    "unsent-request-is-not-waited-for": Mend(
        "A program does not wait for a request that could not be sent.",
        (Edit("vllm.v1.engine.llm_engine", "LLMEngine.add_request", rescues(
            "self.engine_core.add_request", _FORGETS_IT)),)),
    "coordinator-is-watched": Mend(
        "A client looks at its coordinator as it looks at its cores.",
        (Edit(_CLIENT, "MPClient.start_engine_core_monitor", begins(_IS_WATCHED)),)),
    "death-is-told-first": Mend(
        "A client marks its engine dead, and tells its streams, before the other cores are asked to leave.",
        (Edit(_CLIENT, "MPClient.start_engine_core_monitor", begins(_TOLD_FIRST)),)),
    "who-has-not-paused-asks-nobody": Mend(
        "An engine that has not paused ignores a resume, whether it runs or not.",
        (Edit(_CORE, "DPEngineCoreProc.resume_scheduler", begins(_NOT_PAUSED)),)),
}
