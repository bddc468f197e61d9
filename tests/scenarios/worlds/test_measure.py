"""What a process holds, as others see it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from scenarios.worlds.measure import crashed_in, engine_files, errors_in, holdings_of, log_of


def test_a_thread_and_a_descriptor_more_are_seen() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    before = holdings_of(os.getpid(), with_memory=True)
    thread.start()
    ends = os.pipe()
    after = holdings_of(os.getpid(), with_memory=True)
    over.set()
    thread.join()
    for end in ends:
        os.close(end)
    assert before is not None and after is not None
    assert (after.threads - before.threads, after.descriptors - before.descriptors) == (1, 2)
    assert after.memory_bytes is not None and after.memory_bytes > 1 << 20
    assert after.processor_s is not None and before.processor_s is not None and after.processor_s >= before.processor_s


def test_memory_is_left_out_where_it_is_not_wanted() -> None:
    found = holdings_of(os.getpid(), with_memory=False)
    assert found is not None and found.memory_bytes is None


def test_a_process_that_is_gone_holds_nothing() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert holdings_of(pid, with_memory=True) is None


def test_what_another_one_reads_for_a_moment_is_not_counted_and_what_it_keeps_is() -> None:
    before = holdings_of(os.getpid(), with_memory=False)
    closed = threading.Event()

    def read_for_a_moment() -> None:
        with open("/proc/self/stat") as file:
            opened.set()
            file.read()
            closed.wait(0.005)

    opened = threading.Event()
    thread = threading.Thread(target=read_for_a_moment)
    thread.start()
    opened.wait()
    passing = holdings_of(os.getpid(), with_memory=False)
    thread.join()
    with open("/proc/self/stat"):
        kept = holdings_of(os.getpid(), with_memory=False)
    assert before is not None and passing is not None and kept is not None
    assert passing.descriptors == before.descriptors and kept.descriptors == before.descriptors + 1


LOG = """\
[core.0] ERROR engine.process.answers: the copy thread failed
Traceback (most recent call last):
  File "fates.py", line 98, in steps
    raise RuntimeError(fault.text)
RuntimeError: planted by the plan
[core.0] ERROR engine.process.shell: the core leaves: PeerDeadError: worker.0 (pid 3) died
SIGTERM
Process frontend.0@0:
Traceback (most recent call last):
  File "client.py", line 75, in shutdown
    self.run(ending)
    ^^^^^^^^^^^^^^^^
RuntimeError: planted by the plan

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "children.py", line 140, in _signal
[worker.1] INFO engine.worker: another one's
    signal.pidfd_send_signal(self.sentinel, number)
OSError: [Errno 9] Bad file descriptor
and what it says besides
Exception ignored in: <function QueueEnd.__del__ at 0x7f>
Traceback (most recent call last):
  File "end.py", line 3, in __del__
KeyError
"""


def test_of_each_traceback_in_a_log_the_last_line_counts() -> None:
    assert errors_in(LOG) == ["RuntimeError: planted by the plan", "OSError: [Errno 9] Bad file descriptor", "KeyError"]
    assert crashed_in(LOG) == ["frontend.0@0"]
    assert errors_in("") == errors_in("[core.0] ERROR x: Traceback\nProcess x:\n") == []


def test_a_play_that_printed_nothing_has_no_log(tmp_path: Path) -> None:
    assert log_of(str(tmp_path / "engine.log")) == ""
    (tmp_path / "engine.log").write_bytes(b"\xff\n")
    assert len(log_of(str(tmp_path / "engine.log"))) == 2


def test_a_directory_that_goes_while_its_files_are_looked_for_is_not_there(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "ringtwin-1", tmp_path / "ringtwin-2"
    for one in (folder, other):
        one.mkdir()
        (one / ".owner").touch()
    (tmp_path / "else").touch()
    assert engine_files(tmp_path) == sorted(map(str, (folder, folder / ".owner", other, other / ".owner")))
    look = os.scandir

    def gone_by_then(path: object) -> object:
        if str(path) == str(folder) and folder.exists():
            (folder / ".owner").unlink()
            folder.rmdir()
        return look(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", gone_by_then)
    assert str(other / ".owner") in engine_files(tmp_path) and not folder.exists()
