"""Runs in a planted copy of the project: plays scenarios on the engine until one is red, and says what came of each.

    python play_until_red.py FILE NAME...     a line of JSON for each play, appended to FILE

It is copied there: of this project it imports what lies beside it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec

from scenarios.lab.catalogue import catalogue
from scenarios.lab.player import Settings, Worlds, play


def main(file: str, *names: str) -> None:
    sys.settrace(None)  # the lab's own steps are not the engine's
    threading.settrace(None)  # type: ignore[arg-type]
    by_name = {scenario.name: scenario for scenario in catalogue()}
    worlds = Worlds(Settings(out=Path("out"), device="cpu"))
    record = bool(os.environ.get("RECORD_LINES"))
    try:
        for number, name in enumerate(names):
            Path("playing").write_text(str(number))
            result = play(by_name[name], worlds.open("engine", by_name[name]))
            cells = [run.judgement.red for run in result.runs if run.judgement is not None]
            red = next((cell.guarantee for cell in cells if cell is not None), "")
            with open(file, "ab") as said:
                said.write(msgspec.json.encode({"name": name, "seconds": result.seconds, "red": red,
                                                "failure": result.failure or ""}) + b"\n")
            if red and not record:
                return
    finally:
        worlds.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
