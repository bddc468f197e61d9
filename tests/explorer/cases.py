"""Which rings are searched: a list for every run of the tests, and a longer one for `make soak`.

A play of fewer messages is the beginning of a longer one, so only the longest are listed: six messages go round two
chunks three times and round three chunks twice.
"""

from __future__ import annotations

from tests.explorer.ring import Case

ORDERS = ("SC", "TSO", "PSO")

#: 1 to 3 readers, 2 and 3 chunks, 6 messages, and a crash of any number of parties.
SHORT = tuple(Case(order, readers, chunks, 6, crashes=1 + readers)
              for readers in (1, 2, 3) for chunks in (2, 3) for order in ORDERS)

#: Loads done early, and a writer that sleeps until it is rung.
EARLY = (Case("WEAK", 1, 1, 4, 2), Case("WEAK", 1, 2, 6, 2), Case("WEAK", 1, 3, 6, 2), Case("WEAK", 2, 2, 4))
BELL = (*(Case(order, 1, chunks, 4, 2, True) for chunks in (1, 2, 3) for order in (*ORDERS, "WEAK")),
        Case("TSO", 2, 2, 4, 1, True), Case("PSO", 2, 2, 4, 0, True))

#: Large messages, which take a warm place: all of them, or every other one among small ones.
MOVES = (*(Case(order, readers, chunks, 6, crashes=1 + readers, moves=moves) for moves in (1, 2)
           for readers, chunks in ((1, 2), (1, 3), (2, 2)) for order in ORDERS),
         Case("PSO", 2, 3, 6, moves=1), Case("PSO", 3, 2, 5, 4, moves=1), Case("WEAK", 1, 2, 5, 1, moves=1),
         Case("WEAK", 1, 3, 5, moves=2), Case("TSO", 1, 2, 4, 1, True, 1))

#: All of these, then one chunk, nine messages, four readers, and more early loads.
FULL = SHORT + EARLY + BELL + MOVES + tuple(
    Case(order, readers, chunks, messages, crashes)
    for readers, chunks, messages, crashes in ((1, 1, 6, 2), (2, 1, 6, 3), (3, 1, 6, 4), (2, 3, 9, 3), (3, 2, 8, 4),
                                               (4, 2, 4, 5)) for order in ORDERS) + (
    Case("WEAK", 2, 2, 4, 1), Case("WEAK", 2, 1, 4, 1), Case("PSO", 2, 3, 6, 2, True), Case("WEAK", 2, 2, 3, 0, True))
