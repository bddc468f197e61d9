"""Bugs of cores that the head of their group has not started."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

READY_TO_ITS_OWN = Mutant(
    id="ready-to-its-own", scenario="test_a_handshake_is_late[frontend.0->core.1/handshake]",
    bug="A core says to its own client alone that it is ready, and never to the head.",
    breaks=these("dp-handshakes-agree/serves"),
    along=these("start-ends", "handshake-order", "tokens-match-reference", "ends-once", "nothing-without-cause",
                "dp-work-wakes-all", "death-is-told", "health-is-true", "calls-answered", "lost-request-is-bounded",
                "dp-death-ends-group"),
    edits=(Edit("engine/core/io/handshakes.py",
                "            for inbox, greeting in self._greetings.items()})\n",
                "            for inbox, greeting in self._greetings.items() if inbox == HANDSHAKE})\n"),))

KEEPS_ITS_OWN = Mutant(
    id="keeps-its-own", scenario="test_headless_core_believes_in_more_ranks",
    bug="A core takes nothing over from the head.",
    breaks=these("dp-handshakes-agree/adopts"),
    along=these("start-ends", "handshake-order", "nothing-without-cause", "tokens-match-reference"),
    edits=(Edit("engine/wire/adoption.py",
                "    return {**mine, **{name: head[name] for name in ADOPTED if name in head}}\n",
                "    return {**{name: head[name] for name in ADOPTED if name in head}, **mine}\n"),))

COMPARES_NOTHING = Mutant(
    id="compares-nothing", scenario="test_headless_core_is_configured_otherwise",
    bug="A core compares none of its settings: the head sees by their hash that they differ, and not in what.",
    breaks=these("dp-handshakes-agree/names"),
    along=these("start-ends", "handshake-order", "nothing-without-cause", "death-is-told", "nothing-left-behind"),
    edits=(Edit("engine/wire/adoption.py",
                "sorted(told) if mine.get(name) != told.get(name))\n",
                "sorted(told) if name not in mine)\n"),))

LAUNCHER_NEVER_READY = Mutant(
    id="launcher-never-ready", scenario="test_headless_core_dies_beside_its_launcher",
    bug="A launcher of headless cores does not see that they have begun to serve.",
    breaks=these("launcher-says/ready"),
    edits=(Edit("engine/frontend/handles/manager.py",
                "                if (yield ReadHeartbeat(node))[0]:\n", "                if False:\n"),))

ATTACHES_TO_ANYTHING = Mutant(
    id="attaches-to-anything", scenario="test_two_clients_are_configured_otherwise_than_their_engines",
    bug="A client attaches to engines and does not compare their settings with its own.",
    breaks=these("dp-handshakes-agree/attaches"), along=these("handshake-order"),
    edits=(Edit("engine/frontend/handles/attached.py", "        attachment.check(agreed)\n", ""),))

LATE_STRANGER = Mutant(
    id="late-stranger", scenario="test_greeting_comes_late_to_a_head_that_serves",
    bug="A head that serves knows its own cores alone, and none of another client's, whose greeting comes late.",
    breaks=these("nothing-without-cause"),
    edits=(Edit("engine/frontend/life.py", "self._engines.greeted if inbox == HANDSHAKE else self.cores",
                "self.cores"),))

MODES_MUTANTS = (LATE_STRANGER, READY_TO_ITS_OWN, KEEPS_ITS_OWN, COMPARES_NOTHING, LAUNCHER_NEVER_READY,
                 ATTACHES_TO_ANYTHING)
