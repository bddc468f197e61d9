"""Shared memory by name."""

from __future__ import annotations

import os
import secrets

import pytest

from engine.errors import QueueError, SpaceError
from engine.ipc.segment import FOLDER, attach_segment, create_segment, unlink_segment


@pytest.fixture
def name():
    name = f"ringtwin-test-{secrets.token_hex(4)}"
    yield name
    assert not os.path.exists(f"{FOLDER}/{name}"), "the test left its segment behind"


def test_two_mappings_of_a_name_see_each_other_and_outlive_it(name):
    one = create_segment(name, 5000)
    two = attach_segment(name)
    assert len(two.memory) == 5000 and not any(two.memory)
    assert os.stat(f"{FOLDER}/{name}").st_mode & 0o777 == 0o600
    one.unlink()
    one.unlink()
    one.memory[4999] = 7
    assert two.memory[4999] == 7
    one.close(), two.close()


def test_a_name_is_taken_once(name):
    segment = create_segment(name, 10)
    with pytest.raises(FileExistsError):
        create_segment(name, 10)
    unlink_segment(name)
    segment.close()


def test_too_little_space_says_how_much_is_needed_and_leaves_nothing(name):
    space = os.statvfs(FOLDER)
    too_much = (space.f_blocks + 1024) * space.f_frsize
    with pytest.raises(SpaceError, match=f"needs {too_much / (1 << 20):.1f} MiB.*--shm-size"):
        create_segment(name, too_much)


def test_a_missing_segment_is_a_named_error(name):
    with pytest.raises(QueueError, match="its owner is gone"):
        attach_segment(name)


@pytest.mark.parametrize("bad", ["", "a/b", "..", "x" * 300])
def test_a_name_that_is_a_path_is_refused(bad):
    with pytest.raises(ValueError, match="not the name"):
        create_segment(bad, 10)
