"""Of files that only real processes run, waits apart."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_TITLE = "a name for people, in `ps` and in logs"
_UNASKED = "whoever waits looks then, whatever the wait says of itself"
_OFTEN = "who looks at each wake-up whether the wait should end, and not every tenth of a second, finds the same"
_FLUSHED = "multiprocessing flushes both where a process ends"
_AGAIN = "what was given back is given back again, which does nothing"
_BY_SOCKET = "a payload that does not go by shared memory goes by the socket, as it is, and takes longer"
_NOTICE = "who does not see the bell at once sleeps until its notice comes, which follows it"

_IMMUTABLE = "bytes never change: whether they are copied, kept here or kept by ZMQ's own bindings, the same arrives"
_SIZES = "a ring, a heartbeat and a payload that goes beside a ring have more than a byte each"

_SOCKETS, _SEGMENT = "engine/wire/sockets.py", "engine/ipc/segment.py"
_END, _SPILL, _NOTIFY = "engine/ipc/end.py", "engine/ipc/spill.py", "engine/ipc/notify.py"

SHELLS: tuple[Equivalent, ...] = (
    Equivalent("engine/process/children.py", "set_process_title", "off-by-one", "15", _TITLE),
    Equivalent("engine/process/identity.py", "own_identity", "off-by-one", "0",
               "a process that runs has a time at which it started"),
    Equivalent(_END, "_CheckedBell.wait", "statement-gone", "return rang", _UNASKED),
    Equivalent(_END, "_CheckedBell.wait", "statement-gone", "self._checked_at = now", _OFTEN),
    Equivalent(_END, "QueueEnd._release", "branch-never-taken", "self.released", _AGAIN),
    Equivalent(_END, "_CheckedBell.wait", "off-by-one",
               "(now := self._clock.monotonic()) - self._checked_at >= PEER_CHECK_S", _OFTEN),
    Equivalent("engine/process/real_ports.py", "RealPorts.close", "statement-gone", "self._children.clear()", _AGAIN),
    Equivalent("engine/process/real_ports.py", "RealPorts.close", "statement-gone", "self._segments.clear()", _AGAIN),
    Equivalent("engine/process/entry.py", "child_main", "statement-gone", "sys.stdout.flush()", _FLUSHED),
    Equivalent("engine/process/entry.py", "child_main", "statement-gone", "sys.stderr.flush()", _FLUSHED),
    Equivalent("engine/frontend/client.py", "EngineCoreClient.pump", "statement-gone", "return False",
               "who asks takes nothing at all for no, too"),
    Equivalent("engine/worker/parallel/pipe.py", "SharedMemoryPipe.__init__", "off-by-one", "1",
               "each word of a line does that nothing else uses", "2", behind="headers[::per_line], headers["),
    Equivalent("engine/worker/parallel/shared_memory.py", "SharedMemoryCommunicator.__init__", "off-by-one", "3",
               "at words that are too many nobody looks", "4", behind="self._view[LINE:LINE * (1 + "),
    Equivalent("engine/kv_events/subscriber/process.py", "KVEventSubscriber.__aiter__", "off-by-one", "1",
               "of its thread one thing at a time is asked"),
    Equivalent(_SPILL, "SpillWriter.send", "condition-turned", "position is not None", _BY_SOCKET, "position is None"),
    Equivalent(_NOTIFY, "NotifiedBell.wait", "branch-never-taken", "self._bell.wait(seen, min(SPIN_S, timeout_s))",
               _NOTICE),
    Equivalent(_NOTIFY, "NotifiedBell.wait", "statement-gone", "return True", _UNASKED),
    Equivalent(_NOTIFY, "NotifiedBell.wait", "statement-gone", "return self._bell.seen() != seen", _UNASKED),
    Equivalent("engine/ipc/remote.py", "NoBell.seen", "statement-gone", "return 0",
               "what was seen of it is told to it alone, and it looks at no word"),
    Equivalent(_END, "QueueEnd._release", "statement-gone", "self.memory = self.presence = None",
               "who comes later is refused by its turn, and what its ports have released cannot be read"),
    Equivalent(_SOCKETS, "ZmqSocket.send", "condition-turned", "type(frame) is bytes and len(frame) < ZERO_COPY_BYTES",
               _IMMUTABLE, "((type(frame) is bytes) or (len(frame) < ZERO_COPY_BYTES))"),
    Equivalent(_SOCKETS, "ZmqSocket.send", "off-by-one", "len(frame) < ZERO_COPY_BYTES", _IMMUTABLE),
    Equivalent(_SOCKETS, "ZmqSocket._as_frame", "off-by-one", "memoryview(data).nbytes < ZERO_COPY_BYTES",
               "what is copied at once arrives as it was"),
    Equivalent(_SEGMENT, "create_segment", "branch-never-taken", "size < 1", _SIZES),
    Equivalent(_SEGMENT, "create_segment", "off-by-one", "size < 1", _SIZES),
    Equivalent(_SEGMENT, "create_segment", "off-by-one", "1", _SIZES),
    Equivalent(_SEGMENT, "create_segment", "statement-gone",
               'raise ValueError(f"a segment needs at least one byte, got {size}")', _SIZES),
    Equivalent("engine/kv_events/publisher/handover.py", "NappingQueue.__init__", "statement-gone",
               "self._wake.acquire()", "the first nap of all ends at once"),
    Equivalent("engine/process/answers/threads.py", "Threads._start", "exception-swallowed", "return",
               "nothing stands behind it", "pass"),
    Equivalent("engine/process/consensus/introductions.py", "_ask", "off-by-one", "now() < deadline",
               "no look at a clock falls on the moment itself, and one that did would ask for no time",
               "now() <= deadline"),
    Equivalent("engine/worker/attention.py", "make_plan", "off-by-one", "chunk.count > 1",
               "a chunk of one token is a prefill of one query, too, with the same tokens and more time",
               "chunk.count >= 1"),
    Equivalent("engine/worker/parallel/distributed.py", "ProcessGroup._coordinator", "off-by-one", "len(mine) > 1",
               "a group of one says nothing to anybody", "len(mine) >= 1"),
)
