"""The board tells every process what befell the others, across SIGKILL."""

import os
import signal

import pytest

from engine.topology import tensor_parallel
from faults.plan import Plan, delay, drop, plan, stall, until
from faults.real.board import Board, BoardError, create_board, new_board, open_board
from tests.faults.stage import OUTPUTS, REQUESTS

TOPOLOGY = tensor_parallel(2)
PLAN = plan(drop(OUTPUTS), delay(REQUESTS, until=until(OUTPUTS, 2)),
            stall("core.0", at="core.0/mark:step", until=until("core.0@1->frontend.0/outputs:receive", 5)))


def test_a_fresh_board_says_nothing():
    board = Board(new_board(PLAN, TOPOLOGY))
    assert board.fired() == ()
    assert [board.fired_at("f1"), board.released_at("f1"), board.process("core.0")] == [None, None, None]
    assert board.count(f"{OUTPUTS}:receive") == 0
    assert board.plan == PLAN


def test_what_each_process_wrote_is_read_together():
    board = Board(new_board(PLAN, TOPOLOGY))
    board.seat("frontend.0").fired("f1", 10.0)
    board.seat("core.0").fired("f2", 11.0)
    board.seat("core.0").released("f2", 12.5)
    board.seat("frontend.0").crossed(f"{OUTPUTS}:receive", 7)
    assert board.fired() == ("f1", "f2")
    assert (board.fired_at("f2"), board.released_at("f2"), board.count(f"{OUTPUTS}:receive")) == (11.0, 12.5, 7)


def test_lives_do_not_share_their_counts():
    board = Board(new_board(PLAN, TOPOLOGY))
    board.seat("frontend.0", 1).crossed("core.0@1->frontend.0/outputs:receive", 4)
    assert board.count("core.0@1->frontend.0/outputs:receive") == 4
    assert board.count(f"{OUTPUTS}:receive") == 0


def test_a_node_is_its_latest_life_unless_one_is_named():
    board = Board(new_board(PLAN, TOPOLOGY))
    board.seat("core.0").enter(100, 1)
    board.seat("core.0", 2).enter(200, 2)
    assert [board.process("core.0"), board.process("core.0", 0), board.process("core.0", 1)] == [
        (200, 2), (100, 1), None]


def test_only_the_lab_heals():
    board = Board(new_board(PLAN, TOPOLOGY))
    board.seat("core.0").released("f2", 12.5)
    assert not board.healed_since("f2", 1.0)
    board.seat("lab").released("f2", 13.0)
    assert board.healed_since("f2", 1.0)
    assert not board.healed_since("f2", 13.0)


def test_what_a_process_wrote_outlives_its_sigkill(tmp_path):
    board = create_board(tmp_path, PLAN, TOPOLOGY)
    pid = os.fork()
    if pid == 0:
        seat = open_board(tmp_path).seat("frontend.0")
        seat.enter(os.getpid(), 5)
        seat.fired("f1", 3.5)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert board.fired() == ("f1",)
    assert board.process("frontend.0") == (pid, 5)


def test_strangers_have_no_seat():
    with pytest.raises(BoardError, match=r"worker\.7"):
        Board(new_board(PLAN, TOPOLOGY)).seat("worker.7")


def test_other_bytes_are_no_board():
    with pytest.raises(BoardError):
        Board(bytearray(64))


def test_a_play_without_faults_has_a_board_too():
    board = Board(new_board(Plan(), TOPOLOGY))
    board.seat("core.0").enter(9, 9)
    assert board.process("core.0") == (9, 9)
