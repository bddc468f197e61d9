"""Of the frontend."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_LIFE, _SESSION = "engine/frontend/life.py", "engine/frontend/session.py"
_HANDLE, _CORE = "engine/frontend/handles/handle.py", "engine/frontend/handles/core.py"
_MONITOR, _TEXT = "engine/frontend/handles/monitor.py", "engine/frontend/text/detokenizer.py"
_INSTANT = "time runs on: at the very instant of a bound it has come and has not, and both are what is promised"
_STREAMS = "streams refuse an id that is in use, so no client's session is asked for it"
_LOOKED = "who looks twice at the same instant sees the same: the second look is left out to save time"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(_LIFE, "nobody", "statement-gone", "yield", "makes a generator of it, and is never reached"),
    Equivalent(_CORE, "CoreHandle.tell", "sent-twice", """yield TellChild(self.node, msgspec.structs.replace(
            recipe, files=self.files, beat=self.beats_at, engine_index=self.node.index, start_by=start_by,
            dp_rank=recipe.config.data_parallel_rank))""",
               "a child reads one recipe, and throws away what comes after it while it waits for its parent's end"),
    Equivalent(_LIFE, "ClientLife.send", "statement-gone", "return False", "nothing is as false as False",
               "return None"),
    Equivalent(_LIFE, "ClientLife.serve", "off-by-one", "now < next_tick", _INSTANT),
    Equivalent(_HANDLE, "Handle.end", "no-deadline", "(yield Now()) + self._bounds.terminate_s",
               "who was killed is gone soon", behind='"kill")\n            yield AwaitEnds((self.node,), '),
    Equivalent(_LIFE, "ClientLife.tick", "off-by-one", "now - self._ticked_at > _AWAY * self.tick_s", _INSTANT),
    Equivalent(_LIFE, "ClientLife.look_at_cores", "statement-gone", "self._looked_at = now", _LOOKED),
    Equivalent(_HANDLE, "Handle._is_long_dead", "off-by-one",
               "(yield Now()) - self._dead_since > self._bounds.orphan_s", _INSTANT),
    Equivalent(_MONITOR, "CoreMonitor.__init__", "statement-gone", 'self._exit = ""',
               "it is read only where the core is gone, and set by whoever says that"),
    Equivalent(_MONITOR, "CoreMonitor.__init__", "statement-gone", "self._looked_at = now",
               "it is read only where the core is gone, and set by whoever looks then"),
    Equivalent(_MONITOR, "CoreMonitor._die", "branch-never-taken", "self.dead is not None",
               "its client dies by the first reason, and asks it nothing more"),
    Equivalent(_MONITOR, "CoreMonitor.on_tick", "off-by-one", "now >= self._gone_since + self._grace_s", _INSTANT),
    Equivalent(_MONITOR, "CoreMonitor.on_tick", "statement-gone", "self._looked_at = now",
               "it is looked again sooner, and until the grace is over what is seen then is the same"),
    Equivalent(_MONITOR, "CoreMonitor.silent", "off-by-one", "still_s <= longer_than_s", _INSTANT),
    Equivalent(_HANDLE, "Handle.__init__", "statement-gone", "self.serves = False",
               "it is asked of processes that are watched, which sets it"),
    Equivalent("engine/frontend/launcher.py", "LauncherLife.start", "statement-gone", "yield MarkPoint(Mark.READY)",
               "a place where a fault may strike: whoever plans none there sees nothing of it"),
    Equivalent(_SESSION, "ClientSession.__init__", "off-by-one", "0", "calls are told apart by their numbers, and any "
               "number may be the first"),
    Equivalent(_SESSION, "ClientSession.add", "branch-never-taken", "request_id in self._by_id", _STREAMS),
    Equivalent(_SESSION, "ClientSession.add", "statement-gone",
               'raise BadRequestError(request_id, "this id is in use by a request that has not ended")', _STREAMS),
    Equivalent(_SESSION, "ClientSession.utility", "off-by-one", "1", "calls are told apart by their numbers, in steps "
               "of any size", "2"),
    Equivalent(_SESSION, "ClientSession.on_tick", "branch-never-taken", "not self.busy",
               "where nothing is open the loops below find nothing"),
    Equivalent(_SESSION, "ClientSession.on_tick", "off-by-one", "gap_s > self.bounds.output_gap_s", _INSTANT),
    Equivalent(_SESSION, "ClientSession.on_tick", "off-by-one", "silent_s > self.bounds.request_s", _INSTANT),
    Equivalent(_SESSION, "ClientSession.on_tick", "off-by-one", "now > call.deadline", _INSTANT),
    Equivalent(_TEXT, "Detokenizer._grow", "statement-gone",
               "self._search_from = len(self._whole) - self._hidden",
               "what was searched once holds no stop string: it is left out to save time"),
    Equivalent(_TEXT, "IncrementalDecoder.add", "statement-gone", "del self._ids[:self._read_at]",
               "what is kept before the context is decoded on both sides of a difference: it is left out to save time"),
    Equivalent("engine/frontend/text/input_processor.py", "InputProcessor.process", "off-by-one", "len(eos) > 1",
               "of one end there are no others to add"),
    Equivalent("engine/frontend/text/input_processor.py", "InputProcessor._check_params", "off-by-one", "0",
               "stands for a seed that is not there, and is held against bounds that are far away"),
)
