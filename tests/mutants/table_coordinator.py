"""Bugs of a coordinator, and of those who have one."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

COUNTED = Mutant(
    id="subscriptions-counted", scenario="test_subscription_of_a_rank_is_doubled",
    bug="A coordinator counts subscriptions as they come, and does not look whose they are.",
    breaks=these("dp-start-needs-all/count"),
    edits=(Edit("engine/coordinator/board.py", "        self.subscribed: set[int] = set()\n",
                "        self.subscribed: list[int] = []\n"),
           Edit("engine/coordinator/board.py", "        self.subscribed.add(rank)\n",
                "        self.subscribed.append(rank)\n")))

READY_UNHEARD = Mutant(
    id="ready-unheard", scenario="test_subscription_of_a_rank_is_late",
    bug="A core subscribes, and does not wait for an answer.",
    breaks=these("dp-start-needs-all/waits"),
    edits=(Edit("engine/core/life.py", "            until = (yield Now()) + every_s\n",
                "            return\n"),))

UNWATCHED = Mutant(
    id="coordinator-unwatched", scenario="test_coordinator_of_dense_cores_dies",
    bug="A client watches its cores, and not their coordinator.",
    breaks=these("dp-coordinator-death-is-told"),
    edits=(Edit("engine/frontend/handles/manager.py",
                "        for handle in self.all:\n            handle.watch(now)\n",
                "        for handle in self.cores.values():\n            handle.watch(now)\n"),
           Edit("engine/frontend/handles/manager.py", "        self.nodes = tuple(self.by_node)\n",
                "        self.nodes = tuple(handle.node for handle in self.cores.values())\n")))

COORDINATOR_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
