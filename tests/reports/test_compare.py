"""What turned between two results."""

from __future__ import annotations

import json

import pytest

from reports.compare import Comparison, Results, ResultsError, Way, compared, lines, load_results, page
from reports.results import write_results
from tests.reports.example import BROKEN, HELD, OUTSIDE, UNKNOWN, UNTESTED, bare_run, cell


def _results(tmp_path, *runs) -> Results:
    write_results(runs, tmp_path / "results.json")
    return load_results(tmp_path)


def _of_one(tmp_path, before, after) -> Comparison:
    """One cell before, and after: (verdict, expected), or None where it was not judged."""
    return compared(*(_results(tmp_path, bare_run("test_one", "sim", *([cell("ends-once", *said)] if said else [])))
                      for said in (before, after)))


@pytest.mark.parametrize(("before", "after", "way"), [
    ((HELD, HELD), (HELD, HELD), None),
    ((HELD, HELD), (BROKEN, HELD), Way.WORSE),
    ((HELD, HELD), (UNKNOWN, HELD), Way.WORSE),
    ((HELD, HELD), (UNTESTED, HELD), Way.WORSE),
    ((UNTESTED, HELD), (BROKEN, HELD), Way.WORSE),
    ((BROKEN, HELD), (UNKNOWN, HELD), Way.BETTER),
    ((BROKEN, HELD), (HELD, HELD), Way.BETTER),
    ((HELD, HELD), (HELD, None), Way.OTHER),
    ((HELD, HELD), (BROKEN, BROKEN), Way.WORSE),
    ((BROKEN, BROKEN), (HELD, BROKEN), Way.WORSE),
    ((HELD, BROKEN), (BROKEN, BROKEN), Way.BETTER),
    ((BROKEN, BROKEN), (HELD, HELD), Way.OTHER),
    ((HELD, None), (UNTESTED, None), Way.OTHER),
    ((UNTESTED, None), (OUTSIDE, None), Way.OTHER),
    ((HELD, None), (UNKNOWN, None), Way.WORSE),
    ((UNTESTED, None), (BROKEN, None), Way.WORSE),
    (None, (BROKEN, None), Way.WORSE),
    (None, (HELD, None), None),
    ((HELD, None), None, Way.OTHER),
])
def test_a_cell_turns(tmp_path, before, after, way):
    found = _of_one(tmp_path, before, after)
    assert [turn.way for turn in found.turns] == ([] if way is None else [way])
    assert found.same == (1 if way is None and before is not None else 0) or before is None


def test_of_several_outcomes_the_rule_of_the_verdicts_speaks(tmp_path):
    held, untested = cell("ends-once", HELD, HELD), cell("ends-once", UNTESTED, HELD)
    before = _results(tmp_path, bare_run("test_one", "sim", held, choice=0),
                      bare_run("test_one", "sim", held, choice=1))
    after = _results(tmp_path, bare_run("test_one", "sim", untested, choice=0),
                     bare_run("test_one", "sim", held, choice=1))
    assert compared(before, after).turns == []
    broken = _results(tmp_path, bare_run("test_one", "sim", cell("ends-once", BROKEN, HELD), choice=0),
                      bare_run("test_one", "sim", held, choice=1))
    assert [turn.way for turn in compared(before, broken).turns] == [Way.WORSE]


def test_a_turn_says_what_it_was_what_it_is_and_why(tmp_path):
    [turn] = _of_one(tmp_path, (HELD, HELD), (BROKEN, HELD)).turns
    assert (turn.scenario, turn.world, turn.guarantee) == ("test_one", "sim", "ends-once")
    assert (turn.before, turn.after) == ("HELD, promised", "BROKEN, promised")
    assert turn.why == "ends-once was judged on this run"


def test_plays_that_only_one_has_are_named_and_turn_nothing(tmp_path):
    one, other = (bare_run(name, "sim", cell("ends-once", HELD, HELD)) for name in ("test_one", "test_other"))
    found = compared(_results(tmp_path, one), _results(tmp_path, other))
    assert (found.turns, found.gone, found.new) == ([], ["test_one (sim)"], ["test_other (sim)"])


def test_a_new_play_that_breaks_counts_as_worse(tmp_path):
    red = bare_run("test_new", "sim", cell("ends-once", BROKEN, HELD))
    assert [turn.before for turn in compared(_results(tmp_path), _results(tmp_path, red)).turns] == ["not judged"]


def test_a_lab_that_fails_counts_as_worse_and_its_end_as_better(tmp_path):
    well = bare_run("test_one", "engine", cell("ends-once", HELD, None))
    ill = bare_run("test_one", "engine", failure="no room", judged=False)
    found = [turn for turn in compared(_results(tmp_path, well), _results(tmp_path, ill)).turns
             if turn.guarantee == "the lab itself"]
    assert [(turn.way, turn.why) for turn in found] == [(Way.WORSE, "no room")]
    assert Way.BETTER in {turn.way for turn in compared(_results(tmp_path, ill), _results(tmp_path, well)).turns}


def test_worlds_that_disagree_now_count_as_worse(tmp_path):
    def play(verdict):
        return _results(tmp_path, bare_run("test_one", "sim", cell("ends-once", HELD)),
                        bare_run("test_one", "engine", cell("ends-once", verdict)))

    found = compared(play(HELD), play(BROKEN))
    assert {(turn.world, turn.way) for turn in found.turns} == {("engine", Way.WORSE), ("all worlds", Way.WORSE)}
    assert {turn.way for turn in compared(play(BROKEN), play(HELD)).turns} == {Way.BETTER}


def test_the_words_count_what_nothing_promises_and_list_the_rest(tmp_path):
    cells = [cell("ends-once", HELD, HELD), cell("edge-fifo", HELD), cell("hwm0-no-loss", HELD)]
    turned = [cell("ends-once", BROKEN, HELD), cell("edge-fifo", UNTESTED), cell("hwm0-no-loss", HELD)]
    said = lines(compared(_results(tmp_path, bare_run("test_one", "sim", *cells)),
                          _results(tmp_path, bare_run("test_one", "sim", *turned))))
    assert said[0] == "1 cell turned worse, 1 otherwise; 1 as before"
    unknown = "When, where and from which commit this was played is not known."
    assert said[1:3] == [f"before: {unknown}", f"after: {unknown}"]
    assert said[3].startswith("worse     test_one (sim) ends-once: HELD, promised -> BROKEN, promised: ")
    assert said[4] == "otherwise 1 cell of which nothing is promised: see the page"


def test_the_page_holds_every_turn_and_is_escaped(tmp_path):
    before, after = (_results(tmp_path, bare_run("<b>", "sim", cell("ends-once", verdict, HELD)))
                     for verdict in (HELD, BROKEN))
    text = page(compared(before, after), "a", "b")
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert "1 cell turned worse" in text and "BROKEN, promised" in text


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"scenarios": 1}'])
def test_what_is_no_results_is_named(tmp_path, content):
    file = tmp_path / "results.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ResultsError, match=str(file)):
        load_results(tmp_path)


def test_results_that_know_more_than_this_can_be_read(tmp_path):
    write_results([bare_run("test_one", "sim", cell("ends-once", HELD, HELD))], tmp_path / "results.json")
    known = json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(known | {"schema": 99, "more": {}}))
    assert load_results(tmp_path).scenarios[0].name == "test_one"
    del known["provenance"], known["schema"]  # as they were before that was told
    (tmp_path / "results.json").write_text(json.dumps(known))
    assert load_results(tmp_path).origin == ""
