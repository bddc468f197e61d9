"""What a process holds, as others see it."""

from __future__ import annotations

import os
import threading

from scenarios.worlds.measure import holdings_of


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
