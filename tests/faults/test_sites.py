"""Which site is crossed: one rule for every world, and each site that it names is one of the topology's."""

import pytest

from engine.ports import SocketSpec
from engine.topology import Channel, Node, NodeKind, is_site, tensor_parallel
from faults.plan import kill
from faults.sites import SocketSites, ring_sites, store_place, store_sites, victim_of
from tests.faults.stage import core, pull, push, response_ring, rpc_ring

TOPOLOGY = tensor_parallel(2, subscribers=2)


def sites_of(spec, me):
    return SocketSites(spec, me, TOPOLOGY)


@pytest.mark.parametrize("spec, node, place", [
    (rpc_ring(), "core.0", "core.0/rpc"), (rpc_ring(), "worker.1", "worker.1/rpc"),
    (response_ring(), "worker.1", "worker.1/response"), (response_ring(), "core.0", "core.0/response.1")])
def test_stores_belong_to_the_node_that_does_them(spec, node, place):
    assert store_place(spec, node) == place
    known = [site for site in store_sites(spec, node).values() if is_site(TOPOLOGY, site)]
    assert known in ([f"{place}:store.read"], [f"{place}:store.{s}" for s in ("reset", "data", "readers", "written")])


def test_a_ring_message_crosses_an_edge_per_reader_and_each_reader_its_own():
    assert ring_sites(rpc_ring(), "core.0", "send") == ("core.0->worker.0/rpc:send", "core.0->worker.1/rpc:send")
    assert ring_sites(rpc_ring(), "worker.1", "receive") == ("core.0->worker.1/rpc:receive",)


def test_a_socket_s_sites_have_no_lives():
    assert sites_of(push(), Node(NodeKind.CORE, 0, 2)).to(0) == ("core.0->frontend.0/outputs:send",)
    assert sites_of(pull(), Node(NodeKind.FRONTEND, 0, 1)).of(0) == "core.0->frontend.0/outputs:receive"


def test_a_publisher_s_message_crosses_an_edge_to_every_node_of_its_peers_kind():
    spec = SocketSpec(name="kv", kind="PUB", peer_kind=NodeKind.SUBSCRIBER, send_channel=Channel.KV, bind=True,
                      address="x")
    assert sites_of(spec, core()).to(0) == tuple(f"core.0->subscriber.{k}/kv:send" for k in (0, 1))


def test_a_router_s_peer_is_whom_it_names_and_a_stranger_is_the_only_peer():
    spec = SocketSpec(name="replay", kind="ROUTER", peer_kind=NodeKind.SUBSCRIBER, send_channel=Channel.REPLAY,
                      receive_channel=Channel.REPLAY, bind=True, address="x")
    sites = sites_of(spec, core())
    assert sites.of(b"\x01\x00") == "subscriber.1->core.0/replay:receive"
    assert sites.of(b"\x01stranger") == sites.of(b"\x09\x00") == "subscriber.0->core.0/replay:receive"
    assert sites.to(1) == ("core.0->subscriber.1/replay:send",)


def test_a_connecting_socket_has_the_wires_of_what_it_sends_and_gets():
    assert sites_of(push(), core()).wires() == ("core.0->frontend.0/outputs:wire", None)


def test_a_victim_has_the_life_of_the_site_unless_it_names_its_own():
    assert victim_of(kill("core.0", at="core.0@1/mark:step")) == ("core.0", 1)
    assert victim_of(kill("worker.1", at="core.0@1/mark:step")) == ("worker.1", 1)
    assert victim_of(kill("worker.1@2", at="core.0@1/mark:step")) == ("worker.1", 2)
