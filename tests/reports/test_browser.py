"""A real browser shows the page: on a phone and on a wide screen, in light and dark, with its script and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults.plan import Fate, Fault
from reports.collect import Promise
from reports.page import MOST_CAUSES, render
from scenarios.history.run import Run, load_run
from tests.reports.browser import ask, needs_browser
from tests.reports.charts.played import ALONE, DENSE, STEPPING, played
from tests.reports.charts.test_bursts import WAYS, burst
from tests.reports.charts.test_charts import follower
from tests.reports.example import (
    BROKEN,
    HELD,
    OUTSIDE,
    PROMISES,
    UNKNOWN,
    UNTESTED,
    bare_run,
    cell,
    replay_command,
    write_examples,
)
from tests.reports.test_causes import many

pytestmark = needs_browser
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
PHONE, LAPTOP, SCREEN = 400, 1280, 1920


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(write_examples(tmp_path_factory.mktemp("runs")), PROMISES, replay_command)


@pytest.fixture(scope="module")
def groups() -> str:
    """Plays of several cores, and one of one."""
    return render([played(name) for name in (*STEPPING, DENSE, ALONE)], PROMISES, replay_command)


def wide_runs() -> tuple[list[Run], dict[str, Promise]]:
    """As many guarantees as there are in a report, over four scenarios of two worlds."""
    promises = {name: Promise(id=name, sentence="s", chapter=f"Part {n // 8}")
                for n in range(52) for name in (f"guarantee-{n}-of-a-name",)}
    plans = {"calm": (), "kill": (Fault(id="f1", site="worker.0->core.0/response:send", fate=Fate.KILL),),
             "stall": (Fault(id="f1", site="core.0/mark:step", fate=Fate.STALL),),
             "drop": (Fault(id="f1", site="core.0->frontend.0/outputs:receive", fate=Fate.DROP),)}
    verdicts = {"calm": (HELD, UNTESTED), "kill": (BROKEN, OUTSIDE), "drop": (UNKNOWN, BROKEN), "stall": (HELD, HELD)}
    runs = [bare_run(f"test_{name}_in_a_scenario_of_a_long_name", world, *(
        cell(promise, verdict, HELD if n % 5 == 0 else verdict if verdict is BROKEN else None)
        for n, promise in enumerate(promises)), faults=faults)
        for name, faults in plans.items() for world, verdict in zip(("sim", "engine"), verdicts[name], strict=True)]
    return runs, promises


@pytest.fixture(scope="module")
def wide() -> str:
    return render(*wide_runs(), replay_command)


@pytest.mark.parametrize("width", [360, PHONE, LAPTOP, SCREEN])
def test_nothing_overflows_the_width_of_a_window_and_the_script_ran(tmp_path: Path, examples: str, width: int) -> None:
    said = ask(tmp_path, examples, """
        await openAll();
        const root = frame.contentDocument.documentElement;
        return {width: root.clientWidth, scroll: root.scrollWidth, wide: tooWide(),
                copy: all("code.copy + button").length, commands: all("code.copy").length,
                stops: all(".matrix td a").filter(link => link.tabIndex === 0).length};""", width=width)
    assert (said["width"], said["scroll"], said["wide"], said["stops"]) == (width, width, [], 1)
    assert said["copy"] == said["commands"] > 15


@pytest.mark.parametrize("width", [360, PHONE, LAPTOP, SCREEN])
def test_a_number_of_many_digits_stays_on_one_line(tmp_path: Path, examples: str, width: int) -> None:
    said = ask(tmp_path, examples, """
        const lines = text => {
          const range = frame.contentDocument.createRange();
          range.selectNodeContents(text);
          return new Set([...range.getClientRects()].map(line => line.top)).size;
        };
        return all(".tiles b").map(tile => {
          const digits = tile.firstChild;
          digits.data = "10,085 ";
          return [lines(digits), tile.scrollWidth <= tile.clientWidth];
        });""", width=width)
    assert len(said) > 5 and said == [[1, True]] * len(said)


# -- colours


@SCHEMES
def test_every_text_stands_out_from_what_is_behind_it(tmp_path: Path, examples: str, dark: bool) -> None:
    found = ask(tmp_path, examples, """
        await openAll();
        const body = parsed(styleOf(one("body")).backgroundColor);
        return {body: luminance(body), texts: contrasts()};""", dark=dark)
    assert (found["body"] < 0.1) == dark
    assert len(found["texts"]) > 2000
    assert [text for text in found["texts"] if text[0] < 4.5] == []


@SCHEMES
def test_so_does_what_needs_a_person_and_every_look_of_a_cell(tmp_path: Path, wide: str, dark: bool) -> None:
    for page in (wide, render(many(kinds=12), PROMISES, replay_command)):
        found = ask(tmp_path, page, """
            for (const node of all("details")) node.open = true;
            return contrasts();""", dark=dark)
        assert len(found) > 50
        assert [text for text in found if text[0] < 4.5] == []


@SCHEMES
def test_so_does_every_text_of_plays_of_several_cores(tmp_path: Path, groups: str, dark: bool) -> None:
    found = ask(tmp_path, groups, "await openAll(); return contrasts();", dark=dark)
    drawn = {text[1] for text in found}
    assert {"topology", "ranks", "load"} <= drawn
    assert [text for text in found if text[0] < 4.5] == []


@pytest.mark.parametrize(("style", "what"), [
    (".sq .untested { opacity: .6 }", "untested"), (".legend { color: #8a95a0 }", "LI"),
    (".sequence .w text { stroke: #0b57a4 }", "sequence"), (".sq.split::after { color: #86bdf7 }", "sq"),
    ("header.answer { background: #777 }", "sentence"), ("select { color: #999 }", "select")])
def test_a_text_that_does_not_stand_out_is_found(tmp_path: Path, examples: str, style: str, what: str) -> None:
    page = examples.replace("</head>", f"<style>{style}</style></head>")
    found = ask(tmp_path, page, "await openAll(); return contrasts().filter(text => text[0] < 4.5);")
    assert found and all(what in text[1] or what == "sentence" for text in found)


# -- the matrix


def test_all_columns_are_in_view_on_a_laptop_and_the_first_one_stays_on_a_phone(tmp_path: Path, wide: str) -> None:
    said = ask(tmp_path, wide, f"""
        const found = {{}};
        for (const width of [{PHONE}, {LAPTOP}, {SCREEN}]) {{
          await resized(width);
          const grid = one(".grid"), before = one(".corner").getBoundingClientRect().left;
          const seen = columnsInView();
          grid.scrollLeft = 300;
          await drawn();
          found[width] = {{seen, hint: one(".sideways").hidden ? "" : one(".sideways").textContent,
                          stays: one(".corner").getBoundingClientRect().left === before, scrolled: grid.scrollLeft,
                          cell: one(".matrix td a").getBoundingClientRect().width}};
          grid.scrollLeft = 0;
        }}
        return found;""")
    phone, laptop, screen = (said[str(width)] for width in (PHONE, LAPTOP, SCREEN))
    assert laptop["seen"] == screen["seen"] == 52 and laptop["hint"] == screen["hint"] == ""
    assert laptop["cell"] >= 16 and screen["cell"] > laptop["cell"]
    assert 3 <= phone["seen"] < 52 and phone["scrolled"] == 300 and phone["stays"]
    assert "of 52 guarantees are in view: the matrix scrolls sideways" in phone["hint"] and phone["cell"] >= 36


SHOWN = """(() => ({names: all(".matrix tbody tr").filter(row => row.getClientRects().length)
                      .map(row => row.cells[0].textContent.split(" ")[0]),
                    text: one(".filter output").textContent, hash: frame.contentWindow.location.hash}))()"""


FILTERS = {("show", "bad"): ["kill", "drop"], ("show", "open"): ["calm", "kill", "drop"],
           ("process", "worker"): ["kill"], ("process", "frontend"): ["drop"], ("process", "core"): ["stall"],
           ("fate", "drop"): ["drop"], ("fate", "none"): ["calm"]}


def test_a_filter_leaves_its_rows_says_how_many_and_is_kept_in_the_address(tmp_path: Path, wide: str) -> None:
    before, *said = ask(tmp_path, wide, f"""
        const found = [{SHOWN}];
        for (const [name, value] of {json.dumps(list(FILTERS))}) {{
          const box = one(`[name=${{name}}]`);
          box.value = value;
          box.dispatchEvent(new frame.contentWindow.Event("change", {{bubbles: true}}));
          found.push({SHOWN});
          one(".filter button").click();
          await drawn();
          found.push({SHOWN});
        }}
        return found;""")
    assert before == {"names": ["calm", "kill", "stall", "drop"], "text": "4 of 4 rows shown", "hash": ""}
    for (name, value), after, reset in zip(FILTERS, said[::2], said[1::2], strict=True):
        left = FILTERS[name, value]
        assert after == {"names": left, "text": f"{len(left)} of 4 rows shown", "hash": f"#matrix?{name}={value}"}
        assert reset == before | {"hash": "#matrix"}


def test_filters_add_up_and_the_address_brings_them_back(tmp_path: Path, wide: str) -> None:
    said = ask(tmp_path, wide, f"""
        const found = [{SHOWN}, one("[name=show]").value, one("[name=fate]").value];
        one(".matrix tr:not([hidden]) td a").click();
        await drawn();
        found.push(frame.contentWindow.location.hash, {SHOWN}.names);
        await goes("#matrix?process=core");
        found.push({SHOWN}.names);
        return found;""", hash_="#matrix?show=bad&fate=kill")
    assert said[0]["names"] == ["kill"] and said[1:3] == ["bad", "kill"]
    assert said[3:5] == ["#c2-guarantee-0-of-a-name?show=bad&fate=kill", ["kill"]], "a link takes the filter along"
    assert said[5] == ["stall"]


def test_an_address_that_asks_for_what_is_not_there_shows_all(tmp_path: Path, wide: str) -> None:
    assert ask(tmp_path, wide, f"return {SHOWN}.text", hash_="#matrix?fate=unheard-of&x=%3Cb%3E") == "4 of 4 rows shown"


def test_arrow_keys_pass_over_rows_that_are_not_shown(tmp_path: Path, wide: str) -> None:
    said = ask(tmp_path, wide, """
        const press = key => frame.contentDocument.activeElement.dispatchEvent(
          new frame.contentWindow.KeyboardEvent("keydown", {key, bubbles: true}));
        const at = () => frame.contentDocument.activeElement.getAttribute("aria-label").split(":")[0];
        one(".matrix tbody tr:not([hidden]) td a").focus();
        const found = [at()];
        for (const key of ["ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp"]) { press(key); found.push(at()); }
        return found.concat(all(".matrix td a").filter(link => link.tabIndex === 0).length);""",
               hash_="#matrix?show=bad")
    kill, drop = (f"test_{name}_in_a_scenario_of_a_long_name, guarantee" for name in ("kill", "drop"))
    assert said == [f"{kill}-0-of-a-name", f"{kill}-1-of-a-name", f"{drop}-1-of-a-name", f"{kill}-1-of-a-name",
                    f"{kill}-1-of-a-name", 1]


# -- what needs a person


@pytest.mark.parametrize("kinds", [1, 5, 12])
def test_five_causes_take_less_than_a_screen(tmp_path: Path, kinds: int) -> None:
    page = render(many(60, kinds), PROMISES, replay_command)
    said = ask(tmp_path, page, f"""
        const found = [];
        for (const width of [{PHONE}, {LAPTOP}, {SCREEN}]) {{ await resized(width); found.push(height("#attention")); }}
        return found;""")
    assert all(80 < high < 900 * max(1, min(kinds, MOST_CAUSES) / 5) for high in said), said


# -- what is packed


CELL = "c2-death-is-told"


def test_a_cell_leads_to_its_evidence(tmp_path: Path, examples: str) -> None:
    said = ask(tmp_path, examples, f"""
        const before = document.querySelector("iframe").contentDocument.getElementById("{CELL}") === null;
        all(".matrix a").find(link => link.hash === "#{CELL}").click();
        await until("it is there", () => one("#{CELL}.aim"));
        const box = one("#{CELL}").getBoundingClientRect();
        return [before, one("#{CELL}").textContent.includes("8 pending calls"), box.height > 0 && box.top >= 0
                && box.top < 900, one("#{CELL} .promise").textContent];""")
    assert said[:3] == [True, True, True]
    assert said[3] == PROMISES[CELL[3:]].sentence


@pytest.mark.parametrize("name", ["k1", "c1-ends-once", "r5-2", "r2-3-f1", "s3"])
def test_an_address_opens_what_it_names(tmp_path: Path, examples: str, name: str) -> None:
    said = ask(tmp_path, examples, f"""
        await until("it is there", () => one("#{name}.aim"));
        const box = one("#{name}").getBoundingClientRect();
        return [box.height > 0, box.top >= 0 && box.top < 900, all(".packed").length];""", hash_=f"#{name}")
    assert said[:2] == [True, True] and said[2] > 0, "and nothing else"


def test_without_what_unpacks_it_the_page_says_so(tmp_path: Path, examples: str) -> None:
    old = examples.replace("<head>", "<head><script>delete window.DecompressionStream</script>")
    said = ask(tmp_path, old, """
        one("#s1").open = true;
        await until("it says so", () => one("#s1 .packed").textContent.includes("cannot unpack"));
        return [one("#s1 .packed").textContent, one("#s2 .packed").textContent, rowsShown()];""")
    assert "DecompressionStream" in said[0] and "matrix" in said[0] and "folders of the runs" in said[0]
    assert "cannot" not in said[1] and said[2] == 7


def test_without_a_script_every_verdict_can_be_read(tmp_path: Path, examples: str) -> None:
    said = ask(tmp_path, examples, """
        const seen = what => all(what).filter(node => node.textContent && node.getClientRects().length).length;
        return {rows: rowsShown(), glyphs: seen(".matrix i"), filter: seen(".filter"), buttons: seen("button"),
                person: one("#attention").textContent.includes("skipped token 8"), opened: one("#s4").textContent};""",
               scripts=False)
    assert (said["rows"], said["glyphs"], said["filter"], said["buttons"]) == (7, 7 * len(PROMISES) * 2, 0, 0)
    assert said["person"] and "a script unpacks them" in said["opened"]


def test_on_paper_verdicts_are_there_and_what_is_packed_is_not_spoken_of(tmp_path: Path, examples: str) -> None:
    said = ask(tmp_path, examples, """
        const rules = [...one("style").sheet.cssRules].filter(rule => rule.media?.mediaText === "print");
        for (const rule of rules) rule.media.mediaText = "all";
        await until("one is unpacked", () => !one("#s4 .packed"));
        return {rows: rowsShown(), packed: all(".packed").filter(note => note.getClientRects().length).length,
                filter: one(".filter").getClientRects().length, chart: one("#s4 svg.sequence").getClientRects().length,
                person: one("#attention").getClientRects().length};""")
    assert said == {"rows": 7, "packed": 0, "filter": 0, "chart": 1, "person": 1}


# -- drawings


def test_names_of_processes_stay_in_view_while_a_chart_scrolls(tmp_path: Path, examples: str) -> None:
    said = ask(tmp_path, examples, """
        await openAll();
        const chart = all(".scroll.tall")[0], heads = chart.querySelector(".heads");
        chart.scrollTop = 300;
        await drawn();
        const [outer, inner] = [chart, heads].map(node => node.getBoundingClientRect());
        return [chart.scrollTop, inner.top - outer.top, all("text", heads).map(text => text.textContent)];""")
    assert said[0] == 300 and 0 <= said[1] <= 2
    assert said[2] == ["frontend.0", "core.0", "worker.0", "worker.1"]


def test_words_of_a_chart_do_not_lie_on_each_other(tmp_path: Path) -> None:
    runs = [load_run(burst(tmp_path / "runs", name, apart_s)) for apart_s in (0.0, 1e-6, 1e-3) for name in WAYS]
    assert collided(tmp_path, render(runs, PROMISES, replay_command)) == []


def collided(folder: Path, page: str) -> list[Any]:
    said = ask(folder, page, """
        await openAll();
        const kinds = ["sequence", "mirror", "strip", "topology", "ranks", "load"];
        const charts = all(kinds.map(kind => "svg." + kind).join()).filter(chart => chart.querySelector("text"));
        return [charts.length, charts.flatMap(collisions)];""")
    assert said[0] > 1
    return said[1]


def test_nor_do_those_of_other_drawings(tmp_path: Path, examples: str) -> None:
    assert collided(tmp_path, examples) == []


def test_nor_do_those_of_plays_of_several_cores(tmp_path: Path, groups: str) -> None:
    assert collided(tmp_path, groups) == []


def test_each_drawing_of_several_cores_is_there_once_for_each_play_that_has_it(tmp_path: Path, groups: str) -> None:
    said = ask(tmp_path, groups, """
        await openAll();
        const shown = kind => all(`figure .scroll > svg.${kind}`).filter(svg => {
          const box = svg.getBoundingClientRect();
          return box.width > 200 && box.height > 40;
        }).length;
        return [shown("topology"), shown("ranks"), shown("load"), tooWide()];""", width=PHONE)
    assert said == [len(STEPPING) + 2, len(STEPPING), len(STEPPING) + 1, []]


def test_a_dummy_forward_does_not_look_like_a_real_one_without_colours(tmp_path: Path, groups: str) -> None:
    said = ask(tmp_path, groups, """
        await openAll();
        const strokes = look => all(`.scroll > svg.ranks .${look}`).map(group => group.querySelectorAll("path").length);
        return [new Set(strokes("real")), new Set(strokes("dummy"))].map(found => [...found]);""")
    assert said == [[0], [1]]


def test_nor_do_gaps_that_were_noticed_at_once(tmp_path: Path) -> None:
    run = load_run(follower(
        tmp_path / "runs", (0.1, "kv-batch", {"seq": 0, "source": "live"}), (0.1, "kv-gap", {"first": 1, "last": 1}),
        (1e-4, "kv-gap", {"first": 3, "last": 3}), (1e-4, "kv-snapshot", {"next_seq": 4, "blocks": 2}),
        (1e-4, "kv-healed", {"first": 1, "last": 1}), (0.2, "kv-batch", {"seq": 4, "source": "live"})))
    assert collided(tmp_path, render([run], PROMISES, replay_command)) == []


def test_words_that_lie_on_each_other_are_found(tmp_path: Path, examples: str) -> None:
    large = examples.replace("</head>", "<style>.sequence .w text { font-size: 22px !important }</style></head>")
    assert len(collided(tmp_path, large)) > 20
