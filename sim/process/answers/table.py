"""How the twin answers effects: what `engine.process.shell` does with a real process's ports, by kind of effect.

Promises: each effect is answered as the shell answers it, a wait by a wait that costs no real time; a look that finds
nothing takes `Costs.look_s`. At every crossing the plan may end or stop the thread or its process exactly between two
effects, or between two stores of a ring operation.

An answer is a function (process, thread, effect) -> what the loop is sent, or WAIT where the thread has to stop: it
has then said `thread.ask_again` or `thread.go_on_with`. What it raises is thrown into the loop. Each file answers one
group of effects and says so in a table `ANSWERS`; a new group is a new file and a row here.
"""

from __future__ import annotations

from sim.process.answers import belongings, consensus, family, messages, rings, threads, work
from sim.process.thread import Answers

ANSWERS: Answers = {
    **messages.ANSWERS,
    **rings.ANSWERS,
    **work.ANSWERS,
    **threads.ANSWERS,
    **family.ANSWERS,
    **belongings.ANSWERS,
    **consensus.ANSWERS,
}
