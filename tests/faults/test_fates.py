"""What a fate means: what is on record before it, who is struck, and when a release is told."""

import pytest

from faults.fates import Hold, Release, Strike, befalling, note, steps
from faults.journal import Kind
from faults.plan import PROCESS_FATES, Fate, Fault, exits, hang, kill, raises, stall, terminate

SITE = "core.0/mark:step"


class Book:
    """A recorder that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told = []

    def record(self, kind, site, nth, digest, occurrence, data):
        self.told.append((kind, site, nth, digest, occurrence, data))

    def fired(self, fault):
        self.told.append(("fired", fault.id))


def test_a_crossing_is_on_record_before_its_receipt_and_both_before_the_fault_counts_as_fired():
    book, fault = Book(), Fault(id="f1", site=SITE, fate=Fate.KILL, victim="worker.1")
    note(book, "core.0", SITE, 3, fault, digest="d", occurrence=2, data={"a": 1})
    assert book.told == [
        (Kind.CROSSING, SITE, 3, "d", 2, {"a": 1, "fate": "kill", "fault": "f1"}),
        (Kind.RECEIPT, "f1", 3, "", 0, {"site": SITE, "nth": 3, "fate": "kill", "victim": "worker.1"}),
        ("fired", "f1")]


def test_a_crossing_that_nothing_befalls_is_one_record():
    book = Book()
    note(book, "core.0", SITE, 1, None, data={"a": 1})
    assert book.told == [(Kind.CROSSING, SITE, 1, "", 0, {"a": 1})]


def test_without_a_victim_named_the_receipt_names_who_crosses():
    book = Book()
    note(book, "core.0", SITE, 1, raises("core.0", at=SITE))
    assert book.told[1][-1]["victim"] == "core.0"


@pytest.mark.parametrize("there", [True, False])
def test_a_fault_whose_victim_is_not_there_befalls_nobody(there):
    fault = kill("worker.1", at=SITE)
    assert befalling(fault, lambda asked: there) is (fault if there else None)
    assert befalling(None, lambda asked: False) is None


def test_a_fault_without_a_victim_of_its_own_always_finds_its_victim():
    fault = kill("core.0", at=SITE)
    assert befalling(fault, lambda asked: pytest.fail("nobody is asked")) is fault


@pytest.mark.parametrize("fault, met", [
    (hang("core.0", at=SITE), [Hold, Release]),
    (stall("core.0", at=SITE), [Strike, Release]),
    (kill("core.0", at=SITE), [Strike]),
    (terminate("core.0", at=SITE), [Strike]),
    (stall("worker.1", at=SITE), [Strike]),
    (kill("worker.1", at=SITE), [Strike]),
    (terminate("worker.1", at=SITE), [Strike]),
], ids=lambda value: f"{value.fate.value}-{value.victim}" if isinstance(value, Fault) else "")
def test_each_fate_of_a_process_is_met_by_its_steps(fault, met):
    taken = list(steps(fault, SITE, 4))
    assert [type(step) for step in taken] == met
    for step in taken:
        if isinstance(step, Strike):
            assert step.victim == (None if fault.victim is None else (fault.victim, 0))
        if isinstance(step, Release):
            assert (step.site, step.nth) == (SITE, 4)


@pytest.mark.parametrize("fate", [Fate.KILL, Fate.STALL, Fate.TERMINATE])
@pytest.mark.parametrize("life", ["", "@1"])
def test_who_crosses_may_be_named_as_the_victim_and_meets_the_fate_as_if_nobody_were(fate, life):
    site = f"core.0{life}/mark:step"
    named = Fault(id="f", site=site, fate=fate, victim=f"core.0{life}")
    unnamed = Fault(id="f", site=site, fate=fate)
    told = [[step.victim if isinstance(step, Strike) else type(step) for step in steps(fault, SITE, 1)]
            for fault in (named, unnamed)]
    assert told[0] == told[1] and told[0][0] is None


def test_what_is_raised_is_what_the_plan_says():
    with pytest.raises(RuntimeError, match="a text"):
        next(steps(raises("core.0", at=SITE, text="a text"), SITE, 1))
    with pytest.raises(SystemExit) as left:
        next(steps(exits("core.0", at=SITE, code=3), SITE, 1))
    assert left.value.code == 3


def test_no_fate_of_a_process_is_without_a_meaning():
    for fate in PROCESS_FATES - {Fate.RAISE, Fate.EXIT}:
        assert list(steps(Fault(id="f", site=SITE, fate=fate), SITE, 1))
