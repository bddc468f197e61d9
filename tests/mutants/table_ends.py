"""Bugs of dying, standing still, starting, leaving, and what is left then."""

from __future__ import annotations

from tests.mutants.plant import Edit
from tests.mutants.table import SHORT_GUARD, Mutant, these

NO_NOTICE = Mutant(
    id="no-notice", scenario="test_core_raises_behind_a_full_queue",
    bug="A core that leaves does not say so: its client learns of it when the process is gone.",
    breaks=these("dead-notice/notice"),
    edits=(Edit("engine/core/io/loops.py",
                "                yield Send(outbox, [ENGINE_CORE_DEAD])\n",
                "                yield from ()\n"),))

NOT_ASKED_TO_LEAVE = Mutant(
    id="not-asked-to-leave", scenario="test_nothing_goes_wrong",
    bug="A client that closes waits for its cores to leave, asks none of them to, and kills them.",
    breaks=these("nothing-without-cause"),
    edits=(Edit("engine/frontend/handles/handle.py",
                "        if self.process is not None:\n            yield EndChild(self.node, \"terminate\")\n",
                "        yield from ()\n"),))

DRAINS_ANEW = Mutant(
    id="drains-anew", scenario="test_core_is_asked_to_leave_again_and_again",
    bug="Each SIGTERM gives a core the whole time to drain.",
    breaks=these("drain/anew"), not_in={"engine": "only the twin plays this scenario"},
    edits=(Edit("engine/core/drain.py", "        if self.deadline is None:\n            self.deadline",
                "        if True:\n            self.deadline"),))

NOTICE_OVERTAKES = Mutant(
    id="notice-overtakes", scenario="test_core_raises_behind_a_full_queue",
    bug="Outputs wait a moment for others to travel with; the notice does not, and overtakes them.",
    breaks=these("dead-notice/behind"), along=these("hwm0-no-loss", "nothing-left-behind"),
    edits=(
        Edit("engine/core/io/loops.py",
             "        unsent.extend((yield Take(OUTPUT, now + every_s)))\n        while unsent:\n",
             "        unsent.extend((yield Take(OUTPUT, now + every_s)))\n"
             "        while unsent and not isinstance(unsent[-1], Dead) and (\n"
             "                more := (yield Take(OUTPUT, (yield Now()) + 0.5))):\n"
             "            unsent.extend(more)\n"
             "        if unsent and isinstance(unsent[-1], Dead):\n"
             "            unsent.rotate(1)\n"
             "        while unsent:\n"),
        Edit("engine/core/io/loops.py",
             "            if isinstance(item, Dead):\n                return\n",
             "            if isinstance(item, Dead):\n"
             "                while unsent:\n"
             "                    yield from _send(unsent.popleft(), outboxes)\n"
             "                return\n")))

TOLD_BEFORE_OUTPUTS = Mutant(
    id="told-before-outputs", scenario="test_core_exits_behind_a_slow_reader",
    bug="A client that hears by the pipe that its core leaves ends all streams, whatever it has still to read.",
    breaks=these("dead-notice/streams"), along=these("hwm0-no-loss", "nothing-left-behind"),
    edits=(Edit("engine/frontend/life.py",
                "        handle = self.cores[index]\n        try:\n            deliveries = self.session.on_frames",
                "        handle = self.cores[index]\n"
                "        yield from handle.listen()\n"
                "        if type(handle._told).__name__ == \"Leaving\" and handle.serves:\n"
                "            yield from self._die(handle, handle.monitor.on_notice())\n"
                "        try:\n            deliveries = self.session.on_frames"),))

LATER_CALLS_WAIT = Mutant(
    id="later-calls-wait", scenario="test_core_dies_in_mid_step",
    bug="A call after the engine's death is taken in as if it still lived.",
    breaks=these("death-is-told/later"), along=these("ends-once", "lost-request-is-bounded"),
    edits=(Edit("engine/frontend/session.py",
                "        if self.dead is not None:\n            raise EngineDeadError(self.dead.reason)\n",
                "        if self.dead is not None:\n            pass\n"),
           Edit("engine/frontend/balance.py",
                "        if not living:\n            raise EngineDeadError(\"all data-parallel ranks are dead\")\n",
                "        living = living or scan\n")))

PULSE_UNHEARD = Mutant(
    id="pulse-unheard", scenario="test_core_is_stopped",
    bug="The client believes in every core whose process is there.",
    breaks=these("stall-is-told/core", "health-is-true/hung"), along=these("ends-once", "lost-request-is-bounded"),
    edits=(Edit("engine/process/liveness.py", "        if still_s <= self._stall_s:\n", "        if True:\n"),))

STEPS_WITHOUT_DEADLINE = Mutant(
    id="steps-without-deadline", scenario="test_worker_is_stopped",
    bug="The core waits for a step without a deadline.",
    breaks=these("stall-is-told/worker"),
    along=these("ring-bounded-wait", "health-is-true", "ends-once", "lost-request-is-bounded"),
    edits=(
        SHORT_GUARD,
        Edit("engine/executor/calls.py", "        if not call.done and now >= call.deadline:\n",
             "        if not call.done and now >= call.deadline + 60:\n"),
        Edit("engine/executor/multiproc.py", "yield WaitBell(CORE_BELL, call.deadline)",
             "yield WaitBell(CORE_BELL, None)"),
        # The second witness: the core's own standstill.
        *PULSE_UNHEARD.edits))

NOBODY_WATCHES_THE_PARENT = Mutant(
    id="nobody-watches-the-parent", scenario="test_frontend_dies",
    bug="A core does not look after the process that has started it.",
    breaks=these("no-orphans/unwatched", "nothing-left-behind/survivor"),
    edits=(Edit("engine/core/life.py", "        yield beside(\"parent-watch\", self._watch_parent(executor))\n", ""),))

FILES_LEFT = Mutant(
    id="files-left", scenario="test_frontend_dies",
    bug="Files are removed by whoever ends as it should; the children of a dead frontend leave them.",
    breaks=these("nothing-left-behind/survivor"),
    edits=(
        Edit("engine/core/life.py", "        if self._parent_gone or not (yield IsAlive(self._recipe.frontend)):\n",
             "        if False:\n"),
        Edit("engine/core/life.py",
             "            yield from executor.kill()\n            yield RemoveFiles(self._files)\n",
             "            yield from executor.kill()\n"),
        Edit("engine/worker/life.py", "        if not (yield IsAlive(recipe.frontend)):\n", "        if False:\n")))

NEIGHBOUR_SWEPT = Mutant(
    id="neighbour-swept", scenario="test_everything_is_killed_and_started_again_beside_a_neighbour",
    bug="A start sweeps up whatever carries the name of an engine, living ones' files too.",
    breaks=these("nothing-left-behind/neighbour", "two-on-one-host"),
    edits=(
        Edit("engine/process/runtime_dir.py",
             "        if all(_free(path) for path in [lock, *SHM.glob(f\"{PREFIX}{engine_id}.*.lock\")]):\n",
             "        if True:\n"),
        Edit("engine/process/runtime_dir.py",
             "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except BlockingIOError:\n",
             "        pass\n    except BlockingIOError:\n"),
        Edit("sim/process/answers/belongings.py", " and path not in alive]:", "]:")))

FAILED_CHILD_IGNORED = Mutant(
    id="failed-child-ignored", scenario="test_worker_dies_while_loading",
    bug="A core does not look whether the workers that it waits for are still there: it waits for its own deadline.",
    breaks=these("start-ends/all"),
    edits=(
        Edit("engine/executor/workers.py",
             "                raise _died(node, word)\n",
             "                yield HearChildren((), deadline - 1.0)\n"
             "                raise StartupError(f\"{node.first_life} did not report READY in time\")\n"),
        # Not twenty seconds of a real play.
        Edit("scenarios/test_start.py",
             "        plan=plan(kill(\"worker.1\", at=marked(\"worker.1\", Mark.LOADING))))\n",
             "        config=lab_config(bounds={\"startup_s\": 8.0}),\n"
             "        plan=plan(kill(\"worker.1\", at=marked(\"worker.1\", Mark.LOADING))))\n")))

NAMELESS_START = Mutant(
    id="nameless-start", scenario="test_worker_dies_while_loading",
    bug="A start that fails ends with whatever was met on the way.",
    breaks=these("start-ends/named"),
    edits=(Edit("engine/frontend/handles/manager.py",
                "            raise (yield from self.why_start_failed()) from None\n",
                "            raise KeyError(str(self.nodes[0])) from None\n"),))

LEAVES_AT_ONCE = Mutant(
    id="leaves-at-once", scenario="test_core_is_asked_to_leave",
    bug="A core leaves at SIGTERM with the work in its hands.",
    breaks=these("drain/running"), along=these("tokens-match-reference"),
    edits=(Edit("engine/core/drain.py", "self.deadline is not None and (not unfinished or now >= self.deadline)",
                "self.deadline is not None"),
           Edit("engine/core/engine_core.py", "                yield from self._abort_the_rest()\n", "")))

LEAVES_ITS_WAVE = Mutant(
    id="leaves-its-wave", scenario="test_rank_in_step_is_asked_to_leave",
    bug="A rank without work of its own leaves at SIGTERM while others of its wave have some.",
    breaks=these("drain/together"),
    edits=(Edit("engine/core/dp_engine_core.py", "super()._has_to_stay() or self.waves.running or self.waves.due",
                "super()._has_to_stay() or self.waves.due"),))

TAKEN_WHILE_DRAINING = Mutant(
    id="taken-while-draining", scenario="test_request_comes_while_the_core_drains",
    bug="A core that was told to leave takes in what is new.",
    breaks=these("drain/refuse"),
    edits=(Edit("engine/core/engine_core.py", "draining\" if self.drain.active else", "draining\" if False else"),))

FIXED_NAMES = Mutant(
    id="fixed-names", scenario="test_two_engines_serve_side_by_side",
    bug="Every engine calls its segments the same.",
    breaks=these("two-on-one-host"), along=these("start-ends"),
    edits=(Edit("engine/process/files.py", "        return f\"{PREFIX}{self.engine_id}-{self.part}{name}\"\n",
                "        return f\"{PREFIX}00000000-{self.part}{name}\"\n"),
           # A real start sweeps up segments that no living engine seems to own: what is mapped works on without a name.
           Edit("engine/process/runtime_dir.py", "        if named and not _lock_path(named[1]).exists():\n",
                "        if False:\n")))

LEAVES_WITH_A_FAILURE = Mutant(
    id="leaves-with-a-failure", scenario="test_core_is_asked_to_leave_with_a_failure_to_tell",
    bug="Who has failed and was not told so counts as done, and a core that drains leaves.",
    breaks=these("drain/running"),
    edits=(Edit("engine/core/scheduler.py", "        return bool(self.requests or self._failed)\n",
                "        return bool(self.requests)\n"),))

BEATS_ALL_THE_SAME = Mutant(
    id="beats-all-the-same", scenario="test_a_thread_stands_still_in_a_busy_core",
    bug="A core that has work beats, whatever its threads do.",
    breaks=these("stall-is-told/core"), along=these("health-is-true"),
    edits=(Edit("engine/core/engine_core.py", "if not self.pulse.missing(now):",
                "if not idle or not self.pulse.missing(now):"),))

LETS_GO_TOO_SOON = Mutant(
    id="lets-go-too-soon", scenario="test_output_thread_fails",
    bug="An output is off the list before it is sent: where that fails nobody has it.",
    breaks=these("dead-notice/hand"),
    edits=(Edit("engine/core/io/loops.py",
                "            item = unsent[0]\n            yield from _send(item, outboxes, own_frame_bytes)\n"
                "            unsent.popleft()\n",
                "            item = unsent.popleft()\n"
                "            yield from _send(item, outboxes, own_frame_bytes)\n"),))

ENDS_MUTANTS = tuple(value for value in list(globals().values()) if isinstance(value, Mutant))
