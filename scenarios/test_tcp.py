"""An engine whose parts speak tcp: calm, and with each of its connections cut.

What is on its way when a connection is cut is lost; libzmq connects again within a tenth of a second. A request of
which something is lost fails within its bounds, what a coordinator says is said again, and a start ends by name.
"""

from __future__ import annotations

from engine.topology import data_parallel, tensor_parallel
from faults.plan import Plan, cut, plan, until
from scenarios.guarantees.all import (
    blocks_conserved,
    calls_answered,
    client_routed,
    dp_collectives_equal,
    dp_start_needs_all,
    dp_view_converges,
    dp_work_wakes_all,
    ends_once,
    lost_request_is_bounded,
    nothing_left_behind,
    served_in_turn,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
    unroutable_is_known,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import eight
from scenarios.test_lockstep import SLOW_CALLS, counted, waves
from scenarios.workloads import ENDED, add, recorded

OVER_TCP = {"transport": "tcp"}
CONFIG = lab_config(sockets=OVER_TCP, bounds={"collective_s": 0.8})
#: For plans whose losses only a request's own time-out can end.
SOON = lab_config(sockets=OVER_TCP, bounds={"collective_s": 0.8, "request_s": 1.2})
BEATS = lab_config(sockets={**OVER_TCP, "heartbeat_s": 0.05}, bounds={"request_s": 1.2})
#: A start that waits in vain is over soon.
SOON_OVER = lab_config(sockets=OVER_TCP, bounds={"startup_s": 5.0, "handshake_s": 2.0})
HUB = data_parallel(2, coordinated=True)
IN_STEP = data_parallel(2, lockstep=True)
TWO_CLIENTS = data_parallel(2, tp=1, clients=2, coordinated=True)
A_WHILE = until(seconds=0.4)
FOR_GOOD = until("core.1->frontend.0/outputs:send", 1_000_000)
TO_CORE, OUTPUTS = "frontend.0->core.1/requests", "core.1->frontend.0/outputs"
GREETINGS = "core.1->frontend.0/handshake"
STATS, WAVE, REPORT = "coordinator.0->frontend.0/stats", "coordinator.0->core.1/wave", "core.0->coordinator.0/report"
IN_WAVES = {"topology": IN_STEP, "workload": waves()}
STARTS = {"config": SOON_OVER, "topology": data_parallel(2)}
LOST = (lost_request_is_bounded, ends_once, tokens_in_order)
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

globals().update(family(__name__, (
    Case("test_connection_of_requests_is_cut",
         "A request is lost with its connection: it ends by its bound, the core comes back and the rest is served.",
         plan(cut(TO_CORE, nth=3)), LOST),
    Case("test_connection_of_requests_stays_cut",
         "Who asks a core that has no connection is told so at once, by name; it gets no more than its share.",
         plan(cut(TO_CORE, until=FOR_GOOD)), (unroutable_is_known, ends_once),
         play={"workload": recorded("eight-mixed").then(add(0, 1), behind=("r1", ENDED)).then(
             add(2, 3, 4, 5, 6, 7), add(0, name="again"), add(1, name="once more"))}),
    Case("test_connection_of_outputs_is_cut",
         "Outputs are lost with their connection: streams end at the gap, none shows a hole.",
         plan(cut(OUTPUTS, nth=4)), LOST),
    Case("test_connection_of_outputs_is_cut_for_a_while",
         "What a core says meanwhile waits for the next connection.",
         plan(cut(OUTPUTS, nth=4, until=A_WHILE)), LOST),
    Case("test_connection_of_outputs_stays_cut",
         "Nobody can hear one core any more: its requests end by their bound, and the other one serves on.",
         plan(cut(OUTPUTS, nth=4, until=FOR_GOOD)), (*LOST, nothing_left_behind)),
    Case("test_connection_of_hello_is_cut",
         "A core's greeting is lost with its connection: the start ends by that core's name.",
         plan(cut(GREETINGS, nth=2)), (start_ends, nothing_left_behind), play=STARTS),
    Case("test_connection_of_metadata_is_cut",
         "What a core is told at its start is lost with the connection.",
         plan(cut("frontend.0->core.1/handshake")), (start_ends, nothing_left_behind), play=STARTS),
    Case("test_connection_of_ready_is_cut",
         "A core's READY is lost with its connection.",
         plan(cut(GREETINGS, nth=3)), (start_ends, nothing_left_behind), play=STARTS),
    Case("test_connection_of_an_announcement_is_cut",
         "A core's first word on its input socket is lost with the connection.",
         plan(cut("core.1->frontend.0/requests")), (start_ends, nothing_left_behind), play=STARTS),
    Case("test_connection_of_counts_is_cut",
         "A notice of counts is lost with its connection: the client subscribes again and is told them again.",
         plan(*SLOW_CALLS, cut(STATS, until=A_WHILE)), (dp_view_converges, tokens_match_reference),
         play={"workload": counted(), "config": CONFIG}),
    Case("test_connection_of_a_subscription_is_cut",
         "A core's subscription is lost with its connection: nobody is ready before it has come.",
         plan(cut("core.1->coordinator.0/wave")), (dp_start_needs_all, tokens_match_reference)),
    Case("test_connection_of_a_start_is_cut",
         "START is lost with its connection: it is said again once that rank is back.",
         plan(cut(WAVE, nth=2)), (*CALM, dp_work_wakes_all, dp_collectives_equal), play=IN_WAVES),
    Case("test_connection_of_a_start_stays_cut",
         "A rank cannot be woken any more: those who step with it end, and say whom they missed.",
         plan(cut(WAVE, nth=2, until=FOR_GOOD)), (ends_once, nothing_left_behind), play=IN_WAVES),
    Case("test_connection_of_a_report_is_cut",
         "A rank's word that it has work is lost with its connection: it says so again.",
         plan(cut(REPORT)), (*CALM, dp_work_wakes_all, dp_collectives_equal), play=IN_WAVES),
    Case("test_connection_of_a_report_stays_cut",
         "A rank cannot say any more that it has work: those who step with it end, and say whom they missed.",
         plan(cut(REPORT, until=FOR_GOOD)), (ends_once, nothing_left_behind), play=IN_WAVES),
    Case("test_connection_of_requests_is_silent_for_a_while",
         "What a client asks vanishes, and nobody is told: it ends by its bound, and later requests are served.",
         plan(cut(TO_CORE, nth=3, until=A_WHILE, silent=True)), LOST),
    Case("test_connection_of_requests_that_beats_is_silent",
         "The same for good, where each connection beats: who asks later is told at once that nobody is connected.",
         plan(cut(TO_CORE, nth=2, silent=True)), (unroutable_is_known, ends_once),
         play={"config": BEATS, "workload": recorded("eight-mixed").then(add(*range(4)), behind=("r3", ENDED)).then(
             add(4, 5, 6, 7))}),
    Case("test_connection_of_outputs_is_silent",
         "What a core says vanishes for good: its requests end by their bound, and the other core serves on.",
         plan(cut(OUTPUTS, nth=4, silent=True)), (*LOST, nothing_left_behind)),
    Case("test_connection_of_a_start_is_silent_for_a_moment",
         "START vanishes, and nobody is told: it is said again in time.",
         plan(cut(WAVE, nth=2, until=until(seconds=0.1), silent=True)),
         (*CALM, dp_work_wakes_all, dp_collectives_equal), play=IN_WAVES),
    Case("test_connection_of_a_start_is_silent",
         "A rank cannot be woken any more, and nobody is told: those who step with it end, and say whom they missed.",
         plan(cut(WAVE, nth=2, silent=True)), (ends_once, nothing_left_behind), play=IN_WAVES),
    Case("test_connection_of_one_of_two_clients_is_cut",
         "A core takes that client for gone and frees what is its; it comes back, and the other one has lost nothing.",
         plan(cut("core.1->frontend.1/outputs", nth=4)), (client_routed, lost_request_is_bounded, ends_once),
         play={"topology": TWO_CLIENTS}),
    Case("test_connection_of_requests_of_one_of_two_clients_is_cut",
         "A request is lost with its connection: it ends by its bound, and the other client has lost nothing.",
         plan(cut("frontend.1->core.1/requests", nth=3)), (client_routed, lost_request_is_bounded, ends_once),
         play={"topology": TWO_CLIENTS}),
), topology=HUB, workload=recorded("eight-mixed"), config=SOON))
