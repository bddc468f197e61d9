"""Engines as values: names that plans have written stay, and each process, channel and site of a play has one."""

from __future__ import annotations

import msgspec
import pytest

from engine.topology import (
    Channel,
    Client,
    Edge,
    Engine,
    Mark,
    Node,
    NodeKind,
    Topology,
    core,
    data_parallel,
    external,
    frontend,
    headless,
    hybrid,
    is_site,
    mark_site,
    offline,
    side_by_side,
    subscriber,
    tensor_parallel,
    with_ranks,
    worker,
)

TWO = side_by_side(Engine(tp=2, subscribers=(0,)), Engine(tp=2, data_parallel_rank=1, subscribers=(1, 2)))


@pytest.mark.parametrize(("name", "node"), [
    ("frontend.0", frontend()), ("core.0", core()), ("core.1@2", core(1, 2)), ("subscriber.3", subscriber(3)),
    ("worker.1", worker(1)), ("worker.12@1", worker(12, 1)), ("worker.1.0", worker(0, engine=1)),
    ("worker.10.3@4", worker(3, 4, 10))])
def test_a_name_says_which_process_of_which_engine_in_which_life(name: str, node: Node) -> None:
    assert str(node) == name and Node.parse(name) == node


@pytest.mark.parametrize("name", [
    "core.1.0", "frontend.1.0", "subscriber.1.0", "worker.0.1", "worker.01.1", "worker.1.0.0", "worker.", "worker",
    "worker.1.", "core.0@", "core.x", "gpu.0", " core.0", "core.0 ", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a node"):
        Node.parse(name)


def test_the_first_life_of_a_rank_keeps_its_engine() -> None:
    assert str(worker(2, 3, 1).first_life) == "worker.1.2"


@pytest.mark.parametrize("name", [
    "core.0->worker.1/rpc", "worker.1.0->core.1/response", "worker.1.0->worker.1.1/collective",
    "core.1->subscriber.2/kv", "frontend.1->core.1@1/requests"])
def test_an_edge_is_read_back_from_its_name(name: str) -> None:
    assert str(Edge.parse(name)) == name


def test_an_edge_of_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="core.1.0"):
        Edge.parse("core.1.0->frontend.0/outputs")


def test_one_engine_is_named_as_it_always_was() -> None:
    topology = tensor_parallel(2, subscribers=1)
    assert [str(node) for node in topology.nodes] == ["frontend.0", "core.0", "worker.0", "worker.1", "subscriber.0"]
    assert {"core.0->worker.1/rpc:send", "core.0/rpc:store.written", "worker.1/rpc:store.read",
            "worker.1/response:store.data", "core.0/response.1:store.read", "core.0/rpc:doorbell",
            "worker.1/collective:enter", "core.0/mark:scheduled", "core.0->subscriber.0/kv:wire"} <= {*topology.sites()}


def test_one_rank_has_no_worker_process_and_no_ring() -> None:
    topology = tensor_parallel(1)
    assert [str(node) for node in topology.nodes] == ["frontend.0", "core.0"]
    assert not any("rpc" in site or "collective" in site for site in topology.sites())


def test_engines_side_by_side_are_numbered_and_have_a_client_each() -> None:
    assert [engine.index for engine in TWO.engines] == [0, 1]
    assert TWO.clients == (Client(index=0, engines=(0,)), Client(index=1, engines=(1,)))
    assert [str(node) for node in TWO.nodes] == [
        "frontend.0", "core.0", "worker.0", "worker.1", "frontend.1", "core.1", "worker.1.0", "worker.1.1",
        "subscriber.0", "subscriber.1", "subscriber.2"]


def test_the_sites_of_two_engines_are_those_of_each_and_no_name_is_used_twice() -> None:
    sites = TWO.sites()
    assert len(set(sites)) == len(sites)
    alone = tensor_parallel(2, subscribers=1).sites()
    assert {*alone} <= {*sites}
    beside = {site for site in sites if site not in alone}
    renamed = {site.replace("worker.1.", "worker.").replace("core.1", "core.0").replace("frontend.1", "frontend.0")
               for site in beside if "subscriber" not in site}
    assert renamed == {site for site in alone if "subscriber" not in site}


def test_no_edge_leads_from_one_engine_to_another() -> None:
    for edge in TWO.edges:
        assert TWO.engines_of(edge.source) == TWO.engines_of(edge.target), edge
        assert Edge.parse(str(edge)) == edge


@pytest.mark.parametrize(("node", "kind", "peers"), [
    ("frontend.1", NodeKind.CORE, "core.1"), ("core.1", NodeKind.FRONTEND, "frontend.1"),
    ("core.1", NodeKind.WORKER, "worker.1.0 worker.1.1"), ("core.0", NodeKind.WORKER, "worker.0 worker.1"),
    ("worker.1.0", NodeKind.WORKER, "worker.1.1"), ("worker.1.1@1", NodeKind.CORE, "core.1"),
    ("core.1", NodeKind.SUBSCRIBER, "subscriber.1 subscriber.2"), ("subscriber.2", NodeKind.CORE, "core.1"),
    ("subscriber.0", NodeKind.CORE, "core.0"), ("core.0", NodeKind.CORE, "")])
def test_a_node_is_joined_with_those_of_its_own_engine(node: str, kind: NodeKind, peers: str) -> None:
    assert " ".join(map(str, TWO.peers(Node.parse(node), kind))) == peers


def test_a_client_of_two_engines_is_joined_with_both() -> None:
    topology = Topology(engines=TWO.engines, clients=(Client(engines=(0, 1)),))
    assert topology.peers(frontend(), NodeKind.CORE) == (core(0), core(1))
    assert topology.peers(core(1), NodeKind.FRONTEND) == (frontend(),)
    assert Edge(core(1), frontend(), Channel.OUTPUTS) in topology.edges
    assert [str(node) for node in topology.nodes].count("frontend.0") == 1


def test_an_engine_that_the_play_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError, match="no engine 2"):
        TWO.engine(2)
    assert TWO.engines_of(core(2)) == () and TWO.clients_of(2) == ()


def test_later_lives_have_the_sites_of_the_first() -> None:
    assert is_site(TWO, "core.1@1->worker.1.0@1/rpc:send") and is_site(TWO, mark_site("core.1@3", Mark.STEP))
    assert not is_site(TWO, "core.2/mark:step") and not is_site(TWO, "core.0->worker.1.0/rpc:send")


def test_other_ranks_are_given_to_each_engine_and_nothing_else_changes() -> None:
    other = with_ranks(TWO, tp=4)
    assert [engine.tp for engine in other.engines] == [4, 4] and with_ranks(other, tp=2) == TWO


def test_a_topology_is_saved_and_read_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(TWO), type=Topology) == TWO


def test_stages_are_joined_rank_by_rank_in_a_ring() -> None:
    stages = tensor_parallel(2, pp=2)
    assert [str(node) for node in stages.workers] == ["worker.0", "worker.1", "worker.2", "worker.3"]
    edges = [str(edge) for edge in stages.edges if edge.channel is Channel.PIPE]
    assert edges == ["worker.0->worker.2/pipe", "worker.1->worker.3/pipe", "worker.2->worker.0/pipe",
                     "worker.3->worker.1/pipe"]
    assert "worker.0->worker.1/collective" in map(str, stages.edges)
    assert "worker.1->worker.2/collective" not in map(str, stages.edges)
    assert is_site(stages, "worker.3/pipe:receive") and is_site(stages, "worker.0/pipe:send")
    assert not is_site(tensor_parallel(2), "worker.0/pipe:send")
    assert with_ranks(tensor_parallel(2), pp=2) == stages and with_ranks(stages, tp=1).engines[0].ranks == 2


# -- several that start cores of one group


@pytest.mark.parametrize(("topology", "greeted"), [
    (external(2), ["frontend.0", "frontend.0 frontend.1"]),
    (hybrid(2, 2), ["frontend.0", "frontend.0", "frontend.0 frontend.1", "frontend.0 frontend.1"]),
    (headless(2, 1), ["frontend.0", "frontend.0"]), (headless(2, 1, lockstep=True), ["frontend.0", "frontend.0"]),
    (offline(2), ["frontend.0", "frontend.1"]), (data_parallel(2, clients=2), ["launcher.0", "launcher.0"]),
    (TWO, ["frontend.0", "frontend.1"])])
def test_a_core_shakes_hands_with_the_head_and_then_with_its_own_client(topology, greeted) -> None:
    assert [" ".join(map(str, topology.greeted_by(engine.index))) for engine in topology.engines] == greeted
    for engine in topology.engines:
        for node in topology.greeted_by(engine.index):
            assert {Edge(engine.core, node, Channel.HANDSHAKE), Edge(node, engine.core, Channel.HANDSHAKE)} <= {
                *topology.edges}


@pytest.mark.parametrize(("topology", "spread"), [
    (external(2), True), (hybrid(2, 2), True), (headless(2, 1), True), (offline(2), False),
    (data_parallel(2, clients=2), False), (data_parallel(2, coordinated=True), False), (TWO, False)])
def test_a_group_is_spread_where_not_one_starts_all_of_it(topology, spread: bool) -> None:
    assert [topology.is_spread(engine.index) for engine in topology.engines] == [spread] * len(topology.engines)


def test_those_of_one_coordinator_are_one_deployment_with_whoever_starts_them() -> None:
    (both,) = hybrid(2, 2).deployments
    assert [client.index for client in both.clients] == [0, 1] and len(both.engines) == 4 and not both.headless
    (alone,) = headless(3, 2).deployments
    assert [one.engines for one in alone.headless] == [(2, 3), (4, 5)] and alone.launcher is None
    assert {"launcher.1", "launcher.2", "core.5", "frontend.0"} <= set(map(str, alone.nodes))
    assert headless(3, 2).is_headless(4) and not headless(3, 2).is_headless(1)
    assert len(side_by_side(Engine(), Engine()).deployments) == 2
