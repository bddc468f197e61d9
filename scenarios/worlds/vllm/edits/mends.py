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
}
