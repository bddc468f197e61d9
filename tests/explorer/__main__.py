"""`python -m tests.explorer [--full]`: search, and say how many states there were and how fast they went by.

First rings (`ring.py`), then the waves of data-parallel groups (`waves/`).
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.explorer.cases import BELL, EARLY, FULL, MOVES, SHORT
from tests.explorer.ring import Case, Explorer
from tests.explorer.waves import cases as waves
from tests.explorer.waves import search
from tests.explorer.waves.crossings import ALL

HEAD = f"{'order':<6}{'readers':>8}{'chunks':>8}{'messages':>10}{'crashes':>9}{'states':>12}{'s':>8}{'states/s':>10}" \
       f"{'ends':>6}{'after a crash':>15}"


def line(case: Case, explorer: Explorer) -> str:
    return (f"{case.order:<6}{case.readers:>8}{case.chunks:>8}{case.messages:>10}{case.crashes:>9}"
            f"{explorer.states:>12,}{explorer.seconds:>8.2f}{explorer.states / explorer.seconds:>10,.0f}"
            f"{explorer.finished:>6}{explorer.crashed_ends:>15,}{'  bell' * case.bell}"
            f"{f'  1 in {case.moves} moves' * bool(case.moves)}")


def explore_waves(cases: tuple[waves.Case, ...]) -> int | None:
    """-> how many states there were, or None where one breaks a promise or a known crossing was never reached"""
    states, crossings = 0, Counter[str]()
    print(f"\n{'waves':<66}{'states':>12}{'s':>8}{'states/s':>10}{'ends':>6}")
    for case in cases:
        explorer = search.Explorer(case)
        counterexample = explorer.explore()
        states += explorer.states
        crossings += explorer.crossings
        print(f"{case!s:<66}{explorer.states:>12,}{explorer.seconds:>8.2f}"
              f"{explorer.states / explorer.seconds:>10,.0f}{explorer.ends:>6}", flush=True)
        if counterexample is not None:
            print(counterexample)
            return None
    print("crossings reached:", ", ".join(f"{letter} {crossings[letter]:,}" for letter in ALL))
    if missed := [letter for letter in ALL if not crossings[letter]]:
        print(f"never reached: {', '.join(missed)}")
        return None
    return states


def main(arguments: list[str]) -> int:
    if unknown := set(arguments) - {"--full"}:
        print(f"unknown: {', '.join(sorted(unknown))}; the one option is --full", file=sys.stderr)
        return 3
    began, states = time.perf_counter(), 0
    print(HEAD)
    for case in FULL if arguments else SHORT + EARLY + BELL + MOVES:
        explorer = Explorer(case)
        counterexample = explorer.explore()
        states += explorer.states
        print(line(case, explorer), flush=True)
        if counterexample is not None:
            print(counterexample)
            return 1
    found = explore_waves(waves.FULL if arguments else waves.SHORT)
    if found is None:
        return 1
    states += found
    seconds = time.perf_counter() - began
    print(f"{states:,} states in {seconds:.1f} s, {states / seconds:,.0f} states/s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
