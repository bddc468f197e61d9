"""Which groups are searched: a list for every run of the tests, and a longer one for `make soak`.

Three requests are enough for three waves, since each may come when the group rests. Two ranks are searched in full;
with a pause or a fault beside three waves, and with three ranks, only what `reduced` leaves.
"""

from __future__ import annotations

from tests.explorer.waves.nodes import Case

#: Small enough to be searched twice, with and without what makes a search smaller.
TWICE = (Case(requests=3), Case(requests=2, pauses=1), Case(requests=2, faults=1, repeats=1),
         Case(requests=2, aborts=1), Case(requests=1, pauses=1, faults=1),
         Case(requests=2, client=True, faults=1), Case(ranks=3, requests=2), Case(ranks=3, requests=1, pauses=1))

#: In full, then three waves with a pause, a message that is lost or doubled, and two repeats; aborts; a front end.
SHORT = (Case(requests=3, aborts=1), Case(requests=2, pauses=1, aborts=1), Case(requests=2, faults=1, repeats=2),
         Case(requests=2, faults=1, repeats=1, misread=True), Case(requests=3, client=True),
         Case(requests=3, pauses=1, faults=1, repeats=2, reduced=True),
         Case(requests=3, faults=1, repeats=2, aborts=1, reduced=True),
         Case(requests=3, faults=1, client=True, reduced=True),
         Case(ranks=3, requests=3, reduced=True))

FULL = (*SHORT,
        Case(requests=3, pauses=1), Case(requests=3, faults=1, repeats=2),
        Case(requests=3, faults=2, repeats=1, reduced=True), Case(requests=3, faults=2, misread=True, reduced=True),
        Case(requests=3, pauses=1, faults=1, repeats=2, aborts=1, reduced=True),
        Case(requests=3, pauses=1, faults=1, client=True, reduced=True),
        Case(ranks=3, requests=3, faults=1, repeats=2, aborts=1, reduced=True),
        Case(ranks=3, requests=3, pauses=1, aborts=1, reduced=True),
        Case(ranks=3, requests=3, pauses=1, faults=1, repeats=2, reduced=True),
        Case(ranks=4, requests=3, faults=1, repeats=1, reduced=True))
