"""Two threads end a reader's wait at once, as a worker's do when its parent has died: does the reader leave?

Which of them comes first is chance. A few thousand tries take some seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from scenarios.worlds.vllm.findings.by_hand.common import prepared

TRIES = 10_000
#: A try takes less than a millisecond.
BOUND_S = 40.0


def _try_often(place: str) -> None:
    import zmq
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    context = zmq.Context()
    address = f"ipc://{place}/notify"
    context.socket(zmq.PUB).bind(address)
    for _ in range(TRIES):
        condition = SpinCondition(is_reader=True, context=context, notify_address=address)
        both = threading.Barrier(2)
        threads = [threading.Thread(target=lambda one=condition, when=both: (when.wait(), one.cancel()))
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for socket in (condition.local_notify_socket, condition.write_cancel_socket, condition.read_cancel_socket):
            socket.close(0)
    os._exit(0)


def main() -> bool:
    """-> whether all tries ended"""
    child = os.fork()
    if not child:
        _try_often(os.environ["TMPDIR"])
    ended, end = os.waitpid(child, os.WNOHANG), time.monotonic() + BOUND_S
    while not ended[0] and time.monotonic() < end:
        time.sleep(0.1)
        ended = os.waitpid(child, os.WNOHANG)
    if not ended[0]:
        print(f"of {TRIES} tries one has no end")
        return False
    how = os.waitstatus_to_exitcode(ended[1])
    print(f"{TRIES} tries have ended" if not how else f"of {TRIES} tries one ended the process ({how})")
    return not how


if __name__ == "__main__":
    with prepared("cancels-once"):
        kept = main()
    sys.exit(not kept)
