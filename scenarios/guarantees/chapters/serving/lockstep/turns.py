"""What a rank that steps together with others does, beside what it has to do by what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.topology import Channel, Mark
from faults.journal import Record
from scenarios.guarantees.base import DEATHS, ROUNDING_S, Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.serving.coordinator import SLACK_S
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.guarantees.readers.group.lockstep import ALL_REDUCE, FORWARD, Group, Rank, groups, is_lockstep
from scenarios.guarantees.readers.group.member import Member, Word
from scenarios.history.history import FOREVER, History

SOURCE = "vLLM V1 data-parallel engine core"
#: What it says that it reports.
_SAID = {"start-wave": False, "wave-complete": True}
_OBSERVED = ("consensus", "start-heard", "request", "rest", "go-on", *_SAID)
_DONE, _PAUSED, _RESUMED = _PASSED = Mark.WAVE_DONE.value, Mark.PAUSED.value, Mark.RESUMED.value


class _Report(NamedTuple):
    """Said to be sent; from `heard_at` on it need not be repeated."""

    word: Word
    record: Record
    heard_at: float = FOREVER


def check_rank_in_turn(history: History) -> Finding:
    finding = Finding(history)
    for group in groups(history):
        for index, rank in enumerate(group.ranks):
            said = _Follower(finding, group, index, rank).follow()
            if said is not None and group.hub:
                _judge_sent(finding, group, rank, said)
    return finding


class _Follower:
    """Goes through what one rank wrote, with the rules at its side."""

    def __init__(self, finding: Finding, group: Group, index: int, rank: Rank) -> None:
        self._finding, self._group, self._rank = finding, group, rank
        self._rules = Member(index, len(group.ranks), finding.history.play.config.data_parallel, hub=bool(group.hub))
        self._entered = [rank.forwards(place) for place in range(len(rank.places))]
        self._forwards = 0
        self._due: list[Word] = []
        self._marks: list[str] = []  # of what it is about to do
        self._resumes = False  # and owes an answer
        self._said: list[_Report] = []

    def follow(self) -> list[_Report] | None:
        """-> what it said that it reports, where it did all as it had to."""
        for name, record in self._events():
            if name in _SAID:
                wrong = self._says(Word(record.data["wave"], _SAID[name]), record)
            elif name in _PASSED:
                wrong = self._passes(name, record)
            elif self._due or self._marks:
                wrong = "went on before it had reported " + (
                    _named(self._due[0]) if self._due else f"what it did: {self._marks[0]}")
            else:
                wrong = self._told(name, record)
            if wrong:
                self._finding.broke("{} {}", self._rank.core, wrong, at=record.at, node=self._rank.core)
                return None
        return self._said

    def _events(self) -> Iterator[tuple[str, Record]]:
        rank = self._rank
        found = [(name, record) for name in _OBSERVED
                 for record in rank.history.by_node(name).get(rank.core, ())]
        found += [(mark, record) for mark in _PASSED for record in rank.passed(Mark(mark))]
        found += [(turn.kind, turn.record) for turn in rank.turns]
        yield from sorted(found, key=lambda pair: pair[1].number)

    def _says(self, word: Word, record: Record) -> str:
        if not self._due:
            return f"reported {_named(word)}, and had no reason to"
        if word != (meant := self._due.pop(0)):
            return f"reported {_named(word)}, and had to report {_named(meant)}"
        self._said.append(_Report(word, record))
        return ""

    def _passes(self, mark: str, record: Record) -> str:
        if mark == _PAUSED and self._rules.paused:
            self._marks = [due for due in self._marks if due != mark]
            return ""
        if mark not in self._marks:
            return f"said of itself that it is {mark}, and had no reason to"
        if mark == _DONE and record.data["wave"] != self._rules.place[0] - 1:
            return f"said that wave {record.data['wave']} is over, in wave {self._rules.place[0]}"
        self._marks.remove(mark)
        return ""

    def _told(self, name: str, record: Record) -> str:
        rules, data = self._rules, record.data
        if name == "request":
            if data["action"] == "add":
                if data["wave"] != rules.place[0]:
                    self._finding.witness("{} was asked in wave {} by one that believed in {}", self._rank.core,
                                          rules.place[0], data["wave"], at=record.at, node=self._rank.core)
                if not self._group.hub and data["wave"] > rules.place[0]:
                    return f"was asked in wave {data['wave']} by its own client, which it had told of none beyond " \
                           f"{rules.place[0]}"
                self._due = rules.asked(data["wave"])
        elif name == "start-heard":
            return self._starts(record)
        elif name == FORWARD:
            return self._steps(record)
        elif name == ALL_REDUCE:
            return "" if rules.sum_due else f"entered an all-reduce at wave {rules.place[0]}, step {rules.place[1]}"
        elif name == "consensus":
            return self._adds_up(record)
        elif name == "go-on":
            if rules.pausing or rules.going_on or (data["why"] == "steps" and not rules.paused):
                return "went on, and could not be asked to"
            self._due = rules.go_on(data["unfinished"])
            self._resumes = data["why"] == "resume" and rules.going_on
        elif name == "rest":
            if data["why"] == "pause" and rules.pausing:
                return "paused, and was asked to before"
            (rules.pause if data["why"] == "pause" else rules.halt)()
            if (data["pausing"], data["paused"]) != (rules.pausing, rules.paused):
                return f"took itself for {_resting(data['pausing'], data['paused'])}, and was " \
                       f"{_resting(rules.pausing, rules.paused)}"
        return ""

    def _starts(self, record: Record) -> str:
        rules, data = self._rules, record.data
        runs = rules.started(data["wave"], data["exclude"])
        if (data["at"], data["runs"]) != (rules.place[0], runs):
            return f"took START of wave {data['wave']} for {'one' if data['runs'] else 'none'} that it runs by in " \
                   f"wave {data['at']}, in wave {rules.place[0]}"
        if data["wave"] >= rules.place[0]:
            self._heard(record)
        if not runs:
            self._finding.witness("{} had no reason to run by START of wave {}", self._rank.core, data["wave"],
                                  at=record.at, node=self._rank.core)
        return ""

    def _steps(self, record: Record) -> str:
        rules, dummy = self._rules, "tokens" not in record.data
        wave, step = rules.place
        if rules.sum_due:
            return f"executed a forward at wave {wave}, step {step}, where an all-reduce was due"
        if dummy and not rules.runs and not rules.old:
            return f"executed a dummy batch in wave {wave}, and did not run"
        for entered in self._entered:
            if self._forwards < len(entered):
                place = entered[self._forwards].data
                if (place["wave"], place["step"]) != rules.place:
                    return f"executed forward {self._forwards} as that of wave {place['wave']}, step " \
                           f"{place['step']}, and it was that of wave {wave}, step {step}"
        self._forwards += 1
        rules.stepped()
        return ""

    def _adds_up(self, record: Record) -> str:
        rules, data = self._rules, record.data
        if not rules.sum_due:
            return f"took an answer at wave {rules.place[0]}, step {rules.place[1]}, where no all-reduce was due"
        held = (rules.pausing or rules.paused) and not rules.going_on
        if (data["wave"], data["step"]) != rules.place or data["votes"][1:] != rules.pauses or (
                held and data["votes"][0]):
            return f"brought {data['votes']} to the all-reduce of wave {data['wave']}, step {data['step']}, and it " \
                   f"was at wave {rules.place[0]}, step {rules.place[1]}, and had to say {rules.pauses} of a pause"
        was_paused = rules.paused
        self._due = rules.agreed(data["answer"])
        self._marks = [mark for mark, is_due in (
            (_DONE, rules.place[0] > data["wave"]), (_PAUSED, rules.paused and not was_paused),
            (_RESUMED, self._resumes)) if is_due]
        self._resumes = False
        self._heard(record)
        if data["running"] != rules.runs:
            return f"{'went on' if data['running'] else 'rested'} after all had said {data['answer']}"
        return ""

    def _heard(self, record: Record) -> None:
        if self._said and self._said[-1].heard_at == FOREVER:
            self._said[-1] = self._said[-1]._replace(heard_at=record.at)


def _named(word: Word) -> str:
    return f"that wave {word.wave} is over" if word.over else f"that it has work in wave {word.wave}"


def _resting(pausing: bool, paused: bool) -> str:
    return "paused" if paused else "about to pause" if pausing else "at work"


# -- what reaches whoever wakes them


def _judge_sent(finding: Finding, group: Group, rank: Rank, said: list[_Report]) -> None:
    """Each report is sent, and one of work again and again until it was heard."""
    history, options = finding.history, finding.history.play.config.data_parallel
    slack = SLACK_S if history.simulated else history.bounds.detection_s
    place, repeats = 0, [0] * len(said)
    last_at = 0.0
    for sent in history.crossings.get(f"{rank.core}->{group.hub}/{Channel.REPORT.value}:send", ()):
        word = next((Word(sent.data[name], over) for name, over in (("start_wave", False), ("wave_complete", True))
                     if name in sent.data), None)
        if sent.data.get("fate") in DEATHS:
            return  # the thread that sends has failed: its last words are another one's
        if word is None:
            continue
        if place < len(said) and said[place].word == word and said[place].record.at <= sent.at:
            place, last_at = place + 1, sent.at
        elif place and said[place - 1].word == word and not word.over and options.repair:
            waited = sent.at - last_at - history.faults.frozen_s(rank.core, last_at, sent.at)
            wrong = f"{waited:.3f} s later" if waited > 2 * options.changed_s + slack else ""
            # What was about to be sent once more may come behind the next report of the same wave.
            whose = [number for number in (place - 1, place - 2) if number >= 0 and said[number].word == word]
            reasons = [_too_soon(history, rank, said[number], sent, repeats[number] + 1, slack) for number in whose]
            if wrong := wrong or (reasons[0] if all(reasons) else ""):
                finding.broke("{} sent once more {}, {}", rank.core, _named(word), wrong, at=sent.at, node=rank.core)
                return
            repeats[whose[reasons.index("")]] += 1
            last_at = sent.at
        else:
            finding.broke("{} sent {}, and had not said so", rank.core, _named(word), at=sent.at, node=rank.core)
            return
    unsent = said[place:]
    if unsent and history.ends.at(rank.core) > unsent[0].record.at + history.bounds.detection_s:
        finding.hangs("that {} sends {}", rank.core, _named(unsent[0].word), bound=history.bounds.detection_s,
                      since=unsent[0].record.at, node=rank.core)


def _too_soon(history: History, rank: Rank, before: _Report, sent: Record, times: int, slack: float) -> str:
    """Why this report is not the one before again, for the so-manieth time; empty where it may be."""
    frozen_s = history.faults.frozen_s(rank.core, before.heard_at, sent.at)
    if before.heard_at + slack < sent.at - frozen_s:
        return "though it was heard"
    often = times > (sent.at - before.record.at + ROUNDING_S) / history.play.config.data_parallel.changed_s
    return "at once" if often else ""


GUARANTEES = (
    Guarantee(
        id="dp-rank-in-turn", chapter=CHAPTER, source=SOURCE, check=check_rank_in_turn, applies=is_lockstep,
        sentence="A core that steps together with others does what follows from what it was told, in turn: forwards "
                 "and all-reduces at their steps, reports once and as often as nobody has heard them, pauses with all.",
        wrong={"steps": "adds up what is left to do at each step",
               "reports": "reports a wave that runs already, whenever a request comes",
               "heard": "reports again and again what was heard",
               "steered": "pauses, and goes on, as it is asked to, amid what it was asked for before"},
        witness="a START or a request came to a rank which it had no reason to run by, or which was sent in another "
                "wave",
        envelope=Envelope(),
    ),
)
