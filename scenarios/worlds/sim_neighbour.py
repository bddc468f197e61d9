"""A second engine on the host of a play in the twin, of which only the core is there: see `sim.nodes.publisher`.

As another data-parallel rank it has a subscriber of its own. Neither is a node of the play: what they record is for
the lab, which keeps what became of the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.topology import core, subscriber
from scenarios.history.run import Play, RankStream
from scenarios.history.streams import stream_of
from scenarios.lab.settings import listeners_s
from scenarios.workloads.workload import Workload
from scenarios.worlds.addresses import address_of_rank
from sim.nodes.publisher import ROUND, ROUNDS, neighbour_main
from sim.nodes.subscriber import subscriber_main
from sim.process.process import SimProcess
from sim.simulation import Simulation
from sim.stage import Stage

NAME = "neighbour"
SEGMENT = "ringtwin-neighbour-rpc"


class SimNeighbour:
    """It serves in rounds: beside the engine's play, if it is a rank (`serve`), and after it (`finish`)."""

    def __init__(self, sim: Simulation, stage: Stage, play: Play) -> None:
        self.sim, self.stage, self.play = sim, stage, play
        self.rank: int | None = play.options.get("neighbour_rank")
        self.listener: SimProcess | None = None
        self._open = 0  # rounds that are not over
        self._finishing = False
        prompts = [request.prompt_token_ids for request in msgspec.convert(play.workload, Workload).requests]
        self.core = self._start(core(1), lambda process: neighbour_main(stage, self.rank, prompts, self._round_is_over))
        sim.paths[NAME] = NAME
        sim.create_segment(SEGMENT, 64, self.core)

    def _start(self, node: Any, main: Callable[[SimProcess], Any]) -> SimProcess:
        process = self.sim.start_process(node, main)
        process.bystander = True
        process.context["engine"] = NAME
        return process

    def follow(self, is_ready: Callable[[], None]) -> None:
        """Start its rank's subscriber."""
        self.listener = self._start(subscriber(self.play.topology.subscribers), lambda process: subscriber_main(
            process, self.stage, lambda name: address_of_rank(self.stage.address(name), self.rank), is_ready,
            lambda: None))

    def serve(self) -> None:
        """Begin a round."""
        self._open += 1
        self.core.put(ROUNDS, ROUND)

    def finish(self) -> None:
        """The last round. Then its subscriber catches up."""
        self._finishing = True
        self.serve()

    def _round_is_over(self) -> None:
        self._open -= 1
        if self._open or not self._finishing or self.listener is None:
            return
        self.listener.context["stop"] = True
        self.listener.wake(self.listener.threads)
        self.sim.after(listeners_s(self.play.config.bounds), self._give_up)

    def _give_up(self) -> None:
        if self.listener.alive:
            self.listener.kill()

    def seen(self) -> dict[str, Any]:
        """For `Lab.neighbour`."""
        kept = {NAME, SEGMENT} & (set(self.sim.paths) | set(self.sim.segments))
        return {"alive": self.core.alive, "served": self.core.alive and not self._open,
                "touched": sorted({NAME, SEGMENT} - kept)}

    def stream(self) -> RankStream | None:
        """What became of its rank's events."""
        if self.rank is None:
            return None
        return stream_of(self.rank, self.core.records, self.listener.records if self.listener is not None else ())

    def leftovers(self) -> set[str]:
        """What `Simulation.leftovers` finds of it."""
        return {f"process {self.core.label}", f"segment {SEGMENT}", f"file {NAME}"}
