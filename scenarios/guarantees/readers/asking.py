"""What a subscriber asks the replay socket, judged by what reached it and when."""

from __future__ import annotations

from engine.topology import Channel
from scenarios.guarantees.base import DEATHS, Finding
from scenarios.guarantees.readers.readings import QUIET_S, TRIES, UNKNOWN_S, WORK_S, Moment, What, moments
from scenarios.history.events.followers import Follower
from scenarios.history.history import FOREVER, Fate


class Asker:
    """One life of a subscriber, walked through: what it may ask next, and until when it has to."""

    def __init__(self, finding: Finding, follower: Follower) -> None:
        history = finding.history
        self.finding, self.history, self.follower, self.node = finding, history, follower, follower.node
        self.wait_s = history.bounds.replay_s  # the lab gives as much to an answer as to a silence
        #: Who cannot be judged to the moment is given time, and not asked why.
        self.struck = not follower.is_exact
        self.exact = history.simulated and not self.struck
        self.slack_s = WORK_S if self.exact else 4 * self.wait_s if history.simulated else \
            history.bounds.detection_s + history.lab.longest_starvation_s
        self.plain = history.play.options.without_epochs
        self.moments = moments(history, self.node)
        self.lost = _losses(self.moments)
        self.tag = -1
        self.rest_at = 0.0  # when something came last that makes a question needless
        self.due_at = history.records(self.node)[0].at
        self.tagged = False
        self.knows = False  # whether its publisher knows tags: who may not is not waited for as long
        self.applied = False  # it has told of a batch: an answer without a report tells that nobody knows tags, then
        self.patience_s = self.wait_s  # how long it waits for what is under way
        self.unheard = True  # no live batch has come: one without an epoch tells that its publisher knows no tags
        self.silences = 0
        self.latest = self.of_the_old = (-1, -1.0)
        self.cuts = [receipt.at for receipt in history.faults.hit(Fate.CUT)]
        self.gone_at = min([history.ends.at(follower.publisher),
                            *(bye.at for bye in history.by_node("bye").get(follower.publisher, ()))])
        self.life, self.restarts = -1, 0  # of the publisher: those that were heard, and those told of
        self.begin(None)

    def begin(self, epoch: int | None) -> None:
        """Another life of the publisher: nothing is known of it."""
        self.life += 1
        self.epoch = epoch
        self.another: int | None = None  # who answered instead of it
        self.arrived: set[int] = set()
        self.low = self.told = 0
        self.known = self.rumoured = 0  # every number below exists, as it has told, and as answers do
        self.live_upto = 0
        self.under: Moment | None = None
        self.heard_at = 0.0
        self.free_at = 0.0  # since when no question is under way
        self.hurried = True
        self.ended = False  # an answer has, and nothing was asked since
        self.pieces: set[int] = set()
        self.gone: set[int] = set()  # what an answer said that it is lost, and live batches have passed by
        self.answer: set[int] = set()
        self.unproven = self.plain  # nothing was heard live, and no answer to its end: it may be anybody's
        self.joins = False  # it holds what had been heard: where nobody says whose it is, nothing else proves that
        self.again = (-1, 0)  # for which batch it asked last, and how often in a row
        self.wanted_at: float | None = None  # a loss for good that no snapshot has made up for yet
        self.failed = 0
        self.vain_at = FOREVER  # since when it has asked for a state in vain often enough
        self.stated = 0  # the state before this batch has come, or is not known: what was lost below is not asked for
        self.cleared = -1  # the last batch that has come and clears the cache: what is lost before it is missed no more

    def walk(self) -> None:
        steps = {What.LIVE: self._live, What.BATCH: self._batch, What.END: self._end, What.PIECE: self._piece,
                 What.DAMAGED: self._damaged, What.ASKED: self._asked, What.TOLD: self._told}
        for moment in self.moments:
            if self.under is not None and self.exact and moment.at > self.heard_at + self.patience_s:
                self._gives_up(self.under, self.heard_at + self.patience_s)
            steps[moment.what](moment)
        if not any(receipt.node == self.node and receipt.fate in DEATHS for receipt in self.history.faults.receipts):
            self._in_time(self.follower.left_at(), "nothing more")

    def first_missing(self, at: float) -> int:
        """By what has come, and by what is told as lost until this moment: a question leaves before that is told."""
        mine = self.lost.get(self.life, [])
        while self.told < len(mine) and mine[self.told][2] <= at + self.slack_s:
            self.arrived.update(range(mine[self.told][0], mine[self.told][1] + 1))
            self.told += 1
        while self.low in self.arrived:
            self.low += 1
        return self.low

    @property
    def _is_behind(self) -> bool:
        """A real subscriber that has not told yet of the life that has begun may still ask for the one before."""
        return not self.exact and self.restarts < self.life

    def is_missing(self, at: float) -> bool:
        return self.first_missing(at) < max(self.known, self.rumoured)

    def _sees_missing(self, at: float) -> bool:
        """What an answer brought is nothing yet, where nobody says whose it is and nothing was heard before."""
        return self.is_missing(at) and not self.unproven

    @property
    def pending(self) -> bool:
        """An answer has ended that may have overtaken live batches, or comes from another life."""
        overtaken = self.rumoured > self.live_upto and self.rumoured > min(self.low, self.known)
        return self.ended and (overtaken or self.another is not None)

    # -- what came

    def _live(self, moment: Moment) -> None:
        epoch, seq, at = moment.said["epoch"], moment.said["seq"], moment.at
        if self.hurried and self.under is None:
            self._in_time(at, "nothing")  # what it had to ask at once
        if self.epoch not in (None, epoch):
            if self.epoch is not None and epoch < self.epoch:  # late, of a life that is over
                self._rest(at)
                if self.plain and self.live_upto and seq >= self.known and self.under is None:
                    self.due_at, self.hurried = at, True  # it may be the next one's: who answers is asked
                return
            # Who was reconnected asks before it reads what came.
            self.of_the_old = self.first_missing(at) - self.plain, at
            self.begin(epoch)
        self.epoch = epoch
        if self.plain and self.under is not None and self.under.said.get("tag") is not None:
            self.under = None
        free = self.plain and self.unheard and self.under is None  # its publisher knows no tags: it is asked at once
        self.tagged, self.unheard, self.unproven, self.knows = not self.plain, False, False, True
        if seq < self.live_upto:
            self.latest = seq, at
        if self.pending:
            self.free_at = at  # what an answer had overtaken comes, or is passed by
        if seq >= self.live_upto or not self.plain:  # of one that does not say whose it is a late one is not taken
            self.arrived.add(seq)
        self.live_upto = max(self.live_upto, seq + 1)
        self.known = max(self.known, seq + 1)
        self._clear(moment)
        self._rest(at)
        if free and self.is_missing(at):
            self.due_at, self.hurried = at, True
        if self.cuts and self.cuts[0] <= at:
            self.cuts.pop(0)
            self.hurried = True  # it was reconnected

    def _rest(self, at: float) -> None:
        self.rest_at, self.hurried = at, False
        self.due_at = at + self.wait_s
        if self.under is None and self.is_missing(at):
            self.due_at = at + (QUIET_S if self.pending or self.plain else 0.0)

    def _batch(self, moment: Moment) -> None:
        self._goes_on(moment.at)
        self.knows = self.knows or not self.plain
        seq = moment.said["seq"]
        if self.plain and self.under is None and not self.unheard:
            return  # nobody waits for it
        if self.epoch in (None, moment.said["epoch"]):
            self.answer.add(seq)
            brought = {seq} if self.joins else self.answer
            self.joins = self.joins or not self.plain or not self.arrived or seq in self.arrived
            if self.joins:
                self.arrived |= brought
                self.rumoured = max(self.rumoured, max(brought) + 1)
                self._clear(moment)
        elif self.plain and moment.said["epoch"] > self.epoch and seq in self.arrived:
            self._meets(moment)  # the batch of this number had another time
        if self.under is None and not (self.hurried or self.is_missing(moment.at)):  # it came late, and is the last one
            self.due_at = max(self.due_at, self.rest_at + self.wait_s)

    def _goes_on(self, at: float) -> None:
        """Whoever waits for an answer waits on, also for one to a question that is not to be seen."""
        if self.silences >= TRIES and self.wanted_at is not None:
            self.wanted_at = max(self.wanted_at, at)  # it is there again, and is asked for a state from now on
        self.heard_at, self.silences, self.patience_s = at, 0, self.wait_s
        if self.plain and self.unheard and self.under is None:
            self.due_at = max(self.due_at, at)

    def _meets(self, moment: Moment) -> None:
        """Another life of the publisher answers: it is asked at once."""
        self.begin(moment.said["epoch"])
        self.due_at = self.free_at = moment.at

    def _clear(self, moment: Moment) -> None:
        if moment.said.get("clears"):
            self.wanted_at, self.cleared = None, max(self.cleared, moment.said["seq"])

    def _end(self, moment: Moment) -> None:
        self._goes_on(moment.at)
        said, under = moment.said, self.under
        self.tagged = self.tagged or ("tag" in said and not self.plain)
        self.knows = self.knows or self.tagged
        if under is None or under.said.get("tag") != (None if self.plain else said.get("tag")):
            return
        self.under, self.ended, self.free_at = None, True, moment.at
        self.knows = self.knows or self.applied
        self.unproven = self.unproven and not self.answer
        if self.epoch in (None, said.get("epoch")):
            self.epoch = said.get("epoch")
            self.rumoured = max(self.rumoured, said.get("next", 0))
            if "oldest" in said:
                whole = len(self.answer) == said["count"]
                sure = range(said["start"], min(said["next"] if whole else said["oldest"], self.known))
                self.gone.update(number for number in sure if number not in self.answer)
        else:
            self.another = said.get("epoch")
        self._rest(moment.at)

    def _piece(self, moment: Moment) -> None:
        self._goes_on(moment.at)
        said, under = moment.said, self.under
        if under is None or not under.said.get("snapshot") or under.said.get("tag") != said["tag"]:
            return
        if self.epoch not in (None, said["epoch"]):
            self._meets(moment)
            return
        self.pieces.add(said["piece"])
        if len(self.pieces) == said["pieces"] or not said["known"]:
            self.under, self.free_at = None, moment.at
            self.wanted_at = None
            self.stated = max(self.stated, said["next"])
            self.rumoured = max(self.rumoured, said["next"])
            self.due_at = max(self.rest_at + self.wait_s, moment.at)

    def _damaged(self, moment: Moment) -> None:
        if moment.record.site.endswith(f"/{Channel.KV.value}:receive"):
            self._rest(moment.at)
            if self.under is None and not self.pending:
                self.due_at = moment.at
        else:
            self.silences = 0
        self.hurried = True

    def _told(self, moment: Moment) -> None:
        site, said = moment.record.site, moment.said
        self.applied = self.applied or site == "kv-batch"
        if site == "kv-unrecoverable" and self.wanted_at is None and self.restarts == self.life:
            if said["last"] > self.cleared and said["last"] >= self.stated and not self.plain:
                self.wanted_at, self.failed = moment.at, 0
            elif not self.is_missing(moment.at):
                self.due_at = max(self.due_at, self.rest_at + self.wait_s)
        elif site == "kv-snapshot":
            self.wanted_at = None
        elif site == "kv-gap":
            self.known = max(self.known, said["last"] + 1)
        elif site == "kv-restarted":
            self.restarts += 1
            if self.restarts > self.life:
                self.begin(said["epoch"])

    # -- what it asked

    def _asked(self, moment: Moment) -> None:
        said, at = moment.said, moment.at
        if "start" not in said and "tag" not in said:
            return  # none of its own: what a rude one sends, too
        if self.another is not None and said.get("start") == 0:
            self.begin(self.another)
        unknowing = self.restarts < self.life and (self.plain or not self.history.simulated)
        if (said.get("start"), at) == self.of_the_old or (unknowing and said.get("start") == self.of_the_old[0]):
            self.tag = max(self.tag, said.get("tag", -1))
            return
        self._in_time(at, "a question")
        if self.under is not None:
            self._gives_up(self.under, at)
        tag = said.get("tag", self.tag + 1)
        if tag <= self.tag:
            self._broke("asked with tag {} again", tag, at=at)
        self.tag = max(self.tag, said.get("tag", -1))
        if "tag" not in said and self.tagged:
            self._broke("asked without a tag who knows tags", at=at)
        if said.get("snapshot"):
            self._for_a_snapshot(at)
        else:
            self._for_batches(said["start"], "tag" in said, at)
        self.under, self.heard_at, self.hurried, self.ended = moment, at, False, False
        self.patience_s = self.wait_s if self.knows else min(self.wait_s, UNKNOWN_S)
        self.pieces, self.answer, self.joins = set(), set(), False
        self.finding.witness("{} asked when it was due", self.node, at=at, node=self.node)

    def _gives_up(self, under: Moment, at: float) -> None:
        """A question that was under way when its time was up, or when the next one left."""
        self.under = None
        self.due_at = self.free_at = at
        silent_s = at - self.heard_at
        if under.said.get("snapshot"):
            if self.wanted_at is None:
                return  # the cache was cleared meanwhile
            self.failed += 1
            self.wanted_at = self.heard_at + 2 * self.wait_s if self.failed < TRIES else None
            self.vain_at = at if self.failed == TRIES else self.vain_at
        else:
            self.silences += 1
        if silent_s < self.patience_s - self.slack_s and not self.struck:
            self._broke("asked again {:.4f} s after it had heard of its question", silent_s, at=at)
        elif not self._sees_missing(at):
            if not under.said.get("snapshot"):
                self.rest_at = max(self.rest_at, min(at, self.heard_at + self.patience_s))
            self.due_at = max(at, self.rest_at + self.wait_s)

    def _for_batches(self, start: int, tagged: bool, at: float) -> None:
        missing = self.first_missing(at)
        if self.struck or (start, at) == self.latest:  # it came in this moment, behind the one that made it missed
            return
        # What answers brought beyond all that is known waits for its turn live, and is asked for with what follows.
        may_wait = self.plain or not self.exact or start >= self.known
        if start != missing and not (start == missing - 1 and not tagged) and not (
                may_wait and start <= missing) and not self._is_behind:
            self._broke("asked for batches from {} on where {} was the first that it had not", start, missing, at=at)
        if start in self.gone and not self.plain:
            self._broke("asked again for batch {}, which it was told is gone", start, at=at)
        missed, times = self.again
        # Who asks from further on asks for it still of the life before.
        self.again = missing, (times if missing == missed else 0) + (start <= missing < self.known)
        if self.again[1] > TRIES:
            self._broke("asked for batch {} {} times", start, self.again[1], at=at)
        silent_s = at - self.rest_at
        # What was held back comes behind the end of its publisher: the connection was cut before it.
        hurried = self.hurried or self.gone_at <= self.rest_at
        if not (self.is_missing(at) or hurried or silent_s >= self.wait_s - self.slack_s or self.plain):
            self._broke("asked for batch {}, {:.4f} s after there was nothing to ask for", start, silent_s, at=at)
        if self.wanted_at is not None and self.wanted_at < at - self.slack_s and self.tagged and self.silences < TRIES:
            self._broke("asked for batches where it had lost some for good {:.4f} s before", at - self.wanted_at, at=at)

    def _for_a_snapshot(self, at: float) -> None:
        told = self.lost.get(self.life, [])
        lost = [last for _, last, when in told if not self.exact or when <= at + self.slack_s]
        if self.exact and self.vain_at < at and not any(self.vain_at < when <= at + self.slack_s for *_, when in told):
            self._broke("asked for its state once more, after {} times in vain", self.failed, at=at)
        made_up_for = max(self.stated, self.cleared + 1) if self.exact else 0
        if not self.struck and max(lost, default=-1) < made_up_for and not self._is_behind:
            self._broke("asked for a snapshot where it had lost nothing", at=at)

    def _in_time(self, at: float, what: str) -> None:
        """The question that was due is asked, or there was no time for it."""
        due = self.due_at
        if self.under is not None:
            due = self.heard_at + self.patience_s
            if not self._sees_missing(at):  # given up, and silence begins: live batches break it
                due = max(due, self.rest_at) + self.wait_s
        elif self.wanted_at is not None and self.tagged and self.silences < TRIES and not self.pending:
            due = min(due, max(self.wanted_at, self.free_at))
        if self.plain and self.unheard and not self.knows:
            due += 2 * self.wait_s  # it asks in turns in words that its publisher does not know
        late_s = at - due - self.history.faults.frozen_s(self.node, due, max(due, at))
        if late_s > self.slack_s:
            self._broke("asked {} for {:.4f} s after a question was due", what, late_s, at=at)

    def _broke(self, template: str, *args: object, at: float) -> None:
        self.finding.broke("{} " + template, self.node, *args, at=at, node=self.node)


def _losses(found: list[Moment]) -> dict[int, list[tuple[int, int, float]]]:
    """First and last number of what is told as lost, and when, by life of the publisher."""
    lost: dict[int, list[tuple[int, int, float]]] = {}
    life = 0
    for moment in found:
        if moment.record.site == "kv-restarted":
            life += 1
        elif moment.record.site == "kv-unrecoverable":
            lost.setdefault(life, []).append((moment.said["first"], moment.said["last"], moment.at))
    return lost
