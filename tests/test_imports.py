"""Who may import whom, and how large files and rooms may be: docs/ARCHITECTURE.md, enforced on the source itself.

Imports are read from the syntax tree, also those inside functions, so that nothing hides behind a lazy import.
A type-only import (`if TYPE_CHECKING`) binds nobody and is not looked at, except for circles and for the rooms of the
twin: who names another file's type has to be read together with it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("engine", "faults", "sim", "scenarios", "reports", "tests")

VOCABULARY = {*(f"engine.{name}" for name in (
    "names", "topology", "messages", "errors", "config", "ports", "effects"))}

#: Files that are checked by their types, strictly (pyproject.toml).
TYPED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
#: Of the engine's: run unchanged in both worlds. A file that is not here is a shell; one that is here and missing is an
#: error. So whatever the twin runs is checked by its types.
PURE = tuple(name for name in TYPED if name.startswith("engine/"))
#: What waits, tells the time, rolls dice, or reaches the outside.
WORLDLY = frozenset({
    "asyncio", "ctypes", "datetime", "mmap", "multiprocessing", "os", "random", "secrets", "select", "selectors",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "tokenizers", "torch", "transformers", "uuid",
    "zmq",
})
#: Never in the twin; its dice are handed in (`random` for a seeded generator), its locks and clocks are SimPy's.
NOT_IN_THE_TWIN = frozenset({"zmq", "torch", "multiprocessing", "time", "threading", "socket", "select", "asyncio"})


@cache
def imports_of(path: Path, *, types: bool = False) -> frozenset[str]:
    """Full names of all modules that a file imports. `from a import b` counts as `a` and, where it is one, `a.b`.

    `types`: also what it imports for types alone.
    """
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if types else _walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            found.add(node.module)
            found |= {name for alias in node.names if _is_module(name := f"{node.module}.{alias.name}")}
    return frozenset(found)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _walk(node)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def ours(path: Path, *, types: bool = False) -> set[str]:
    """Without rooms: their own files import nothing."""
    return {name for name in imports_of(path, types=types)
            if name.split(".")[0] in OURS and not (ROOT.joinpath(*name.split(".")) / "__init__.py").exists()}


def strangers(path: Path, allowed: set[str], packages: tuple[str, ...] = ()) -> set[str]:
    """Our modules that a file imports and may not. `packages` are allowed with all that is in them."""
    return {name for name in ours(path) if name not in allowed
            and not any(name == package or name.startswith(package + ".") for package in packages)}


def each(folder: str):
    return pytest.mark.parametrize("path", files(folder), ids=lambda path: str(path.relative_to(ROOT)))


def circles() -> set[frozenset[str]]:
    """Files of the product that import each other, directly or by way of others, each circle in full."""
    imports = {".".join(path.relative_to(ROOT).with_suffix("").parts): ours(path, types=True)
               for folder in OURS[:-1] for path in files(folder)}
    reached = {name: _reached(name, imports) for name in imports}
    return {frozenset(other for other in reached[name] if name in reached[other])
            for name in imports if name in reached[name]}


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports.get(waiting.pop(), set()) - found:
            found.add(name)
            waiting.append(name)
    return found


def test_no_files_import_each_other():
    assert [sorted(circle) for circle in circles()] == []


@each("engine")
def test_the_engine_imports_nothing_of_ours(path):
    assert strangers(path, set(), ("engine",)) == set()


@pytest.mark.parametrize("name", PURE)
def test_pure_files_reach_nothing_of_the_outside_world(name):
    path = ROOT / name
    worldly = {module.split(".")[0] for module in imports_of(path)} & WORLDLY
    assert worldly == set()


@pytest.mark.parametrize("name", PURE)
def test_pure_files_rest_on_pure_files_alone(name):
    pure = {file.removesuffix(".py").replace("/", ".") for file in PURE}
    assert strangers(ROOT / name, pure | VOCABULARY) == set()


def test_every_file_that_is_pure_is_listed_as_such():
    """One that reaches nothing of the outside, itself or by way of others, is for the checker and for the twin."""
    pure = {file.removesuffix(".py").replace("/", ".") for file in PURE} | VOCABULARY
    others = [path for path in files("engine")
              if path.name != "__init__.py" and str(path.relative_to(ROOT)) not in PURE]
    worldly = {path for path in others if {module.split(".")[0] for module in imports_of(path)} & WORLDLY}
    assert [path for path in others if path not in worldly and not strangers(path, pure)] == []


@each("faults")
def test_the_fault_layer_knows_the_vocabulary_of_the_engine_and_its_ring_layout(path):
    vocabulary = VOCABULARY - {"engine.config"}
    assert strangers(path, vocabulary | {"engine.ipc.ring"}, ("faults",)) == set()


@each("sim")
def test_the_twin_rests_on_pure_files_and_on_the_plain_part_of_the_fault_layer(path):
    pure = {file.removesuffix(".py").replace("/", ".") for file in PURE}
    plain = {f"faults.{name}" for name in (
        "plan", "fates", "sites", "judge", "match", "arrivals", "journal", "memory", "malformed", "told")}
    assert strangers(path, pure | VOCABULARY | plain, ("sim",)) == set()


#: room of the twin -> the rooms that its files may know
TWIN_ROOMS = {
    "sim/kernel": ("sim.kernel",),
    "sim/transport": ("sim.kernel", "sim.transport"),
    "sim/process": ("sim.kernel", "sim.transport", "sim.process"),
}


@pytest.mark.parametrize(("room", "path"), [(room, path) for room in TWIN_ROOMS for path in files(room)],
                         ids=lambda value: str(value.relative_to(ROOT)) if isinstance(value, Path) else "")
def test_each_room_of_the_twin_stands_on_those_below_it(room, path):
    mine = {name for name in ours(path, types=True) if name.startswith("sim.")}
    assert {name for name in mine if not name.startswith(tuple(f"{known}." for known in TWIN_ROOMS[room]))} == set()


@each("sim")
def test_the_twin_imports_nothing_that_only_real_processes_need(path):
    assert {name for name in ours(path) if name == "faults.real" or name.startswith("faults.real.")} == set()


@pytest.mark.parametrize("path", [path for path in files("faults") if path.parent == ROOT / "faults"],
                         ids=lambda path: path.name)
def test_what_decides_in_the_fault_layer_needs_no_process(path):
    """What lies loose there is for every world; what waits, signals or opens lies in faults/real."""
    assert not any(name.startswith("faults.real") for name in ours(path))
    worldly = {module.split(".")[0] for module in imports_of(path)} & WORLDLY
    assert worldly <= {"journal.py": {"os", "threading"}, "generate.py": {"random"}}.get(path.name, set())


@each("sim")
def test_the_twin_has_no_clock_no_process_and_no_socket(path):
    assert {module.split(".")[0] for module in imports_of(path)} & NOT_IN_THE_TWIN == set()


@each("scenarios")
def test_only_the_command_line_knows_the_reports(path):
    reports = {name for name in ours(path) if name.split(".")[0] == "reports"}
    assert not reports or path == ROOT / "scenarios/command/conclusion.py"


@each("scenarios")
def test_only_worlds_know_how_a_play_is_carried_out(path):
    inside = {name for name in ours(path) if name.startswith(("sim.", "faults.real."))}
    assert not inside or path.is_relative_to(ROOT / "scenarios/worlds")


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("test_*.py")), ids=lambda path: path.name)
def test_a_scenario_names_a_topology_a_plan_and_promises_and_no_world(path):
    assert strangers(path, {
        "engine.topology", "faults.plan", "scenarios.guarantees.all", "scenarios.history.play",
        "scenarios.history.verdicts", "scenarios.lab.catalogue", "scenarios.lab.corpus", "scenarios.lab.family",
        "scenarios.lab.settings", "scenarios.test_data_parallel", "scenarios.test_kv",
        "scenarios.test_lockstep", "scenarios.test_offline", "scenarios.test_scheduling",
        "scenarios.workloads.intruders"}) == set()


@each("scenarios/worlds/vllm/stand_in")
def test_what_vllm_loads_brings_little_of_the_lab(path):
    assert strangers(path, {"engine.topology", "faults.journal", "faults.plan", "faults.real.board",
                            "faults.real.crossings", "faults.real.processes"},
                     ("scenarios.worlds.vllm.stand_in",)) == set()


@each("scenarios/history")
def test_a_history_is_what_records_say(path):
    assert strangers(path, {"engine.topology", "engine.messages", "engine.config", "engine.errors", "faults.journal",
                            "faults.plan"}, ("scenarios.history",)) == set()


@each("scenarios/guarantees")
def test_a_judge_does_not_consult_the_accused(path):
    assert strangers(path, {"engine.topology", "engine.messages", "engine.config", "engine.errors", "faults.journal"},
                     ("scenarios.guarantees", "scenarios.history", "scenarios.law")) == set()


@each("scenarios/law")
def test_the_law_knows_the_plan_and_the_records(path):
    assert strangers(path, {"engine.topology", "engine.messages", "faults.plan"},
                     ("scenarios.law", "scenarios.guarantees.base", "scenarios.history")) == set()


@each("reports")
def test_reports_read_runs_and_start_nothing(path):
    assert strangers(path, {"faults.journal", "engine.topology", "scenarios.worlds.registry",
                            "scenarios.guarantees.readers.group.lockstep"}, ("reports", "scenarios.history")) == set()
    assert {module.split(".")[0] for module in imports_of(path)} & {
        "subprocess", "multiprocessing", "socket", "threading", "asyncio", "urllib", "zmq", "torch"} == set()


@pytest.mark.parametrize("path", [path for folder in OURS[:-1] for path in files(folder) if path.name == "__init__.py"],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_imports_nothing_when_it_is_imported(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in top if getattr(node, "module", "") != "__future__"] == []


#: A file that fits in the head, and a room that is seen at a glance.
LINES_MOST, ENTRIES_MOST = 400, 14
#: Rooms that have more today, and how many; none of them may grow beyond that.
LARGE_ROOMS = {"engine": 18, "engine/ipc": 15}


def entries(room: Path) -> list[str]:
    """Files and rooms that lie in it; of scenarios there may be any number."""
    names = {path.name for path in room.iterdir() if path.is_dir() or path.suffix == ".py"}
    return sorted(name for name in names - {"__init__.py", "__pycache__"} if not name.startswith("test_"))


@pytest.mark.parametrize("path", [path for folder in OURS[:-1] for path in files(folder)],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_fits_in_the_head(path):
    assert len(path.read_text().splitlines()) <= LINES_MOST


@pytest.mark.parametrize("room", sorted({str(path.parent.relative_to(ROOT)) for folder in OURS[:-1]
                                         for path in files(folder)}))
def test_a_room_is_seen_at_a_glance(room):
    found = entries(ROOT / room)
    assert len(found) <= LARGE_ROOMS.get(room, ENTRIES_MOST), found
    assert room not in LARGE_ROOMS or len(found) > ENTRIES_MOST, "not large any more"


def test_nothing_but_the_vocabulary_lies_loose_in_the_engine():
    loose = {f"engine.{path.stem}" for path in (ROOT / "engine").glob("*.py")} - {"engine.__init__"}
    assert loose - VOCABULARY == {"engine.model_config", "engine.kv_subscriber_shell"}  # the latter for who imports it


_WITHOUT = """
import sys

for name in ("torch", "zmq", "transformers", "safetensors", "tokenizers", "numpy", "multiprocessing.shared_memory"):
    sys.modules[name] = None

import scenarios.command.cli
import scenarios.pytest_plugin
import scenarios.guarantees.all
import scenarios.guarantees.judge
import scenarios.worlds.sim
from scenarios.lab.catalogue import catalogue
from scenarios.worlds.registry import can_play, worlds_of

assert catalogue(), "no scenario was found"
assert worlds_of(None) == ("sim",), worlds_of(None)
assert "torch" in can_play("engine"), can_play("engine")
order = ["run", "--world", "sim", "--scenario", "nothing_goes_wrong", "--out", sys.argv[1]]
sys.exit(scenarios.command.cli.outcome_of(order))
"""


def test_the_twin_plays_and_reports_where_torch_and_zmq_are_not_installed(tmp_path):
    done = subprocess.run([sys.executable, "-c", _WITHOUT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "report" / "index.html").exists()


_WATCHED = """
import sys
from engine.core import life
from engine.frontend import async_llm, llm
from engine.worker import worker
import engine.process.entry, engine.worker.life
others = ("faults", "sim", "scenarios", "reports", "simpy")
loaded = sorted(name for name in sys.modules if name.split(".")[0] in others)
assert not loaded, loaded
"""


def test_the_engine_alone_loads_no_fault_code():
    subprocess.run([sys.executable, "-c", _WATCHED], cwd=ROOT, check=True, timeout=60)
