"""Cores that not one starts alone: clients with cores of their own, or headless ones beside a head."""

from __future__ import annotations

from engine.topology import Mark, external, headless, hybrid
from faults.plan import (
    Plan,
    cut,
    delay,
    drop,
    duplicate,
    hang,
    kill,
    marked,
    plan,
    raises,
    stall,
    terminate,
    truncate,
    until,
)
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    calls_answered,
    death_is_told,
    dp_chosen_in_turn,
    dp_collectives_equal,
    dp_coordinator_death_is_told,
    dp_dead_never_chosen,
    dp_death_ends_group,
    dp_handshakes_agree,
    dp_missing_is_named,
    dp_view_converges,
    dp_work_wakes_all,
    ends_once,
    handshake_order,
    health_is_true,
    launcher_says,
    no_orphans,
    nothing_left_behind,
    served_in_turn,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import MORE, eight
from scenarios.test_lockstep import CALLS, counted, waves
from scenarios.test_offline import BOUNDS, STAYS, asks, uneven
from scenarios.workloads import ENDED, Workload, abort, add, for_ranks, recorded, utility

CONFIG = lab_config(bounds=BOUNDS)


def no_room() -> Workload:
    """Two that need all of the second client's first core, two for its second core, and some when this is known."""
    second = recorded("eight-mixed").then(add(0, 6, 1, 7), behind=("r1", 4)).then(add(2, 3, 4))
    return for_ranks(asks(0), {0: 0, 6: 0, 1: 1, 7: 1}).but(1, second)


TCP = lab_config(bounds=BOUNDS, sockets={"transport": "tcp"})
#: A start that waits in vain is over soon.
SOON = lab_config(bounds={**BOUNDS, "startup_s": 5.0, "handshake_s": 2.0})
SOON_TCP = lab_config(bounds=SOON.bounds, sockets={"transport": "tcp"})
#: Of a client that is ready while another one gives up, nobody asks anything.
NOTHING = recorded("eight-mixed").then()
AGAIN = Options(kill_all_then_restart=True)
CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, nothing_left_behind)
#: They may be closed before they have looked at their books.
IN_STEP = (*(promise for promise in CALM if promise is not blocks_conserved), dp_collectives_equal)
LOST = (death_is_told, ends_once, health_is_true, nothing_left_behind)
MISSED = (dp_missing_is_named, ends_once, health_is_true, nothing_left_behind)
STARTS = (start_ends, handshake_order, nothing_left_behind)
FAILED = (start_ends, nothing_left_behind)
REFUSED = (*FAILED, dp_handshakes_agree)
EXECUTED = marked("core.1", Mark.EXECUTED)
TO_HEAD, FROM_HEAD = "core.1->frontend.0/handshake", "frontend.0->core.1/handshake"
TO_OWN, FROM_OWN = "core.1->frontend.1/handshake", "frontend.1->core.1/handshake"
A_WHILE, A_SECOND = until(seconds=0.4), until(seconds=1.0)
#: What the second client's cores have of four requests that wait, as all are told.
THEIRS_COUNTED = {"type": "NOTICE", "counts": [[0, 0, 0.0], [0, 0, 0.0], [2, 0, 0.0], [2, 0, 0.0]]}


def one_alone() -> Workload:
    """The second client's caller chooses another client."""
    return asks(0, 1, 2).but(1, asks())


def behind_a_call() -> Workload:
    """All is asked for when a call has been answered."""
    return recorded("eight-mixed").then(utility("get_stats"), steps=0).then(add(*range(8)))


# -- external: a client and a core each

globals().update(family(__name__, (
    Case("test_two_clients_with_a_core_each_step_together",
         "Who asks chooses the client, and one coordinator wakes all cores.",
         Plan(), (*IN_STEP, abort_is_final)),
    Case("test_two_clients_with_a_core_each_over_tcp",
         "The same over tcp.",
         Plan(), IN_STEP, play={"config": TCP}),
    Case("test_two_clients_with_a_core_of_two_workers_each",
         "The same with two workers each.",
         Plan(), IN_STEP, play={"topology": external(2, tp=2)}),
    Case("test_four_clients_with_a_core_each",
         "The same with four of them.",
         Plan(), IN_STEP, play={"topology": external(4)}),
    Case("test_one_of_two_clients_with_a_core_each_is_asked_nothing",
         "Nobody has to ask each of them: whoever has work wakes the others.",
         Plan(), (*IN_STEP, dp_work_wakes_all), play={"workload": one_alone()}),
    Case("test_core_of_one_of_two_clients_dies",
         "A core is killed while all step: the client of each is told, by its name.",
         plan(kill("core.1", at=EXECUTED, nth=3)), (*LOST, dp_death_ends_group)),
    Case("test_core_of_the_head_dies",
         "The same of the first core.",
         plan(kill("core.0", at=marked("core.0", Mark.EXECUTED), nth=3)), (*LOST, dp_death_ends_group)),
    Case("test_core_of_one_of_two_clients_raises",
         "A core fails by itself.",
         plan(raises("core.1", at=EXECUTED, nth=3)), (ends_once, health_is_true, nothing_left_behind)),
    Case("test_core_of_one_of_two_clients_stands_still",
         "A core is stopped for good while all step.",
         plan(stall("core.1", at=EXECUTED, nth=3)), (ends_once, health_is_true, nothing_left_behind)),
    Case("test_coordinator_of_two_clients_with_a_core_each_dies",
         "The coordinator is killed: of those that it wakes none goes on.",
         plan(kill("coordinator.0", at="core.0->frontend.0/outputs:send", nth=3)),
         (dp_coordinator_death_is_told, ends_once, nothing_left_behind)),
    Case("test_head_dies",
         "The client is killed that owns the coordinator and the first core: the other one's core goes, too.",
         plan(kill("frontend.0", at="core.0->frontend.0/outputs:receive", nth=2)), (no_orphans,)),
    Case("test_client_beside_the_head_dies",
         "The other client is killed.",
         plan(kill("frontend.1", at="core.1->frontend.1/outputs:receive", nth=2)), (no_orphans,)),
    Case("test_core_of_one_of_two_clients_dies_at_an_all_reduce",
         "A core is killed where it enters what the other one waits in: that one is told by nobody, and sees it.",
         plan(kill("core.1", at="core.1/consensus:enter", nth=2)), LOST),
    Case("test_core_of_one_of_two_clients_dies_while_it_waits",
         "A core that waits for the other one is killed.",
         plan(kill("core.1", at="core.0/consensus:enter", nth=2)), LOST),
    Case("test_core_of_one_of_two_clients_stands_still_while_it_waits",
         "A core that waits for the other one is stopped for good: that one says that it has come, and no answer.",
         plan(stall("core.1", at="core.0/consensus:enter", nth=2)), MISSED),
    Case("test_core_of_one_of_three_clients_stands_still_while_it_waits",
         "Of both others each says so, and neither of the other one.",
         plan(stall("core.2", at="core.1/consensus:enter", nth=2),
              hang("core.0", at="core.0/consensus:enter", nth=2, until=until(seconds=0.1))), MISSED,
         play={"topology": external(3)}),
    Case("test_core_of_one_of_three_clients_stands_still",
         "One of both others has waited longer, and gives up: the last one says why, and that it is the stopped one's "
         "doing.",
         plan(stall("core.1", at="core.1/consensus:enter", nth=2),
              hang("core.2", at="core.2/consensus:enter", nth=2, until=until(seconds=0.2))), MISSED,
         play={"topology": external(3)}),
    Case("test_core_of_one_of_three_clients_dies",
         "A core is killed while another one has not come yet: its client hears of the coordinator alone, which the "
         "head has ended.",
         plan(kill("core.1", at="core.0/consensus:enter", nth=2),
              hang("core.2", at="core.2/consensus:enter", nth=2, until=until(seconds=0.5))), LOST,
         play={"topology": external(3)}),
    Case("test_client_of_a_dead_core_goes_on_being_told",
         "Both clients stay: whatever they ask later is answered at once.",
         plan(kill("core.1", at=EXECUTED, nth=3)), (*LOST, dp_death_ends_group), play={"options": STAYS}),
    Case("test_two_clients_with_a_core_each_are_killed_and_start_again",
         "All processes are killed at once: the next start finds nothing in its way.",
         Plan(), (nothing_left_behind, tokens_match_reference), play={"options": AGAIN}),
), topology=external(2), workload=uneven(), config=CONFIG))

# -- the two handshakes of a core that the head has not started

globals().update(family(__name__, (
    Case("test_a_word_to_the_head_is_lost",
         "What a core says to the head does not come: nobody starts, and both say why.",
         lambda nth: plan(drop(TO_HEAD, nth=nth)), STARTS, each=(1, 2, 3), play={"workload": NOTHING}),
    Case("test_the_answer_of_the_head_is_lost",
         "A core is not told where the coordinator is.",
         plan(drop(FROM_HEAD)), STARTS),
    Case("test_a_word_to_its_own_client_is_lost",
         "What a core says to its own client does not come.",
         lambda nth: plan(drop(TO_OWN, nth=nth)), STARTS, each=(1, 2, 3), play={"workload": NOTHING}),
    Case("test_the_answer_of_its_own_client_is_lost",
         "A core is not told where its requests come from.",
         plan(drop(FROM_OWN)), STARTS),
    Case("test_a_handshake_is_late",
         "A word of either handshake comes late: nothing is sent before.",
         lambda edge: plan(delay(edge, nth=2 if edge in (TO_HEAD, TO_OWN) else 1, until=A_WHILE)),
         (*STARTS, tokens_match_reference, dp_handshakes_agree), each=(TO_HEAD, FROM_HEAD, TO_OWN, FROM_OWN)),
    Case("test_a_handshake_is_doubled",
         "A word of either handshake comes twice.",
         lambda edge: plan(duplicate(edge, nth=2 if edge in (TO_HEAD, TO_OWN) else 1)),
         (*STARTS, tokens_match_reference, dp_handshakes_agree), each=(TO_HEAD, FROM_HEAD, TO_OWN, FROM_OWN)),
    Case("test_a_core_dies_between_its_handshakes",
         "It has greeted the head, and not yet its own client.",
         plan(kill("core.1", at=f"{TO_OWN}:send", nth=1)), STARTS),
    Case("test_the_head_dies_before_it_answers",
         "A core has greeted it: it waits no longer than its bound.",
         plan(kill("frontend.0", at=f"{TO_HEAD}:receive", nth=2)), (no_orphans, nothing_left_behind)),
    Case("test_connection_to_the_head_is_cut",
         "A core's greeting is lost with its connection.",
         plan(cut(TO_HEAD, nth=2)), STARTS, play={"config": SOON_TCP}),
    Case("test_connection_to_its_own_client_is_cut",
         "The same of its other greeting.",
         plan(cut(TO_OWN, nth=2)), STARTS, play={"config": SOON_TCP}),
    Case("test_a_greeting_cannot_be_read",
         "HELLO is cut short: the head says that it cannot read it.",
         plan(truncate(TO_HEAD, nth=2)), STARTS),
    Case("test_a_client_is_late",
         "The other client comes late: the head waits for its core.",
         plan(hang("frontend.1", at=marked("frontend.1", Mark.BORN), until=A_WHILE)),
         (tokens_match_reference, nothing_left_behind)),
    Case("test_a_client_never_comes",
         "The other client never comes: the head names the core that it misses.",
         plan(kill("frontend.1", at=marked("frontend.1", Mark.BORN))), (nothing_left_behind,)),
    Case("test_two_sides_are_configured_otherwise",
         "The second client has another interval between all-reduces: its core refuses, and names that.",
         Plan(), REFUSED, play={"options": Options(differs={"sync_interval": 7})}),
    Case("test_two_sides_disagree_about_the_size",
         "The second client believes in one rank more: its core takes over the head's, and refuses its client's.",
         Plan(), REFUSED, play={"options": Options(differs={"data_parallel_size": 3})}),
), topology=external(2), workload=asks(0, 1, 2), config=SOON))

# -- headless: one client, whose cores are not all its own

globals().update(family(__name__, (
    Case("test_headless_core_serves_the_head",
         "One core is started elsewhere: its head asks it as its own.",
         Plan(), (*CALM, abort_is_final, calls_answered)),
    Case("test_headless_core_over_tcp",
         "The same over tcp.",
         Plan(), CALM, play={"config": TCP}),
    Case("test_headless_cores_of_two_workers",
         "Two headless cores of two workers each.",
         Plan(), CALM, play={"topology": headless(2, 2, tp=2)}),
    Case("test_headless_core_beside_a_coordinator",
         "They have a coordinator, which the head starts.",
         Plan(), CALM, play={"topology": headless(2, 1, coordinated=True)}),
    Case("test_headless_core_steps_together_with_the_head_s",
         "They step together.",
         Plan(), IN_STEP, play={"topology": headless(2, 1, lockstep=True), "workload": waves()}),
    Case("test_headless_core_dies",
         "It is killed: the head is told, and its own core serves on.",
         plan(kill("core.1", at=EXECUTED, nth=3)), (*LOST, dp_death_ends_group), play={"workload": MORE}),
    Case("test_headless_core_dies_beside_its_launcher",
         "It is killed when it has served for a while, and who started it says so, too.",
         plan(delay("frontend.0->core.1/requests", nth=1, match=CALLS, until=A_SECOND),
              kill("core.1", at=EXECUTED, nth=3)), (*LOST, launcher_says), play={"workload": behind_a_call()}),
    Case("test_headless_core_that_steps_together_dies",
         "The same where all step together: none goes on.",
         plan(kill("core.1", at=EXECUTED, nth=3)), LOST,
         play={"workload": waves(), "topology": headless(2, 1, lockstep=True)}),
    Case("test_headless_launcher_dies",
         "Who started it is killed: it goes, and the head is told.",
         plan(kill("launcher.1", at="core.1->frontend.0/outputs:send", nth=4)), (ends_once, nothing_left_behind),
         play={"workload": MORE}),
    Case("test_head_of_a_headless_core_dies",
         "The head is killed: the headless core goes, and so does its launcher.",
         plan(kill("frontend.0", at="core.1->frontend.0/outputs:receive", nth=3)), (no_orphans,)),
    Case("test_head_of_a_headless_core_dies_and_nobody_closes_it",
         "The same where nobody ends what is left: it goes by itself.",
         plan(kill("frontend.0", at="core.1->frontend.0/outputs:receive", nth=3)), (no_orphans,),
         play={"options": Options(rest_s=1.0)}),
    Case("test_headless_core_stands_still",
         "It is stopped: its launcher ends it, and the head is told.",
         plan(stall("core.1", at=EXECUTED, nth=3)), (ends_once, health_is_true, launcher_says, nothing_left_behind),
         play={"workload": MORE}),
    Case("test_headless_core_is_asked_to_leave",
         "SIGTERM: it serves what it has to the end.",
         plan(terminate("core.1", at=EXECUTED, nth=3)), (nothing_left_behind,), play={"workload": MORE}),
    Case("test_headless_group_is_late",
         "It comes late: the head waits.",
         plan(hang("launcher.1", at=marked("launcher.1", Mark.BORN), until=A_WHILE)),
         (tokens_match_reference, nothing_left_behind), play={"config": SOON}),
    Case("test_headless_group_never_comes",
         "It never comes: the head names the core that it misses.",
         plan(kill("launcher.1", at=marked("launcher.1", Mark.BORN))), (nothing_left_behind,), play={"config": SOON}),
    Case("test_headless_core_dies_as_it_starts",
         "It is killed before it is ready.",
         plan(kill("core.1", at=marked("core.1", Mark.READY))), FAILED, play={"config": SOON}),
    Case("test_headless_core_dies_behind_its_greeting",
         "It is killed when it has greeted: nobody waits for what it has still to say.",
         plan(kill("core.1", at=f"{TO_HEAD}:send", nth=3)), FAILED, play={"config": SOON}),
    Case("test_headless_core_is_configured_otherwise",
         "Its launcher believes in another interval between all-reduces: it refuses, and names that.",
         Plan(), REFUSED, play={"config": SOON, "options": Options(differs={"sync_interval": 7})}),
    Case("test_headless_launcher_believes_in_clients_of_its_own",
         "Its launcher believes in a load balancing by which its cores have a client of their own: it says that they "
         "have not, and starts nothing.",
         Plan(), FAILED, play={"config": SOON, "options": Options(differs={"load_balancing": "external"})}),
    Case("test_headless_core_believes_in_more_ranks",
         "Its launcher believes in one rank more: it takes over what the head says, and serves.",
         Plan(), (tokens_match_reference, nothing_left_behind, dp_handshakes_agree), play={
             "config": SOON, "options": Options(differs={"data_parallel_size": 3})}),
    Case("test_a_word_of_a_headless_core_is_lost",
         "What it says to the head does not come.",
         lambda nth: plan(drop(TO_HEAD, nth=nth)), STARTS, each=(1, 2, 3), play={"config": SOON}),
    Case("test_a_handshake_of_a_headless_core_is_late",
         "A word of its handshake comes late: the head waits.",
         lambda edge: plan(delay(edge, nth=2 if edge == TO_HEAD else 1, until=A_WHILE)),
         (*STARTS, tokens_match_reference), each=(TO_HEAD, FROM_HEAD), play={"config": SOON}),
    Case("test_a_handshake_of_a_headless_core_is_doubled",
         "It comes twice.",
         lambda edge: plan(duplicate(edge, nth=2 if edge == TO_HEAD else 1)),
         (*STARTS, tokens_match_reference), each=(TO_HEAD, FROM_HEAD), play={"config": SOON}),
    Case("test_announcement_of_a_headless_core_is_lost",
         "The head does not know that it can be sent to.",
         plan(drop("core.1->frontend.0/requests")), FAILED, play={"config": SOON}),
    Case("test_coordinator_beside_a_headless_core_dies",
         "It costs nothing but counts.",
         plan(kill("coordinator.0", at="core.1->frontend.0/outputs:send", nth=3)),
         (dp_coordinator_death_is_told, tokens_match_reference, nothing_left_behind),
         play={"topology": headless(2, 1, coordinated=True)}),
    Case("test_coordinator_of_a_headless_core_in_step_dies",
         "Of those that it wakes none goes on.",
         plan(kill("coordinator.0", at="core.1->frontend.0/outputs:send", nth=3)),
         (dp_coordinator_death_is_told, ends_once, nothing_left_behind),
         play={"workload": waves(), "topology": headless(2, 1, lockstep=True)}),
    Case("test_worker_of_a_headless_core_dies",
         "A worker is killed: its core goes, and no other.",
         plan(kill("worker.1.1", at=marked("worker.1.1", Mark.EXECUTING), nth=8)), LOST,
         play={"workload": MORE, "topology": headless(2, 1, tp=2)}),
    Case("test_connection_to_a_headless_core_is_cut",
         "It takes its client for gone, frees what is its, and is announced again.",
         plan(cut("frontend.0->core.1/requests", nth=3)), (ends_once, nothing_left_behind),
         play={"config": lab_config(sockets={"transport": "tcp"}, bounds={**BOUNDS, "request_s": 1.2}),
               "workload": recorded("eight-mixed")}),
    Case("test_head_and_headless_core_are_killed_and_start_again",
         "All processes are killed at once: the next start finds nothing in its way.",
         Plan(), (nothing_left_behind, tokens_match_reference), play={"options": AGAIN}),
    Case("test_word_to_a_headless_core_to_leave_is_lost",
         "Nobody asks it to leave: it sees that its client is gone.",
         plan(drop("frontend.0->core.1/requests", match={"type": "LEAVE"})), (nothing_left_behind,)),
), topology=headless(2, 1), workload=eight(), config=CONFIG))

# -- hybrid: a client with several cores each


def long_before_its_end() -> Workload:
    """What is aborted has got a few of many tokens. Each core goes at its own pace: none waits for another one's."""
    return recorded("eight-mixed").then(add(*range(8)), behind=("r6", 3)).then(abort(6), utility("get_stats")).but(
        1, asks(0, 1))


globals().update(family(__name__, (
    Case("test_two_clients_with_two_cores_each",
         "Each spreads its requests over its own cores alone, and one coordinator tells both of theirs.",
         Plan(), (*CALM, abort_is_final), play={"workload": long_before_its_end()}),
    Case("test_two_clients_with_two_cores_each_over_tcp",
         "The same over tcp.",
         Plan(), CALM, play={"config": TCP}),
    Case("test_two_clients_with_two_cores_each_step_together",
         "All four step together.",
         Plan(), IN_STEP, play={"topology": hybrid(2, 2, lockstep=True)}),
    Case("test_one_of_two_cores_of_a_second_client_dies",
         "Its own client is told, and the other three serve on: its neighbour is amid a request by then.",
         plan(kill("core.3", at=marked("core.3", Mark.EXECUTED), nth=2),
              hang("core.2", at=marked("core.2", Mark.EXECUTED), nth=4, until=until(seconds=0.4))),
         (*LOST, dp_death_ends_group)),
    Case("test_one_of_two_cores_of_a_second_client_dies_and_more_is_asked",
         "It knows which one that was: what comes then goes to the other one.",
         plan(kill("core.3", at=marked("core.3", Mark.EXECUTED), nth=2),
              hang("core.2", at=marked("core.2", Mark.EXECUTED), nth=4, until=until(seconds=0.4))),
         (*LOST, dp_death_ends_group, dp_dead_never_chosen),
         play={"workload": asks(0).but(1, recorded("eight-mixed").then(
             add(0, 1), behind=("r0", ENDED)).then(add(2, 3, 4)))}),
    Case("test_one_of_two_cores_of_a_second_client_has_no_room",
         "It knows which one that is by what all are told: what comes then goes to the other one.",
         plan(hang("core.2", at=marked("core.2", Mark.STEP), nth=6, until=until(seconds=0.5)),
              hang("core.3", at=marked("core.3", Mark.STEP), nth=4, until=until(seconds=0.4))),
         (dp_chosen_in_turn, tokens_match_reference, nothing_left_behind), play={
             "config": lab_config(bounds=BOUNDS, cache={"block_size": 8, "num_gpu_blocks": 48}),
             "workload": no_room()}),
    Case("test_core_of_a_second_client_dies_and_all_step_together",
         "None goes on.",
         plan(kill("core.3", at=marked("core.3", Mark.EXECUTED), nth=2)), LOST,
         play={"topology": hybrid(2, 2, lockstep=True)}),
    Case("test_counts_to_the_second_of_two_clients_are_lost",
         "The client that has no coordinator of its own is told again by the other one's, though nothing has changed.",
         plan(drop("coordinator.0->frontend.1/stats", nth=1, match=THEIRS_COUNTED),
              *(delay("frontend.1->core.2/requests", nth=nth, match=CALLS, until=A_SECOND) for nth in (1, 2))),
         (*CALM, dp_view_converges), play={"workload": counted().but(0, asks(0))}),
    Case("test_coordinator_of_two_clients_with_two_cores_each_dies",
         "It costs nothing but counts.",
         plan(kill("coordinator.0", at="core.0->frontend.0/outputs:send", nth=3)),
         (dp_coordinator_death_is_told, tokens_match_reference, nothing_left_behind)),
    Case("test_head_of_two_clients_with_two_cores_each_dies",
         "The other one's cores serve on.",
         plan(kill("frontend.0", at="core.0->frontend.0/outputs:receive", nth=2)), (no_orphans,)),
    Case("test_second_of_two_clients_with_two_cores_each_dies",
         "The head's cores serve on.",
         plan(kill("frontend.1", at="core.2->frontend.1/outputs:receive", nth=2)), (no_orphans,)),
    Case("test_a_word_of_one_of_two_cores_to_the_head_is_lost",
         "Nobody starts, and both clients say why.",
         plan(drop("core.3->frontend.0/handshake", nth=2)), STARTS, play={"config": SOON}),
    Case("test_two_clients_with_two_cores_each_are_configured_otherwise",
         "The second one's cores speak another protocol than the head's.",
         Plan(), REFUSED, play={"config": SOON, "options": Options(differs={"wave_protocol": "old"})}),
), topology=hybrid(2, 2), workload=uneven(), config=CONFIG))
