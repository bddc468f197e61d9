"""A publisher, a subscriber and the three channels between them, stepped by hand: the loops are the real ones.

Each channel is a list that a test may drop from, double or hold back. Nothing moves unless it is told to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from engine.effects import Effect, Loop, MarkPoint, Now, Observe, Put, Receive, Send, Take, Warn
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.publisher.log import KVEventLog, hand_over, publish_loop
from engine.kv_events.publisher.replays import replay_loop
from engine.kv_events.publisher.state import PublishedState
from engine.kv_events.reports import Question, Report
from engine.kv_events.subscriber.follow import feed
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

PEER = 0


class Stepper:
    """A loop that stops at every effect which has no answer yet."""

    def __init__(self, loop: Loop[Any], answer: Callable[[Effect], Any]) -> None:
        self._loop = loop
        self._answer = answer
        self._effect: Effect | None = next(loop)

    def run(self) -> None:
        """Until the loop ends, or an effect's answer is `Stepper`: not now."""
        while self._effect is not None:
            try:
                result = self._answer(self._effect)
            except Exception as error:
                self._effect = self._loop.throw(error)
                continue
            if result is Stepper:
                return
            try:
                self._effect = self._loop.send(result)
            except StopIteration:
                self._effect = None


class Life:
    """One life of a publisher, with the cache that its events describe."""

    def __init__(self, world: KVWorld, epoch: int | None, buffer_steps: int, max_queue_size: int) -> None:
        self.world = world
        self.log = KVEventLog(buffer_steps=buffer_steps, max_queue_size=max_queue_size, topic="kv", epoch=epoch)
        self.log.state = PublishedState(piece_blocks=2)  # a snapshot of several pieces
        self.cache: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self.batches: list[KVEventBatch] = []
        self.queue: list[Any] = []
        self.observed: list[tuple[str, dict[str, Any]]] = []
        self.publisher = Stepper(publish_loop(self.log), self._answer)
        self.replayer = Stepper(replay_loop(self.log, chunk_batches=2), self._answer)

    def publish(self, batch: Any) -> int:
        self.batches.append(batch)
        Stepper(hand_over(self.log, batch), self._answer).run()
        return len(self.batches) - 1

    def _answer(self, effect: Effect) -> Any:
        match effect:
            case Now():
                return self.world.now
            case Put(item=item):
                return self.queue.append(item)
            case Take():
                items, self.queue = self.queue, []
                return items or Stepper
            case Send(outbox=outbox, frames=frames):
                return (self.world.live if outbox == "kv" else self.world.answers).append(frames)
            case Receive(inboxes=inboxes, deadline=deadline):
                if inboxes and self.world.requests:
                    return ("replay", PEER, self.world.requests.popleft())
                return None if deadline is not None else Stepper
            case Observe(name=name, data=data):
                return self.observed.append((name, data))
            case MarkPoint() | Warn():
                return None
        raise AssertionError(effect)


class KVWorld:
    def __init__(self, *, buffer_steps: int = 8, max_queue_size: int = 4, speaks_epochs: bool = True,
                 **follower: Any) -> None:
        self.now = 0.0
        self.live: deque[list[bytes]] = deque()
        self.requests: deque[list[bytes]] = deque()
        self.answers: deque[list[bytes]] = deque()
        self.lives = 0
        self._sizes = (buffer_steps, max_queue_size)
        self._speaks_epochs = speaks_epochs
        self._follower = follower
        self._joined = 0
        self._hash = 0
        self.restart()
        self.join()

    # -- the publisher

    def restart(self) -> None:
        """A new life, a second later: what it did not send is gone, what is on the wire arrives."""
        self.now += 1.0
        self.lives += 1
        self.life = Life(self, self.lives if self._speaks_epochs else None, *self._sizes)

    def store(self, parent_from: int = 0) -> int:
        """-> the batch's number"""
        self._hash += 1
        hashes = list(self.life.cache)
        parent = hashes[parent_from % len(hashes)] if hashes and parent_from else None
        tokens = (self._hash, self._hash + 1)
        self.life.cache[self._hash] = (parent, tokens)
        return self.life.publish(KVEventBatch(self._ts(), [BlockStored([self._hash], parent, list(tokens), 2, None)]))

    def remove(self, which: int) -> None:
        if self.life.cache:
            block_hash = list(self.life.cache)[which % len(self.life.cache)]
            del self.life.cache[block_hash]
            self.life.publish(KVEventBatch(self._ts(), [BlockRemoved([block_hash])]))

    def clear(self) -> None:
        self.life.cache.clear()
        self.life.publish(KVEventBatch(self._ts(), [AllBlocksCleared()]))

    def publish_unencodable(self) -> int:
        """A block the mirror must not be silent about: it is in the cache and in no message."""
        self._hash += 1
        self.life.cache[self._hash] = (None, (0, 0))
        return self.life.publish(KVEventBatch(self._ts(), [object()]))

    def flush(self) -> None:
        """The publisher thread gets its turn."""
        self.life.publisher.run()

    def send(self, count: int) -> None:
        """So many batches, a block each."""
        for _ in range(count):
            self.store()
            self.flush()

    def _ts(self) -> float:
        self.now += 1e-3
        return self.now

    # -- the subscriber

    def join(self) -> None:
        """A subscriber without a memory; what is on the wire was meant for another."""
        self._joined += 1
        self.live.clear()
        self.answers.clear()
        self.follower = KVEventFollower(poll_s=1.0, answer_s=1.0, tag=1000 * self._joined,
                                        **{"quiet_s": 0.0} | self._follower)
        self.mirror = KVCacheMirror()
        self.reports: list[Report] = []

    def receive_live(self) -> None:
        if self.live:
            self._take(self.follower.on_live(self.live.popleft(), self.now))

    def receive_answer(self) -> None:
        if self.answers:
            self._take(self.follower.on_replay(self.answers.popleft(), self.now))
            if not self.live:
                self._take(self.follower.on_time(self.now))

    def receive_all_live(self) -> None:
        while self.live:
            self.receive_live()

    def answer_all(self) -> None:
        while self.requests or self.answers:
            self.serve_requests()
            self.receive_answer()

    def pass_time(self, seconds: float = 1.1) -> None:
        self.now += seconds
        self._take(self.follower.on_time(self.now))

    def serve_requests(self) -> None:
        self.life.replayer.run()

    def told(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]

    def heal(self, rounds: int = 12) -> None:
        """No more faults: everything moves until nothing is left to do but poll."""
        for _ in range(rounds):
            self.flush()
            while self.live or self.requests or self.answers:
                self.serve_requests()
                self.receive_live()
                self.receive_answer()
            self.pass_time()

    def truth(self) -> dict[int, tuple[int | None, tuple[int, ...]]]:
        return self.life.cache

    def mirrored(self) -> dict[Any, tuple[Any, tuple[int, ...]]]:
        return {block.block_hash: (block.parent, block.token_ids) for block in self.mirror.blocks.values()}

    def _take(self, reports: list[Report]) -> None:
        for report in reports:
            if isinstance(report, Question):
                self.requests.append(report.frames)
            else:
                feed(self.mirror, report)
                self.reports.append(report)
