"""Answers to effects that open something, and give it back: files, sockets, ring ends, heartbeats, the model."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from engine.effects import (
    ClaimFiles,
    Close,
    CreateRing,
    HoldFiles,
    Identity,
    MakeWorker,
    OpenHeartbeat,
    OpenRing,
    OpenSocket,
    ReadHeartbeat,
    ReadModel,
    RemoveFiles,
    ReserveAddress,
    SweepFiles,
)
from engine.errors import StartupError
from engine.ipc.presence import TOPIC, LocalReaders, Presence
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ring import RingLayout, RingReader, RingWriter
from engine.model_config import check_servable
from engine.ports import RingSpec
from engine.process.files import PREFIX, EngineFiles, files_gone
from engine.topology import at
from engine.wire.wiring import overflow_socket
from faults.sites import store_place
from sim.process.process import SimProcess
from sim.process.thread import NEVER, Answers, SimThread
from sim.transport.host import Host

_BEAT = struct.Struct("<Qd")
_BEAT_BYTES = 64

# -- files


def _sweep_files(process: SimProcess, thread: SimThread, effect: SweepFiles) -> None:
    host = process.host
    alive = {other.context.get("engine") for other in process.sim.living()}
    for path in [path for path in host.paths if "/" not in path and host.paths[path] == path and path not in alive]:
        remove_files(host, path)


def _claim_files(process: SimProcess, thread: SimThread, effect: ClaimFiles) -> EngineFiles:
    host = process.host
    host.claims += 1
    engine_id = f"e{host.claims - 1}"
    process.context["engine"] = host.paths[engine_id] = engine_id
    return EngineFiles(engine_id, engine_id)


def _hold_files(process: SimProcess, thread: SimThread, effect: HoldFiles) -> None:
    """They are looked for by their processes."""


def _remove_files(process: SimProcess, thread: SimThread, effect: RemoveFiles) -> None:
    remove_files(process.host, effect.files.engine_id)


def remove_files(host: Host, engine_id: str) -> None:
    for name in files_of(host, engine_id):
        host.unlink_segment(name)
        host.paths.pop(name, None)


def files_of(host: Host, engine_id: str) -> set[str]:
    """Segments, sockets, directory and lock of an engine."""
    return {name for name in host.segments if name.startswith(f"{PREFIX}{engine_id}-")} | {
        path for path in host.paths if path == engine_id or path.startswith(f"{engine_id}/")}


# -- shared memory


def _open_heartbeat(process: SimProcess, thread: SimThread, effect: OpenHeartbeat) -> None:
    if effect.create:
        process.host.create_segment(effect.name, _BEAT_BYTES)
    segment = process.host.segments.get(effect.name)
    if segment is None:
        raise StartupError(files_gone(effect.of))
    memory = segment.memory
    if effect.of is None:
        process.heartbeat = lambda count: _BEAT.pack_into(memory, 0, count, process.kernel.now)
    else:
        process.context[f"beat of {effect.of}"] = memory


def _read_heartbeat(process: SimProcess, thread: SimThread, effect: ReadHeartbeat) -> tuple[int, float | None]:
    count, at_s = _BEAT.unpack_from(process.context[f"beat of {effect.of}"])
    return count, at_s if count else None


class _Handle(msgspec.Struct, frozen=True):
    """What a reader needs to open its end."""

    segment: str
    bell: str
    overflow_address: str


def _layout(spec: RingSpec) -> RingLayout:
    return RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)


def _create_ring(process: SimProcess, thread: SimThread, effect: CreateRing) -> tuple[QueueWriter, bytes]:
    name, spec, ports = effect.name, effect.spec, process.ports
    layout = _layout(spec)
    opened = ports.create_ring(spec, effect.segment, layout.total_bytes)
    bell = process.context["spaces"][effect.rings] if effect.rings else f"{effect.segment}/bell"
    _enter_ring(process, name, spec, effect.segment)
    space_bell = effect.space_bell or f"{name}.space"
    ports.add_bell(space_bell, f"{effect.segment}/space")
    ports.add_bell(f"{name}.bell", bell, site=at(store_place(spec, process.name), "doorbell"))
    ports.open_socket(overflow_socket(spec, effect.overflow_address, f"{name}.overflow", writer=True))
    readers = LocalReaders(_present(process, name, spec, opened.memory, None))
    writer = QueueWriter(name, RingWriter(layout, opened.memory, opened.fence), len(spec.readers), readers=readers,
                         bell=f"{name}.bell", space_bell=space_bell, overflow_outbox=f"{name}.overflow")
    return writer, msgspec.msgpack.encode(_Handle(effect.segment, bell, effect.overflow_address))


def _open_ring(process: SimProcess, thread: SimThread, effect: OpenRing) -> QueueReader:
    name, spec, ports = effect.name, effect.spec, process.ports
    handle = msgspec.msgpack.decode(effect.handle, type=_Handle)
    opened = ports.attach_ring(spec, handle.segment)
    _enter_ring(process, name, spec, handle.segment)
    bell = effect.bell or f"{name}.bell"
    if bell not in ports.bells:
        ports.add_bell(bell, handle.bell)
    ports.add_bell(f"{name}.space", f"{handle.segment}/space")
    socket = overflow_socket(spec, handle.overflow_address, f"{name}.overflow", writer=False)
    who = b"%s%d:%d" % (TOPIC, effect.rank, process.pid)
    ports.open_socket(msgspec.structs.replace(socket, more_topics=(who,)))
    return QueueReader(name, RingReader(_layout(spec), opened.memory, opened.fence, effect.rank), bell=bell,
                       space_bell=f"{name}.space", overflow_inbox=f"{name}.overflow", recheck_s=process.recheck_s,
                       presence=_present(process, name, spec, opened.memory, effect.rank))


def _present(process: SimProcess, name: str, spec: RingSpec, memory: Any, reader: int | None) -> Presence:
    """Say in the ring that this process is that end of it."""
    presence = Presence(name, _layout(spec), memory, range(len(spec.readers)), reader)
    presence.announce(Identity(process.pid, process.pid))
    return presence


def _enter_ring(process: SimProcess, name: str, spec: RingSpec, segment: str) -> None:
    process.ports.add_ring(name, spec)
    process.context.setdefault("spaces", {})[name] = f"{segment}/space"


# -- sockets, and the end


def _open_socket(process: SimProcess, thread: SimThread, effect: OpenSocket) -> str:
    return process.ports.open_socket(effect.spec).address


def _reserve_address(process: SimProcess, thread: SimThread, effect: ReserveAddress) -> str:
    return process.sim.host.network.reserve(effect.address)


def _close(process: SimProcess, thread: SimThread, effect: Close) -> Any:
    for place in process.context.pop("groups", {}).values():
        place.seat.close()
    process.context.pop("beat", None)  # who reads it all the same fails, as one does whose memory is unmapped
    for port in process.ports.sockets.values():
        if not port.socket.closed:
            port.close(effect.linger_s)
    return _closed(process, thread, effect)


def _closed(process: SimProcess, thread: SimThread, effect: Close) -> Any:
    if process.ports.lingering:
        process.attend(thread)
        return thread.ask_again(_closed, effect, NEVER)
    return None


# -- the model


def _read_model(process: SimProcess, thread: SimThread, effect: ReadModel) -> Any:
    model = process.sim.given.model_config
    check_servable(effect.config, model)
    return model


def _make_worker(process: SimProcess, thread: SimThread, effect: MakeWorker) -> None:
    process.call_handler = process.sim.given.make_worker(process, effect)


ANSWERS: Answers = {
    SweepFiles: _sweep_files,
    ClaimFiles: _claim_files,
    HoldFiles: _hold_files,
    RemoveFiles: _remove_files,
    OpenHeartbeat: _open_heartbeat,
    ReadHeartbeat: _read_heartbeat,
    CreateRing: _create_ring,
    OpenRing: _open_ring,
    OpenSocket: _open_socket,
    ReserveAddress: _reserve_address,
    Close: _close,
    ReadModel: _read_model,
    MakeWorker: _make_worker,
}
