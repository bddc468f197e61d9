"""The twin works where torch and zmq are not installed."""

import subprocess
import sys

_PROGRAM = """
import sys
for name in ("torch", "zmq", "multiprocessing.shared_memory"):
    sys.modules[name] = None
from tests.sim.pair import Pair
assert len(Pair().run().answers) == 5
"""


def test_a_play_needs_neither_torch_nor_zmq():
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
