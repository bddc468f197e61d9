"""The page: whole, self-contained, readable as text, and deaf to hostile runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from reports.collect import Promise
from reports.page import render, write_page
from reports.views.packing import packed, unpacked
from scenarios.command.conclusion import promises
from scenarios.history.verdicts import Evidence, FaultReceipt, Judgement, Verdict
from scenarios.lab.catalogue import catalogue
from scenarios.lab.player import play
from scenarios.worlds.sim import SimWorld
from tests.reports.example import (
    BROKEN,
    HELD,
    PROMISES,
    bare_run,
    cell,
    replay_command,
    write_examples,
    write_held,
)

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements with their attributes and text, and whether every element was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[dict[str, str]] = []
        self.open: list[tuple[str, int]] = []
        self.words: dict[int, list[str]] = {}
        self.wrong: list[str] = []
        self.feed(text)
        self.wrong += [f"never closed: {name}" for name, _ in self.open]

    def handle_starttag(self, name, attributes):
        self.elements.append({"tag": name} | {key: value or "" for key, value in attributes})
        if name not in VOID:
            self.open.append((name, len(self.elements) - 1))

    def handle_startendtag(self, name, attributes):
        self.elements.append({"tag": name} | {key: value or "" for key, value in attributes})

    def handle_endtag(self, name):
        if not self.open or self.open.pop()[0] != name:
            self.wrong.append(f"closed out of order: {name} near {self.getpos()}")

    def handle_data(self, text):
        for _, index in self.open:
            self.words.setdefault(index, []).append(text)

    def text(self, **attributes: str) -> str:
        """All text under the first element with these attributes."""
        index = next(i for i, e in enumerate(self.elements) if attributes.items() <= e.items())
        return " ".join(" ".join(self.words.get(index, [])).split())

    def all(self, tag: str, class_: str | None = None) -> list[dict[str, str]]:
        return [e for e in self.elements
                if e["tag"] == tag and (class_ is None or class_ in e.get("class", "").split())]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def source(examples):
    return render(examples, PROMISES, replay_command)


def opened(source: str) -> str:
    """The page as it is when all that is packed in it was opened."""
    packets = json.loads(re.search(r'<script type="application/json" id="evidence">(.*?)</script>', source)[1])
    for number, packet in packets.items():
        before, _, after = source.partition(f'id="{number}"')
        note = re.search(r'<p class="packed">.*?</p>', after)
        source = before + f'id="{number}"' + after[:note.start()] + unpacked(packet) + after[note.end():]
    return source


@pytest.fixture(scope="module")
def page(source):
    return Page(opened(source))


@pytest.fixture(scope="module")
def plain(source):
    """As it is where no script runs."""
    return Page(source)


def test_the_markup_is_well_formed(page):
    assert page.wrong == []


def test_ids_are_unique_and_every_link_inside_the_page_has_its_target(page):
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    targets = {e["href"][1:] for e in page.elements if e.get("href", "").startswith("#")}
    aims = {e["data-to"] for e in page.elements if "data-to" in e}  # where a script leads, once it has unpacked
    assert targets | aims <= set(ids)
    assert len(targets) > 50 and len(aims) > 5


def test_every_link_of_the_page_leads_somewhere_before_anything_is_unpacked(plain):
    ids = {e["id"] for e in plain.elements if "id" in e}
    assert {e["href"][1:] for e in plain.elements if e.get("href", "").startswith("#")} <= ids


def test_the_page_asks_nobody_for_anything(source, page):
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\((?!#)", source.replace("http-equiv", ""))
    outside = [e for e in page.elements
               if e.get("src") or not e.get("href", "#").startswith(("#", "data:,"))]
    assert outside == []
    assert "default-src 'none'" in source


def test_the_answer_is_a_sentence_at_the_top(page):
    said = page.text(**{"class": "sentence"})
    assert said.startswith("14 guarantees were promised in 7 scenarios, played in the twin and on the engine")
    assert "38 held, 1 broken, 1 unknown and 2 untested" in said
    assert "the worlds disagree on 1 of 21 cells" in said and "tokens-in-order of test_lost_output_frame" in said
    assert "all 2 canary cells turned out as declared" in said


def test_a_report_where_everything_held_says_so(tmp_path):
    held = Page(render(write_held(tmp_path, kills=1), PROMISES, replay_command))
    assert held.text(tag="h1") == "✓ Every promise held"
    assert "the worlds agree on all" in held.text(**{"class": "sentence"})
    assert not [e for e in held.elements if e.get("id") == "attention"]


def test_what_needs_a_person_is_listed_worst_first_with_its_command(page):
    text = page.text(id="attention")
    assert text.index("tokens-in-order is BROKEN") < text.index("The worlds disagree") < text.index("UNKNOWN")
    assert "ringtwin replay out/runs/test_lost_output_frame-engine-0" in text


def test_every_verdict_of_the_matrix_is_a_word_and_a_glyph_not_only_a_colour(page, examples):
    squares = [e for e in page.all("a", "sq")]
    assert len(squares) == 7 * len(PROMISES)
    for square in squares:
        assert len(re.findall("HELD|BROKEN|UNTESTED|OUTSIDE|UNKNOWN", square["aria-label"])) >= 2
    glyphs = {"✓": "held", "×": "broken", "○": "untested", "–": "outside", "?": "unknown"}
    seen = set()
    for index, e in enumerate(page.elements):
        if e["tag"] == "i" and e.get("class"):
            glyph = "".join(page.words[index])
            assert glyphs[glyph] == e["class"].split()[0]
            seen.add(glyph)
    assert seen == set(glyphs)


def squares(page: Page) -> dict[tuple[str, str], int]:
    """(scenario's anchor, guarantee) -> which element its cell is, of a matrix without holes."""
    columns = [e["data-column"] for e in page.elements if "data-column" in e]
    links = [i for i, e in enumerate(page.elements) if "sq" in e.get("class", "").split() and "href" in e]
    return {(page.elements[index]["href"][1:], columns[place % len(columns)]): index
            for place, index in enumerate(links)}


def test_promises_are_framed_canaries_and_disagreements_marked(page):
    looks = {cell: page.elements[index]["class"].split() for cell, index in squares(page).items()}
    assert "promised" in looks["s1", "ends-once"] and "promised" not in looks["s1", "death-is-told"]
    assert "canary" in looks["s6", "hwm0-no-loss"]
    assert "split" in looks["s4", "tokens-in-order"] and "split" not in looks["s4", "edge-fifo"]


def test_a_declared_break_does_not_look_like_a_broken_promise(page):
    canary, broken = squares(page)["s6", "hwm0-no-loss"], squares(page)["s4", "tokens-in-order"]
    assert page.elements[canary + 1]["class"] == "broken declared"
    assert page.elements[broken + 2]["class"] == "broken astray"


def test_a_cell_shows_evidence_witnesses_and_bound_against_measured(page):
    text = page.text(id="c2-death-is-told")
    assert "8 witnesses" in text and "8 pending calls ended with EngineDeadError" in text
    assert "19 ms of 100 ms allowed" in text
    assert "twin, outcome 0" in text and "twin, outcome 1" in text and "seed 003" not in text


def test_a_time_beyond_its_bound_is_called_too_late():
    late = cell("g", BROKEN, HELD, Evidence(text="late", bound=0.1, measured=0.3), bound=0.1, measured=0.3)
    text = Page(opened(render([bare_run("test_x", "engine", late)], {}, replay_command))).text(id="c1-g")
    assert "300 ms of 100 ms allowed: too late" in text


def test_a_run_shows_its_fault_its_death_the_time_to_detection_and_its_command(page):
    text = page.text(id="r2-3")
    assert "f1: kill at worker.1->core.0/response:send, crossing 3" in text
    assert "worker.1 died: SIGKILL" in text
    assert "the callers were told, 19 ms after f1" in text
    assert "ringtwin replay out/runs/test_worker_dies_while_the_others_answer-engine-0" in text


def test_detection_times_are_a_strip_and_a_table(page):
    text = page.text(id="detection")
    assert "kill engine 1 19 ms 19 ms 19 ms 19 ms" in text
    assert "kill twin 2 2 ms 2 ms 11 ms 11 ms" in text
    assert len(page.all("a", "d")) == 7  # 3 kills, 2 stalls, 2 drops


def test_a_subscriber_has_its_timeline_of_gap_detection_and_healing(page):
    text = page.text(id="r5-2")
    assert "14 batches missing (20 to 33)" in text
    assert re.search(r"noticed [\d.]+ ms after the first was published; healed [\d.]+ ms after", text)


def test_what_was_found_is_there_without_javascript(source, plain):
    assert "<noscript" not in source
    assert all(plain.text(id=name) for name in ("attention", "matrix", "guarantees", "unseen", "scenarios", "reading"))
    assert "tokens-in-order is BROKEN" in plain.text(id="attention") and "token 8" in plain.text(id="attention")
    assert all("tabindex" not in e for e in plain.all("a", "sq"))
    assert all("hidden" in e for e in plain.all("form")), "what needs a script is not offered"
    assert plain.text(**{"class": "packed"}).startswith("Evidence and charts of these 2 runs lie packed in this page")


def test_every_run_has_its_chart_once_it_is_unpacked(page):
    charts = [e for e in page.all("svg", "sequence") if "heads" not in e["class"].split()]
    assert len(charts) == 15
    assert all(e.get("role") == "img" and e.get("aria-label") for e in charts)
    heads = page.all("svg", "heads")
    assert len(heads) == 15 and {e["width"] for e in heads} == {e["width"] for e in charts}


def test_regions_that_scroll_can_be_reached_by_keyboard_and_have_a_name(page):
    regions = page.all("div", "scroll")
    assert regions and all(e["tabindex"] == "0" and e["role"] == "region" and e["aria-label"] for e in regions)


def test_dark_mode_and_print_have_rules(source):
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    assert "::details-content" in source and "beforeprint" in source


def test_hostile_text_stays_text():
    evil = '"><script>alert(1)</script><img src=x onerror=y>'
    run = bare_run(evil, "engine", cell(evil, BROKEN, HELD, Evidence(text=evil, node=evil)), title=evil, failure=None)
    run.lab = msgspec.structs.replace(run.lab, leftovers=[evil])
    run.judgement = Judgement(cells=run.judgement.cells, ended=evil, seconds=1.0,
                              faults=[FaultReceipt(id=evil, fired=True, at=0.5, node=evil, detected_at=0.6)])
    text = opened(render([run], {evil: Promise(id=evil, sentence=evil, source=evil, chapter=evil)}, lambda run: evil))
    page = Page(text)
    assert page.wrong == []
    assert [e.get("type") for e in page.all("script")] == ["application/json", None] and page.all("img") == []
    assert [e for e in page.elements if any(key.startswith("on") for key in e)] == []
    assert "alert(1)" in text


def test_a_page_of_forty_runs_stays_under_two_megabytes(tmp_path):
    runs = write_held(tmp_path, kills=15)
    assert len(runs) == 40
    out = tmp_path / "index.html"
    write_page(runs, PROMISES, out, replay_command)
    assert 100_000 < out.stat().st_size < 2_000_000
    assert not (tmp_path / "index.html.part").exists()


#: What a page of so many plays may take: it has to open on a phone, and to be sent by mail.
PLAYS, PAGE_BYTES = 180, 3_000_000
#: Of a page of nothing: styles, script, guarantees and their words.
EMPTY_BYTES = 150_000
def test_a_page_of_many_plays_stays_small(tmp_path):
    runs = write_held(tmp_path, kills=(PLAYS - 10) // 2)
    assert len(runs) == PLAYS
    size = len(render(runs, PROMISES, replay_command).encode())
    assert PLAYS * 1000 < size < PAGE_BYTES / 2, "these plays are less than half of real ones"


def test_a_page_of_real_scenarios_stays_small(tmp_path):
    """Every fourth of those that are shipped, as the twin plays them: so many bytes a play."""
    world = SimWorld(tmp_path)
    runs = []
    for scenario in [one for one in catalogue() if one.not_played_in("sim") is None][::4]:
        world.scenario, world.title, world.played = scenario.name, scenario.title, []
        runs += play(scenario, world).runs
    assert len(runs) > 30
    size = len(render(runs, promises(), replay_command).encode())
    most = len(runs) * PAGE_BYTES / PLAYS + EMPTY_BYTES
    assert len(runs) * 1000 < size < most, f"{size / len(runs):.0f} bytes a play"


def test_what_is_packed_is_what_was_rendered_and_takes_a_fraction(source, page):
    packets = json.loads(re.search(r'id="evidence">(.*?)</script>', source)[1])
    whole = sum(len(unpacked(packet)) for packet in packets.values())
    assert len(packets) == 7 and packed(unpacked(packets["s1"])) == packets["s1"]
    assert sum(map(len, packets.values())) < whole / 4
    assert "</" not in "".join(packets.values()) and len(page.all("details", "run")) == 15


def test_the_same_runs_give_the_same_page(examples, source):
    assert render(examples, PROMISES, replay_command) == source


def test_runs_of_one_world_make_a_page():
    page = Page(render([bare_run("test_x", "sim", cell("g", HELD, HELD))], PROMISES, replay_command))
    assert "played in one world (twin)" in page.text(**{"class": "sentence"})
    assert page.wrong == []


def test_three_worlds_stand_beside_each_other_in_one_cell():
    runs = [bare_run("test_x", world, cell("g", HELD, HELD)) for world in ("third", "engine", "sim")]
    page = Page(render(runs, PROMISES, replay_command))
    assert "played in the twin, on the engine and in third" in page.text(**{"class": "sentence"})
    assert "From left to right a cell tells of the twin, the real engine and third." in page.text(id="matrix")
    square = page.all("a", "sq")[0]["aria-label"]
    assert square == "twin HELD, promised; engine HELD, promised; third HELD, promised"
    assert page.wrong == []


def test_a_run_that_failed_in_the_lab_is_shown_as_such():
    run = bare_run("test_x", failure="no fork server", judged=False, promises=("g",))
    page = Page(opened(render([run], {}, replay_command)))
    assert "The lab itself failed in 1 run" in page.text(tag="h1")
    assert "no fork server" in page.text(id="r1-1")


def test_no_run_at_all_still_makes_a_page_that_says_so():
    assert "Nothing was played" in Page(render([], PROMISES, replay_command)).text(tag="h1")


def test_every_verdict_is_explained(page):
    text = page.text(id="reading")
    assert all(verdict.value in text for verdict in Verdict)
