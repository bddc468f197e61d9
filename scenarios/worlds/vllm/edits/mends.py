"""Controls: the suspected mechanism of a finding mended, so that the same play turns green if it was that.

A mend is no proposal of a patch. It changes as little as shows where the fault lies.
"""

from __future__ import annotations

import msgspec

from scenarios.worlds.vllm.edits.edit import Edit, begins, does, reads


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
