"""`python -m tests.explorer [--full]`: search, and say how many states there were and how fast they went by."""

from __future__ import annotations

import sys
import time

from tests.explorer.cases import BELL, EARLY, FULL, MOVES, SHORT
from tests.explorer.ring import Case, Explorer

HEAD = f"{'order':<6}{'readers':>8}{'chunks':>8}{'messages':>10}{'crashes':>9}{'states':>12}{'s':>8}{'states/s':>10}" \
       f"{'ends':>6}{'after a crash':>15}"


def line(case: Case, explorer: Explorer) -> str:
    return (f"{case.order:<6}{case.readers:>8}{case.chunks:>8}{case.messages:>10}{case.crashes:>9}"
            f"{explorer.states:>12,}{explorer.seconds:>8.2f}{explorer.states / explorer.seconds:>10,.0f}"
            f"{explorer.finished:>6}{explorer.crashed_ends:>15,}{'  bell' * case.bell}"
            f"{f'  1 in {case.moves} moves' * bool(case.moves)}")


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
    seconds = time.perf_counter() - began
    print(f"{states:,} states in {seconds:.1f} s, {states / seconds:,.0f} states/s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
