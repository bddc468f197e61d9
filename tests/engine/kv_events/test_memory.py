"""A subscriber that stands still costs a publisher no more memory than its bounds say."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("zmq")

#: Publishes to a connected subscriber that reads one batch and then no more; says how its memory grew, in bytes:
#: while window and high-water mark fill, and over four times as many batches behind that.
PUBLISHER = """
import sys, time
import zmq
from engine.core.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

WINDOW, HWM, TOKENS, BATCHES = map(int, sys.argv[1:])

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def batch(number):
    return KVEventBatch(0.0, [BlockStored([number % 8], None, [1000 + number % 8] * TOKENS, TOKENS, None)])

publisher = ZmqEventPublisher(0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", buffer_steps=WINDOW, hwm=HWM,
                              max_queue_size=100, socket_buffer_bytes=4096)
reader = zmq.Context.instance().socket(zmq.SUB)
reader.setsockopt(zmq.RCVHWM, 1)
reader.setsockopt(zmq.RCVBUF, 4096)
reader.setsockopt(zmq.SUBSCRIBE, b"")
reader.connect(publisher.address)

def publish(count):
    for number in range(count):
        while publisher.log.waiting >= 100:
            time.sleep(0.0005)
        publisher.publish(batch(number))
    while publisher.log.waiting:
        time.sleep(0.0005)

while not reader.poll(10):
    publish(1)
began = resident()
publish(BATCHES)
full = resident()
publish(4 * BATCHES)
later = resident()
assert not publisher.log.lost_at_full_queue
size = len(reader.recv_multipart()[2])
reader.close(0)
publisher.shutdown()
print(full - began, later - full, size)
"""


def test_memory_stays_within_window_and_high_water_mark() -> None:
    """Batches of some 6 kB: 600 in the window and 500 for the subscriber are 7 MB; 15,000 batches would be 90 MB."""
    window, hwm, batches = 600, 500, 3000
    done = subprocess.run([sys.executable, "-c", PUBLISHER, *map(str, (window, hwm, 2000, batches))],
                          check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    filled, more, size = map(int, done.stdout.split())
    assert size > 4000
    bound = 2 * (window + hwm) * size  # what an allocator takes besides is less than as much again
    assert filled < bound, f"{filled} bytes for a window of {window} and a high-water mark of {hwm}, {size} bytes each"
    assert more < bound / 4, f"{more} more bytes while nothing more may be kept"
