"""Plays scenarios under pytest: `pytest scenarios/ --world sim -k dies -n 2`, or `pytest` on a folder of one's own.

Where Ringtwin is installed, pytest finds this by itself (`pytest11` in pyproject.toml).

Promises
- A test that does not take the fixture `world` of this file is none of its business: another `world` is left alone, and
  nothing heavy is imported for it.
- Each scenario is a test per world; its run stays in `<out>/runs`, so a red one can be looked at and played again.
- The last line of a failure is the command that repeats it.
- A scenario that a world or a topology cannot play is skipped with its reason, never left out.
- Nothing else is written, unless `--report DIR` asks for the report of the session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scenarios.command.shadows import PACKAGES, hidden
from scenarios.worlds.registry import EVERY, WORLDS, can_play, worlds_of

if TYPE_CHECKING:
    from scenarios.lab.catalogue import Scenario
    from scenarios.lab.player import Worlds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ringtwin", "where and how scenarios are played")
    group.addoption("--world", choices=(*WORLDS, EVERY), default=None,
                    help="who plays: sim, engine or both (default: both where torch and pyzmq are installed)")
    group.addoption("--tp", type=int, default=None, help="play every scenario with so many ranks")
    group.addoption("--pp", type=int, default=None, help="play every scenario with so many pipeline stages")
    group.addoption("--dp", type=int, default=None, help="play every scenario of one engine with so many")
    group.addoption("--clients", type=int, default=None, help="play every scenario of one engine with so many clients")
    group.addoption("--lockstep", action="store_true", help="the engines of --dp step together")
    group.addoption("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the real engine computes")
    group.addoption("--seed", type=int, default=0, help="seed of the plays")
    group.addoption("--out", default="out/pytest", help="folder for the runs")
    group.addoption("--report", default=None, metavar="DIR", help="write the report of this session into DIR")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--report") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(Path(config.getoption("--report"))), "ringtwin-report")
    for world in worlds_of(config.getoption("--world")):
        if (reason := can_play(world)) is not None:
            raise pytest.UsageError(f"the {world} world cannot be played here: {reason}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _takes_ours(metafunc.definition):
        names = worlds_of(metafunc.config.getoption("--world"))
        restricted = getattr(metafunc.function, "only", None)
        marks = {name: [pytest.mark.skip(reason=f"not in this world: {restricted.reason}")]
                 if restricted is not None and restricted.world != name else [] for name in names}
        metafunc.parametrize("world", [pytest.param(name, marks=marks[name]) for name in names], indirect=True)


def _takes_ours(item: pytest.Function) -> bool:
    """Whether its `world` is the fixture below, and not one that somebody else calls so."""
    known = item._fixtureinfo.name2fixturedefs.get("world")
    return bool(known) and known[-1].func.__module__ == __name__


@pytest.fixture(scope="session")
def worlds(request: pytest.FixtureRequest) -> Iterator[Worlds]:
    from scenarios.command.claim import TakenError, claimed
    from scenarios.guarantees.registry import GuaranteeError, load_installed
    from scenarios.lab.player import Settings, Worlds

    try:
        load_installed()
    except GuaranteeError as error:
        pytest.exit(str(error), returncode=3)
    option = request.config.getoption
    out = Path(option("--out"))
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    mine = out / worker if worker else out
    mine.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(claimed(mine))
        except TakenError as error:
            pytest.exit(str(error), returncode=3)
        yield stack.enter_context(closing(Worlds(Settings(
            out=mine, tp=option("--tp"), pp=option("--pp"), dp=option("--dp"), clients=option("--clients"),
            lockstep=option("--lockstep"), seed=option("--seed"), device=option("--device")))))


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds):
    """The world that plays this test. Its `play` gives a run; the run's `holds` names the promises."""
    one = worlds.open(request.param, _scenario(request.node))
    yield one
    request.node.user_properties += [("run", str(run.path)) for played in one.played for run in played.runs]


def _scenario(item: pytest.Function) -> Scenario:
    from scenarios.lab.catalogue import scenarios_of

    parameters = {name: value for name, value in item.callspec.params.items() if name != "world"}
    return next(found for found in scenarios_of(item.function) if found.parameters == parameters)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Where a scenario cannot be imported because something hides our packages, that is what to know."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and any(f"No module named '{name}" in str(report.longrepr) for name in PACKAGES) and (
            reason := hidden()):
        report.longrepr = reason


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if call.excinfo is None or report.outcome != "failed" or "world" not in getattr(item, "funcargs", {}) \
            or not _takes_ours(item):
        return
    from scenarios.lab.player import fits, repeat_command

    world = item.funcargs["world"]
    if (reason := fits(world, call.excinfo.value)) is not None:
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], f"Skipped: {reason}")
        return
    from scenarios.worlds.base import BrokenPromiseError

    if isinstance(call.excinfo.value, BrokenPromiseError):
        lines = str(call.excinfo.value).splitlines()
        report.longrepr = "\n".join([world.title, *lines[:-1], lines[-1].removeprefix("replay: ")])
    else:
        report.longrepr = f"{report.longreprtext}\n{repeat_command(world)}"


class Collector:
    """Gathers the runs of the session, also of xdist's workers, and writes their report at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[Path] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._runs += [Path(value) for name, value in report.user_properties if name == "run"]

    def pytest_sessionfinish(self) -> None:
        if self._runs:
            from scenarios.command.conclusion import publish
            from scenarios.history.run import load_run

            publish([load_run(path) for path in self._runs], self._folder)
