"""A program that has sockets of its own, as the engine's processes open them."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import zmq

from engine.errors import ConfigError
from engine.ports import SocketSpec, Unroutable
from engine.topology import NodeKind
from engine.wire.places import SILENT_BEATS
from engine.wire.reserved import reserve
from engine.wire.sockets import LARGE_BUFFER_BYTES, ZERO_COPY_BYTES, ZmqSocket, buffer_bytes_for, memory_of
from engine.wire.wiring import identity_of
from scenarios.programs.asking import GONE_S, PATIENCE_S, Asking, has_ipv6, held, interrupting, no_more, until
from scenarios.programs.queues.opening import LOOPBACK

ANY_PORT = f"tcp://{LOOPBACK}:*"
#: How often a peer is asked whether it is there.
BEAT_S = 0.05
#: More than a socket of a high-water mark of one, and the system, take on their way.
MANY = 20_000
GIB = 1 << 30


def ask_sockets(ask: Asking) -> None:
    with _context() as context:  # what ZMQ keeps for a process, from its first large frame on
        router, dealer = _pair(context, f"ipc://{ask.folder}/first.ipc")
        dealer.send([bytes(ZERO_COPY_BYTES)])
        _next(router)
    before = held()
    for address in (f"ipc://{ask.folder}/more.ipc", ANY_PORT, *(["tcp://[::1]:*"] if has_ipv6() else [])):
        with _context() as context:
            _routes(ask, context, address)
            _watches(ask, context, address)
            _publishes(ask, context, address)
    _is_far_behind(ask)
    _hears_nothing(ask)
    _is_interrupted(ask)
    _is_refused(ask)
    _keeps_ports(ask)
    _has_large_buffers(ask)
    gc.collect()
    ask("what is left of all sockets", lambda: no_more(before), True)


@contextlib.contextmanager
def _context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(0)


def _spec(kind: str, address: str, *, bind: bool = False, **more: Any) -> SocketSpec:
    return SocketSpec(name=kind.lower(), kind=kind, peer_kind=NodeKind.CORE, bind=bind,  # type: ignore[arg-type]
                      address=address, **more)


def _pair(context: zmq.Context, address: str, kinds: tuple[str, str] = ("ROUTER", "DEALER"), index: int = 7,
          theirs: dict[str, Any] | None = None, **mine: Any) -> tuple[ZmqSocket, ZmqSocket]:
    """The one that binds, and one that has come to it."""
    bound = ZmqSocket(context, _spec(kinds[0], address, bind=True, linger_s=1.0, **mine))
    identity = identity_of(index) if kinds[1] == "DEALER" else None
    other = ZmqSocket(context, _spec(kinds[1], bound.address, identity=identity, linger_s=1.0, **(theirs or {})))
    return bound, other


def _next(one: ZmqSocket) -> tuple[Any, list[bytes]] | None:
    """What comes next, or None where nothing does."""
    one.poll(round(GONE_S * 1000))
    got = one.try_receive()
    return None if got is None else (got[0], [bytes(frame) for frame in got[1]])


# -- by number, or not at all -----------------------------------------------------------------------------------------


def _routes(ask: Asking, context: zmq.Context, address: str) -> None:
    """A peer is a number, or nobody; nobody is an error to send to; a frame is as long as it was."""
    way = address.partition(":")[0]
    router, dealer = _pair(context, address)
    large = os.urandom(ZERO_COPY_BYTES)
    for frames in ([b""], [b"one", b"", b"two"], [large], [large[1:], large, memoryview(large)[:9], bytearray(large)]):
        sizes = [len(frame) for frame in frames]
        dealer.send(frames)
        ask(f"who sent {sizes} bytes by {way}", lambda: _next(router) == (7, [bytes(frame) for frame in frames]), True)
        router.send(frames, 7)
        ask(f"what of {sizes} bytes comes back by {way}",
            lambda: _next(dealer) == (0, [bytes(frame) for frame in frames]), True)
    ask.raised(f"to send by {way} to nobody", lambda: router.send([b"x"], 8), Unroutable, "8", "not connected")
    router.send([b"behind it"], 7)
    ask(f"what comes by {way} behind that", lambda: _next(dealer), repr((0, [b"behind it"])))
    stranger = ZmqSocket(context, _spec("DEALER", router.address, identity=b"somebody"))
    stranger.send([b"hello"])
    ask(f"who somebody is by {way}", lambda: _next(router), repr((None, [b"hello"])))
    again = ZmqSocket(context, _spec("DEALER", router.address, identity=identity_of(7)))
    again.send([b"again"])
    ask(f"who comes again by {way}", lambda: _next(router), repr((7, [b"again"])))
    router.send([b"to the new one"], 7)
    ask(f"who is sent to then by {way}", lambda: _next(again), repr((0, [b"to the new one"])))
    ask(f"who is not by {way}", lambda: dealer.poll(0), False)
    for one in (again, stranger, dealer, router):
        one.close()
        one.close()
    raw, dealer = _pair(context, address, raw_identities=True, send_hwm=1, theirs={"receive_hwm": 1})
    dealer.send([b"who?"])
    ask(f"who one is by {way} to who asks for names", lambda: _next(raw), repr((identity_of(7), [b"who?"])))
    full = ""
    for _ in range(MANY):
        try:
            raw.send([b"x" * 1000], identity_of(7))
        except Unroutable as error:
            full = str(error)
            break
    ask(f"what a peer is that has no room by {way}", lambda: "high-water mark" in full, True)
    dealer.close()
    raw.close()


# -- who is there -----------------------------------------------------------------------------------------------------


def _watches(ask: Asking, context: zmq.Context, address: str) -> None:
    """Who binds knows when all have gone and all was read; who connects knows that it was cut."""
    way = address.partition(":")[0]
    pull, push = _pair(context, address, ("PULL", "PUSH"), watched=True, theirs={"watched": True})
    for number in range(2):
        push.send([b"%d" % number])
    ask(f"what comes first by {way}", lambda: _next(pull), repr((0, [b"0"])))
    push.close()
    ask(f"whether it is cut by {way}", lambda: until(pull.was_cut), True)
    ask(f"whether it is cut twice by {way}", pull.was_cut, False)
    ask(f"whether it is over with something to read by {way}", pull.is_over, False)
    ask(f"what is to be read by {way}", lambda: _next(pull), repr((0, [b"1"])))
    ask(f"whether it is over then by {way}", lambda: until(pull.is_over, GONE_S), True)
    pull.close()
    pull, push = _pair(context, address, ("PULL", "PUSH"), theirs={"watched": True})
    push.send([b"x"])
    ask(f"whether who connects is cut by {way}", lambda: [_next(pull) is not None, push.was_cut(), push.is_over()],
        [True, False, False])
    pull.close()
    ask(f"whether it is cut when the other end has gone by {way}", lambda: until(push.was_cut), True)
    ask(f"whether it is over by {way}", push.is_over, True)
    push.send([b"for nobody"])
    began = time.monotonic()
    push.close()
    ask.took(f"closing one by {way} that nobody takes anything from", time.monotonic() - began, 0.5)


def _publishes(ask: Asking, context: zmq.Context, address: str) -> None:
    """By topic; to who keeps the last alone; each subscription is heard of, or the first alone."""
    way = address.partition(":")[0]
    for verbose, heard in ((True, [b"\1a", b"\1a"]), (False, [b"\1a"])):
        publisher, first = _pair(context, address, ("XPUB", "SUB"), verbose=verbose, theirs={"topic": b"a"})
        came = [_next(publisher)]
        second = ZmqSocket(context, _spec("SUB", publisher.address, topic=b"a", more_topics=(b"b",)))
        while len(came) < len(heard) + 1:
            came.append(_next(publisher))
        ask(f"what is heard of two subscribers by {way}",
            lambda: repr([got[1][0] for got in came if got is not None]), repr([*heard, b"\1b"]))
        for frames in ([b"a", b"1"], [b"b", b"2"], [b"c", b"3"], [b"a", b"4"]):
            publisher.send(frames)
        ask(f"what the first has of four by {way}", lambda: repr([_next(first), _next(first)]),
            repr([(0, [b"a", b"1"]), (0, [b"a", b"4"])]))
        ask(f"what the second has of them by {way}", lambda: repr([_next(second) for _ in range(3)]),
            repr([(0, [b"a", b"1"]), (0, [b"b", b"2"]), (0, [b"a", b"4"])]))
        for one in (first, second, publisher):
            one.close()
    xsub, word = ZmqSocket(context, _spec("XSUB", address.replace("more", "up"), bind=True)), [b"word", b"\1x"]
    ask.raised(f"a word by {way} that would be torn apart", lambda: xsub.send(word), ValueError, "00 or 01")
    xsub.close()


def _is_far_behind(ask: Asking) -> None:
    """Who has room for one message, and so has who publishes: what nobody reads is lost."""
    with _context() as context:
        publisher, slow = _pair(context, f"ipc://{ask.folder}/slow.ipc", ("XPUB", "SUB"), send_hwm=1,
                                theirs={"receive_hwm": 1})
        ask("who subscribes and is slow", lambda: _next(publisher) is not None, True)
        for number in range(MANY):
            publisher.send([b"%d" % number, b"x" * 1000])
        came = 0
        while slow.poll(100):
            slow.try_receive()
            came += 1
        ask("how many come to who is far behind", lambda: 0 < came < 1000, True)


def _hears_nothing(ask: Asking) -> None:
    """Of a peer that stands still, and holds its connection."""
    with _context() as context:
        pull = ZmqSocket(context, _spec("PULL", ANY_PORT, bind=True, watched=True, heartbeat_s=BEAT_S))
        child = get_context("fork").Process(target=_stand, args=(pull.address,))
        child.start()
        try:
            ask("who is there", lambda: _next(pull), repr((0, [b"here"])))
            time.sleep(2 * SILENT_BEATS * BEAT_S)
            ask("whether one is cut that answers", pull.was_cut, False)
            os.kill(child.pid or 0, signal.SIGSTOP)
            began = time.monotonic()
            ask("whether one is cut that stands still", lambda: until(pull.was_cut), True)
            ask.took("cutting one that stands still", time.monotonic() - began - SILENT_BEATS * BEAT_S, 1.0)
            ask("whether it is over then", lambda: until(pull.is_over, GONE_S), True)
        finally:
            child.kill()
            child.join()
            pull.close()


def _stand(address: str) -> None:
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(address)
    push.send(b"here")
    time.sleep(PATIENCE_S)
    os._exit(0)


# -- what is refused, and what stays ----------------------------------------------------------------------------------


def _is_interrupted(ask: Asking) -> None:
    """In the middle of many messages: one is lost at most, and none is handed out in halves."""
    with _context() as context:
        pull, push = _pair(context, ANY_PORT, ("PULL", "PUSH"))
        count, came = 2000, list[list[bytes]]()
        for number in range(count):
            push.send([b"%d" % number] * 3)

        def read() -> None:
            while not came or came[-1][0] != b"%d" % (count - 1):
                got = _next(pull)
                if got is None:
                    break
                came.append(got[1])

        with contextlib.suppress(InterruptedError), interrupting(0.01):  # it may come before the wait has begun
            read()
        read()
        ask("whether messages are whole behind an interruption", lambda: all(
            len(frames) == 3 and len(set(frames)) == 1 for frames in came), True)
        ask("how many are lost at most", lambda: count - len(came) <= 1, True)
        push.close()
        pull.close()


def _is_refused(ask: Asking) -> None:
    """Who cannot bind keeps nothing that its context would wait for."""
    for words, address, error in (("of another host", "tcp://192.0.2.1:*", ConfigError),
                                  ("in no folder", "ipc:///nowhere/at/all.ipc", zmq.ZMQError),
                                  ("that is none", "tcp://nonsense", zmq.ZMQError)):
        context = zmq.Context()
        ask(f"an address {words}", lambda: ZmqSocket(context, _spec("PULL", address, bind=True, linger_s=60.0)), error)
        ended = threading.Thread(target=context.term, daemon=True)
        ended.start()
        ended.join(GONE_S)
        ask(f"whether its context ends behind an address {words}", ended.is_alive, False)
    with _context() as context:
        taken = ZmqSocket(context, _spec("PULL", ANY_PORT, bind=True))
        ask("an address that is taken", lambda: ZmqSocket(context, _spec("PULL", taken.address, bind=True)),
            zmq.ZMQError)
        taken.close()


def _keeps_ports(ask: Asking) -> None:
    """A port that is reserved is handed to nobody, and is free for who is told of it."""
    kept, address = reserve(ANY_PORT)
    with contextlib.closing(kept):
        for _ in range(2):
            with _context() as context:
                pull, push = _pair(context, address, ("PULL", "PUSH"))
                push.send([b"x"])
                ask("where a port is that was kept", lambda: pull.address == address, True)
                ask("what comes there", lambda: _next(pull), repr((0, [b"x"])))
    ask.raised("a port of another host", lambda: reserve("tcp://192.0.2.1:*"), ConfigError, "192.0.2.1")


def _has_large_buffers(ask: Asking) -> None:
    """On a large machine alone."""
    for total, available, wanted in ((32, 32, 0), (33, 16, 0), (33, 17, LARGE_BUFFER_BYTES)):
        ask(f"the buffers of a machine of {total} GiB with {available} to spare",
            lambda: buffer_bytes_for(total * GIB, available * GIB), wanted)
    ask("what it says of its memory", lambda: [
        list(memory_of("MemTotal:   5 kB\nMemFree: 1 kB\nMemAvailable: 3 kB\n")), list(memory_of("nothing"))],
        [[5 << 10, 3 << 10], [0, 0]])
    with _context() as context:
        for wanted in (0, 1 << 16):
            one = ZmqSocket(context, _spec("PULL", ANY_PORT, bind=True, buffer_bytes=wanted))
            ask(f"the buffers of one that asks for {wanted}", lambda: one._socket.getsockopt(zmq.RCVBUF),
                wanted or -1)
            one.close()
