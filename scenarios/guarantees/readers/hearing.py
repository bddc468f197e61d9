"""What has reached a subscriber, and what it has told of it, as its records go by."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from scenarios.guarantees.base import Finding
from scenarios.guarantees.readers.lives import Came, Told
from scenarios.guarantees.readers.readings import LIVE, RESTART_S, TRIES, WORK_S, Moment
from scenarios.history.events.followers import Follower
from scenarios.history.history import FOREVER, Fate


class Hearer:
    """One life of a subscriber, and all that a judge of it has to remember."""

    def __init__(self, finding: Finding, follower: Follower) -> None:
        self.finding, self.follower, self.node = finding, follower, follower.node
        self.history = history = finding.history
        #: Who cannot be judged to the moment is given time, and not asked why.
        self.struck = not follower.is_exact
        self.exact = history.simulated and not self.struck
        self.slack_s = WORK_S if self.exact else \
            history.bounds.detection_s + history.lab.longest_starvation_s
        self.plain = history.play.options.without_epochs
        self.came: dict[int | None, Came] = defaultdict(lambda: Came(not self.plain))
        self.epoch: int | None = None  # whom it follows
        self.left: set[int | None] = set()  # whom it followed before
        self.newest: tuple[int, float] | None = None  # whom it has heard last, and when first
        self.met: int | None = None  # whom it knows to be there, where nobody says which life it is
        self.told: Told | None = None
        self.questions = 0
        self.begun: dict[int, int] = defaultdict(int)  # how many of them began with this number
        self.silent = 0  # questions in a row that nothing has come to
        self.deaf_at = FOREVER  # when it gave up asking
        self.heard_at = 0.0  # the last message of the answer under way
        self.question: Moment | None = None
        self.answer: set[int] = set()
        self.pieces: set[int] = set()  # of the state that was asked for last
        self.state: int | None = None  # which batch it is before, when all of it has come
        self.waits_until = 0.0  # batches wait for a snapshot
        self.mirrored = False  # the last that it did was to tell of its mirror
        self.heard = 0  # messages of answers
        self.live_ts = 0.0  # the publisher's time of the last live batch
        self.doubted: dict[int, int] = {}  # batches of who may have been away, and what had been heard then
        self.asks = history.play.config.kv_events.replay
        self.unasked: int | None = None  # the first batch of who was away, and nobody can be asked
        self.joins = False  # the answer under way holds something that was heard before
        self.misses = 0  # answers in a row that did not, where nobody says whose they are
        self.strange_at = FOREVER  # when these were enough
        self.cuts = [receipt.at for receipt in history.faults.hit(Fate.CUT)]
        self.shown: tuple[int, int | None] | None = None
        self.settled: tuple[int, float] | None = None  # an answer ended, before this number
        self.rumoured = 0  # an answer, or a state, told of every number below
        self.unread = 0  # batches below it have come and could not be read, of one whose answers have no report
        self.doubtings = 0  # questions in a row that it asked while the next batch was doubted
        self.stirred_at = 0.0  # since when live is silent
        self.other_at = FOREVER  # the same, where an answer of another life has ended
        self.proven: set[int] = set()  # lives that were heard live, or told their state

    def _hear(self, epoch: int | None, at: float) -> Came:
        if self.newest is None or epoch != self.newest[0]:
            self.newest = epoch or 0, at
        if self.epoch is None:
            self.epoch = epoch
            if self.told is not None:
                self.told.came = self.came[epoch]
        return self.came[epoch]

    def _meets(self, said: dict[str, Any]) -> bool:
        """A number that was heard before, and later: what came of this life until now was doubted, and is void."""
        epoch = said["epoch"]
        if self.met is None or epoch <= self.met or said["seq"] > max(self.came[self.met].first, default=-1):
            self.met = epoch if self.met is None else self.met
            return False
        self.met, self.came[epoch] = epoch, Came(not self.plain)
        return True

    def _of_now(self) -> Told:
        if self.told is None:
            self.told = Told(self.came[self.epoch])
        return self.told

    def _live(self, moment: Moment) -> None:
        said = moment.said
        cut = bool(self.cuts) and self.cuts[0] < moment.at
        if cut:
            self.cuts.pop(0)
        if self.plain:
            self._meets(said)
        came = self._hear(said["epoch"], moment.at)
        self._stirs(moment.at)
        self.proven.add(said["epoch"])
        if self.plain and came.live and cut and not self.asks:
            self.unasked = said["seq"]
        elif self.plain and came.live and self.asks and (cut or said.get("ts", 0.0) - self.live_ts >= RESTART_S):
            self.doubted[said["seq"]] = self.heard
        self.live_ts = said.get("ts", 0.0)
        came.live_batch(said["seq"], moment.at, "clears" in said)

    def _batch(self, moment: Moment) -> None:
        said = moment.said
        new = self.plain and self._meets(said)
        came = self._hear(said["epoch"], moment.at)
        told = self._of_now()
        self.joins = self.joins or said["seq"] in told.applied or said["seq"] in came.live
        if not new:  # who brings the word of a new life is asked for it again
            came.batch(said["seq"], moment.at, "replay", "clears" in said, asked=not self.plain or bool(self.question))
        self.answer.add(said["seq"])
        self.heard += 1
        self.heard_at, self.silent = moment.at, 1  # should it never end

    def _end(self, moment: Moment) -> None:
        said, asked, self.silent = moment.said, self.question, 0
        self.heard += 1
        self.heard_at = moment.at
        if self.plain and asked is not None:
            self._joins_nothing(moment.at)
            if self.joins or self.unread:
                brought = max(self.answer, default=-1) + 1 if self.joins else 0
                self.rumoured, self.stirred_at = max(brought, self.unread), moment.at
        if asked is None or asked.said.get("tag") != said.get("tag"):
            return
        self.question = None
        if "epoch" not in said:
            return
        came = self._hear(said["epoch"], moment.at)
        came.end_at = moment.at
        came.oldest = max(came.oldest, said["oldest"])
        whole = range(max(said["start"], said["oldest"]), said["next"])
        if len(self.answer) == said["count"]:
            came.never.update(number for number in whole if number not in self.answer)
        if said["epoch"] == self.epoch:
            self.settled = said["next"], moment.at
            self.rumoured, self.stirred_at = said["next"], moment.at
        else:
            self.other_at = moment.at

    def _stirs(self, at: float) -> None:
        """Live speaks: it is silent from here on."""
        self.stirred_at = at
        self.other_at = at if self.other_at < FOREVER else FOREVER

    def _damaged(self, moment: Moment) -> None:
        if moment.record.site.endswith(LIVE):
            self._stirs(moment.at)
        if self.plain and moment.said.get("fate") == Fate.TRUNCATE and moment.record.site.endswith(LIVE):
            self.unread = max(self.unread, moment.said.get("seq", -1) + 1)

    def _joins_nothing(self, at: float) -> None:
        """So many answers in a row leave it open whose they are, and that is told at once."""
        told = self._of_now()
        self.misses = 0 if self.joins or not told.came.first else self.misses + 1
        self.question = None
        if self.misses == TRIES:
            self.strange_at, self.misses = at, 0

    def _piece(self, moment: Moment) -> None:
        said = moment.said
        came = self._hear(said["epoch"], moment.at)
        came.end_at = self.heard_at = moment.at
        self.proven.add(said["epoch"])
        self.silent = 0
        asked = self.question
        if asked is None or not asked.said.get("snapshot") or asked.said["tag"] != said["tag"]:
            return
        if said["known"]:
            self.pieces.add(said["piece"])
            self.state = said["next"] if len(self.pieces) == said["pieces"] else None
        if self.state is not None or not said["known"]:
            self.waits_until = moment.at
        if self.state is not None and said["epoch"] == self.epoch:
            self.rumoured, self.stirred_at = max(self.rumoured, self.state), moment.at

    def _asked(self, moment: Moment) -> None:
        self._is_sure(moment.at)
        self.question, self.answer, self.heard_at, self.joins = moment, set(), moment.at, False
        if moment.said.get("snapshot"):
            self.waits_until = FOREVER
            self.pieces, self.state = set(), None
        else:
            self.waits_until = min(self.waits_until, moment.at)
            self.questions += 1
            self.begun[moment.said.get("start", -1)] += 1
            self.silent += 1

    def _is_sure(self, at: float) -> None:
        """Who may be another one is asked so often, and then followed as it is."""
        self.doubtings = self.doubtings + 1 if self._of_now().next in self.doubted else 0
        if self.exact and self.doubtings > TRIES:
            self._broke("asked {} times who has sent batch {}", self.doubtings, self._of_now().next, at=at)

    def _asks_now(self, at: float) -> bool:
        """A question that leaves in this moment is on record before what was told of the answer before it."""
        asked = self.question
        return self.exact and asked is not None and asked.at >= at - self.slack_s and not asked.said.get("snapshot")

    def _is_over(self, at: float) -> bool:
        """Another life has been heard than the one that it follows."""
        return self.newest is not None and self.newest[0] != self.epoch

    def _broke(self, template: str, *args: object, at: float) -> None:
        self.finding.broke("{} " + template, self.node, *args, at=at, node=self.node)
