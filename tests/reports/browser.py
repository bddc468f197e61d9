"""A real browser loads the page in a frame and answers a script (`probe.js` says what it can be asked).

It runs in real time, as a reader's would: what hears of a resize or a scroll hears it with the next picture of the
page, and a browser whose clock runs ahead draws none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
LIMIT_S = 120

#: Headless windows cannot be narrower than 500 px, so the page is looked at inside a frame.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><title>probe</title>
<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe>
<script>{probe}</script><script>
addEventListener("load", async () => {{
  let said;
  try {{
    said = {{answer: await (async () => {{ {script} }})()}};
  }} catch (error) {{
    said = {{error: error.stack}};
  }}
  fetch("{server}", {{method: "POST", mode: "no-cors", body: JSON.stringify(said)}});
}});
</script>"""


def ask(folder: Path, page: str, script: str, *, width: int = 1280, dark: bool = False, scripts: bool = True,
        hash_: str = "") -> Any:
    """What the script returns. `scripts` False: the page's own do not run."""
    if not scripts:
        page = page.replace("script-src 'unsafe-inline'; ", "")
    (folder / "index.html").write_text(page, encoding="utf-8")
    probe = Path(__file__).with_name("probe.js").read_text()

    def framed(server: str) -> str:
        (folder / "frame.html").write_text(
            FRAME.format(page="index.html" + hash_, width=width, probe=probe, script=script, server=server),
            encoding="utf-8")
        return (folder / "frame.html").as_uri()

    said = json.loads(posted(framed, folder, "--allow-file-access-from-files", "--hide-scrollbars",
                             f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=2000,1000"))
    assert "error" not in said, said["error"]
    return said["answer"]


def posted(address: Callable[[str], str], folder: Path, *flags: str) -> bytes:
    """What a page posts first to a server on this machine, which has the folder's files.

    `address` is told the server's own and says which page is to be loaded.
    """
    heard: list[bytes] = []
    over = threading.Event()

    class Handler(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()
            over.set()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = subprocess.Popen(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", *flags,
         f"--user-data-dir={folder / 'profile'}", address(f"http://127.0.0.1:{server.server_port}/")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert over.wait(LIMIT_S), "the page did not answer"
    finally:
        browser.kill()
        browser.wait()
        server.shutdown()
        server.server_close()
    return heard[0]
