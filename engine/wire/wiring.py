"""How the processes are joined (pure): every socket and ring of an engine, with its options, for both worlds.

The frontend binds, the core connects; HWM, linger and buffers come from `SocketConfig`. An address function maps a
socket's short name to where it lies: a file in the engine's directory, a tcp port, or a name in the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.config import EngineConfig
from engine.ports import RingSpec, SocketSpec
from engine.topology import Channel, Node, NodeKind, core, worker
from engine.wire.handshake import HANDSHAKE, REQUESTS

OUTPUTS = "outputs"
KV = "kv"
REPLAY = "replay"
#: What the last frames of a handshake may take to leave, at most.
HANDSHAKE_LINGER_S = 5.0
#: The same for the payloads of messages that do not fit into a ring.
OVERFLOW_LINGER_S = 4.0


#: Length of a peer's identity on a ROUTER.
IDENTITY_BYTES = 2


def identity_of(index: int) -> bytes:
    """The identity of peer `index` on a ROUTER: two bytes, little-endian."""
    return index.to_bytes(IDENTITY_BYTES, "little")


# -- frontend and core -------------------------------------------------------------------------------------------


def requests_of(client_index: int) -> str:
    """A core's socket for what that one of its clients asks."""
    return f"{REQUESTS}.{client_index}" if client_index else REQUESTS


def outputs_of(engine: int) -> str:
    """A client's socket for the outputs of that engine's core."""
    return f"{OUTPUTS}.{engine}"


def frontend_sockets(config: EngineConfig, address: Callable[[str], str], engines: tuple[int, ...] = (0,),
                     ) -> list[SocketSpec]:
    """Of a client that owns its engines: where they introduce themselves, and all that a client has."""
    names = {REQUESTS: "requests", **{outputs_of(engine): outputs_of(engine) for engine in engines},
             outputs_of(engines[0]): OUTPUTS}
    addresses = {socket: address(name) for socket, name in names.items()}
    return [owner_socket(config, address("handshake")), *client_sockets(config, addresses, engines)]


def owner_socket(config: EngineConfig, address: str) -> SocketSpec:
    """ROUTER for the handshakes of cores, of whoever starts them."""
    return SocketSpec(name=HANDSHAKE, kind="ROUTER", peer_kind=NodeKind.CORE, bind=True, address=address,
                      send_channel=Channel.HANDSHAKE, receive_channel=Channel.HANDSHAKE, linger_s=HANDSHAKE_LINGER_S,
                      heartbeat_s=config.sockets.heartbeat_s)


def client_sockets(config: EngineConfig, addresses: Mapping[str, str], engines: tuple[int, ...] = (0,),
                   ) -> list[SocketSpec]:
    """ROUTER for requests, and a PULL for the outputs of each engine's core; all bound.

    A PULL of its own for each core, where vLLM has one for all: so a core's end is known from the end of its
    connection, and none waits behind another's flood.
    """
    sockets = config.sockets
    return [
        SocketSpec(name=REQUESTS, kind="ROUTER", peer_kind=NodeKind.CORE, bind=True, address=addresses[REQUESTS],
                   send_channel=Channel.REQUESTS, receive_channel=Channel.REQUESTS, send_hwm=sockets.request_hwm,
                   mandatory=sockets.router_mandatory, buffer_bytes=sockets.buffer_bytes,
                   heartbeat_s=sockets.heartbeat_s),
        *(SocketSpec(name=outputs_of(engine), kind="PULL", peer_kind=NodeKind.CORE, bind=True,
                     address=addresses[outputs_of(engine)], receive_channel=Channel.OUTPUTS,
                     receive_hwm=sockets.output_hwm, peer=engine, buffer_bytes=sockets.buffer_bytes, watched=True,
                     heartbeat_s=sockets.heartbeat_s)
          for engine in engines),
    ]


def core_handshake_socket(config: EngineConfig, address: str, engine_index: int, greeted: Node,
                          name: str = HANDSHAKE) -> SocketSpec:
    """Whoever it greets may be gone when it leaves: it is out long before its owner loses patience, and kills it."""
    return SocketSpec(name=name, kind="DEALER", peer_kind=greeted.kind, peer=greeted.index, bind=False,
                      address=address, identity=identity_of(engine_index),
                      linger_s=min(HANDSHAKE_LINGER_S, config.bounds.terminate_s / 2),
                      send_channel=Channel.HANDSHAKE, receive_channel=Channel.HANDSHAKE,
                      heartbeat_s=config.sockets.heartbeat_s)


def core_request_socket(config: EngineConfig, address: str, engine_index: int = 0, frontend: int = 0,
                        client_index: int = 0, *, watched: bool = False) -> SocketSpec:
    """The socket from one client, which is that frontend. `watched`: its end is none of the core's."""
    return SocketSpec(name=requests_of(client_index), kind="DEALER", peer_kind=NodeKind.FRONTEND, peer=frontend,
                      bind=False, address=address,
                      identity=identity_of(engine_index), send_channel=Channel.REQUESTS,
                      receive_channel=Channel.REQUESTS, receive_hwm=config.sockets.request_hwm,
                      buffer_bytes=config.sockets.buffer_bytes, watched=watched,
                      heartbeat_s=config.sockets.heartbeat_s)


def core_output_socket(config: EngineConfig, address: str, client_index: int = 0, frontend: int = 0, *,
                       watched: bool = False) -> SocketSpec:
    """The socket to one client, which is that frontend. Its linger lets the death notice leave; where it is `watched`,
    not to one that has gone.
    """
    return SocketSpec(name=f"{OUTPUTS}.{client_index}", kind="PUSH", peer_kind=NodeKind.FRONTEND, peer=frontend,
                      bind=False, address=address, send_channel=Channel.OUTPUTS,
                      send_hwm=config.sockets.output_hwm, linger_s=config.sockets.output_linger_s,
                      buffer_bytes=config.sockets.buffer_bytes, watched=watched,
                      heartbeat_s=config.sockets.heartbeat_s)


# -- core and workers --------------------------------------------------------------------------------------------


def rpc_ring(config: EngineConfig, engine: int = 0) -> RingSpec:
    """The broadcast ring."""
    return RingSpec(channel=Channel.RPC, writer=core(engine),
                    readers=tuple(worker(rank, engine=engine) for rank in range(config.grid.size)),
                    max_chunks=config.ring.max_chunks, max_chunk_bytes=config.ring.max_chunk_bytes)


def response_ring(config: EngineConfig, rank: int, engine: int = 0) -> RingSpec:
    """The answer ring of one rank."""
    return RingSpec(channel=Channel.RESPONSE, writer=worker(rank, engine=engine), readers=(core(engine),),
                    max_chunks=config.ring.response_chunks, max_chunk_bytes=config.ring.response_chunk_bytes)


def overflow_socket(spec: RingSpec, address: str, name: str, *, writer: bool) -> SocketSpec:
    """The by-pass of a ring, for messages of at least a chunk."""
    return SocketSpec(
        name=name, kind="XPUB" if writer else "SUB", bind=writer, address=address,
        linger_s=OVERFLOW_LINGER_S if writer else 0.0, peer_kind=(spec.readers[0] if writer else spec.writer).kind,
        peer=0 if writer else spec.writer.index, send_channel=Channel.OVERFLOW if writer else None,
        receive_channel=None if writer else Channel.OVERFLOW)


def notify_socket(spec: RingSpec, address: str, name: str, *, writer: bool) -> SocketSpec:
    """What readers sleep on that have chosen `engine.ipc.notify`.

    No high-water mark: a socket learns late that its reader has taken something; the ring bounds how much waits.
    """
    return SocketSpec(name=name, kind="PUB" if writer else "SUB", bind=writer, address=address,
                      peer_kind=(spec.readers[0] if writer else spec.writer).kind, conflate=not writer)


# -- KV events -----------------------------------------------------------------------------------------------------


def offset_endpoint_port(endpoint: str, data_parallel_rank: int) -> str:
    """The endpoint of one rank: tcp adds the rank to the port, the others append `_dp<rank>`.

    Where the system chooses the port (`*` or 0), it chooses one for each rank.
    """
    if data_parallel_rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{data_parallel_rank}"
    host, _, port = endpoint.rpartition(":")
    return endpoint if port in ("*", "0") else f"{host}:{int(port) + data_parallel_rank}"


def kv_socket(address: str, *, bind: bool = True, hwm: int = 100_000, buffer_bytes: int = 0) -> SocketSpec:
    """The publisher's live socket."""
    return SocketSpec(name=KV, kind="PUB", peer_kind=NodeKind.SUBSCRIBER, send_channel=Channel.KV, bind=bind,
                      address=address, send_hwm=hwm, buffer_bytes=buffer_bytes)


def replay_socket(address: str, *, hwm: int = 20_002, buffer_bytes: int = 0) -> SocketSpec:
    """The publisher's replay socket. It serves strangers too, so its peers are identities, as bytes."""
    return SocketSpec(name=REPLAY, kind="ROUTER", peer_kind=NodeKind.SUBSCRIBER, send_channel=Channel.REPLAY,
                      receive_channel=Channel.REPLAY, bind=True, address=address, send_hwm=hwm,
                      buffer_bytes=buffer_bytes, raw_identities=True)


def subscriber_sockets(endpoint: str, replay_endpoint: str | None, topic: str = "", *, hwm: int = 100_000,
                       buffer_bytes: int = 0, identity: bytes | None = None, core_index: int = 0,
                       ) -> list[SocketSpec]:
    """Its sockets "kv" and, with a replay endpoint, "replay". An `identity` of None lets the publisher choose one.

    The replay socket is a DEALER: a REQ takes one reply, and a replay is many.
    """
    sockets = [SocketSpec(name=KV, kind="SUB", receive_channel=Channel.KV, address=endpoint, receive_hwm=hwm,
                          topic=topic.encode(), peer_kind=NodeKind.CORE, peer=core_index, bind=False,
                          buffer_bytes=buffer_bytes, watched=True)]
    if replay_endpoint is not None:
        sockets.append(SocketSpec(name=REPLAY, kind="DEALER", send_channel=Channel.REPLAY,
                                  receive_channel=Channel.REPLAY, address=replay_endpoint, identity=identity,
                                  peer_kind=NodeKind.CORE, peer=core_index, bind=False, buffer_bytes=buffer_bytes))
    return sockets


def replay_hwm(buffer_steps: int) -> int:
    """Room for two whole windows and their ends, and for the pieces of a snapshot where the window is small."""
    return max(2 * buffer_steps + 2, 4096)
