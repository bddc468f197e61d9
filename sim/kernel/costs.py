"""How long things take in the twin, in virtual seconds, each with the measurement it stands for.

Orders of magnitude, measured on two x86-64 cores: no verdict may hang on their exact value, only on their order
(a wake-up is shorter than a message, a message shorter than a step, a step shorter than any time-out).
"""

from __future__ import annotations

import msgspec


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    hop_s: float = 45e-6  # one ZMQ message over ipc, wake-up included; a round trip took 88 us
    bytes_per_s: float = 1.0e9  # frames of 64 KiB and more; 4 MiB took 2-3 ms there and back
    connect_s: float = 0.5e-3  # connect, greeting and ZMTP handshake on one host
    reconnect_s: float = 0.1  # libzmq's own default between two attempts to connect
    disconnect_s: float = 0.5e-3  # a closed connection is noticed by the peer's I/O thread
    buffer_bytes: int = 208 << 10  # net.core.wmem_default: what a socket takes beyond both high-water marks
    thread_wake_s: float = 10e-6  # a queue between two threads of one process
    bell_s: float = 15e-6  # a futex wake-up; a round trip with two of them took 18-32 us
    look_s: float = 1e-6  # one look that found nothing, so that a polling loop takes time
    sentinel_s: float = 0.8e-3  # multiprocessing sentinel: death until the watcher runs
    signal_s: float = 0.1e-3  # SIGTERM until the handler runs
    board_s: float = 2e-3  # holders re-read the board every few milliseconds
    process_start_s: float = 15e-3  # preloaded fork of one process; four took 60 ms
    model_load_s: float = 11e-3  # the small checkpoint, from the page cache
    core_step_s: float = 0.0  # of a core's own, when it has scheduled a step: far less than a message takes
    model_step_s: float = 1.0e-3  # one forward pass of the small model, collectives not included
    model_sample_s: float = 50e-6  # eight greedy requests took 30-60 us
    model_copy_s: float = 20e-6  # what was sampled, from the device; on a CPU it is there
    collective_s: float = 0.3e-3  # gloo all_reduce of two ranks took 0.2-0.4 ms
    shared_collective_s: float = 30e-6  # an all_reduce of two ranks over shared memory, both of them warm
    pipe_s: float = 0.3e-3  # a stage's hidden states to the next one by gloo
    shared_pipe_s: float = 20e-6  # and through shared memory
    collective_death_s: float = 8.5e-3  # a killed peer raises in its ring neighbours after 7-10 ms


COSTS = Costs()
