"""Scenarios are found and named without pytest, and one name means one thing everywhere."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from faults.plan import Plan, kill, plan
from scenarios.guarantees.all import ends_once
from scenarios.lab.catalogue import CatalogueError, catalogue, only, scenarios_in, scenarios_of, selected
from scenarios.lab.family import Case, family
from tests.scenarios.command.console import ROOT


def test_a_scenario_is_called_as_its_function_and_titled_by_its_sentence():
    def test_it(world):
        """Something
        happens."""

    [found] = scenarios_of(test_it)
    assert (found.name, found.title, found.parameters) == ("test_it", "Something happens.", {})


def test_each_parameter_is_a_scenario():
    @pytest.mark.parametrize("tp", [1, pytest.param(2, id="two"), 4])
    def test_it(world, tp):
        """Something happens."""

    assert [(found.name, found.parameters["tp"]) for found in scenarios_of(test_it)] == [
        ("test_it[1]", 1), ("test_it[two]", 2), ("test_it[4]", 4)]


def test_ids_name_parameters():
    @pytest.mark.parametrize("tp", [1, 2], ids=["one", "two"])
    def test_it(world, tp):
        """Something happens."""

    assert [found.name for found in scenarios_of(test_it)] == ["test_it[one]", "test_it[two]"]


class _Asked:
    """A world that only writes down what it is asked."""

    def __init__(self):
        self.plays, self.promises = [], []

    def play(self, **asked):
        self.plays.append(asked)
        return self

    def holds(self, *promises):
        self.promises.append(promises)


def test_rows_of_a_family_are_scenarios_of_their_module():
    module = ModuleType("scenarios.of_nothing")
    vars(module).update(family(module.__name__, (
        Case("test_b", "Something\n happens.", Plan(), (ends_once,)),
        Case("test_a", "Again.", lambda rank: plan(kill(f"worker.{rank}", at="core.0/mark:step")), (ends_once,),
             each=(0, 1), play={"workload": "other"})), workload="shared", topology=2))
    found = scenarios_in(module)
    assert [(scenario.name, scenario.title) for scenario in found] == [
        ("test_b", "Something happens."), ("test_a[0]", "Again."), ("test_a[1]", "Again.")]
    world = _Asked()
    for scenario in found:
        scenario.function(world, **scenario.parameters)
    assert world.promises == [(ends_once,)] * 3
    assert [asked["workload"] for asked in world.plays] == ["shared", "other", "other"]
    assert [fault.victim for asked in world.plays for fault in asked["plan"].faults] == ["worker.0", "worker.1"]


def _without_sentence(world): ...


def _without_world():
    """Something happens."""


def _with_a_fixture(world, tmp_path):
    """Something happens."""


@pytest.mark.parametrize("a", [1])
@pytest.mark.parametrize("b", [1])
def _with_two_parameters(world, a, b):
    """Something happens."""


@pytest.mark.parametrize("function", [_without_sentence, _without_world, _with_a_fixture, _with_two_parameters])
def test_what_the_command_line_could_not_play_is_an_error_by_name(function):
    with pytest.raises(CatalogueError, match=function.__name__):
        scenarios_of(function)


def test_a_scenario_says_which_world_cannot_play_it():
    @only("engine", reason="the twin has no disk")
    def test_it(world):
        """Something happens."""

    [found] = scenarios_of(test_it)
    assert (found.not_played_in("sim"), found.not_played_in("engine")) == ("the twin has no disk", None)


def test_functions_come_in_the_order_of_their_lines_and_imported_ones_not_at_all():
    module = ModuleType("somewhere")
    exec("def test_b(world):\n '''B.'''\ndef test_a(world):\n '''A.'''\ndef helper(): ...", vars(module))  # noqa: S102
    module.test_imported = test_each_parameter_is_a_scenario
    assert [found.name for found in scenarios_in(module)] == ["test_b", "test_a"]


@pytest.mark.parametrize("glob", ["test_it[4]", "it[4]", "test_it", "it*", "*t", "test_*"])
def test_globs_name_scenarios_with_or_without_their_prefix(glob):
    @pytest.mark.parametrize("tp", [4])
    def test_it(world, tp):
        """Something happens."""

    def other(world):
        """Something else happens."""

    test_it.__module__ = other.__module__ = "scenarios.of_nothing"  # a file's name would name both
    assert [found.name for found in selected([*scenarios_of(test_it), *scenarios_of(other)], [glob])] == ["test_it[4]"]


def test_a_glob_that_names_nothing_is_an_error():
    with pytest.raises(CatalogueError, match="'nope'"):
        selected(catalogue(), ["nope"])


def test_pytest_and_the_catalogue_find_the_same_scenarios():
    done = subprocess.run([sys.executable, "-m", "pytest", "scenarios", "--collect-only", "--world", "sim"],
                          cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    collected = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    names = [name.replace("[sim-", "[").replace("-sim]", "]").replace("[sim]", "") for name in collected]
    assert names == [found.name for found in catalogue()]


def test_a_file_names_all_its_scenarios():
    files = {found.function.__module__ for found in selected(catalogue(), ["ring*"])}
    assert files >= {"scenarios.test_ring", "scenarios.test_ring_crashes"}
    assert {found.function.__module__ for found in selected(catalogue(), ["test_canaries"])} == {
        "scenarios.test_canaries"}


def test_a_family_has_no_two_of_one_name():
    case = Case("test_one", "It is one.", Plan(), ())
    with pytest.raises(ValueError, match="here: two scenarios are called test_one"):
        family("here", (case, case._replace(sentence="It is another one.")))
