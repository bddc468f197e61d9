"""Ports that are kept for whoever binds them later: in the system, and in the twin."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from tests.contracts.makers import RealMaker
from tests.contracts.test_sockets_of_many_kinds import has_ipv6

ELSEWHERE = "tcp://192.0.2.1:*"  # of no host, by RFC 5737


@pytest.fixture(params=["tcp://127.0.0.1:*", "tcp://[::1]:*"])
def address(request, maker) -> str:
    if "[" in request.param and isinstance(maker, RealMaker) and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    return request.param


def test_a_port_that_is_kept_is_given_to_nobody_else(maker, address) -> None:
    """Neither to who reserves, nor to who binds; and it is told as others connect to it."""
    kept = [maker.reserve(address) for _ in range(50)]
    bound = [maker.open("PULL", bind=True, address=address).address for _ in range(50)]
    assert len({*kept, *bound}) == 100
    assert all(one.startswith(address.rstrip("*")) and one.rpartition(":")[2].isdigit() for one in kept)


def test_a_port_that_is_kept_is_bound_by_whom_it_was_told_and_bound_again(maker, address) -> None:
    """Who connects before comes as soon as it is bound; and so it does when it is bound a second time."""
    kept = maker.reserve(address)
    sender = maker.open("PUSH", bind=False, address=kept, watched=True)
    for text in (b"first", b"second"):
        receiver = maker.open("PULL", bind=True, address=kept)
        assert receiver.address == kept
        sender.send([text])
        assert maker.receive(receiver) == (0, [text])
        receiver.close(0)
        maker.until(lambda: not maker.connected(sender))


def test_an_address_that_this_host_does_not_have_is_refused_by_name(maker) -> None:
    for ask in (maker.reserve, lambda address: maker.open("PULL", bind=True, address=address)):
        with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:\* is no address of this host.*sockets\.host"):
            ask(ELSEWHERE)
