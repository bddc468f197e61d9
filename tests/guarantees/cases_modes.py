"""Histories of cores that the head of their group has not started."""

from engine.topology import data_parallel, external, headless, offline
from scenarios.history.play import Options
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

AGREE = "dp-handshakes-agree"
HEAD, OWN, CORE = "frontend.0", "frontend.1", "core.1"
SETTINGS = {"data_parallel_size": 2, "sync_interval": 16}


def greets(h: Builder, *clients: str, late: str = "", ready: bool = True) -> Builder:
    """It says all that it has to say, and is answered."""
    for client in clients:
        h.sends(f"{CORE}->{client}/handshake", "empty", "hello")
        if client == late:
            h.fires("delay", f"{client}->{CORE}/handshake:receive", node=CORE)
        else:
            h.carries(f"{client}->{CORE}/handshake", "metadata")
    for client in clients if ready else ():
        h.sends(f"{CORE}->{client}/handshake", "ready")
    return h


def starts(*, differs: dict[str, object] | None = None, alone: bool = False) -> Builder:
    topology = headless(2, 1) if alone else external(2)
    h = history(tp=1, topology=topology, data_parallel_size=2)
    h.play_values["options"] = Options(differs=differs or {})
    for client in (HEAD,) if alone else (HEAD, OWN):
        h.observes(client, "starting")
    return h


def is_ready(h: Builder, *clients: str, core: dict[str, object] | None = None) -> Builder:
    h.observes(CORE, "ready", num_gpu_blocks=8, parallel_config=core or SETTINGS)
    for client in clients:
        h.observes(client, "ready", num_gpu_blocks=8, parallel_config=SETTINGS)
    return h


def works(h: Builder) -> Builder:
    return h.observes(CORE, "request", request="a-1", action="add", reason="")


def gives_up(h: Builder, *clients: str, reason: str) -> Builder:
    for client in clients:
        h.observes(client, "start-failed", error="StartupError", reason=reason)
    return h


@accepts(AGREE)
def an_answer_was_doubled_and_it_waited_for_both() -> Builder:
    h = starts().fires("duplicate", f"{HEAD}->{CORE}/handshake:receive", node=CORE)
    return works(is_ready(greets(h, HEAD, OWN), HEAD, OWN))


@accepts(AGREE)
def the_head_is_told_what_differs_and_so_is_the_other_client() -> Builder:
    h = greets(starts(differs={"sync_interval": 7}), HEAD, OWN, ready=False)
    return gives_up(h, HEAD, OWN, reason="core.1 refuses: sync_interval is 7 here, and 16 of frontend.0")


@accepts(AGREE)
def a_headless_core_takes_over_how_many_there_are() -> Builder:
    h = greets(starts(differs={"data_parallel_size": 3}, alone=True), HEAD)
    return works(is_ready(h, HEAD))


@rejects(AGREE)
def it_works_before_it_has_told_the_head_that_it_is_ready() -> Builder:
    h = greets(starts(), HEAD, ready=False)
    return works(is_ready(greets(h, OWN), OWN))


@rejects(AGREE)
def it_works_before_the_head_has_answered() -> Builder:
    return works(is_ready(greets(starts(), HEAD, OWN, late=HEAD), OWN))


@rejects(AGREE)
def it_is_woken_before_its_own_client_has_answered() -> Builder:
    h = greets(starts(), HEAD, OWN, late=OWN)
    return is_ready(h, HEAD).observes(CORE, "start-heard", wave=0, exclude=0, at=0, runs=True)


@rejects(AGREE)
def it_goes_by_another_size() -> Builder:
    return works(is_ready(greets(starts(), HEAD, OWN), HEAD, OWN, core={"data_parallel_size": 3, "sync_interval": 16}))


@rejects(AGREE)
def a_headless_core_refuses_what_it_should_take_over() -> Builder:
    h = greets(starts(differs={"data_parallel_size": 3}, alone=True), HEAD, ready=False)
    return gives_up(h, HEAD, reason="core.1 refuses: data_parallel_size is 3 here, and 2 of frontend.0")


@rejects(AGREE)
def it_is_ready_though_it_is_configured_otherwise() -> Builder:
    return is_ready(greets(starts(differs={"sync_interval": 7}), HEAD, OWN), HEAD, OWN)


@rejects(AGREE)
def the_head_is_not_told_what_differs() -> Builder:
    h = greets(starts(differs={"sync_interval": 7}), HEAD, OWN, ready=False)
    gives_up(h, HEAD, reason="core.1 has another parallel configuration")
    return gives_up(h, OWN, reason="sync_interval is 7 here, and 16 of frontend.0")


@silent(AGREE)
def nothing_befalls_its_handshakes() -> Builder:
    return works(is_ready(greets(starts(), HEAD, OWN), HEAD, OWN))


def meets(*, differs: dict[str, object] | None = None, count: int = 2) -> Builder:
    """Ranks that nobody starts together."""
    h = history(tp=1, topology=offline(count), data_parallel_size=count)
    h.play_values["options"] = Options(differs=differs or {})
    for rank in range(count):
        h.observes(f"frontend.{rank}", "starting")
    return h


def never_comes() -> Builder:
    return meets(count=3).fires("kill", "core.1/mark:born").wait(1.0)


@accepts(AGREE)
def all_ranks_are_told_what_differs() -> Builder:
    h = meets(differs={"sync_interval": 7})
    return gives_up(h, HEAD, OWN, reason="sync_interval is 4 of core.0 and 7 of core.1")


@accepts(AGREE)
def all_other_ranks_are_told_who_never_came() -> Builder:
    return gives_up(never_comes(), HEAD, "frontend.2", reason="core.1 (rank 1) of 3 did not come within 5 s")


def _unanswered(reason: str) -> Builder:
    """Its own client's answer is lost, and another rank dies."""
    h = meets().fires("kill", "core.0/mark:born").observes("core.1", "born", pid=12)
    h.fires("drop", f"{OWN}->core.1/handshake:receive", node="core.1").wait(1.0)
    h.observes("core.1", "dying", reason="StartupError: the frontend did not answer", queued=0)
    return gives_up(h, OWN, reason=reason)


@silent(AGREE)
def whose_own_core_was_not_answered_need_not_be_told_of_another_one() -> Builder:
    return _unanswered("the frontend did not answer")


@rejects(AGREE)
def whose_own_core_was_not_answered_is_told_something_else() -> Builder:
    return _unanswered("it is late")


@accepts(AGREE)
def all_ranks_are_told_who_is_none_of_them() -> Builder:
    h = meets(differs={"data_parallel_size": 3, "data_parallel_rank": 2})
    return gives_up(h, HEAD, OWN, reason="core.1 came as rank 2, of 2")


def comes_and_dies() -> Builder:
    return meets(count=3).observes("core.1", "born", pid=12).wait(.1).fires("kill", "core.1/mark:born").wait(1.0)


@accepts(AGREE)
def who_came_and_died_is_missed_as_one_that_never_came() -> Builder:
    return gives_up(comes_and_dies(), HEAD, "frontend.2", reason="core.1 (rank 1) of 3 did not come within 5 s")


@rejects(AGREE)
def who_came_and_died_is_met_all_the_same() -> Builder:
    return comes_and_dies().observes("core.0", "ranks-met", ranks=["core.0", "core.1", "core.2"])


def two_of_one_rank() -> Builder:
    h = meets(differs={"data_parallel_rank": 0})
    return h.observes("core.0", "born", pid=11).observes("core.1", "born", pid=12)


@accepts(AGREE)
def both_that_come_as_one_rank_are_named() -> Builder:
    return gives_up(two_of_one_rank(), HEAD, OWN, reason="core.0 (pid 11) and core.1 (pid 12) both came as rank 0")


@rejects(AGREE)
def who_came_as_another_one_s_rank_is_said_not_to_have_come() -> Builder:
    return gives_up(two_of_one_rank(), HEAD, OWN, reason="core.1 (rank 1) of 2 did not come within 5 s")


@rejects(AGREE)
def of_two_that_come_as_one_rank_it_is_not_said_which_processes() -> Builder:
    return gives_up(two_of_one_rank(), HEAD, OWN, reason="core.0 and core.1 both came as rank 0")


@rejects(AGREE)
def a_rank_that_there_is_none_of_is_not_said() -> Builder:
    h = meets(differs={"data_parallel_size": 3, "data_parallel_rank": 2})
    return gives_up(h, HEAD, OWN, reason="data_parallel_size is 2 of core.0 and 3 of core.1")


@accepts(AGREE)
def a_rank_that_there_is_none_of_came_first() -> Builder:
    """To it the other one is of too few."""
    h = meets(differs={"data_parallel_size": 3, "data_parallel_rank": 2})
    return gives_up(h, HEAD, OWN, reason="data_parallel_size is 3 of core.1 and 2 of core.0")


@rejects(AGREE)
def one_rank_is_not_told_what_differs() -> Builder:
    h = meets(differs={"sync_interval": 7})
    return gives_up(gives_up(h, HEAD, reason="sync_interval is 4 of core.0"), OWN, reason="core.0 did not come")


@rejects(AGREE)
def somebody_else_is_said_not_to_have_come() -> Builder:
    return gives_up(never_comes(), HEAD, reason="core.1 (rank 1) and core.2 (rank 2) of 3 did not come within 5 s")


@rejects(AGREE)
def ranks_that_differ_are_ready() -> Builder:
    return is_ready(meets(differs={"sync_interval": 7}), HEAD, OWN)


def runs(*, differs: dict[str, object] | None = None) -> Builder:
    """Two cores with a launcher, which are ready for two clients."""
    h = history(tp=1, topology=data_parallel(2, tp=1, clients=2, lockstep=True), data_parallel_size=2)
    h.play_values["options"] = Options(differs=differs or {})
    h.observes("launcher.0", "ready", num_gpu_blocks=8, parallel_config={**SETTINGS, **(differs or {})})
    return h.observes(HEAD, "starting")


@accepts(AGREE)
def a_client_is_told_what_differs_from_its_engines() -> Builder:
    return gives_up(runs(differs={"sync_interval": 7}), HEAD, reason="sync_interval is 16 here, and the engines have 7")


@rejects(AGREE)
def a_client_is_not_told_what_differs_from_its_engines() -> Builder:
    return gives_up(runs(differs={"sync_interval": 7}), HEAD, reason="it does not fit")


@rejects(AGREE)
def a_client_attaches_to_engines_that_differ() -> Builder:
    return runs(differs={"sync_interval": 7}).observes(HEAD, "ready", num_gpu_blocks=8, parallel_config=SETTINGS)


@silent(AGREE)
def a_client_attaches_to_engines_with_its_settings() -> Builder:
    return runs().observes(HEAD, "ready", num_gpu_blocks=8, parallel_config=SETTINGS)


@rejects(AGREE)
def a_rank_is_ready_that_has_not_met_all_others() -> Builder:
    h = meets(count=3).observes(CORE, "ranks-met", ranks=["core.0", "core.1"])
    return h.observes(CORE, "ready", num_gpu_blocks=8, parallel_config=SETTINGS)


@silent(AGREE)
def a_rank_is_ready_that_has_met_all_others() -> Builder:
    h = meets().observes(CORE, "ranks-met", ranks=["core.0", "core.1"])
    return h.observes(CORE, "ready", num_gpu_blocks=8, parallel_config=SETTINGS)


STARTS = "start-ends"


def dies_behind_its_greeting(*, after_s: float) -> Builder:
    h = starts(alone=True).carries(f"{CORE}->{HEAD}/handshake", "empty", "hello")
    h.fires("kill", f"{CORE}->{HEAD}/handshake:send", node=CORE).ends(CORE, exitcode=-9).wait(after_s)
    return gives_up(h, HEAD, reason="core.1 died while starting: it was started elsewhere, which may know why")


@accepts(STARTS)
def a_headless_core_dies_and_its_head_sees_that() -> Builder:
    return dies_behind_its_greeting(after_s=0.2)


@rejects(STARTS)
def a_headless_core_dies_and_its_head_waits_for_it() -> Builder:
    return dies_behind_its_greeting(after_s=4.0)


def attaches_to_a_core_that_died(*, after_s: float) -> Builder:
    h = history(tp=1, topology=data_parallel(1, tp=1, clients=2), data_parallel_size=1)
    h.fires("kill", "core.0/mark:step", node="core.0").ends("core.0", exitcode=-9).wait(1.0)
    h.observes(OWN, "starting").wait(after_s)
    return gives_up(h, OWN, reason="core.0 has ended: its engines are to be started again")


@rejects(STARTS)
def a_client_waits_for_a_core_that_has_died() -> Builder:
    return attaches_to_a_core_that_died(after_s=4.0)


@accepts(STARTS)
def a_client_sees_that_its_core_has_died() -> Builder:
    return attaches_to_a_core_that_died(after_s=0.2)


def the_head_s_answer_is_lost(reason: str) -> Builder:
    h = starts().fires("drop", f"{HEAD}->{CORE}/handshake:receive", node=CORE).wait(0.2).ends(CORE, exitcode=1)
    gives_up(h, HEAD, reason="core.1 died while starting: it was started elsewhere, which may know why")
    return gives_up(h, OWN, reason=reason)


@accepts(STARTS)
def a_client_says_that_the_head_did_not_answer_its_core() -> Builder:
    return the_head_s_answer_is_lost("core.1: frontend.0 did not answer the core's HELLO in time")


@rejects(STARTS)
def a_client_says_that_its_core_did_not_greet_it_which_waits_for_the_head() -> Builder:
    return the_head_s_answer_is_lost("core.1 did not say HELLO in time")
