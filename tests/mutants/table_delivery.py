"""Bugs between frontend and core: frames that are lost, swapped, changed or sent too soon; frames that are none."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

HIGH_WATER_MARK = Mutant(
    id="high-water-mark", scenario="test_burst_each_way_with_pausing_readers",
    bug="The socket for requests keeps libzmq's high-water mark of 1,000 at both ends, and drops what is beyond.",
    breaks=these("hwm0-no-loss"),
    edits=(
        Edit("engine/wire/wiring.py", "send_hwm=sockets.request_hwm,\n                   mandatory="
             "sockets.router_mandatory,", "send_hwm=1000,\n                   mandatory=False,"),
        Edit("engine/wire/wiring.py", "receive_hwm=config.sockets.request_hwm", "receive_hwm=1000"),
        # Who waits for the answers to what was lost would hold the play up for ever; and not a minute of a real one.
        Edit("scenarios/test_transport.py",
             "            hang(\"frontend.0\", at=f\"{OUTPUTS}:receive\", nth=100, until=until(f\"{OUTPUTS}:send\", "
             "9_500))))\n", "            ))\n"),
        Edit("scenarios/test_transport.py", "\"request_s\": 60.0", "\"request_s\": 10.0")))

NEWEST_FIRST = Mutant(
    id="newest-first", scenario="test_burst_each_way_with_pausing_readers",
    bug="Whoever reads a socket takes what has come last.",
    breaks=these("edge-fifo"),
    edits=(
        Edit("engine/wire/sockets.py", "    def try_receive(self) -> tuple[Any, list[Any]] | None:\n",
             "    def try_receive(self) -> tuple[Any, list[Any]] | None:\n"
             "        come = self.__dict__.setdefault(\"come\", [])\n"
             "        while (message := self._next_one()) is not None:\n"
             "            come.append(message)\n"
             "        return come.pop() if come else None\n\n"
             "    def _next_one(self) -> tuple[Any, list[Any]] | None:\n"),
        Edit("sim/transport/zmq_model.py", "link, message = self.arrived.popleft()",
             "link, message = self.arrived.pop()")))

PLAIN_ROUTER = Mutant(
    id="plain-router", scenario="test_request_for_a_core_that_has_disconnected",
    bug="The socket for requests is a plain ROUTER: what is for nobody is dropped without a word.",
    breaks=these("unroutable-is-known"),
    edits=(Edit("engine/wire/wiring.py", "mandatory=sockets.router_mandatory", "mandatory=False"),))

BUFFER_REUSED = Mutant(
    id="buffer-reused", scenario="test_core_exits_behind_a_slow_reader",
    bug="Outputs are encoded into one buffer, whether or not the socket has sent what it held before.",
    breaks=these("frames-intact"), along=these("hwm0-no-loss", "edge-fifo", "bad-frame-isolated", "dead-notice"),
    edits=(
        Edit("engine/wire/codec.py", "    return [_encode(outputs), *apart.frames]\n",
             "    encoded = _encode(outputs)\n"
             "    if len(encoded) < 64 << 10:\n"
             "        return [encoded, *apart.frames]\n"
             "    _buffer[:len(encoded)] = encoded\n"
             "    return [memoryview(_buffer)[:len(encoded)]]\n\n\n"
             "_buffer = bytearray(1 << 20)\n"),))

HELLO_IS_READY = Mutant(
    id="hello-is-ready", scenario="test_nothing_goes_wrong",
    bug="HELLO is taken for READY: work is sent while the core still loads.",
    breaks=these("handshake-order/order"),
    edits=(
        Edit("engine/wire/handshake.py", "    while len(ready) < len(engines) or len(announced) < len(engines):\n",
             "    while len(ready) < len(engines):\n"),
        Edit("engine/wire/handshake.py", "        greeted[peer] = greeting\n",
             "        greeted[peer] = greeting\n        ready[peer] = 0\n")))

BLOCKS_GUESSED = Mutant(
    id="blocks-guessed", scenario="test_ready_is_late",
    bug="The frontend takes the number of blocks from a default of its own, not from READY.",
    breaks=these("handshake-order/agreement"),
    edits=(Edit("engine/wire/handshake.py", "    ready[peer] = greeting.num_gpu_blocks\n", "    ready[peer] = 512\n"),))

BAD_FRAME_ENDS_OTHERS = Mutant(
    id="bad-frame-ends-others", scenario="test_frames_that_are_no_requests",
    bug="After a frame that it cannot read the core trusts nobody: it gives up whatever its client had asked for.",
    breaks=these("bad-frame-isolated/request"),
    along=these("tokens-match-reference", "blocks-conserved", "served-in-turn"),
    edits=(Edit("engine/core/engine_core.py",
                "        elif isinstance(item, MalformedRequest):\n",
                "        elif isinstance(item, MalformedRequest):\n"
                "            for request_id in list(self.scheduler.requests):\n"
                "                self.scheduler.abort_requests([request_id])\n"
                "                yield from self._reject(request_id, 0, FinishReason.ERROR, item.error)\n"),))

BAD_COPY_ENDS_ITS_REQUEST = Mutant(
    id="bad-copy-ends-its-request", scenario="test_frames_that_bear_the_id_of_a_request",
    bug="Whoever a frame names that cannot be read is told that it was bad, and has come whole long ago.",
    breaks=these("bad-frame-isolated/request"),
    along=these("nothing-without-cause", "tokens-match-reference", "tokens-in-order", "bad-request-isolated"),
    edits=(Edit("engine/core/engine_core.py",
                "            if item.request_id is not None and not self.scheduler.knows(item.request_id):\n",
                "            if item.request_id is not None:\n"),))

BUFFERS_AS_THEY_COME = Mutant(
    id="buffers-as-they-come", scenario="test_buffers_of_a_call_are_swapped",
    bug="A buffer is taken for the one that stands in its place, whatever the body says of it.",
    breaks=these("bad-frame-isolated/buffers"), along=these("no-foreign-code"),
    edits=(Edit("engine/wire/buffers.py", "        if crc32(buffer) != checksum:\n            raise BadFrameError("
                "f\"buffer {index} is not the one that the body names\")\n", ""),))

CHECKSUM_NOT_READ = Mutant(
    id="checksum-not-read", scenario="test_end_of_an_answer_is_changed",
    bug="The checksum of a report and of a place is sent, and whoever takes them does not look at it.",
    breaks=these("bad-frame-isolated/checksum"), along=these("no-foreign-code"),
    edits=(Edit("engine/kv_events/codec.py",
                "    if check and int.from_bytes(check, \"big\") != zlib.crc32(body, zlib.crc32(payload)):\n"
                "        raise BadFrameError(f\"the checksum of {what} is wrong\")\n", ""),))

BUFFERS = "engine/wire/buffers.py"

ALL_APART = Mutant(
    id="all-apart", scenario="test_prompts_travel_beside_their_requests",
    bug="Whatever numbers a message has are a frame of their own.",
    breaks=these("large-apart/small"),
    edits=(Edit(BUFFERS, "if len(values) * _INTEGER_BYTES < self._threshold or len(self", "if len(self"),))

NOT_WITHIN = Mutant(
    id="not-within", scenario="test_call_has_values_of_all_kinds",
    bug="What is large within a list or a map stays there.",
    breaks=these("large-apart/large"),
    edits=(Edit(BUFFERS, "_DEPTH = 8\n", "_DEPTH = 1\n"),))

DELIVERY_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
