"""Bugs of a client that has several cores, and of cores that have several clients."""

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
    breaks=these("dp-burst-spreads"), along=these("dp-chosen-in-turn"),
    edits=(Edit("engine/frontend/balance.py", "        return min(living, key=self.score)\n",
                "        return min(living)\n"),))

COUNTS_ITS_OWN = Mutant(
    id="counts-its-own", scenario="test_one_of_two_clients_keeps_a_core_busy",
    bug="A client counts what it has sent, and passes over what the coordinator says of others.",
    breaks=these("dp-counts-used"), along=these("dp-chosen-in-turn"),
    edits=(Edit("engine/frontend/balance.py", "        waiting, active, cache = self._counts[rank]\n",
                "        waiting, active, cache = 0, 0, 0.0\n"),))

ENDS_UNCOUNTED = Mutant(
    id="ends-uncounted", scenario="test_requests_come_one_after_another",
    bug="A client chooses by all that it has sent, whether that has ended or not.",
    breaks=these("dp-chosen-in-turn/ends"),
    edits=(Edit("engine/frontend/balance.py", "            self._sent[rank] = max(0,",
                "            max(0,"),))

ASKED_UNCOUNTED = Mutant(
    id="asked-uncounted", scenario="test_requests_for_one_core_count_there",
    bug="A client does not count where it has sent what asked for a core, and counts that it has ended there.",
    breaks=these("dp-chosen-in-turn/asked"),
    edits=(Edit("engine/frontend/balance.py",
                "rank {rank} is dead\")\n        self.in_flight",
                "rank {rank} is dead\")\n        else:\n            return rank\n        self.in_flight"),))

NEVER_IN_TURN = Mutant(
    id="never-in-turn", scenario="test_requests_come_one_after_another",
    bug="A client asks the first of cores that have as much to do, again and again.",
    breaks=these("dp-chosen-in-turn/turn"),
    edits=(Edit("engine/frontend/balance.py", "        self._first = (self._first + 1) % self.engines\n", ""),))

LAUNCHER_LOOKS_AWAY = Mutant(
    id="launcher-looks-away", scenario="test_one_of_two_cores_in_step_of_two_clients_dies",
    bug="A launcher looks at the heartbeats of what it has started, and at no ends.",
    breaks=these("launcher-says/died"), along=these("rests-when-idle"),  # an end that nobody looks at wakes it for ever
    edits=(Edit("engine/frontend/launcher.py",
                "gone = (yield AwaitEnds(self.watched, 0.0)) if self.watched else {}", "gone = {}"),))

LAUNCHER_LEAVES_THE_REST = Mutant(
    id="launcher-leaves-the-rest", scenario="test_coordinator_of_two_clients_dies",
    bug="A launcher whose coordinator is dead has the cores that it kept in step go on.",
    breaks=these("launcher-says/group"), along=these("dp-death-ends-group"),
    edits=(Edit("engine/frontend/launcher.py", "        if self._config.is_lockstep:\n            reason +=",
                "        if False:\n            reason +="),))

AS_IT_LIKES = Mutant(
    id="as-it-likes", scenario="test_requests_for_one_of_two_cores",
    bug="A client chooses a core by what it has to do, whichever is asked for.",
    breaks=these("dp-rank-as-asked"),
    edits=(Edit("engine/frontend/balance.py", "        if rank is None:\n            rank = self._lowest()\n",
                "        if rank is None or rank in range(self.engines):\n            rank = self._lowest()\n"),))

DRAWS_ALL = Mutant(
    id="cut-off-draws-all", scenario="test_connection_of_requests_stays_cut",
    bug="A core that nothing can be sent to always has the fewest requests, and gets the next one, which fails.",
    breaks=these("dp-burst-spreads"), along=these("dp-chosen-in-turn"),
    not_in={"engine": "a request that cannot be sent has ended before the next one is asked for: no burst of them"},
    edits=(Edit("engine/frontend/balance.py", " + self._clients * self._unsent[rank]", ""),))

FIRST_GETS_ALL = Mutant(
    id="first-client-gets-all", scenario="test_two_clients_share_a_core",
    bug="A core sends all outputs to the first of its clients.",
    breaks=these("client-routed"),
    along=these("tokens-match-reference", "lost-request-is-bounded", "ends-once", "calls-answered", "health-is-true"),
    edits=(Edit("engine/core/io/loops.py",
                "        yield Send(outboxes[item.client_index], encode_outputs(item.outputs, own_frame_bytes))\n",
                "        yield Send(outboxes[0], encode_outputs(item.outputs, own_frame_bytes))\n"),))

WHOEVER_IT_WAS = Mutant(
    id="whoever-it-was", scenario="test_two_clients_ask_for_more_than_the_cache_holds",
    bug="What cannot be read is answered to the first of the clients, whoever has sent it.",
    breaks=these("client-routed"),
    edits=(Edit("engine/core/io/loops.py", "_whose(frames), client or 0)", "_whose(frames), 0)"),))

LEFT_BEHIND_A_CUT = Mutant(
    id="left-behind-a-cut", scenario="test_one_of_two_clients_dies_behind_what_it_asked",
    bug="What a client had sent before it was gone is taken in behind its end, and computed for nobody.",
    breaks=these("client-isolated/freed"),
    not_in={"engine": "a real core may have read all before it sees that its client is gone"},
    edits=(Edit("engine/core/io/loops.py",
                "                while (last := (yield Receive((inbox,), _AT_ONCE))) is not None:\n"
                "                    yield from _take_in(last[2], edges[inbox], index, headless=headless)\n", ""),))

GONE_IS_SERVED = Mutant(
    id="gone-is-served", scenario="test_one_of_two_clients_dies",
    bug="A core does not see that a client is gone.",
    breaks=these("client-isolated/freed"),
    edits=(Edit("engine/core/io/loops.py", "                yield Put(INPUT, ClientGone(index))\n", ""),))

ALL_GO_WITH_ONE = Mutant(
    id="all-go-with-one-client", scenario="test_one_of_two_clients_dies_in_a_long_step",
    bug="When a client is gone, its core gives up all that it has to do.",
    breaks=these("client-isolated/others"),
    along=these("tokens-match-reference", "ends-once", "lost-request-is-bounded"),
    edits=(Edit("engine/core/engine_core.py",
                "for r in self.scheduler.requests.values() if r.client_index == item.client_index]\n",
                "for r in self.scheduler.requests.values()]\n"),))

ONE_LIMIT = Mutant(
    id="one-limit-for-all", scenario="test_two_clients_have_as_much_in_flight_as_each_may",
    bug="What all clients of a core have in flight is counted against each of them.",
    breaks=these("client-isolated/limits"), along=these("tokens-match-reference", "bad-request-isolated"),
    edits=(Edit("engine/core/engine_core.py", " and sum(r.client_index == client for r in requests.values()) >= most\n",
                "\n"),))

SAID_ONCE = Mutant(
    id="announced-once", scenario="test_client_dies_and_comes_back",
    bug="A core tells a client that it can be sent to as it starts, and not who comes in its place.",
    breaks=these("client-returns"),
    edits=(Edit("engine/core/io/loops.py",
                "                yield from announce(inbox)  # before it who comes back sends nothing\n", ""),))

UNWATCHED_CORE = Mutant(
    id="attached-and-blind", scenario="test_core_of_two_clients_dies",
    bug="A client that has not started its cores does not look whether they live.",
    breaks=these("notice-to-all"),
    along=these("death-is-told", "ends-once", "health-is-true", "tokens-match-reference", "lost-request-is-bounded"),
    edits=(Edit("engine/frontend/handles/remote.py",
                "        if self.monitor.gone() is None and not (yield IsAlive(self.running.identity)):\n",
                "        if not (yield IsAlive(self.running.identity)) and not self.inbox:\n"),))

LEFT_BY_A_CORE = Mutant(
    id="launcher-leaves-orphans", scenario="test_core_of_two_clients_dies_while_a_worker_is_stopped",
    bug="Who owns engines does not look after the workers of a core that is dead.",
    breaks=these("no-orphans/unwatched"),
    along=these("nothing-left-behind"),
    edits=(Edit("engine/frontend/launcher.py", "                yield from handle.end_orphans()\n",
                "                pass\n"),))

COUNTS_OF_THE_FIRST = Mutant(
    id="counts-of-the-first", scenario="test_one_of_two_cores_of_a_second_client_has_no_room",
    bug="A client of the last cores takes what was told of the first ones for theirs.",
    breaks=these("dp-chosen-in-turn/ends"),
    edits=(Edit("engine/frontend/link.py", "counts=tuple(counts[core] for core in self._cores))\n",
                "counts=tuple(counts[:len(self._cores)]))\n"),))

SHUNNED_BY_ANOTHER_NUMBER = Mutant(
    id="shunned-by-another-number", scenario="test_one_of_two_cores_of_a_second_client_dies_and_more_is_asked",
    bug="A client of the last cores notes the death of one by its number, and not by its place among its own.",
    breaks=these("dp-dead-never-chosen"), along=these("dp-chosen-in-turn", "death-is-told"),
    edits=(Edit("engine/frontend/session.py", "        self.balance.died(self._cores.index(core))\n",
                "        self.balance.died(core)\n"),))

WATCHES_THE_DEAD = Mutant(
    id="watches-the-dead", scenario="test_one_of_two_cores_of_two_clients_dies",
    bug="Who owns cores waits for the end of one that is dead already, again and again.",
    breaks=these("rests-when-idle"), not_in={"sim": "virtual time stands still for who never waits"},
    edits=(Edit("engine/frontend/launcher.py",
                "        self.watched = tuple(node for node in self.watched if node not in gone)\n", ""),))

NEVER_FORGIVES = Mutant(
    id="never-forgives", scenario="test_core_cannot_be_reached_for_a_while",
    bug="What could not be sent to a core counts there when it can be reached again.",
    breaks=these("dp-chosen-in-turn/turn"),
    edits=(Edit("engine/frontend/balance.py",
                "        self._unsent[rank] = self._unsent[rank] + 1 if unsent else 0\n",
                "        self._unsent[rank] += unsent\n"),))

CORES_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
