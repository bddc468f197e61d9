"""What the lab knows of a run of vLLM's, and the program that shows it without the lab."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from scenarios.history.run import Run
from scenarios.history.verdicts import Verdict
from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.table import finding_of

_PROGRAMS = "scenarios.worlds.vllm.findings.by_hand"


class Program(NamedTuple):
    text: str
    command: str


def of_run(run: Run) -> Finding | None:
    """Of the first promise that is broken in it and that a finding explains."""
    if run.play.is_ours or run.judgement is None:
        return None
    found = (finding_of(run.play.scenario, cell.guarantee) for cell in run.judgement.cells
             if cell.verdict is Verdict.BROKEN)
    return next((one for one in found if one is not None), None)


def program_of(finding: Finding) -> Program:
    """Its text, and how it is run in a checkout of this project by an interpreter that has vLLM."""
    text = (Path(__file__).parent / "by_hand" / f"{finding.by_hand.replace('.', '/')}.py").read_text(encoding="utf-8")
    return Program(text, f"VLLM_PYTHON -m {_PROGRAMS}.{finding.by_hand}   # --mended: with the cause mended")
