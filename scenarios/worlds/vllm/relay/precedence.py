"""What the lab does beside a vLLM is run before it, where the system allows that.

vLLM's workers and its core wait in loops that yield the processor. Where there are more of them than processors, a
process that sleeps and wakes may not be run for a second or two meanwhile (Linux 6.18: 2.0 s seen). A writer that
stands still at a store would stand so long, a message would lie so long in a relay, and a step's time-out would end
what no fault has touched.
"""

from __future__ import annotations

import os


def run_before_others() -> bool:
    """This process is from now on, as soon as it has something to do; its children are not. False: that is refused."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (OSError, AttributeError):  # not allowed, or not on this system
        return False
    return True
