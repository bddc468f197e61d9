"""What each process does first that this program has forked for a part of its work."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def ends_with(parent: int) -> bool:
    """From now on it is killed with its parent, and Ctrl-C is the parent's alone: a terminal sends it to all.

    -> False: the parent has gone before
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return os.getppid() == parent
