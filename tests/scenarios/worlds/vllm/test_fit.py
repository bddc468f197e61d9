"""Which vLLM is played: any whose names and signatures the lab's adapter finds as it uses them; of another one a line
says what it lacks. The vLLMs here are made up: modules with the names of the table, in an environment of their own."""

from __future__ import annotations

import ast
import venv
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from scenarios.command.cli import outcome_of
from scenarios.command.doctor import examine
from scenarios.worlds.vllm import environment
from scenarios.worlds.vllm.host.fit import NEEDS, Need, misfit

GENERATE = "AsyncLLM.generate"


def _without(needs: Iterable[Need], name: str) -> list[Need]:
    return [need for need in needs if need.name != name]


def _without_argument(needs: Iterable[Need], name: str, argument: str) -> list[Need]:
    return [need._replace(takes=tuple(one for one in need.takes if one != argument)) if need.name == name else need
            for need in needs]


def _source(needs: Iterable[Need]) -> str:
    """A module with these names: classes, which have functions."""
    members: dict[str, list[str]] = defaultdict(list)
    takes: dict[str, tuple[str, ...]] = {}
    for need in needs:
        name, _, member = need.name.partition(".")
        if member:
            members[name].append(f"    def {member}({', '.join(('self', *need.takes))}): ...")
        takes[name] = takes.get(name, ()) + (() if member else need.takes)
    return "\n".join("\n".join((f"class {name}:", f"    def __init__({', '.join(('self', *takes[name]))}): ...",
                                *members[name])) for name in takes) + "\n"


def made(folder: Path, version: str, needs: Iterable[Need]) -> Path:
    """-> an interpreter whose vLLM is of this version, and has these names"""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    declared = site / f"vllm-{version}.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    by_module: dict[str, list[Need]] = defaultdict(list)
    for need in needs:
        by_module[need.module].append(need)
    for module, its in by_module.items():
        place = site.joinpath(*module.split("."))
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").write_text(_source(its))
    return folder / "bin" / "python"


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Iterable[Need]], Path]:
    """Make one, and name it as the one to play."""
    def name(version: str, needs: Iterable[Need]) -> Path:
        python = made(tmp_path / "env", version, needs)
        monkeypatch.setenv(environment.VARIABLE, str(python))
        return python

    return name


#: What a vLLM may lack, and how that is said.
LACKS = [
    (_without(NEEDS, GENERATE), "vllm.v1.engine.async_llm has no AsyncLLM.generate"),
    (_without(NEEDS, "PauseState.PAUSED_ALL"),
     "vllm.v1.core.sched.interface cannot be imported: ModuleNotFoundError: No module named "
     "'vllm.v1.core.sched.interface'"),
    (_without_argument(NEEDS, GENERATE, "data_parallel_rank"),
     "vllm.v1.engine.async_llm: AsyncLLM.generate takes no data_parallel_rank"),
    (_without_argument(NEEDS, "AsyncEngineArgs", "scheduler_cls"), "vllm: AsyncEngineArgs takes no scheduler_cls"),
]


def test_another_version_that_fits_is_played(
        named: Callable[[str, Iterable[Need]], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    python = named("0.99.1", NEEDS)
    assert environment.version_of(python) == "0.99.1" != environment.TESTED
    assert environment.obstacle() is None
    assert "ok  vllm world     can be played" in list(examine(clean=False))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    [line] = [one for one in examine(clean=False) if "vllm world" in one]
    assert line.startswith("ok  vllm world     can be played, less the stores of its rings: ")


@pytest.mark.parametrize(("needs", "why"), LACKS, ids=["a method", "a module", "an argument", "a field"])
def test_what_does_not_fit_of_another_version_is_said_in_a_line(
        needs: list[Need], why: str, named: Callable[[str, Iterable[Need]], Path],
        capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    named("0.99.2", needs)
    line = f"vLLM 0.99.2 cannot be played as {environment.TESTED} can: {why}"
    assert environment.obstacle() == line
    assert [one for one in examine(clean=False) if "vllm world" in one] == [f"--  vllm world     {line}"]
    asked = ["run", "--world", "vllm", "--scenario", "test_vllm_server_is_calm", "--out", str(tmp_path / "out")]
    assert outcome_of(asked) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said


def test_an_interpreter_that_does_not_answer_is_said(named: Callable[[str, Iterable[Need]], Path]) -> None:
    python = named("0.99.3", NEEDS)
    (package,) = python.parents[1].glob("lib/python*/site-packages/vllm/__init__.py")
    package.write_text("import os; os._exit(7)")
    assert (environment.obstacle() or "").endswith("its interpreter ended with 7: and said nothing")


def test_the_version_that_is_tested_is_not_asked(named: Callable[[str, Iterable[Need]], Path]) -> None:
    """It would be imported for it, which takes seconds."""
    named(environment.TESTED, ())
    assert environment.obstacle() is None


#: What is imported where it is needed, or by the type checker alone.
ASIDE = {("vllm.v1.core.sched.output", "GrammarOutput"), ("vllm.v1.core.sched.output", "SchedulerOutput"),
         ("vllm.v1.kv_cache_interface", "KVCacheLayout")}


@pytest.mark.parametrize("room", ["host", "stand_in"])
def test_all_that_is_imported_of_vllm_is_in_the_table(room: str) -> None:
    known = {(need.module, need.name.partition(".")[0]) for need in NEEDS}
    modules = {need.module for need in NEEDS}
    imported: set[tuple[str, str]] = set()
    for file in sorted((environment.ROOT / "scenarios/worlds/vllm" / room).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                imported |= {(node.module or "", one.name) for one in node.names
                             if f"{node.module}.{one.name}" not in modules}
    assert imported and imported - known - ASIDE == set()


def test_the_table_is_about_what_is_there() -> None:
    """Of modules that every interpreter has, one by one; what takes any name takes this one."""
    assert misfit([Need("textwrap", "indent", ("prefix",)), Need("json", "JSONDecoder.decode", ("s",)),
                   Need("json", "dumps", ("of any name",))]) is None
    assert misfit([Need("textwrap", "indent", ("prefix", "no")), Need("json", "no")]) == \
        "textwrap: indent takes no no"
