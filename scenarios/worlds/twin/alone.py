"""The twin's plays of programs alone, which have no engine of the lab's."""

from __future__ import annotations

from collections.abc import Callable

from engine.effects import Loop, Observe
from engine.topology import frontend
from scenarios.history.play import BATCHES, BOOKS, Lab, Play, ProcessEnd
from scenarios.programs.batches import ask_of_batches
from scenarios.programs.books import look_at_books
from sim.simulation import Simulation

#: What a program asks that is pure; the others have threads, sockets and files of their own.
PURE: dict[str, Callable[[], Loop[None]]] = {BOOKS: look_at_books, BATCHES: ask_of_batches}
#: A play that lasts longer in virtual time makes no sense any more.
GUARD_S = 200.0


def play_program(play: Play, simulation: Simulation) -> Lab:
    """Play it to its end, on a simulation that is new."""
    def program() -> Loop[None]:
        yield from PURE[play.options.program]()
        yield Observe("bye", {"reason": "done"})

    simulation.start_process(frontend(), lambda process: program())
    return played_out(simulation)


def played_out(simulation: Simulation) -> Lab:
    """All that was started goes on to its end, or until nobody has patience any more."""
    simulation.run(GUARD_S)
    lab = Lab(began_at=0.0, ended_at=simulation.now, leftovers=[], processes=[
        ProcessEnd(node=process.name, life=process.life, pid=process.pid, started_at=process.started_at,
                   ended_at=process.ended_at, exitcode=process.exitcode) for process in simulation.processes.values()])
    for process in list(simulation.living()):
        process.kill()
    simulation.close()
    return lab
