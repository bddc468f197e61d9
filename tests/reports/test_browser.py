"""A real browser loads the page and finds nothing wider than a phone."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from reports.page import render
from tests.reports.example import PROMISES, replay_command, write_examples

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

#: Headless windows cannot be narrower than 500 px, so the page is measured inside a frame as wide as a phone.
FRAME = """<!DOCTYPE html><title>measure</title><iframe src="index.html" style="width:{width}px;height:800px;border:0">
</iframe><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  for (const details of page.querySelectorAll("details")) details.open = true;
  const inside = node => node.closest(".scroll, nav, .skip, .defs");
  const wide = [...page.querySelectorAll("body *")].filter(
    node => !inside(node) && node.getBoundingClientRect().right > root.clientWidth + 1);
  document.title = JSON.stringify({{
    "width": root.clientWidth, "scroll": root.scrollWidth, "wide": wide.map(node => node.className || node.tagName),
    "copy": page.querySelectorAll("code.copy + button").length,
    "stops": [...page.querySelectorAll(".matrix td a")].filter(link => link.tabIndex === 0).length}});
}});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_overflows_the_width_of_a_window_and_the_script_ran(tmp_path, width):
    examples = write_examples(tmp_path / "runs")
    (tmp_path / "index.html").write_text(render(examples, PROMISES, replay_command), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,900", "--virtual-time-budget=5000",
         "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=90, check=True)
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    assert f'"width":{width},"scroll":{width},"wide":[]' in title
    assert '"stops":1' in title and '"copy":0' not in title
