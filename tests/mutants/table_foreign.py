"""Bugs of those who read a socket where anybody may connect: each meets bytes that it does not expect."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import Mutant, these

#: Who fails by a frame takes more along than the promise about frames.
_ENDS = these("no-foreign-code", "tokens-match-reference", "nothing-without-cause", "death-is-told", "ends-once",
              "nothing-left-behind", "blocks-conserved", "dp-coordinator-death-is-told", "dp-death-ends-group",
              "start-ends", "client-isolated", "no-orphans")

COORDINATOR = Mutant(
    id="coordinator-reads-all", scenario="test_strangers_at_a_coordinator",
    bug="A coordinator lets what it cannot read end its loop.",
    breaks=these("bad-frame-isolated/process"), along=_ENDS,
    edits=(Edit("engine/coordinator/life.py", "        except BadFrameError as error:\n",
                "        except UnicodeError as error:\n"),))

WAVES_WITHOUT_END = Mutant(
    id="wave-of-any-size", scenario="test_strangers_at_a_coordinator",
    bug="A wave may have any number that can be read, also one that no message can carry one more of.",
    breaks=these("bad-frame-isolated/process"), along=_ENDS,
    not_in={"sim": "its own records cannot hold such a number"},
    edits=(Edit("engine/messages.py", "Wave = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]\n", "Wave = int\n"),))

SUBSCRIBES_UNSEEN = Mutant(
    id="any-client-subscribes", scenario="test_strangers_at_a_coordinator",
    bug="A coordinator does not look whether there is the client that subscribes.",
    breaks=these("bad-frame-isolated/silence"),
    edits=(Edit("engine/coordinator/life.py", "        if inbox == STATS and index not in self._recipe.clients:\n",
                "        if index is None:\n"),))

OUTPUTS = Mutant(
    id="client-reads-all", scenario="test_strangers_at_a_client",
    bug="A client lets outputs that it cannot read end whoever waits for it.",
    breaks=these("bad-frame-isolated/silence"), along=_ENDS,
    edits=(Edit("engine/frontend/life.py", "        except BadFrameError as error:\n            edge = Edge(handle",
                "        except UnicodeError as error:\n            edge = Edge(handle"),))

ANY_ENGINE = Mutant(
    id="outputs-of-any-engine", scenario="test_strangers_at_a_client_of_two_cores",
    bug="A client does not look whose outputs come to it.",
    breaks=these("bad-frame-isolated/silence"),
    edits=(Edit("engine/frontend/session.py", "        if outputs.engine_index != core:\n",
                "        if outputs.engine_index < 0:\n"),))

ANY_GREETING = Mutant(
    id="any-greeting", scenario="test_strangers_while_cores_introduce_themselves",
    bug="Who starts engines takes every greeting for one of theirs.",
    breaks=these("bad-frame-isolated/silence"), along=_ENDS,
    edits=(Edit("engine/wire/handshake.py", "        if peer not in engines:\n", "        if peer is metadata:\n"),))

LATE_GREETING = Mutant(
    id="launcher-hears-nobody", scenario="test_strangers_at_clients_of_a_launcher",
    bug="Who owns engines passes over what comes when they are ready.",
    breaks=these("bad-frame-isolated/silence"),
    edits=(Edit("engine/frontend/launcher.py", "            if got[1] not in self._engines.cores:",
                "            if got[1] is self._engines.cores:"),))

NAMELESS = Mutant(
    id="nameless-peers-dropped", scenario="test_strangers_at_a_client",
    not_in={"sim": "its sockets are a model of these"},
    bug="A socket drops in silence what comes from a peer with a name of its own.",
    breaks=these("bad-frame-isolated/silence"),
    edits=(Edit("engine/wire/sockets.py",
                "                    peer = int.from_bytes(identity, \"little\") if len(identity) == IDENTITY_BYTES "
                "else None\n",
                "                    if len(identity) != IDENTITY_BYTES:\n                        continue\n"
                "                    peer = int.from_bytes(identity, \"little\")\n"),))

FOREIGN_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
