"""Bugs that real engines had, as small changes of this one; and each mechanism that stands against them, taken out.

A mutant is planted into a copy (plant.py), its scenario is played there, and these guarantees must be BROKEN. In the
twin, where time is exact, nothing may break beside them but what `along` names: their consequences. `not_in` says why
a world cannot have the bug.

`H..` ids are those of the list of known bugs that this project is held against; where more than one witness stands
against a bug in this engine, the mutant takes out all but the one that the engine with the bug had.
"""

from __future__ import annotations

import msgspec

from tests.mutants.plant import Edit

WORLDS = ("sim", "engine")


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One bug. `bug` says what goes wrong with it."""

    id: str
    bug: str
    scenario: str
    edits: tuple[Edit, ...]
    breaks: frozenset[str]
    along: frozenset[str] = frozenset()
    not_in: dict[str, str] = {}

    @property
    def broken_guarantees(self) -> frozenset[str]:
        return frozenset(part.partition("/")[0] for part in self.breaks)

    @property
    def worlds(self) -> tuple[str, ...]:
        return tuple(world for world in WORLDS if world not in self.not_in)


def these(*names: str) -> frozenset[str]:
    return frozenset(names)


#: A real play that hangs is ended when its promises are broken, and not later by what a start may take.
SHORT_GUARD = Edit("scenarios/lab/script.py", "bounds.drain_s) + bounds.startup_s\n", "bounds.drain_s)\n")

# -- the law of every play ------------------------------------------------------------------------------------------

FORGOTTEN_REQUEST = Mutant(
    id="request-forgotten", scenario="test_nothing_goes_wrong",
    bug="The core takes a request in and never hands it to the scheduler: its caller waits for its time-out.",
    breaks=these("nothing-without-cause"),
    along=these("blocks-conserved", "served-in-turn"),
    edits=(Edit(
        "engine/core/engine_core.py",
        """        self.scheduler.add_request(Request.from_engine_core_request(request))
""",
        """        if not request.request_id.startswith("r3-"):
            self.scheduler.add_request(Request.from_engine_core_request(request))
"""),))

UNPICKLES = Mutant(
    id="unpickles-requests", scenario="test_frames_that_are_no_requests",
    bug="What cannot be decoded as a request is unpickled.",
    breaks=these("no-foreign-code/unpickled", "nothing-without-cause"),
    along=these("bad-frame-isolated", "tokens-match-reference", "hwm0-no-loss"),
    edits=(Edit(
        "engine/wire/codec.py",
        """    except _UNREADABLE as error:
        raise BadFrameError(f"the body of a request of""",
        """    except _UNREADABLE as error:
        import pickle
        try:
            pickle.loads(body)
        except Exception:
            pass
        raise BadFrameError(f"the body of a request of"""),))

OVER_THE_LIMIT = Mutant(
    id="over-the-limit", scenario="test_more_requests_than_admitted",
    bug="The client admits whatever comes, and its core as well.",
    breaks=these("memory-bounded/requests"),
    edits=(
        Edit("engine/frontend/session.py", "if len(self._by_id) >= self.limits.max_requests:", "if False:"),
        Edit("engine/core/engine_core.py",
             "if not reason and self._has_its_limit(request.client_index):", "if False:")))

THREAD_PER_REQUEST = Mutant(
    id="thread-per-request", scenario="test_nothing_goes_wrong",
    bug="The core starts a thread for each request and keeps it.",
    breaks=these("nothing-grows"),
    edits=(Edit(
        "engine/core/engine_core.py",
        """        self.scheduler.add_request(Request.from_engine_core_request(request))
""",
        """        self.scheduler.add_request(Request.from_engine_core_request(request))

        def watches() -> Loop[None]:
            while True:
                yield Take("watched", (yield Now()) + 1.0)

        yield StartThread(f"watch-{request.request_id}", watches())
"""),
        Edit("engine/core/engine_core.py", "Take, ThreadFailed\n", "StartThread, Take, ThreadFailed\n")))

NEVER_RESTS = Mutant(
    id="never-rests", scenario="test_an_idle_engine_rests",
    bug="An idle core looks at its queue again and again, and never waits.",
    breaks=these("rests-when-idle"),
    not_in={"sim": "virtual time stands still for who never waits: the twin calls that a livelock"},
    edits=(Edit(
        "engine/core/engine_core.py", "deadline = now + self.config.bounds.heartbeat_s / 2", "deadline = 0.0"),))

HARDLY_RESTS = Mutant(
    id="hardly-rests", scenario="test_an_idle_engine_rests",
    bug="An idle core looks at its queue again and again, and hardly waits.",
    breaks=these("rests-when-idle"),
    not_in={"engine": "the shortest wait of a real queue is a millisecond, which is rest enough"},
    edits=(Edit(
        "engine/core/engine_core.py", "deadline = now + self.config.bounds.heartbeat_s / 2", "deadline = now + 2e-5"),))

# -- known bugs ----------------------------------------------------------------------------------------------------

SILENT_RANK = Mutant(
    id="H17", scenario="test_silent_rank_raises",
    bug="Only the rank whose answer counts reports that it failed; the failure of another one is a time-out of all.",
    breaks=these("rpc-any-rank-fails-fast/at-once"), along=these("death-is-told", "rpc-matched"),
    edits=(Edit(
        "engine/worker/worker_loop.py",
        """            yield from answers.give(call_id, ReplyStatus.FAILURE, text)
            continue
        if output_rank""",
        """            if output_rank is None or output_rank == rank:
                yield from answers.give(call_id, ReplyStatus.FAILURE, text)
            continue
        if output_rank"""),))

INHERITED_PIPE_ENDS = Mutant(
    id="H25", scenario="test_frontend_dies",
    bug="Forked children keep the pipe ends of their parent, so the pipe that tells of its death never reads EOF.",
    not_in={"sim": "who inherits which descriptor is a fact of fork; the twin's processes share nothing"},
    breaks=these("no-orphans/inherited", "nothing-left-behind/survivor"),
    edits=(
        Edit("engine/process/children.py",
             "    for end in _own_ends:\n        end.close()\n    _own_ends.clear()\n", ""),
        # The second witness: without it the pipe alone tells.
        Edit("engine/process/children.py",
             """            self._sentinel = os.pidfd_open(pid)
        self._gone = self._sentinel < 0 or os.getppid() != pid  # it died before it could be watched
""",
             """            self._sentinel = connection.fileno()
        self._gone = False
""")))

NO_SENTINEL = Mutant(
    id="H32", scenario="test_core_dies_in_mid_step",
    bug="The frontend does not watch the core's process: it waits for a notice that a killed core cannot send.",
    breaks=these("death-is-told/pending", "health-is-true/dead"),
    edits=(Edit("engine/frontend/life.py", "        self.watched = engines.nodes\n", ""),))

INPUT_THREAD_DIES = Mutant(
    id="H36", scenario="test_frames_that_are_no_requests",
    bug="A frame that cannot be decoded ends the thread that reads the socket, and with it the core.",
    breaks=these("bad-frame-isolated/process", "no-foreign-code/crash"),
    along=these("tokens-match-reference", "no-foreign-code"),
    edits=(Edit("engine/core/io/loops.py", "    except BadFrameError as error:\n        item =",
                "    except ZeroDivisionError as error:\n        item ="),))

INPUT_THREAD_DIES_IN_SILENCE = Mutant(
    id="H36-in-silence", scenario="test_frames_that_are_no_requests",
    bug="The same, and nobody looks after the thread: the core lives on until it is missed, and no request arrives.",
    breaks=these("bad-frame-isolated/process", "hwm0-no-loss"),
    along=these("tokens-match-reference", "no-foreign-code"),
    edits=(
        *INPUT_THREAD_DIES.edits,
        Edit("engine/core/life.py", "is_lockstep),\n            told=INPUT)", "is_lockstep))")))

EXTERNAL_ID = Mutant(
    id="H44", scenario="test_abort_comes_behind_a_new_request_of_the_same_id",
    bug="A request has its caller's id inside, too: a late abort of the old one kills the new one.",
    breaks=these("ends-once/forgets", "abort-is-final/reuse"), along=these("lost-request-is-bounded"),
    edits=(Edit("engine/frontend/session.py", 'internal_id = f"{request_id}-{self._mark}{self._suffix()}"',
                "internal_id = request_id"),))

HANDSHAKE_FOR_EVER = Mutant(
    id="H88", scenario="test_hello_is_lost",
    bug="Neither side of the handshake has a deadline: one lost message, and the start never ends.",
    breaks=these("start-ends/bound", "handshake-order/bound"), along=these("nothing-left-behind"),
    edits=(
        Edit("engine/wire/handshake.py", "        got = yield Receive((inbox,), deadline)\n",
             "        got = yield Receive((inbox,), None)\n"),
        Edit("engine/wire/handshake.py",
             "limit = deadline if len(greeted) == len(engines) else min(hello_deadline, deadline)", "limit = None")))

LONG_PATH = Mutant(
    id="H91", scenario="test_runtime_directory_has_a_long_name",
    bug="Sockets lie where the user's temporary directory is, however long its name.",
    not_in={"sim": "a socket's address has no length in the twin, and its engines have no directory"},
    breaks=these("start-ends/named"),
    edits=(Edit("engine/process/runtime_dir.py", 'return folder if longest <= _SUN_PATH_BYTES else Path("/tmp")',
                "return folder"),))

NO_SWEEP = Mutant(
    id="H92", scenario="test_everything_is_killed_and_started_again_beside_a_neighbour",
    bug="A start does not remove what a killed engine has left, so /dev/shm fills up.",
    breaks=these("nothing-left-behind/restart"),
    edits=(Edit("engine/frontend/handles/own.py", "        yield SweepFiles()\n", ""),))

SKIPPED_SLOT = Mutant(
    id="H01", scenario="test_reader_stalls_until_the_ring_is_full",
    bug="A writer that finds its chunk in use goes on to the next one.",
    breaks=these("ring-exact-prefix/order"),
    along=these("ring-no-overwrite", "workers-in-step", "edge-fifo", "rpc-matched", "tokens-match-reference"),
    edits=(
        Edit("engine/ipc/ring.py", "(self._position + self._max_chunks // 2, self._position):", "(self._position,):"),
        Edit("engine/ipc/ring.py", "                return True\n        return False\n",
             "                return True\n        self._position += 1\n        return False\n")))

NO_RECHECK = Mutant(
    id="H06", scenario="test_doorbell_is_lost",
    bug="An idle reader sleeps until its doorbell rings, and only then looks again.",
    breaks=these("ring-no-lost-wakeup"),
    along=these("tokens-match-reference", "ring-bounded-wait", "workers-in-step"),
    edits=(
        Edit("engine/worker/worker_loop.py", "rpc.dequeue(a_while)", "rpc.dequeue(None)"),
        Edit("engine/process/shell.py",
             "self.left(effect.deadline, self.recheck_s))", "self.left(effect.deadline, 1e6))"),
        Edit("sim/process/answers/rings.py",
             "        until = now + process.recheck_s\n", "        until = now + 1e6\n")))

EXPIRED_DEADLINE = Mutant(
    id="H19", scenario="test_payload_of_an_answer_is_lost",
    bug="A deadline that has passed already means: wait for ever.",
    breaks=these("ring-bounded-wait/deadline"),
    edits=(Edit("engine/ipc/queue.py", "_AT_ONCE = 0.0\n", "_AT_ONCE = None\n"),))

REPLIES_BY_TURN = Mutant(
    id="H20", scenario="test_reader_stalls_until_the_ring_is_full",
    bug="A reply answers the oldest open call, whichever call it names.",
    breaks=these("rpc-matched", "tokens-match-reference/end"),
    edits=(Edit("engine/executor/calls.py",
                "        call = self._open.get(call_id)\n",
                "        call_id = next(iter(self._open), call_id)\n        call = self._open.get(call_id)\n"),))

ABORT_BEFORE_BLOCKS = Mutant(
    id="H51", scenario="test_nothing_goes_wrong",
    bug="The clean-up of an abort takes for granted that the request has blocks.",
    breaks=these("tokens-match-reference/end"),
    edits=(Edit("engine/core/scheduler.py",
                """                del self.waiting[request_id]
            self._end(""",
                """                self.cache.get_block_ids(request_id)[0]
                del self.waiting[request_id]
            self._end("""),))

# -- mechanisms, taken out -----------------------------------------------------------------------------------------

NO_LINGER = Mutant(
    id="no-linger", scenario="test_core_exits_behind_a_slow_reader",
    bug="The core closes its output socket without linger, whatever is configured.",
    breaks=these("dead-notice/linger"),
    edits=(Edit("engine/wire/wiring.py", "linger_s=config.sockets.output_linger_s", "linger_s=0.0"),))

OVERFLOW_BY_ARRIVAL = Mutant(
    id="overflow-by-arrival", scenario="test_overflow_payloads_overtake_each_other",
    bug="The next payload beside the ring is taken for the one that is owed.",
    breaks=these("ring-overflow-ordered/place", "ring-exact-prefix/order", "workers-in-step"),
    along=these("tokens-match-reference"),
    edits=(Edit("engine/ipc/queue.py", "            self._payloads[position] = parts\n",
                "            self._unmarked.append(parts)\n"),))

OVERFLOW_FORGOTTEN = Mutant(
    id="overflow-forgotten", scenario="test_overflow_payload_comes_late",
    bug="A wait that runs out between flag and payload forgets that a payload is owed.",
    breaks=these("ring-overflow-ordered/time-out", "tokens-match-reference/end"),
    along=these("two-phase-paired", "ring-exact-prefix", "workers-in-step"),
    edits=(Edit("engine/ipc/queue.py",
                '            outcome, error = "timeout", QueueTimeoutError(f"{name}: {refusal()}")\n',
                '            outcome, error = "timeout", QueueTimeoutError(f"{name}: {refusal()}")\n'
                "            look.__self__.owed = None\n"),))

REPLAY_IGNORED = Mutant(
    id="replay-ignored", scenario="test_subscriber_is_too_slow_for_its_high_water_mark",
    bug="The publisher answers every request for a replay with nothing.",
    breaks=these("kv-replay-complete/exact"),
    along=these("kv-mirror-true", "kv-asks-in-time", "kv-tells-what-came", "kv-answers-exact"),
    edits=(Edit("engine/kv_events/publisher/log.py",
                "        first = bisect_left(batches, request.start, key=itemgetter(0))\n",
                "        first = len(batches)\n"),))

REPLAY_NOT_ASKED = Mutant(
    id="replay-not-asked", scenario="test_subscriber_is_too_slow_for_its_high_water_mark",
    bug="A subscriber that sees a hole does not ask for what it lacks.",
    breaks=these("kv-replay-complete/exact"),
    along=these("kv-mirror-true", "kv-asks-in-time", "kv-tells-what-came"),
    edits=(Edit("engine/kv_events/subscriber/follower.py",
                "                self._out.append(questions.ask(self.next, known, order.arrivals, now))\n",
                "                question = questions.ask(self.next, known, order.arrivals, now)\n"
                "                if self.next >= self.wire:\n"
                "                    self._out.append(question)\n"),))

BLOCKS_KEPT = Mutant(
    id="blocks-kept-on-abort", scenario="test_nothing_goes_wrong",
    bug="The blocks of an aborted request stay its own for ever.",
    breaks=these("blocks-conserved/freed"), along=these("abort-is-final", "served-in-turn"),
    edits=(Edit("engine/core/scheduler.py", "        self.cache.free(request)\n        del self.requests",
                "        if status is not RequestStatus.FINISHED_ABORTED:\n            self.cache.free(request)\n"
                "        del self.requests"),))

NO_RESET = Mutant(
    id="flag-not-reset", scenario="test_writer_stops_between_data_and_flag",
    bug="A write does not take the old flag back first: with the readers' flags cleared, the chunk looks published.",
    breaks=these("ring-exact-prefix/whole"),
    edits=(Edit("engine/ipc/ring.py", "        memory[written] = 0\n", ""),))

MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
