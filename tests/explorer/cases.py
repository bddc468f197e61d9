"""Which rings are searched: a list for every run of the tests, and a longer one for `make soak`.

A play of fewer messages is the beginning of a longer one, so only the longest are listed: six messages go round two
chunks three times and round three chunks twice.
"""

from __future__ import annotations

from tests.explorer.ring import Case

ORDERS = ("SC", "TSO", "PSO")

#: 1 to 3 readers, 2 and 3 chunks, 6 messages, and a crash of any number of parties. Three readers on three chunks are
#: three quarters of all states, so in every run one of them may die, and in the long form any number.
SHORT = tuple(Case(order, readers, chunks, 6, crashes=1 if readers == chunks == 3 else 1 + readers)
              for readers in (1, 2, 3) for chunks in (2, 3) for order in ORDERS)

#: The rest of that, and more: one chunk, nine messages, four readers.
FULL = SHORT + tuple(Case(order, readers, chunks, messages, crashes)
                     for readers, chunks, messages, crashes in ((3, 3, 6, 4), (1, 1, 6, 2), (2, 1, 6, 3), (3, 1, 6, 4),
                                                                (2, 3, 9, 3), (4, 2, 4, 1)) for order in ORDERS)
