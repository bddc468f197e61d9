"""What a subscriber tells of its publisher's batches, judged by what reached it and when."""

from __future__ import annotations

from scenarios.guarantees.readers.hearing import Hearer
from scenarios.guarantees.readers.lives import Came, Told, runs
from scenarios.guarantees.readers.readings import QUIET_S, TRIES, Moment, What, moments
from scenarios.history.history import FOREVER, Fate

#: So long after it was sent a signal may be heard, and who was about to leave is gone by then.
_SIGNAL_S = 0.5e-3


class Teller(Hearer):
    """One life of a subscriber, walked through."""

    def walk(self) -> None:
        hear = {What.LIVE: self._live, What.BATCH: self._batch, What.END: self._end, What.PIECE: self._piece,
                What.ASKED: self._asked, What.DAMAGED: self._damaged}
        tell = {"kv-batch": self._applies, "kv-gap": self._misses, "kv-healed": self._heals,
                "kv-unrecoverable": self._loses, "kv-restarted": self._restarts, "kv-unverified": self._doubts,
                "kv-snapshot": self._is_told_all, "kv-mirror": self._mirrors, "polled": self._polled}
        for moment in moments(self.history, self.node):
            if moment.what in hear:
                self.mirrored = False
                frozen_s = self.history.faults.frozen_s(self.node, self.heard_at, moment.at)
                late_s = moment.at - self.heard_at - frozen_s - self.history.bounds.replay_s
                if late_s > (0.0 if self.exact else self.slack_s):  # a real one may read before it looks at the clock
                    self.question = None  # given up
                self._is_settled(moment.at)
                self._is_quiet(moment.at)
                self._is_deaf(moment.at)
                self._is_of_now(moment.at)
                if self.exact and moment.at > self.strange_at + self.slack_s:
                    self._broke("took answers that hold nothing that it knew for its publisher's", at=self.strange_at)
                    self.strange_at = FOREVER
                hear[moment.what](moment)
            elif moment.what is What.TOLD and moment.record.site in tell:
                self.mirrored = moment.record.site == "kv-mirror"
                tell[moment.record.site](moment, self._of_now())
        left_at = self.follower.left_at()
        self._is_of_now(left_at)
        self._close(self._of_now(), left_at)
        self._leaves(left_at)

    # -- what it tells

    def _applies(self, moment: Moment, told: Told) -> None:
        number, at, came = moment.said["seq"], moment.at, told.came
        found = came.first.get(number)
        if number != told.next:
            self._broke("applied batch {} where {} was next", number, told.next, at=at)
        self._is_placed(told, at)
        doubted = self.doubted.pop(number, None)
        if doubted == self.heard:
            self._broke("believed batch {} of who may have been away, and had not asked", number, at=at)
        elif self.unasked is not None and self.exact:
            self._broke("believed batch {} of who was away, and can ask nobody", number, at=at)
        elif doubted is not None:
            self.finding.witness("{} believed batch {} of who may have been away when it had asked", self.node, number,
                                 at=at, node=self.node)
        if found is None:
            self._broke("applied batch {}, which had not come", number, at=at)
            return
        came_live_too = moment.said["source"] == "live" and came.live.get(number, FOREVER) <= at
        if moment.said["source"] != found[1] and (self.exact or not came_live_too):
            self._broke("says that batch {} came by {}, and it came by {}", number, moment.said["source"], found[1],
                        at=at)
        sure_at = min(came.live.get(number, FOREVER), told.missing.get(number, FOREVER))
        ready_at = max(found[0], sure_at, told.settled_at)
        if sure_at == FOREVER and not (self.plain and self.struck):
            self._broke("applied batch {} before it knew that it does not come live", number, at=at)
        elif at - ready_at > self.slack_s and self.exact and self.waits_until < ready_at and not (
                self.plain and (self.doubted or doubted is not None or max(told.missing, default=-1) >= number)):
            self._broke("held batch {} back for {:.4f} s", number, at - ready_at, at=at)
        told.applied.add(number)
        if number in came.clears:
            told.unknown_since = None
        self._goes_on(told, number + 1, at)

    def _goes_on(self, told: Told, number: int, at: float) -> None:
        told.next, told.settled_at = number, at
        told.progress = self.questions - (self._asks_now(at) if self.exact else 1)

    def _misses(self, moment: Moment, told: Told) -> None:
        first, last, at, came = moment.said["first"], moment.said["last"], moment.at, told.came
        before = self.questions - (self._asks_now(at) if self.exact else 1)
        told.gaps.append((first, last))
        for number in range(first, last + 1):
            if number in told.missing or number in told.applied or came.live.get(number, FOREVER) < at - self.slack_s:
                self._broke("told batch {} as missing, which it had or had told before", number, at=at)
                break
            told.missing[number] = at
            # An answer told of it before, or it is passed by, and asked for in this moment.
            told.asked[number] = before if number in came.passed else 0
        quiet_s = at - max(came.live_at, came.end_at)
        if last not in came.passed and quiet_s < QUIET_S - self.slack_s and self.exact and not self._is_over(at):
            self._broke("told batch {} as missing {:.4f} s after it could still come", last, quiet_s, at=at)

    def _heals(self, moment: Moment, told: Told) -> None:
        first, last = moment.said["first"], moment.said["last"]
        told.healed.add((first, last))
        if first > last or last != told.next - 1 or any(n not in told.applied for n in range(first, last + 1)):
            self._broke("told that {} to {} are healed when {} was next", first, last, told.next, at=moment.at)

    def _loses(self, moment: Moment, told: Told) -> None:
        first, last, at, came = moment.said["first"], moment.said["last"], moment.at, told.came
        tries = 1 if self.plain else TRIES  # of a publisher that knows no tags, not every question is to be seen
        begun = 0 if self.exact else self.begun[first]  # a real one may tell of a gap when it has asked already
        if first != told.next:
            self._broke("gave up batch {} where {} was next", first, told.next, at=at)
        for number in range(first, last + 1):
            if number not in told.missing:
                self._broke("gave up batch {}, which it had not told as missing", number, at=at)
                break
            if number in came.kept and not (self.plain and self.struck):
                self._broke("gave up batch {}, which had come", number, at=at)
                break
            asked = self.questions - self._asks_now(at) - max(told.asked[number], told.progress)
            if not (number < came.oldest or number in came.never or max(asked, begun, self.silent) >= tries
                    or not self.history.play.config.kv_events.replay or self._is_over(at) or self.struck):
                self._broke("gave up batch {} after {} questions", number, asked, at=at)
                break
        self.settled = None
        if self.exact and self.silent - self._asks_now(at) >= TRIES:
            self.deaf_at = at
        if told.unknown_since is None:
            told.unknown_since = first
        self.finding.witness("{} told batches {} to {} as missing and as lost", self.node, first, last, at=at,
                             node=self.node)
        self._goes_on(told, last + 1, at)

    def _restarts(self, moment: Moment, told: Told) -> None:
        at = moment.at
        if not (self._is_over(at) or self.struck):
            self._broke("told of a restart, and had heard of one life of its publisher", at=at)
        elif not self.plain and moment.said["epoch"] not in self.came:
            self._broke("told of a life that it had not heard of", at=at)
        elif not self.plain and moment.said["epoch"] not in self.proven and self.exact and (
                at < self.other_at + QUIET_S - self.slack_s):
            self._broke("told of a life by an answer, and batches of the one before could still come", at=at)
        open_upto = max(0 if self.plain else told.came.wire, max(told.missing, default=-1) + 1)
        if told.next < open_upto and self.exact:
            self._broke("told of a restart, and not what became of batches {} to {} of the life before", told.next,
                        open_upto - 1, at=at)
        self._close(told, at)
        self.rumoured, self.strange_at, self.misses, self.state, self.other_at = 0, FOREVER, 0, None, FOREVER
        self.unread = 0
        self.left.add(self.epoch)
        self.epoch = self.newest[0] if self.plain and self.newest is not None else moment.said["epoch"]
        if self.plain and self.epoch != self.met:  # its answers gave it away: what they held is asked for again
            self.met, self.came[self.epoch] = self.epoch, Came(not self.plain)
        if not self.plain and self.epoch in self.left:  # it is alive after all, and what came of it was not kept
            self.came[self.epoch] = Came(not self.plain)
        self.told, self.settled = None, None

    def _doubts(self, moment: Moment, told: Told) -> None:
        if not self.plain:
            self._broke("is not sure of a publisher that says which life it is", at=moment.at)
        back = not self.asks and self.history.play.options.kill_all_then_restart
        reason = back or self.doubted or self.unasked is not None or self.strange_at <= moment.at
        if self.exact and not reason:
            self._broke("is not sure of who has neither been away nor answered strangely", at=moment.at)
        if told.unknown_since is None:
            told.unknown_since = moment.said["next_seq"]
        if self.unasked is not None:
            self.finding.witness("{} did not believe who was away, and could ask nobody", self.node, at=moment.at,
                                 node=self.node)
        self.unasked, self.strange_at, told.settled_at = None, FOREVER, moment.at
        self.doubted.clear()

    def _is_told_all(self, moment: Moment, told: Told) -> None:
        if moment.said["next_seq"] != told.next:
            self._broke("took the state before batch {} where {} was next", moment.said["next_seq"], told.next,
                        at=moment.at)
        if moment.said["next_seq"] != self.state:
            self._broke("took the state before batch {}, and was told the one before {}", moment.said["next_seq"],
                        self.state, at=moment.at)
        told.unknown_since, self.state = None, None

    def _is_placed(self, told: Told, at: float) -> None:
        """A state that has come whole is told before what comes next."""
        if self.state == told.next and self.exact and told.unknown_since is not None:
            self._broke("did not tell the state before batch {}, which had come", told.next, at=at)
            self.state = None

    def _mirrors(self, moment: Moment, told: Told) -> None:
        said = moment.said
        self._is_placed(told, moment.at)
        if said["next_seq"] != told.next:
            self._broke("mirrors what is before batch {} where {} is next", said["next_seq"], told.next, at=moment.at)
        if said.get("unknown_since") != told.unknown_since:
            self._broke("says that its mirror is unknown since {}, and it is since {}", said.get("unknown_since"),
                        told.unknown_since, at=moment.at)
        self.shown = told.next, told.unknown_since

    def _polled(self, moment: Moment, told: Told) -> None:
        """Who polls has what there is as soon as there is any, and is not kept without any."""
        said = moment.said
        if not said["told"] and said["took"] < said["most"] - self.slack_s:
            self._broke("told nothing to who polled, after {:.4f} s of {}", said["took"], said["most"], at=moment.at)
        elif said["took"] > said["most"] + self.slack_s and not self.struck:
            self._broke("kept who polled for {:.4f} s of {}", said["took"], said["most"], at=moment.at)

    # -- what it did not tell

    def _is_settled(self, at: float) -> None:
        """An answer said that nothing is missing: whoever follows is told what the mirror holds."""
        if self.settled is None or at <= self.settled[1] + self.slack_s:
            return
        told = self._of_now()
        polls = self.history.play.options.polling  # it looks at its mirror when it likes
        if self.exact and not polls and self.settled[0] == told.next and self.shown != (told.next, told.unknown_since):
            self._broke("had nothing to wait for before batch {}, and did not say what it mirrors", told.next, at=at)
        self.settled = None

    def _is_quiet(self, at: float) -> None:
        """What an answer told of is missing where live was silent for long enough behind it."""
        told = self._of_now()
        if self.rumoured <= told.next or not self.exact or at <= self.stirred_at + QUIET_S + self.slack_s:
            return
        for number in range(told.next, self.rumoured):
            if number not in told.missing and number not in told.came.live and not self._is_over(at):
                self._broke("did not say that batch {} is missing, of which it was told {:.4f} s before", number,
                            at - self.stirred_at, at=at)
                break
        self.rumoured = 0

    def _is_deaf(self, at: float) -> None:
        """Where nobody answers, whatever is missing is lost at once."""
        if at <= self.deaf_at + self.slack_s:
            return
        told, self.deaf_at = self._of_now(), FOREVER
        if max(told.missing, default=-1) >= told.next:
            self._broke("had given up asking, and did not give up batch {}", told.next, at=at)

    def _is_of_now(self, at: float) -> None:
        """Where another life answers, and live is silent, that is the one that there is."""
        if self.exact and at > self.other_at + QUIET_S + self.slack_s:
            self._broke("did not say that another life answers, {:.4f} s behind its answer", at - self.other_at, at=at)
            self.other_at = FOREVER

    def _close(self, told: Told, at: float) -> None:
        """A life of the publisher, or of its subscriber, is over."""
        if self.follower.killed:
            return
        for number, since in told.came.passed.items():
            late_s = told.missing.get(number, at) - since
            if late_s > self.slack_s and not self.struck:
                self._broke("did not say for {:.4f} s that batch {} was passed by", late_s, number, at=since)
                break
        for first, last in told.gaps:
            for run in runs(first, last, told):
                if run not in told.healed:
                    self._broke("never said that {} to {} are healed", *run, at=at)
                self.finding.witness("{} told batches {} to {} as missing and as healed", self.node, *run,
                                     node=self.node)
        if not self.asks and self.exact and max(told.missing, default=-1) >= told.next:
            self._broke("did not give up batch {}, which nobody can be asked for", told.next, at=at)
        came_at, _ = told.came.first.get(told.next, (FOREVER, ""))
        since = max(came_at, told.settled_at, told.missing.get(told.next, told.came.live.get(told.next, FOREVER)))
        bound = self.history.bounds.replay_s + self.history.bounds.detection_s
        if at - since > bound and not self.plain and not self.struck:
            self._broke("never applied batch {}, which it had for {:.4f} s", told.next, at - since, at=at)

    def _leaves(self, at: float) -> None:
        if not self.mirrored and self.node in self.history.by_node("bye"):
            self._broke("left, and did not say what it mirrors", at=at)
        told = [receipt for receipt in self.history.faults.receipts
                if receipt.node == self.node and receipt.fate == Fate.TERMINATE]
        for receipt in told:
            bye = self.history.by_node("bye").get(self.node)
            if bye and self.exact and at > receipt.at + self.slack_s + _SIGNAL_S and bye[0].data["reason"] != "SIGTERM":
                self._broke("left because it was {!r}, and had been sent SIGTERM", bye[0].data["reason"], at=at)
            if at - receipt.at > self.history.bounds.detection_s + self.slack_s and not self.struck:
                self._broke("was still there {:.4f} s after SIGTERM", at - receipt.at, at=receipt.at)
