"""The registry, its names and its page."""

import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.guarantees.base import ALL_FATES
from scenarios.guarantees.deciders import DECIDERS, Writer
from scenarios.guarantees.document import document
from scenarios.guarantees.registry import GUARANTEES, guarantee

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_registry_says() -> None:
    assert (ROOT / "docs" / "GUARANTEES.md").read_text() == document(), \
        "python -m scenarios.guarantees.document > docs/GUARANTEES.md"


def test_scenarios_import_promises_by_name() -> None:
    from scenarios.guarantees import ends_once
    from scenarios.guarantees.all import death_is_told

    assert ends_once is GUARANTEES["ends-once"]
    assert death_is_told is GUARANTEES["death-is-told"]


def test_a_promise_that_does_not_exist_cannot_be_imported() -> None:
    with pytest.raises(ImportError):
        from scenarios.guarantees import no_such_promise  # noqa: F401
    with pytest.raises(KeyError, match="ends-once"):
        guarantee("no-such-promise")


def test_importing_the_package_imports_none_of_its_judges() -> None:
    code = "import sys, scenarios.guarantees; print([m for m in sys.modules if m.startswith('scenarios.guarantees.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_judges_need_neither_torch_nor_zmq() -> None:
    code = ("import sys; sys.modules['torch'] = sys.modules['zmq'] = None; import scenarios.guarantees.judge; "
            "print('multiprocessing' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("entry", GUARANTEES.values(), ids=lambda entry: entry.id)
def test_every_promise_says_what_is_wrong_and_what_it_need_not_survive(entry) -> None:  # noqa: ANN001
    assert entry.sentence.endswith(".")
    assert entry.wrong
    assert entry.witness
    assert all(where.why for where in entry.envelope.outside)
    assert not any(where.fates == ALL_FATES and where.sites == where.nodes == "*" for where in entry.envelope.outside)


def test_every_promise_says_which_record_decides_it_and_who_wrote_that() -> None:
    assert list(DECIDERS) == list(GUARANTEES)
    assert all(decider.record and decider.writers for decider in DECIDERS.values())
    alone = [name for name, decider in DECIDERS.items() if set(decider.writers) == {Writer.ITSELF}]
    assert len(alone) <= 9, "so many rest on the engine's own word"


def test_what_a_promise_does_not_see_is_told_by_world_and_half() -> None:
    orphans = GUARANTEES["no-orphans"]
    assert orphans.blind_words == {
        "sim": "an engine that lets children inherit each other's ends of the death pipe, which then never closes: who "
               "inherits which descriptor is a fact of fork; the twin's processes share nothing"}
    assert GUARANTEES["edge-fifo"].blind_words == {}
