"""Of the ring."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_RING, _QUEUE, _FRAMING, _READINESS = (
    f"engine/ipc/{name}.py" for name in ("ring", "queue", "framing", "readiness"))

_MEM = ("the order of stores: where the twin runs, and on x86, a fence does nothing; tests/explorer tells "
        "them apart under PSO")
_MORE = ("it says too often that there is something large: `_lend` looks itself and finds nothing, which only "
         "takes time")
_COPY = "a buffer that is not called lent is copied by its reader, who gets the same object later"
_GENERAL = "the general way below it makes the same of such a chunk, later"
_WARM = "what is made warm is the same when it is cold"
_REUSE = "which memory a reader's copy lies in: a fresh one holds the same, and takes a page fault more"
_BELL = "the second ring finds nobody asleep: the first one has woken them, and each wake-up leads to a look"
_READY = "who has heard READY_FRAME once hears nothing new by a second one"
_PLACE = "a message may lie at its own chunk's place or at another free one's: its flag says where"
_BOTH = "a queue has readers on other hosts and a socket for them, or neither"
_TEXT = "how a mark prints itself; nobody reads it but a person in a debugger"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(_RING, "RingWriter.try_write", "statement-gone", "self._fence()", _MEM),
    Equivalent(_RING, "RingReader.try_read", "statement-gone", "self._fence()", _MEM),
    Equivalent(_RING, "RingReader._free", "statement-gone", "self._fence()", _MEM),
    Equivalent(_RING, "RingWriter.try_write", "off-by-one",
               "size <= GATHER_BYTES",
               "the same bytes stand there before the flag, joined before or one after the other"),
    Equivalent(_RING, "RingWriter.try_write", "condition-turned",
               "size <= GATHER_BYTES",
               "the same bytes stand there before the flag, joined before or one after the other"),
    Equivalent(_RING, "_Empty.__repr__", "statement-gone", 'return "EMPTY"', _TEXT),
    Equivalent(_FRAMING, "_Overflow.__repr__", "statement-gone", 'return "OVERFLOW"', _TEXT),
    Equivalent(_FRAMING, "_has_large", "statement-gone", "return False", "None is as false"),
    Equivalent(_FRAMING, "_has_large", "off-by-one", "1", _MORE, "2"),
    Equivalent(_FRAMING, "_has_large", "condition-turned",
               "depth and len(obj) <= _LOOK_ITEMS",
               _MORE, "((depth) or (len(obj) <= _LOOK_ITEMS))"),
    Equivalent(_FRAMING, "encode_chunk", "off-by-one",
               "len(encoded) <= _MAX_LENGTH",
               "a pickle of 4 GiB: no ring has such chunks"),
    Equivalent(_FRAMING, "_encoded", "exception-swallowed",
               "return _encode_buffers(obj, {})",
               "what follows pickles the object as it is, too"),
    Equivalent(_FRAMING, "_encoded", "off-by-one",
               "len(raw) < MAX_BUFFERS",
               "`_encode_buffers` makes the same of it, and of 65,535 buffers of 64 KiB nobody makes an object"),
    Equivalent(_FRAMING, "_encoded", "off-by-one",
               "min(map(len, raw)) >= OUT_OF_BAND_BYTES",
               "`_encode_buffers` makes the same of it"),
    Equivalent(_FRAMING, "_encode_buffers", "statement-gone", "return False", "a pickler takes None for False"),
    Equivalent(_FRAMING, "_encode_buffers", "branch-never-taken", "any(lent)", _COPY),
    Equivalent(_FRAMING, "_encode_buffers", "condition-turned", "any(lent)", _COPY),
    Equivalent(_FRAMING, "_encode_buffers", "statement-gone", "buffers[0] += _LENT + lent", _COPY),
    Equivalent(_FRAMING, "_encode_buffers", "statement-gone", "lent.append(id(buffer) in lending)", _COPY),
    Equivalent(_FRAMING, "loans_of", "condition-turned",
               "len(end) == len(_LENT) + count",
               _COPY, "len(end) != len(_LENT) + count"),
    Equivalent(_FRAMING, "loans_of", "condition-turned", "count", _COPY, "not (count)"),
    Equivalent(_FRAMING, "unpack", "branch-never-taken",
               "flag == 0 and count == 1 and length <= len(view) - _HEAD.size",
               _GENERAL),
    Equivalent(_FRAMING, "unpack", "off-by-one", "length <= len(view) - _HEAD.size", _GENERAL),
    Equivalent(_FRAMING, "object_taker", "branch-never-taken",
               "flag == 0 and count == 1 and length <= len(view) - begin",
               _GENERAL),
    Equivalent(_FRAMING, "object_taker", "off-by-one", "length <= len(view) - begin", _GENERAL),
    Equivalent(_FRAMING, "object_taker", "exception-swallowed",
               "return decode((view[begin:begin + length],)), length",
               _GENERAL),
    Equivalent(_FRAMING, "object_taker", "branch-never-taken",
               "count == 2 and length <= _WHOLE_BYTES and (kind := _WHOLE_KINDS.get(bytes(parts[0]))) is not None",
               _GENERAL),
    Equivalent(_FRAMING, "object_taker", "condition-turned", "count == 2", _GENERAL),
    Equivalent(_FRAMING, "object_taker", "off-by-one", "2", _GENERAL),
    Equivalent(_FRAMING, "object_taker", "off-by-one", "length <= _WHOLE_BYTES", _GENERAL),
    Equivalent(_FRAMING, "rehearsal", "statement-gone", "take(chunk)", _WARM),
    Equivalent(_FRAMING, "rehearsal", "statement-gone", "encode_chunk(None)", _WARM),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "branch-never-taken",
               "len(buffer) == size and sys.getrefcount(buffer) <= _UNUSED",
               _REUSE),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "branch-never-taken", "size <= MAX_KEPT_BYTES", _REUSE),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "off-by-one", "sys.getrefcount(buffer) <= _UNUSED", _REUSE),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "off-by-one", "size <= MAX_KEPT_BYTES", _REUSE),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "condition-turned", "size <= MAX_KEPT_BYTES", _REUSE),
    Equivalent(_FRAMING, "ReceiveBuffers.own", "statement-gone",
               "self._buffers = [buffer, *self._buffers[:KEPT_BUFFERS - 1]]",
               _REUSE),
    Equivalent(_QUEUE, "QueueReader.try_dequeue", "sent-twice", "yield RingBell(self.space_bell)", _BELL),
    Equivalent(_QUEUE, "QueueReader.__init__", "statement-gone",
               "self._rings = False",
               "it is said of each message that is read, before it is asked"),
    Equivalent(_RING, "RingWriter.try_write", "off-by-one", "size < self.moves_from", _PLACE),
    Equivalent(_RING, "RingWriter._exchanged", "off-by-one", "1", _PLACE, "2"),
    Equivalent(_RING, "RingWriter._exchanged", "off-by-one", "min",
               "beyond the ring's size stands the chunk itself, which changes places with itself, and those that were "
               "looked at; one that was never written has not been read by all", "max"),
    Equivalent(_RING, "RingWriter.check_integrity", "off-by-one", "chunk < self._position",
               "the chunk of that very number is the next one, which is left out", "chunk <= self._position"),
    Equivalent(_FRAMING, "_lend", "branch-never-taken", "len(obj) < OUT_OF_BAND_BYTES",
               "a small one that is lent stays in the pickle all the same, and comes out as it was"),
    Equivalent(_FRAMING, "ends_with_ready", "off-by-one", "1",
               "any byte more than the word has tells another word", "2"),
    Equivalent(_QUEUE, "QueueWriter._send_payload", "condition-turned",
               "self.unsent is not None and self.overflow_outbox is not None",
               "an assertion: whoever calls has looked, so both hold",
               "((self.unsent is not None) or (self.overflow_outbox is not None))"),
    Equivalent(_QUEUE, "QueueWriter._send_payload", "sent-twice", "yield Send(self.overflow_outbox, before)", _READY),
    Equivalent(_READINESS, "wait_for_readers", "sent-twice", "yield Send(outbox, [READY_FRAME])", _READY),
    Equivalent(_READINESS, "wait_for_readers", "condition-turned",
               "remotes is not None and queue.remote_outbox is not None", _BOTH,
               "((remotes is not None) or (queue.remote_outbox is not None))"),
    Equivalent(_READINESS, "_note", "sent-twice", "yield Send(socket, [refusal])",
               "who is refused leaves at the first word"),
    Equivalent(_QUEUE, "QueueWriter._send_remote", "statement-gone", "return True", "None is not EMPTY either"),
)
