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

#: The same, then one chunk, nine messages, four readers.
FULL = SHORT + tuple(Case(order, readers, chunks, messages, crashes)
                     for readers, chunks, messages, crashes in ((1, 1, 6, 2), (2, 1, 6, 3), (3, 1, 6, 4), (2, 3, 9, 3),
                                                                (3, 2, 8, 4), (4, 2, 4, 5)) for order in ORDERS)
