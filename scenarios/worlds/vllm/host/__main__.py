"""`VLLM_PYTHON -m scenarios.worlds.vllm.host FD`: imports vLLM once, then forks a caller for each word that comes.

A fork of it starts an engine in a second or two, where a new interpreter takes ten. It has one thread, no ZMQ context
and no engine of its own. When the lab is gone it ends all that is left of its plays, and itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from scenarios.worlds.vllm.host.isolation import SHM, adopt_orphans, end_descendants, own_shared_memory, settle
from scenarios.worlds.vllm.host.recipe import (
    PACKET_BYTES,
    Ended,
    Failed,
    Ready,
    Recipe,
    Shared,
    Start,
    Started,
    decode,
    encode,
)

Main = Callable[[Recipe, int], None]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lab = socket.socket(fileno=int(sys.argv[1]))
    adopt_orphans()
    try:
        from scenarios.worlds.vllm.host import caller, offline, served

        version = caller.prepare()
    except Exception as error:
        traceback.print_exc()
        lab.send(encode(Failed(f"{type(error).__name__}: {error}")))
        return
    lab.send(encode(Ready(version)))
    wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        _fork_callers(lab, (wakes, wake), lambda recipe: served.main if recipe.over_http else (
            offline.main if recipe.synchronous else caller.main))
    finally:
        end_descendants()


def _fork_callers(lab: socket.socket, own: tuple[int, int], main_of: Callable[[Recipe], Main]) -> None:
    """As long as the lab is there."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            ready, _, _ = select.select([lab, own[0]], [], [])
            if own[0] in ready:
                os.read(own[0], 4096)
                _reap(lab)
            if lab in ready and not _serve(lab, main_of, own):
                return


def _serve(lab: socket.socket, main_of: Callable[[Recipe], Main], own: tuple[int, int]) -> bool:
    """-> whether the lab is still there"""
    data, descriptors, _, _ = socket.recv_fds(lab, PACKET_BYTES, 1)
    if not data:
        return False
    word = decode(data)
    assert isinstance(word, Start)
    pid = os.fork()
    if pid:
        os.close(descriptors[0])
        lab.send(encode(Started(word.number, pid)))
        return True
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        _log_to(word.recipe.log)
        _share(lab, word)
        settle(word.recipe.environment)
        main_of(word.recipe)(word.recipe, descriptors[0])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # As an interpreter that ends: what was registered to run then is run, child processes are joined.
        _exit(code)
    return False


def _exit(code: int) -> None:
    import atexit
    import threading

    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        os._exit(code)


def _share(lab: socket.socket, word: Start) -> None:
    why_not = own_shared_memory() if word.recipe.isolated else "it was not asked for"
    if why_not is None:
        fd = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(lab, [encode(Shared(word.number))], [fd])
        os.close(fd)
    else:
        lab.send(encode(Shared(word.number, why_not)))
    lab.close()


def _log_to(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _reap(lab: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        lab.send(encode(Ended(pid, os.waitstatus_to_exitcode(status))))


if __name__ == "__main__":
    main()
