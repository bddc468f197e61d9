"""Of cores that share a client, and of who brings them together."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_BALANCE, _LINK, _WAVES = "engine/frontend/balance.py", "engine/frontend/link.py", "engine/coordinator/waves.py"
_WORDS, _LOOPS = "engine/coordinator/words.py", "engine/core/io/loops.py"
_SEAT = "engine/process/consensus/agreement.py"
_REMOTE, _ATTACHED = "engine/frontend/handles/remote.py", "engine/frontend/handles/attached.py"
_SUBSCRIPTIONS, _BUFFERS = "engine/wire/subscriptions.py", "engine/wire/buffers.py"
_INIT, _FIRST = "Seat.__init__", "first_number_of"
_OF_EACH = ("more by the same of each core is no other order of them; counts that come put all of it away, and without "
            "them what ends was sent before")
_COUNTS = ("a notice is an array of three: one whose counts are as many as there are not, and whose wave still stands "
           "behind them, comes of no coordinator, nor of any damage to one byte")
_NO_MIX = ("READY has one frame and START two, and no fault takes frames from them or adds any: where one is "
           "wrong, both are")
_FRESH = "a word is all zeros until its process joins its one group, and turn 0 of whatever group is none"
_ONE_KIND = ("whoever comes to a turn has come by the same waves and steps, and their number and kind follow from "
             "these: members that bring different things would be another bug, which the forwards before it name")
_SAID_AGAIN = "whoever has entered says so again before it waits"
_OUTSIDE = "nobody looks at when one waits that is not inside"
_UPWARD = "whoever speaks to a publisher says one frame, and this looks at several"
_LAST = "it is the last thing that its process does with it"

_ENTERED = '''return f"turn {turn} of {size}, {list(_OPS)[op]} of {count} value{'' if count == 1 else 's'}"'''
_ONE_FRAME = 'raise ValueError("of a message with several frames to a publisher none may begin with 00 or 01")'
_NO_NUMBERS = 'raise BadFrameError(f"buffer {index} of {len(buffer)} bytes does not hold whole numbers")'
_LOOKED = "a client looks whether any core is left before it chooses one, and says so itself where none is"
_ONCE = "a core leaves by its first failure"
_INSTANT = "time runs on: at the very instant of a bound it has come and has not"
_ELSEWHERE = "whoever greets from elsewhere says who it is"
_NO_CHILD = "it has started none of them: nobody tells it of an end by the node"
_COUNTS_ONCE = "a subscription counts once, however often it comes"
_ENDIAN = "both worlds run where the least byte is first"

#: file, function, operator, old, new (None: whatever it is), behind, reason
_ROWS: tuple[tuple[str, str, str, str, str | None, str, str], ...] = (
    (_WAVES, "Waves.pause", "statement-gone", "return False", "return None", "", "nothing is as false as False"),
    (_WORDS, "decode_start", "condition-turned",
     "kind != EngineCoreRequestType.START_DP_WAVE or len(frames) != 2",
     "((kind != EngineCoreRequestType.START_DP_WAVE) and (len(frames) != 2))", "", _NO_MIX),
    (_WORDS, "decode_start", "off-by-one", "8", None, "", "nothing that a coordinator says begins with so much"),
    (_BALANCE, "Balance.__init__", "off-by-one", "0", "1", "self._counts = [(", _OF_EACH),
    (_BALANCE, "Balance.__init__", "off-by-one", "0", "1", "self._counts = [(0, ", _OF_EACH),
    (_BALANCE, "Balance.__init__", "off-by-one", "0", "1", "self._sent = [", _OF_EACH),
    (_LINK, "CoordinatorLink._own", "branch-never-taken", "len(counts) != self._ranks", None, "", _COUNTS),
    (_LINK, "CoordinatorLink._own", "statement-gone",
     'raise BadFrameError(f"counts of {len(counts)} ranks, there are {self._ranks}")', None, "", _COUNTS),
    (_LOOPS, "Unheard.__init__", "statement-gone", "self._at = 0.0", None, "",
     "it is read of a start that was seen before, and set when one is seen first"),
    (_LOOPS, "last_words", "statement-gone", "unsent.clear()", None, "", _LAST),
    (_SEAT, _INIT, "statement-gone", "self._word[1] = 0", None, "", _FRESH),
    (_SEAT, _INIT, "statement-gone", "self._at(0)", None, "", _FRESH),
    (_SEAT, _INIT, "off-by-one", "0", "1", "self._at(", _FRESH),
    (_SEAT, _INIT, "off-by-one", "0", "1", "self._word[1] = ", _OUTSIDE),
    (_SEAT, _INIT, "off-by-one", "16", "17", "", "every member has a word of its own on its own host"),
    (_SEAT, _INIT, "statement-gone", "self._entered_at = 0.0", None, "",
     "it is read in a turn, and set where that begins"),
    (_SEAT, "Seat.enter", "statement-gone", "self._word[1] = _ns(now)", None, "", _SAID_AGAIN),
    (_SEAT, "Seat.size", "statement-gone", "return len(self.names)", None, "", _ONE_KIND),
    (_SEAT, "Seat.enter", "branch-never-taken", "self._failure", None, "", _ONCE),
    (_SEAT, "Seat.enter", "statement-gone",
     'raise CollectiveError(f"group {self._group} is broken: {self._failure}")', None, "",
     _ONCE),
    (_SEAT, "Seat.come_out", "off-by-one", "0", "1", "self._word[1] = ", _OUTSIDE),
    (_SEAT, "Seat.come_out", "statement-gone", "self._word[1] = 0", None, "", _OUTSIDE),
    (_SEAT, "Seat.close", "statement-gone", 'self._word = memoryview(bytearray(16)).cast("Q")', None, "", _LAST),
    (_SEAT, "Seat.close", "statement-gone", "self._memories.clear()", None, "", _LAST),
    (_SEAT, "frame", "off-by-one", "len(values) <= MOST_VALUES", None, "", "a turn has two values at most"),
    (_SEAT, "frame", "off-by-one", "0", "1", "*values, *[", "what fills a frame up is read by nobody"),
    (_SEAT, "agreed", "branch-never-taken", "len(set(heads)) > 1", None, "", _ONE_KIND),
    (_SEAT, "agreed", "off-by-one", "1", "2", "len(set(heads)) > ", _ONE_KIND),
    (_SEAT, "agreed", "off-by-one", "0", "1", "heads[", _ONE_KIND),
    (_SEAT, "agreed", "statement-gone",
     '''raise CollectiveError(f"{title}: the members do not agree: " + ", ".join(
            f"{name} enters {_entered(*head)}" for name, head in zip(names, heads, strict=True)))''', None, "",
     _ONE_KIND),
    *((_SEAT, "_entered", operator, old, None, "", _ONE_KIND) for operator, old in (
        ("statement-gone", _ENTERED),
        ("condition-turned", "count == 1"), ("off-by-one", "1"))),
    (_SUBSCRIPTIONS, "check_upward", "off-by-one", "1", "2", "", _UPWARD),
    (_SUBSCRIPTIONS, "check_upward", "statement-gone", _ONE_FRAME, None, "", _UPWARD),
    (_SUBSCRIPTIONS, _FIRST, "off-by-one", "10", "11", "", "no array's head and the number behind it are longer"),
    (_BALANCE, "Balance._lowest", "branch-never-taken", "not living", None, "", _LOOKED),
    (_BALANCE, "Balance._lowest", "statement-gone", 'raise EngineDeadError("all data-parallel ranks are dead")',
     None, "", _LOOKED),
    (_SEAT, "Seat.give_up", "statement-gone", "self._failure = self._failure or str(why) or type(why).__name__",
     None, "", _ONCE),
    (_SEAT, "Seat.give_up", "condition-turned", "self._failure or str(why) or type(why).__name__", None, "", _ONCE),
    (_SEAT, "Seat.trouble", "off-by-one", "now >= deadline", "now > deadline", "", _INSTANT),
    (_SEAT, "Seat.trouble", "off-by-one", "now >= dead[rank] + GRACE_S", "now > dead[rank] + GRACE_S", "", _INSTANT),
    (_SEAT, "Told.waits", "off-by-one", "self.waited_at > now - SILENT_S", None, "", _INSTANT),
    (_REMOTE, "RemoteHandle.meet", "condition-turned", "member is not None and member.process is not None",
     "((member is not None) or (member.process is not None))", "", _ELSEWHERE),
    (_ATTACHED, "AttachedEngines.__init__", "statement-gone",
     "self.by_node = {handle.node: handle for handle in self.all}", None, "", _NO_CHILD),
    ("engine/frontend/handles/own.py", "subscribe", "sent-twice", "yield Send(STATS, [topic])", None, "", _COUNTS_ONCE),
    ("engine/core/io/handshakes.py", "Handshakes.greet", "statement-gone",
     'yield from self._compare(metadata, "the frontend")', None, "",
     "whoever has started a core has given it its own settings: only of others can they differ"),
    (_BUFFERS, "Apart.anything", "off-by-one", "depth < _DEPTH", None, "",
     "one level more of what is looked through: a value comes back the same from the body and from a buffer"),
    (_SEAT, "Seat._guilty", "off-by-one", "min", "max", "",
     "whoever waits in a turn has had all others in the one before: nobody who lives is two behind"),
    *((_BUFFERS, "_integers", operator, old, None, "",
       "what is no whole numbers cannot be put into an array of them, and is named for that")
      for operator, old in (("branch-never-taken", "len(buffer) % _INTEGER_BYTES"), ("statement-gone", _NO_NUMBERS))),
    (_BUFFERS, "Apart.integers", "branch-never-taken", 'sys.byteorder == "big"', None, "", _ENDIAN),
    (_BUFFERS, "Apart.integers", "statement-gone", "packed.byteswap()", None, "", _ENDIAN),
    (_BUFFERS, "_integers", "branch-never-taken", 'sys.byteorder == "big"', None, "", _ENDIAN),
    (_BUFFERS, "_integers", "statement-gone", "packed.byteswap()", None, "", _ENDIAN),
)

TOGETHER: tuple[Equivalent, ...] = tuple(
    Equivalent(file, function, operator, old, reason, new, behind)
    for file, function, operator, old, new, behind, reason in _ROWS)
