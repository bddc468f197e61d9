"""Bugs of a client that has several cores."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

DEAD_ARE_CHOSEN = Mutant(
    id="dead-are-chosen", scenario="test_one_of_two_cores_dies",
    bug="A client asks all of its cores, whether they live or not.",
    breaks=these("dp-dead-never-chosen"),
    along=these("ends-once", "lost-request-is-bounded", "calls-answered", "health-is-true", "dp-death-ends-group"),
    edits=(Edit("engine/frontend/session.py",
                "        self.alive = [index for index in self.alive if index not in lost]\n"
                "        if not self.alive:\n",
                "        if core is None:\n"),))

ALL_END = Mutant(
    id="all-end-with-one", scenario="test_one_of_two_cores_dies",
    bug="The death of one core ends all that a client has asked for.",
    breaks=these("dp-death-ends-group/others"),
    along=these("dp-dead-never-chosen", "tokens-match-reference", "calls-answered", "health-is-true", "ends-once"),
    edits=(Edit("engine/frontend/session.py",
                "for live in list(self._by_id.values()) if live.core in lost]",
                "for live in list(self._by_id.values())]"),))

NAMELESS_DEATH = Mutant(
    id="nameless-death", scenario="test_one_of_two_cores_dies",
    bug="Who is told that a core has died is not told which.",
    breaks=these("dp-death-ends-group/named"), along=these("death-is-told", "health-is-true", "ends-once"),
    edits=(Edit("engine/frontend/life.py", "        deliveries = self.session.die(reason, index)\n",
                "        deliveries = self.session.die(\"an engine core died\", index)\n"),))

GOES_ON_WITHOUT = Mutant(
    id="goes-on-without", scenario="test_coordinator_dies",
    bug="A client does not mind that the coordinator of cores that step together is gone.",
    breaks=these("dp-death-ends-group/group"),
    along=these("death-is-told", "health-is-true", "ends-once", "tokens-match-reference", "lost-request-is-bounded",
                "no-orphans", "nothing-left-behind", "dp-work-wakes-all"),
    edits=(Edit("engine/frontend/life.py",
                "        if self.config.is_lockstep and self.session.dead is None:\n",
                "        if self.config.is_lockstep and is_core and self.session.dead is None:\n"),))

ALL_TO_ONE = Mutant(
    id="all-to-one", scenario="test_two_cores_serve_one_client",
    bug="A client sends all that it is asked to the same core.",
    breaks=these("dp-burst-spreads"),
    edits=(Edit("engine/frontend/balance.py", "        return min(living, key=self.score)\n",
                "        return min(living)\n"),))

CORES_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
