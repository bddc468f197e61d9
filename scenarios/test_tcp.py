"""An engine whose parts speak tcp: calm, and with each of its connections cut."""

from __future__ import annotations

from engine.topology import data_parallel, tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import (
    blocks_conserved,
    calls_answered,
    client_routed,
    dp_collectives_equal,
    dp_work_wakes_all,
    nothing_left_behind,
    served_in_turn,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import eight
from scenarios.test_lockstep import waves
from scenarios.workloads import recorded

OVER_TCP = {"transport": "tcp"}
CONFIG = lab_config(sockets=OVER_TCP, bounds={"collective_s": 0.8})
HUB = data_parallel(2, coordinated=True)
IN_STEP = data_parallel(2, lockstep=True)
TWO_CLIENTS = data_parallel(2, tp=1, clients=2, coordinated=True)
CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, nothing_left_behind)

globals().update(family(__name__, (
    Case("test_two_cores_over_tcp",
         "A client, two cores and their coordinator.", Plan(), (*CALM, calls_answered),
         play={"topology": HUB, "workload": eight()}),
    Case("test_two_cores_in_step_over_tcp",
         "Two cores that step together, woken by their coordinator.",
         Plan(), (*CALM, dp_collectives_equal, dp_work_wakes_all), play={"topology": IN_STEP, "workload": waves()}),
    Case("test_two_clients_over_tcp",
         "Two clients of two cores, each at the addresses that their launcher kept for it.",
         Plan(), (client_routed, tokens_match_reference, blocks_conserved, served_in_turn, nothing_left_behind),
         play={"topology": TWO_CLIENTS}),
    Case("test_cores_alone_are_remote",
         "Cores speak tcp, and clients hear of them from a coordinator on their own host.",
         Plan(), CALM, play={"topology": HUB, "config": lab_config(sockets={**OVER_TCP, "remote": ("cores",)})}),
    Case("test_clients_alone_are_remote",
         "What a coordinator tells its clients goes by tcp, all else by ipc.",
         Plan(), CALM, play={"topology": HUB, "config": lab_config(sockets={**OVER_TCP, "remote": ("clients",)})}),
    Case("test_engine_over_ipv6",
         "The same over IPv6, with two I/O threads, and beats on each connection.",
         Plan(), CALM, play={"topology": HUB, "config": lab_config(sockets={
             **OVER_TCP, "host": "::1", "io_threads": 2, "heartbeat_s": 0.1, "buffer_bytes": None})}),
), topology=tensor_parallel(2), workload=recorded("eight-mixed"), config=CONFIG))
