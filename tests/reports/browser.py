"""A real browser loads the page in a frame and answers a script (`probe.js` says what it can be asked)."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
#: Of the page's own time, which a browser without a window does not wait for.
VIRTUAL_MS = 60_000
LIMIT_S = 120

#: Headless windows cannot be narrower than 500 px, so the page is looked at inside a frame.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><title>probe</title>
<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe><pre></pre>
<script>{probe}</script><script>
addEventListener("load", async () => {{
  let said;
  try {{
    said = {{answer: await (async () => {{ {script} }})()}};
  }} catch (error) {{
    said = {{error: error.stack}};
  }}
  document.querySelector("pre").textContent = "SAID" + JSON.stringify(said) + "SAID";
}});
</script>"""


def ask(folder: Path, page: str, script: str, *, width: int = 1280, dark: bool = False, scripts: bool = True,
        hash_: str = "") -> Any:
    """What the script returns. `scripts` False: the page's own do not run."""
    if not scripts:
        page = page.replace("script-src 'unsafe-inline'; ", "")
    (folder / "index.html").write_text(page, encoding="utf-8")
    probe = Path(__file__).with_name("probe.js").read_text()
    (folder / "frame.html").write_text(FRAME.format(page="index.html" + hash_, width=width, probe=probe, script=script),
                                       encoding="utf-8")
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
         "--hide-scrollbars", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         f"--user-data-dir={folder / 'profile'}",
         "--window-size=2000,1000", f"--virtual-time-budget={VIRTUAL_MS}", "--dump-dom",
         (folder / "frame.html").as_uri()],
        capture_output=True, text=True, timeout=LIMIT_S, check=True)
    said = json.loads(html.unescape(done.stdout.rpartition("<pre>")[2].split("SAID")[1]))
    assert "error" not in said, said["error"]
    return said["answer"]
