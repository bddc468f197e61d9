"""Promises about what a publisher sends, judged by its own crossings: each batch once, and answers that are exact."""

from __future__ import annotations

from typing import Any

from engine.topology import Channel, Mark, NodeKind
from scenarios.guarantees.base import PROCESS, Envelope, Finding, Guarantee, Where, has_kv_events, has_subscribers
from scenarios.guarantees.chapters.events.blocks import CHAPTER
from scenarios.guarantees.chapters.events.words import judge_words
from scenarios.history.events.followers import publishers
from scenarios.history.events.publishing import BLURRED, SENDS, UNREAD, Batch, Held, Published, moments, numbers_of
from scenarios.history.history import FOREVER, Fate, History, Record, kind_of
from scenarios.history.names import PUBLISHER, REPLAYER, base

SOURCE = "vLLM V1 ZMQ reliability analysis"
#: What its queue may take at its end, and so may each of its threads that stands still.
SHUTDOWN_S = 1.0


def _subscribers(history: History, core: str) -> list[str]:
    engine = history.engine_of(core).engine
    nodes = history.of_kind(NodeKind.SUBSCRIBER)
    return sorted({base(node) for node in nodes if history.engine_of(node).engine == engine})


# -- each batch once ----------------------------------------------------------------------------------------------


def check_kv_sent_once(history: History) -> Finding:
    finding = Finding(history)
    for core in publishers(history):
        for subscriber in _subscribers(history, core):
            _judge_sends(finding, core, subscriber)
        _judge_threads(finding, core)
        judge_words(finding, core, in_order=_left_in_order(history, core))
    _judge_silence(finding)
    return finding


def _judge_sends(finding: Finding, core: str, subscriber: str) -> None:
    """In the order of the numbers, once each; what found room is sent, what is lost had none."""
    history = finding.history
    numbers, published = numbers_of(history, core), Published(history.play.config.kv_events.buffer_steps)
    expected: list[int] = []
    # A real publisher may have sent a batch when its core writes down that it handed it over.
    order = expected if history.simulated else [
        record.data["seq"] for record in numbers.values() if record.site != "kv-lost"]
    killed_at = FOREVER if core in history.by_node("bye") else history.ends.at(core)
    failed: list[int] = []  # batches whose sending the plan has let fail
    over_at = _patience_over_at(history, core)
    late_at = over_at + history.slack_s
    for moment in moments(history, core, subscriber):
        record = moment.record
        if record.number in numbers:
            _judge_room(finding, core, record, published.waiting)
            published.numbered += 1
            if record.site == "kv-lost":
                published.lost += 1
            else:
                expected.append(record.data["seq"])
        elif moment.what == "live" and "seq" in record.data:
            place = len(published.sent)
            if place == len(order) and killed_at < record.at + history.slack_s:
                order.append(len(numbers))  # what it handed over it may not have lived to write down
            if place >= len(order) or order[place] != record.data["seq"]:
                finding.broke("{} sent batch {} where {} was next", core, record.data["seq"],
                              order[place] if place < len(order) else "none", at=record.at, node=core)
                return
            if record.data.get("fate") == Fate.RAISE:
                failed.append(record.data["seq"])
            if record.at > late_at:
                finding.broke("{} sent batch {} {:.3f} s after its patience at its end was over", core,
                              record.data["seq"], record.at - over_at, at=record.at, node=core)
            if record.data["epoch"] is None:
                finding.broke("{} sent batch {} without its epoch", core, record.data["seq"], at=record.at, node=core)
            published.send(record.data)
    unsent = [record.data["seq"] for record in history.by_node("kv-unsent").get(core, ())]
    if core in history.by_node("bye") and not set(failed) <= set(unsent):
        finding.broke("{} could not send batches {}, and told of {}", core, failed, unsent, node=core)
    if _left_in_order(history, core):
        stood = any(stall.node == core and stall.at < over_at < stall.until for stall in history.faults.stalls)
        if published.waiting and stood:
            finding.witness("{} gave up {} batches when its patience was over", core, published.waiting, at=over_at,
                            node=core)
        elif published.waiting:
            finding.broke("{} left with {} batches that it had taken and not sent", core, published.waiting, node=core)
        elif expected:
            finding.witness("{} sent its {} batches to {} once each, and left with none", core, len(expected),
                            subscriber, node=core)


def _asked_to_end_at(history: History, core: str) -> float:
    """When the publisher of a core that leaves in order is asked to end: behind everybody else."""
    dying = [record.at for record in history.by_node("dying").get(core, ())]
    engine = history.engine_of(core)
    workers = [end.at for end in history.ends.values() if history.is_of(end.node, engine)
               and kind_of(end.node) == NodeKind.WORKER]
    return max([*dying, *workers]) if dying else FOREVER


def _patience_over_at(history: History, core: str) -> float:
    """When it gives up what still waits."""
    return _asked_to_end_at(history, core) + SHUTDOWN_S


def _judge_room(finding: Finding, core: str, record: Record, waiting: int) -> None:
    """Only virtual time is exact: a real publisher takes a batch while its number is written down."""
    most = finding.history.play.config.kv_events.max_queue_size
    if not finding.history.simulated:
        return
    if record.site == "kv-lost" and not 0 < most <= waiting:
        finding.broke("{} lost batch {} although only {} of {} waited", core, record.data["seq"], waiting, most,
                      at=record.at, node=core)
    elif record.site != "kv-lost" and 0 < most <= waiting:
        finding.broke("{} queued batch {} behind {} that waited, of at most {}", core, record.data["seq"], waiting,
                      most, at=record.at, node=core)


def _left_in_order(history: History, core: str) -> bool:
    """It was asked to leave, and neither it nor who serves it was struck otherwise."""
    engine = history.engine_of(core)
    struck = [receipt for receipt in history.faults.receipts if history.is_of(receipt.node, engine)
              and receipt.fate in PROCESS - {Fate.TERMINATE} and receipt.released_at is None
              and not (receipt.fate == Fate.RAISE and receipt.site.endswith(SENDS))  # one message fails, and no more
              and kind_of(receipt.node) != NodeKind.SUBSCRIBER]
    return core in history.by_node("bye") and not struck


def _judge_threads(finding: Finding, core: str) -> None:
    """None of them outlives the core's last word, and none that stands still holds the core up for ever."""
    history = finding.history
    stuck = any(receipt.node == core and receipt.fate == Fate.HANG and receipt.site.endswith(SENDS)
                for receipt in history.faults.receipts)
    for left, dying in zip(history.by_node("bye").get(core, ()), history.by_node("dying").get(core, ()), strict=False):
        if stuck:
            finding.took("leaving with a thread of {} that stood still", core, node=core, measured=left.at - dying.at,
                         bound=3 * SHUTDOWN_S + history.bounds.linger_s + history.bounds.detection_s)
    if not _left_in_order(history, core):
        return
    ended = {record.data["thread"]: record.at for record in history.by_node("thread-ended").get(core, ())}
    since = _asked_to_end_at(history, core)
    if PUBLISHER in ended and not any(receipt.node == core for receipt in history.faults.receipts):
        finding.took("ending the publisher's thread of {}, which had nothing to send,", core, node=core,
                     bound=history.bounds.detection_s, measured=ended[PUBLISHER] - since)
    for thread in (PUBLISHER, REPLAYER) if history.play.config.kv_events.replay else (PUBLISHER,):
        if thread not in ended:
            finding.broke("{} left, and {} ran on", core, thread, node=core)


def _publishes(history: History, core: str) -> bool:
    """One beside the first does where it is a data-parallel rank: two cannot publish at one address."""
    engine = history.engine_of(core).engine
    return not engine or history.play.topology.engine(engine).data_parallel_rank is not None


def _judge_silence(finding: Finding) -> None:
    """Blocks can be found in a cache, and nobody was told of any."""
    history = finding.history
    if history.play.config.kv_events.publisher == "null":
        return
    told = set(publishers(history))
    for core, records in history.by_node("blocks").items():
        cached = next((record for record in records if record.data.get("cached")), None)
        if core not in told and cached is not None and _publishes(history, core):
            finding.broke("{} has {} blocks in its cache and has published nothing", core, cached.data["cached"],
                          at=cached.at, node=core)


# -- exact answers ------------------------------------------------------------------------------------------------


def check_kv_answers_exact(history: History) -> Finding:
    finding = Finding(history)
    if not history.play.config.kv_events.replay:
        return finding
    for core in publishers(history):
        for subscriber in _subscribers(history, core)[:1]:
            _Answering(finding, core).walk(subscriber)
    return finding


class _Open:
    """A question that is being answered. `behind`, `count` and `lacks` are of what had been sent when it came."""

    def __init__(self, asked: Record, at: float, published: Published) -> None:
        self.at = at
        self.asked, self.behind, self.count = asked, published.behind, len(published.sent)
        self.lacks = not published.known or published.upto > published.behind  # a loss that no state makes up for
        self.tag: int | None = asked.data.get("tag")
        self.sent: list[dict[str, Any]] = []
        self.held: Held | None = None

    def held_by(self, published: Published) -> Held:
        """What its answer is of: the moment of the first message. Later ones may wait while batches go out."""
        if self.held is None:
            self.held = published.held()
        return self.held


class _Answering:
    """One life of a publisher, and everybody who asks it."""

    def __init__(self, finding: Finding, core: str) -> None:
        self.finding, self.history, self.core = finding, finding.history, core
        self.published = Published(self.history.play.config.kv_events.buffer_steps)
        self.open: dict[str, _Open] = {}
        self.blurred: set[str] = set()  # nobody knows what, or how often, these have asked
        self.malformed = 0

    def walk(self, subscriber: str) -> None:
        numbers = numbers_of(self.history, self.core)
        for moment in moments(self.history, self.core, subscriber):
            record = moment.record
            if record.number in numbers:
                self.published.numbered += 1
                self.published.lost += record.site == "kv-lost"
            elif moment.what == "live" and "seq" in record.data:
                self.published.send(record.data)
            elif moment.what == "question":
                self._asked(moment.peer, record, moment.at)
            elif moment.what == "answer" and moment.peer not in self.blurred:
                self._answered(moment.peer, record)
            elif moment.what == "bad-frame" and record.data.get("edge") == Channel.REPLAY.value:
                self.malformed -= 1
            elif moment.what == "replay-ended":
                self.open.clear()
        self._unanswered()

    def _asked(self, peer: str, record: Record, at: float) -> None:
        fate = self.history.faults.met(record)
        if fate in UNREAD:
            return
        if fate in BLURRED:
            self.blurred.add(peer)
            self.malformed += 1
        elif "start" in record.data or "snapshot" in record.data:
            self._overdue(peer, at)
            earlier = self.open.get(peer)
            if earlier is not None and None in (earlier.tag, record.data.get("tag")):
                self.blurred.add(peer)  # both are answered, in turns, and one of them says not which it is
            self.open[peer] = _Open(record, at, self.published)
        else:
            self.malformed += 1

    def _answered(self, peer: str, record: Record) -> None:
        question, said = self.open.get(peer), record.data
        if question is None:
            self._broke(record, "answered {}, who had asked nothing", peer)
            return
        held = question.held_by(self.published)
        if "piece" in said:
            self._judge_piece(question, record, held)
            if said["piece"] + 1 == said["pieces"]:
                del self.open[peer]
        elif "snapshot" in question.asked.data:
            self._broke(record, "answered {} with batches, who had asked for its state", peer)
        elif "end" in said:
            self._judge_batches(question, record, held)
            self._judge_report(question, record, held)
            del self.open[peer]
        elif "seq" in said:
            question.sent.append(said)
        else:
            self._broke(record, "answered {} with what is no answer", peer)

    def _judge_batches(self, question: _Open, end: Record, held: Held) -> None:
        start = question.asked.data["start"]
        wanted = [batch for batch in held.window if batch.seq >= start]
        sent = [Batch(said["seq"], said["epoch"], said["payload"], bool(said.get("clears"))) for said in question.sent]
        exact = sent == wanted if self.history.simulated else self._may_be(question, sent, wanted, held)
        if not exact:
            self._broke(end, "answered a question for batch {} and later with {}, and has {}", start,
                        [batch.seq for batch in sent], [batch.seq for batch in wanted])
        elif sent:
            self.finding.witness("{} replayed {} batches from {} on as it had sent them", self.core, len(sent), start,
                                 at=end.at, node=self.core)

    def _may_be(self, question: _Open, sent: list[Batch], wanted: list[Batch], held: Held) -> bool:
        """Where time is real, it is of some moment between the question and its first message."""
        start: int = question.asked.data["start"]
        later = [batch for batch in self.published.sent if start <= batch.seq < held.behind]
        known = sent[:-1] if sent and sent[-1].seq >= held.behind else sent  # one was about to go out
        if not known:
            return question.behind <= start
        is_full = len(held.window) == self.history.play.config.kv_events.buffer_steps
        if is_full and known != sent and wanted == held.window:
            wanted = wanted[1:] or sent[-1:]  # it had the oldest one's place
        place = later.index(known[0]) if known[0] in later else len(later)
        return (later[place:place + len(known)] == known and known[0].seq <= wanted[0].seq
                and sent[-1].seq + 1 >= question.behind)

    def _judge_report(self, question: _Open, end: Record, held: Held) -> None:
        said, window = end.data, held.window
        if question.tag is None or "tag" not in said:
            if question.tag is not None or "tag" in said:
                self._broke(end, "ended the answer to {} as if it were one to another question", question.asked.data)
            return
        epoch = self.published.sent[-1].epoch if self.published.sent else said["epoch"]
        true = {"tag": question.tag, "start": question.asked.data["start"], "epoch": epoch,
                "count": len(question.sent)}
        if self.history.simulated:
            true |= {"oldest": window[0].seq if window else held.upto, "next": held.upto}
        wrong = {name: said[name] for name, value in true.items() if said[name] != value}
        if wrong:
            self._broke(end, "reported {} of an answer of which {} is true", wrong, true)

    def _judge_piece(self, question: _Open, record: Record, held: Held) -> None:
        said, published = record.data, self.published
        true: dict[str, Any] = {"tag": question.tag, "piece": len(question.sent)}
        if self.history.simulated:
            known = held.known and held.upto <= held.behind
            true |= {"known": int(known), "next": held.upto}
        elif question.lacks and not any(batch.clears for batch in published.sent[question.count:]):
            true["known"] = 0
        if published.sent:
            true["epoch"] = published.sent[-1].epoch
        wrong = {name: said[name] for name, value in true.items() if said[name] != value}
        question.sent.append(said)
        if wrong:
            self._broke(record, "told {} of its state, of which {} is true", wrong, true)
        elif said["known"]:
            self.finding.witness("{} told its state before batch {}", self.core, said["next"], at=record.at,
                                 node=self.core)

    def _unanswered(self) -> None:
        """Each question that was read whole is answered at once; one that is none is told."""
        history, core = self.history, self.core
        struck = any(receipt.fate in PROCESS and receipt.node == core for receipt in history.faults.receipts)
        if struck or core not in history.by_node("bye"):
            return
        leaving = min((record.at for record in history.by_node("dying").get(core, ())), default=FOREVER)
        for peer in self.open:
            self._overdue(peer, leaving)
        if self.malformed > 0 and not self.blurred:
            self.finding.broke("{} told nothing of {} questions that were none", core, self.malformed, node=core)
        elif self.malformed < 0:
            self.finding.broke("{} told of {} questions as if they were none", core, -self.malformed, node=core)

    def _overdue(self, peer: str, now: float) -> None:
        """Nobody waits for an answer to make up its mind: only a thread that stands still is late with it."""
        question, history = self.open.get(peer), self.history
        if question is None or peer in self.blurred:
            return
        waited = now - question.at - history.faults.frozen_s(self.core, question.at, now)
        if waited > min(history.bounds.detection_s, history.bounds.replay_s / 2):
            self._broke(question.asked, "had not answered {} after {:.3f} s", peer, waited)

    def _broke(self, record: Record, template: str, *args: object) -> None:
        self.finding.broke("{} " + template, self.core, *args, at=record.at, node=self.core)


_STRUCK = Where(frozenset({Fate.RAISE, Fate.EXIT}), nodes="core.*", why="the publisher itself is hit")
_NUMBERING = Where(PROCESS, sites=f"*/mark:{Mark.KV_DROPPED.value}", nodes="core.*",
                   why="a number is given and not yet on record")

GUARANTEES = (
    Guarantee(
        id="kv-sent-once", chapter=CHAPTER, source=SOURCE, check=check_kv_sent_once, applies=has_kv_events,
        sentence="Each batch that is handed over is sent once, in the order of the numbers, unless the queue was full "
                 "just then; a publisher that leaves in order sends first what waits, as far as it gets in a second, "
                 "and no thread of it runs on.",
        wrong={
            "once": "sends a batch again that it has sent",
            "end": "forgets at its end what still waits in its queue",
        },
        witness="a publisher left in order when it had sent every batch once, or given up the rest in time",
        envelope=Envelope(outside=(_NUMBERING,)),
    ),
    Guarantee(
        id="kv-answers-exact", chapter=CHAPTER, source=SOURCE, check=check_kv_answers_exact, applies=has_subscribers,
        sentence="Each question to the replay socket is answered once: by exactly the batches that the window holds "
                 "from its start on, byte for byte as they were sent, and a report that is true of them; or by the "
                 "whole state, where that is known. What is no question is told, and not answered.",
        wrong={
            "batches": "answers a second question with the rest of the first",
            "state": "tells a state that lacks what it has lost",
        },
        witness="batches were replayed, or a state was told",
        envelope=Envelope(outside=(_STRUCK, _NUMBERING)),
    ),
)
