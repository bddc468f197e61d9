"""Words and recipes as they travel on the pipe of a start: what comes damaged is known to be."""

import msgspec
import pytest

from engine.effects import ExitNow, OnTerminate, TellParent
from engine.process.recipes import (
    Leaving,
    StartFailure,
    Word,
    WorkerReady,
    last_word,
    leaves_undisturbed,
    sealed,
    unreadable,
    unsealed,
)
from engine.topology import worker

READY = WorkerReady(1, b"handle of a queue")


def test_a_word_comes_as_it_was_said():
    assert unsealed(sealed(READY), Word) == READY


@pytest.mark.parametrize("byte", range(len(sealed(READY))))
def test_no_byte_of_a_word_can_be_changed_unseen(byte):
    message = bytearray(sealed(READY))
    message[byte] ^= 0xFF
    with pytest.raises(msgspec.DecodeError):
        unsealed(bytes(message), Word)


@pytest.mark.parametrize("size", range(len(sealed(READY))))
def test_no_word_can_be_cut_short_unseen(size):
    with pytest.raises(msgspec.DecodeError):
        unsealed(sealed(READY)[:size], Word)


def test_who_cannot_read_its_recipe_says_so_and_goes():
    _, told, gone = unreadable(worker(1, life=2), ValueError("odd"))
    assert told == TellParent(StartFailure("StartupError", "the recipe of worker.1 cannot be read: odd"))
    assert gone == ExitNow(1)


def test_a_last_word_that_fails_keeps_nobody():
    loop = last_word(Leaving("why"))
    assert next(loop) == TellParent(Leaving("why"))
    loop.throw(RuntimeError("planted"))  # it logs that, and goes on
    with pytest.raises(StopIteration):
        next(loop)


def test_who_leaves_is_not_broken_off_by_being_asked_to():
    loop = leaves_undisturbed("input", "leave")
    assert next(loop) == loop.throw(SystemExit("SIGTERM")) == OnTerminate("input", "leave")
    with pytest.raises(StopIteration):
        next(loop)
