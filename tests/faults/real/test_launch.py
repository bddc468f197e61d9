"""A play reaches every process: a child's recipe opens its ports through the same factory."""

import signal
import subprocess
import sys

from engine.process.entry import open_ports
from engine.topology import Mark
from faults.journal import Kind
from faults.plan import kill, plan
from faults.real.ports import FACTORY, FaultyPorts, argument_for
from tests.faults.stage import Stage, core, frontend, wait_for


def child_main(ports, recipe):
    assert isinstance(ports, FaultyPorts)
    ports.observe("recipe", text=recipe.decode())
    ports.mark(Mark.STEP)
    ports.observe("never")


def test_a_child_plays_the_plan_too(tmp_path):
    play = Stage(tmp_path, plan(kill("core.0", at="core.0/mark:step")))
    parent = open_ports(frontend(), FACTORY, argument_for(tmp_path, play.plan))
    child = parent.start_child(core(), "tests.faults.real.test_launch:child_main", "spawn")
    child.send_recipe(b"go")
    assert child.join(20.0)
    assert child.exitcode() == -signal.SIGKILL
    assert [(r.kind, r.site) for r in play.records("core.0")] == [
        (Kind.CROSSING, "frontend.0->core.0/birth:receive"), (Kind.OBSERVATION, "recipe"),
        (Kind.CROSSING, "core.0/mark:step"), (Kind.RECEIPT, "f1")]
    wait_for(lambda: play.board.process("core.0") is not None)
    assert play.board.process("core.0")[0] == child.pid
    parent.close()


def test_plain_ports_load_nothing_of_this():
    """Without a play no fault code is in the process."""
    code = ("import sys; from engine.process.entry import open_ports; from engine.topology import frontend; "
            "open_ports(frontend(), '', b'').close(); print([m for m in sys.modules if m.startswith('faults')])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_pure_half_loads_without_zmq_torch_and_processes():
    code = ("import sys, faults.judge, faults.arrivals, faults.memory, faults.fates, faults.sites, faults.generate; "
            "import faults.real.board; "
            "print([m for m in sys.modules if m in ('zmq', 'torch', 'multiprocessing')])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
