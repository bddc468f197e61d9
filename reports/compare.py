"""What turned between two results: cell by cell, in words and as a page.

    results.json, results.json  --compared-->  Comparison: every cell that is not as it was

A cell is one guarantee of one scenario in one world, by the rule of `scenarios/history/verdicts.py`. It turned worse
where it was as declared and is not, where less is known of it, or where what held is now declared to break; worlds that
disagree now, a lab that fails now, and a break where nothing was judged before count as worse, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from reports.formats import count, listed
from reports.provenance import Origin, line_of
from reports.views.templates import environment, inline
from scenarios.history.run import RunError
from scenarios.history.verdicts import Cell, Evidence, Verdict, combined, is_as_declared

RESULTS = "results.json"


class ResultsError(RunError):
    """What was named is no results of a run. One line."""


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    guarantee: str
    verdict: Verdict
    expected: Verdict | None = None
    witnesses: int = 0
    evidence: list[Evidence] = msgspec.field(default_factory=list)


class _Played(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    world: str
    verdicts: list[_Said]
    choice: int = 0
    failure: str | None = None


class _Disagreed(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    guarantee: str


class _Agreement(msgspec.Struct, frozen=True, kw_only=True):
    disagreements: list[_Disagreed] = msgspec.field(default_factory=list)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """`results.json`, as far as a comparison needs it."""

    scenarios: list[_Played]
    agreement: _Agreement = _Agreement()
    provenance: Origin | None = None

    @property
    def origin(self) -> str:
        """When, where and from what it was played, in a line."""
        return "" if self.provenance is None else line_of(self.provenance)


class Way(StrEnum):
    WORSE = "worse"
    BETTER = "better"
    OTHER = "otherwise"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One cell that is not as it was. `before` or `after` None: it was not judged there."""

    way: Way
    scenario: str
    world: str
    guarantee: str
    before: str
    after: str
    promised: bool  # or declared to break, before or after
    why: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    turns: list[Turn]  # worse first, each by scenario
    same: int  # cells as they were
    origins: tuple[str, str]  # of the first, of the second
    gone: list[str]  # plays that only the first has
    new: list[str]  # plays that only the second has

    def of(self, way: Way) -> list[Turn]:
        return [turn for turn in self.turns if turn.way is way]

    @property
    def title(self) -> str:
        worse, better, other = (len(self.of(way)) for way in Way)
        if not self.turns:
            return f"Nothing turned: {count(self.same, 'cell')} as before"
        parts = [f"{count(worse, 'cell')} turned worse" if worse else "Nothing turned worse"]
        parts += [f"{better:,} better"] if better else []
        parts += [f"{other:,} otherwise"] if other else []
        return f"{', '.join(parts)}; {self.same:,} as before"


class _Cell(msgspec.Struct, frozen=True):
    verdict: Verdict
    expected: Verdict | None
    why: str

    @property
    def words(self) -> str:
        if self.expected is None:
            return self.verdict.value
        return f"{self.verdict.value}, {'promised' if self.expected is Verdict.HELD else 'canary'}"

    @property
    def badness(self) -> int:
        """2 what a reader must act on, 1 what is not known, 0 all else."""
        if not is_as_declared(self.verdict, self.expected):
            return 2 if self.verdict is Verdict.BROKEN or self.expected is Verdict.BROKEN else 1
        return int(self.verdict is Verdict.UNKNOWN)


def load_results(path: Path) -> Results:
    """A results.json, or the folder that holds it. Raises ResultsError."""
    file = path / RESULTS if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=Results)
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read ({error.strerror}); name a results.json or the folder that a run "
                           "was written to") from None
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{file}: no results of a run ({error})") from None


def compared(before: Results, after: Results) -> Comparison:
    first, second = _cells(before), _cells(after)
    plays, later = _plays(before), _plays(after)
    both = set(plays) & set(later)
    turns, same = [], 0
    for place in sorted(set(first) | set(second)):
        if place[:2] in both or place[:2] in later:
            turn = _turn(place, first.get(place), second.get(place))
            turns += [turn] if turn is not None else []
            same += turn is None
    turns += [*_failures(plays, later), *_disagreements(before, after)]
    order = list(Way)
    return Comparison(
        turns=sorted(turns, key=lambda turn: (order.index(turn.way), turn.scenario, turn.world, turn.guarantee)),
        same=same, origins=(before.origin, after.origin),
        gone=_named(plays.keys() - later.keys()), new=_named(later.keys() - plays.keys()))


_Place = tuple[str, str, str]  # scenario, world, guarantee


def _cells(results: Results) -> dict[_Place, _Cell]:
    said: dict[_Place, list[tuple[int, Cell]]] = defaultdict(list)
    for play in results.scenarios:
        for entry in play.verdicts:
            cell = Cell(guarantee=entry.guarantee, verdict=entry.verdict, expected=entry.expected,
                        witnesses=entry.witnesses, evidence=entry.evidence)
            said[play.name, play.world, entry.guarantee].append((play.choice, cell))
    return {place: _cell(cells) for place, cells in said.items()}


def _cell(cells: list[tuple[int, Cell]]) -> _Cell:
    verdict, expected = combined(cells)
    telling = next((cell for _, cell in cells if cell.verdict is verdict), cells[0][1])
    return _Cell(verdict, expected, telling.evidence[0].text if telling.evidence else "")


def _plays(results: Results) -> dict[tuple[str, str], str]:
    """(scenario, world) -> why the lab failed there, or an empty text."""
    found: dict[tuple[str, str], str] = {}
    for play in results.scenarios:
        found[play.name, play.world] = found.get((play.name, play.world)) or play.failure or ""
    return found


def _turn(place: _Place, before: _Cell | None, after: _Cell | None) -> Turn | None:
    if before is None and (after is None or after.badness < 2):
        return None
    if before is not None and after is not None and (before.verdict, before.expected) == (after.verdict,
                                                                                         after.expected):
        return None
    scenario, world, guarantee = place
    way = _way(before, after)
    telling = before if way is Way.BETTER or after is None else after
    return Turn(way=way, scenario=scenario, world=world, guarantee=guarantee, why=telling.why if telling else "",
                promised=any(cell is not None and cell.expected is not None for cell in (before, after)),
                before=before.words if before else "not judged", after=after.words if after else "not judged")


def _way(before: _Cell | None, after: _Cell | None) -> Way:
    if before is None:
        return Way.WORSE  # a break that stands where nothing was judged
    if after is None:
        return Way.OTHER
    if before.verdict is Verdict.HELD and after.verdict is Verdict.BROKEN and before.expected is not Verdict.BROKEN:
        return Way.WORSE  # also where it is declared now
    if before.badness != after.badness:
        return Way.WORSE if after.badness > before.badness else Way.BETTER
    return Way.OTHER


def _failures(before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]) -> Iterator[Turn]:
    for (scenario, world), why in after.items():
        was = before.get((scenario, world), "")
        if bool(was) != bool(why):
            yield Turn(way=Way.WORSE if why else Way.BETTER, scenario=scenario, world=world, guarantee="the lab itself",
                       promised=True, why=why or was,
                       before="failed" if was else "worked", after="failed" if why else "worked")


def _disagreements(before: Results, after: Results) -> Iterator[Turn]:
    was, now = ({(entry.scenario, entry.guarantee) for entry in results.agreement.disagreements}
                for results in (before, after))
    played = {play.name for play in after.scenarios}
    for scenario, guarantee in sorted(was ^ now):
        worse = (scenario, guarantee) in now
        words = "no dispute", "the worlds disagree"
        if scenario in played:
            yield Turn(way=Way.WORSE if worse else Way.BETTER, scenario=scenario, world="all worlds",
                       guarantee=guarantee, promised=True, why="", before=words[not worse], after=words[worse])


def _named(plays: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{scenario} ({world})" for scenario, world in sorted(plays)]


# -- in words, and as a page


def lines(found: Comparison) -> list[str]:
    """The title, a line for each turn that somebody is promised or must look at, and what only one of them has."""
    said = [found.title]
    said += [f"{word}: {origin}" for word, origin in zip(("before", "after"), found.origins, strict=True) if origin]
    quiet = [turn for turn in found.of(Way.OTHER) if not turn.promised]
    for turn in found.turns:
        if turn in quiet:
            continue
        why = f": {turn.why}" if turn.why else ""
        said.append(f"{turn.way.value:9} {turn.scenario} ({turn.world}) {turn.guarantee}: "
                    f"{turn.before} -> {turn.after}{why}")
    if quiet:
        said.append(f"{Way.OTHER.value:9} {count(len(quiet), 'cell')} of which nothing is promised: see the page")
    said += [f"only before: {listed(found.gone)}"] if found.gone else []
    said += [f"only after: {listed(found.new)}"] if found.new else []
    return said


def page(found: Comparison, before: str, after: str) -> str:
    """One self-contained HTML page. `before`, `after`: what was compared, as it was named."""
    return environment().get_template("compare.html").render(
        css=inline("style.css"), found=found, before=before, after=after, ways=[(way, found.of(way)) for way in Way],
        state="broken" if found.of(Way.WORSE) else "held")
