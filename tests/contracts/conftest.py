"""Makes worlds for situations and makers of sockets, and ends them."""

import pytest

from tests.contracts.makers import RealMaker, SimMaker
from tests.contracts.zmq_worlds import RealWorld


@pytest.fixture
def real(tmp_path):
    pytest.importorskip("zmq", reason="holds the model against libzmq, which is not installed")
    worlds = []

    def make(over: str = "ipc") -> RealWorld:
        folder = tmp_path / str(len(worlds))
        folder.mkdir()
        worlds.append(RealWorld(folder, over))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


@pytest.fixture(params=[SimMaker, RealMaker], ids=["sim", "real"])
def maker(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()
