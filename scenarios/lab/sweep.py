"""Every crossing once: one fault of every kind at every crossing of what an engine does, judged by every promise.

    phases x crossings of each (counted in a play without a fault) x fates that may befall each  ->  plays of one fault

Promises
- The same phases give the same plays in the same order; a sample is drawn from a seed, each phase with its share.
- Nothing is left out in silence: what was covered is counted by phase, and a play that fell over is a finding.
- Only what the twin allows first is played of each; a random outcome may be asked for (`seed` of `red`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.topology import (
    Engine,
    Mark,
    Topology,
    data_parallel,
    external,
    headless,
    hybrid,
    side_by_side,
    tensor_parallel,
)
from faults.generate import fates_at
from faults.journal import Kind
from faults.plan import (
    Fate,
    Fault,
    Plan,
    Until,
    corrupt,
    delay,
    drop,
    hang,
    kill,
    marked,
    plan,
    raises,
    stall,
    terminate,
    truncate,
)
from scenarios.guarantees.judge import judge
from scenarios.history.play import Options, Play
from scenarios.lab.queue_play import PLAYS as QUEUE_PLAYS
from scenarios.lab.settings import lab_config, of_topology
from scenarios.workloads.workload import Workload, abort, add, of_nobody, recorded, utility

#: How long what holds something holds it: shorter than every bound, and longer than each of them.
SHORT_S, LONG_S = 0.05, 6.0
_HOLDS = (Fate.STALL, Fate.HANG)
_AT_ANOTHER = (Fate.KILL, Fate.STALL, Fate.TERMINATE)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an engine does, on the smallest workload that reaches it."""

    name: str
    topology: Topology
    workload: Workload
    config: EngineConfig = lab_config()
    plan: Plan = Plan()  # what makes the phase: a SIGTERM for a drain
    options: Options = Options()
    calm: bool = False  # it is played as it is: of what befalls somebody in it nothing is promised

    @property
    def scenario(self) -> str:
        return f"sweep: {self.name}"

    def play(self, *faults: Fault) -> Play:
        return Play(
            scenario=self.scenario, title="", world="sim", topology=self.topology, promises=(),
            workload=msgspec.to_builtins(self.workload.played()), plan=Plan((*self.plan.faults, *faults)),
            config=of_topology(self.config, self.topology),
            options=self.options, virtual_time=True)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A play that turned red: `guarantee` broke, or the twin fell over (`guarantee` is empty)."""

    play: Play
    guarantee: str
    text: str


_TWO, _ONE, _FOUR = tensor_parallel(2), tensor_parallel(1), tensor_parallel(4)
_HEARD, _KV = tensor_parallel(2, subscribers=1), "core.0->subscriber.0/kv"
_ASKED, _ANSWERS = "subscriber.0->core.0/replay", "core.0->subscriber.0/replay"
_EVENTS = {"enable_kv_cache_events": True}
_FEW = add(0, 1)
#: Whoever waits for another rank gives up before anybody takes it for one that stands still.
_IN_STEP = lab_config(bounds={"collective_s": 0.8})


def phases() -> tuple[Phase, ...]:
    """All of them, smallest first."""
    pair = recorded("pair")
    short = pair.then(_FEW, steps=3).then(abort(0, 1))
    twice = recorded("single").then(add(0), steps=17).then(add(0, name="again"), steps=2).then(abort("again"))
    return (
        Phase(name="calm", topology=_TWO, workload=short),
        Phase(name="idle", topology=_TWO, workload=short, options=Options(await_death_s=3.0)),
        Phase(name="calm on one rank", topology=_ONE, config=lab_config(distributed_executor_backend="uni"),
              workload=pair.then(_FEW, utility("get_queue_stats"), steps=3).then(
                  utility("collective_rpc", "check_health", 2), abort(0, 1))),
        Phase(name="to the last token", topology=_TWO, workload=pair),
        Phase(name="an abort", topology=_TWO, workload=pair.then(_FEW, steps=3).then(abort(0))),
        Phase(name="a prefix hit", topology=_TWO, workload=twice),
        Phase(name="a preemption", topology=_TWO, config=lab_config(cache={"num_gpu_blocks": 8}), workload=pair),
        Phase(name="pressure", topology=_TWO, config=lab_config(
            cache={"num_gpu_blocks": 10}, scheduler={"max_num_batched_tokens": 24, "max_num_seqs": 2}),
            workload=recorded("eight-even").then(add(1, 2, 5), steps=12).then(abort(2), utility("get_stats"))),
        Phase(name="calls", topology=_TWO, workload=pair.then(_FEW, steps=2).then(
            utility("get_stats"), utility("collective_rpc", "get_num_blocks", 3), utility("reset_prefix_cache", True),
            utility("run_steps", 0), steps=40).then(add(0, name="again"), utility("ping", "ab", 3), steps=1).then(
            abort("again"))),
        Phase(name="buffers", topology=_TWO, config=lab_config(sockets={"own_frame_bytes": 64}), workload=pair.then(
            _FEW, utility("ping", [[*range(20)], [*range(20, 40)]]), steps=2).then(abort(0, 1))),
        Phase(name="texts", topology=_TWO, config=lab_config(skip_tokenizer_init=False),
              workload=recorded("texts").then(add(1, 3, 8))),
        Phase(name="a start of its own", topology=_TWO, workload=short, config=lab_config(
            start_method="auto", distributed_executor_backend="mp")),
        Phase(name="an executor of one rank for two", topology=_TWO, workload=short, calm=True, config=lab_config(
            distributed_executor_backend="uni")),
        Phase(name="a start that fails", topology=_TWO, workload=short, plan=plan(
            kill("core.0", at=marked("core.0", Mark.BORN)))),
        Phase(name="a burst", topology=_TWO, workload=recorded("single").then(
            add(0), utility("ping", "x", times=12), steps=2).then(abort(0))),
        Phase(name="as many blocks as fit", topology=_TWO, workload=short, config=lab_config(
            cache={"num_gpu_blocks": None})),
        Phase(name="a reset", topology=_TWO, workload=pair.then(_FEW, steps=3).then(
            abort(0, 1), utility("reset_prefix_cache"))),
        Phase(name="a drain", topology=_TWO, workload=pair, plan=plan(
            terminate("core.0", at=marked("core.0", Mark.STEP), nth=4))),
        Phase(name="a drain cut short", topology=_TWO, workload=pair, config=lab_config(bounds={"drain_s": 0.0}),
              plan=plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=4))),
        Phase(name="events", topology=tensor_parallel(2, subscribers=1), config=lab_config(kv_events=_EVENTS),
              workload=pair),
        Phase(name="events of the same twice", topology=_HEARD, workload=recorded("eight-growing").then(
            add(2, 3), steps=2).then(abort(2, 3)), config=lab_config(
                kv_events=_EVENTS, scheduler={"max_num_batched_tokens": 256})),  # both find nothing, and store the same
        Phase(name="plain events", topology=_HEARD, config=lab_config(kv_events=_EVENTS), workload=pair,
              options=Options(without_epochs=True), plan=plan(drop(_KV, nth=2))),
        Phase(name="events and nobody answers", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS, bounds={"replay_s": 2.0}), workload=recorded("eight-growing"),
              plan=plan(drop(_ANSWERS), drop(_KV, nth=3), drop(_KV, nth=5), drop(_ASKED, nth=3, times=3))),
        Phase(name="plain events and an answer of the life before", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"),
              options=Options(without_epochs=True, kill_all_then_restart=True), plan=plan(
                  drop(_KV, nth=29), drop(_KV, match={"seq": 28}, nth=2), drop(_ANSWERS, match={"seq": 28}, nth=2),
                  delay(_ANSWERS, nth=2, times=4, until=Until(seconds=0.15)),  # it comes amid the next life's own
                  delay(_ANSWERS, nth=6, times=27, until=Until(seconds=0.06)))),
        Phase(name="plain events of which the last one is overtaken by an answer", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"),
              options=Options(without_epochs=True), plan=plan(delay(_KV, nth=33, until=Until(seconds=0.4)))),
        Phase(name="plain events and one of the life before just where the next one is", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"), options=Options(
                  without_epochs=True, kill_all_then_restart=True), plan=plan(
                  delay(_KV, nth=29, until=Until(seconds=0.138)))),  # between the next life's batches 27 and 28
        Phase(name="events of a life that is over, behind the next one's", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"),
              options=Options(kill_all_then_restart=True), plan=plan(
                  drop(_ANSWERS), drop(_KV, times=31), delay(_KV, nth=32, until=Until(seconds=0.107)),
                  drop(_KV, nth=33))),  # nobody has followed it before
        Phase(name="plain events and nobody answers", topology=_HEARD, config=lab_config(kv_events=_EVENTS),
              workload=pair, calm=True, options=Options(without_epochs=True), plan=plan(
                  stall("core.0", at=f"{_KV}:send", nth=3, until=Until(seconds=1.2)), drop(_ASKED, nth=2, times=5))),
        Phase(name="plain events that are doubted, and neither answered nor believed", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=pair, options=Options(without_epochs=True), plan=plan(
                  stall("core.0", at=f"{_KV}:send", nth=3, until=Until(seconds=1.2)), drop(_ANSWERS, nth=8),
                  drop(_ANSWERS, nth=11), drop(_ASKED, nth=6))),
        Phase(name="a next life while a state is asked for", topology=_HEARD, workload=pair, calm=True,
              config=lab_config(kv_events={**_EVENTS, "buffer_steps": 2}), options=Options(kill_all_then_restart=True),
              plan=plan(drop(_KV, nth=2, times=2), drop(_ASKED, nth=3))),
        Phase(name="events that cannot be", topology=_HEARD, config=lab_config(kv_events=_EVENTS), calm=True,
              workload=recorded("eight-growing"), options=Options(
                  impossible_events=True, misnumbered_batch=True, kill_all_then_restart=True)),
        Phase(name="plain events of a life that only answers tell of", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"), options=Options(
                  without_epochs=True, kill_all_then_restart=True, await_death_s=0.5), plan=plan(
                  drop(_KV, nth=33, times=34), drop(_ASKED, nth=2), *(drop(_ANSWERS, nth=nth) for nth in (2, 5, 8)))),
        Phase(name="plain events that come a life too late", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"),
              options=Options(without_epochs=True, kill_all_then_restart=True), plan=plan(
                  drop(_KV, nth=21), delay(_KV, nth=33, until=Until(seconds=0.232)), drop(_KV, nth=40),
                  drop(_KV, nth=42), drop(_ANSWERS, nth=4), drop(_ANSWERS, nth=41),
                  *(delay(_ANSWERS, nth=nth, until=Until(seconds=held_s)) for nth, held_s in (
                      (2, 0.24), (3, 0.24), (39, 0.014), (40, 0.0142), (42, 0.0145))))),
        Phase(name="plain events of a life before, behind what answers brought", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"), options=Options(
                  without_epochs=True, kill_all_then_restart=True, await_death_s=1.3), plan=plan(
                  drop(_KV, nth=2, times=18), delay(_KV, nth=20, until=Until(seconds=2.21)),
                  drop(_KV, nth=21, times=46), drop(_ANSWERS, nth=98))),  # the same batch of the life after
        Phase(name="plain events of a life that is heard where the one before ended", topology=_HEARD, calm=True,
              config=lab_config(kv_events=_EVENTS), workload=recorded("eight-growing"), options=Options(
                  without_epochs=True, kill_all_then_restart=True), plan=plan(
                  drop(_KV, nth=26, times=8), drop(_KV, nth=36),
                  delay(_ANSWERS, nth=2, times=3, until=Until(seconds=0.03)))),
        Phase(name="events out of the window", topology=_HEARD, workload=pair, plan=plan(drop(_KV, nth=2, times=2)),
              config=lab_config(kv_events={**_EVENTS, "buffer_steps": 2})),
        Phase(name="a snapshot", topology=_HEARD, workload=pair,
              config=lab_config(kv_events={**_EVENTS, "buffer_steps": 2}), options=Options(late_subscriber=True)),
        Phase(name="a state behind a reset", topology=tensor_parallel(2, subscribers=1),
              workload=pair.then(add(0), steps=40).then(utility("reset_prefix_cache"), add(1), steps=18).then(abort(1)),
              config=lab_config(kv_events={**_EVENTS, "buffer_steps": 2}), options=Options(late_subscriber=True)),
        Phase(name="a reset in the window", topology=tensor_parallel(2, subscribers=1), calm=True,
              workload=pair.then(add(0), steps=40).then(utility("reset_prefix_cache"), add(1), steps=18).then(abort(1)),
              config=lab_config(kv_events={**_EVENTS, "buffer_steps": 4}), options=Options(late_subscriber=True)),
        Phase(name="events for nobody", topology=_TWO, workload=short,
              config=lab_config(kv_events={**_EVENTS, "publisher": "null"})),
        Phase(name="a rank that fails to load", topology=_TWO, workload=short, plan=plan(
            raises("worker.1", at=marked("worker.1", Mark.LOADING)))),
        Phase(name="a rank that loads for too long", topology=_TWO, workload=short, calm=True,
              config=lab_config(bounds={"startup_s": 1.0}), plan=plan(
                  hang("worker.1", at=marked("worker.1", Mark.LOADING)),  # and the client is too slow to give it up
                  stall("frontend.0", at=marked("worker.0", Mark.LOADING), until=Until(seconds=1.5)))),
        Phase(name="addresses that cannot be read", topology=_TWO, workload=short, calm=True, plan=plan(
            truncate("frontend.0->core.0/handshake"))),
        Phase(name="a client of another number of ranks", topology=_TWO, workload=short, calm=True, plan=plan(
            corrupt("frontend.0->core.0/handshake", byte=181))),  # of its `parallel_config`
        Phase(name="READY without a number of blocks", topology=_TWO, workload=short, calm=True,
              config=lab_config(bounds={"handshake_s": 1.0, "startup_s": 2.0}),
              plan=plan(corrupt("core.0->frontend.0/handshake", nth=3, byte=16))),  # of the number's name
        Phase(name="a model of two tokens", topology=_TWO, config=lab_config(scheduler={"max_model_len": 2}),
              workload=pair.then(_FEW, of_nobody("anybody", 5))),
        Phase(name="a rank that fails late while the next step is made", topology=_TWO, calm=True,
              workload=pair.then(_FEW, steps=3).then(abort(0, 1), steps=1).then(add(0, name="again")), plan=plan(
                  hang("worker.1", at="core.0->worker.1/rpc:receive", nth=9, until=Until(seconds=SHORT_S)),
                  raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=9))),
        Phase(name="four ranks", topology=_FOUR, workload=short),
        Phase(name="two stages", topology=tensor_parallel(1, pp=2), workload=short),
        Phase(name="two stages of promised tokens", topology=tensor_parallel(1, pp=2), workload=pair.then(
            _FEW, steps=6).then(abort(0, 1)), config=lab_config(scheduler={"async_scheduling": True})),
        Phase(name="two stages of two ranks", topology=tensor_parallel(2, pp=2), workload=pair.then(
            _FEW, steps=4).then(abort(0, 1)), config=lab_config(
                bounds={"collective_s": 0.6}, scheduler={"async_scheduling": True})),
        Phase(name="two engines", topology=side_by_side(Engine(tp=2), Engine(tp=2)), workload=short),
        Phase(name="two ranks of one client", topology=data_parallel(2), workload=short),
        Phase(name="two ranks of two workers, of one client", topology=data_parallel(2, tp=2), workload=pair.then(
            _FEW, utility("get_stats"), steps=2).then(abort(1), add(1, name="again"), steps=1).then(abort(0, "again"))),
        Phase(name="two ranks and their coordinator", topology=data_parallel(2, coordinated=True), workload=short),
        Phase(name="two clients of a core", topology=data_parallel(1, clients=2), workload=pair),
        Phase(name="two ranks in step", topology=data_parallel(2, lockstep=True), config=_IN_STEP, workload=short),
        Phase(name="two ranks in step, of two workers", topology=data_parallel(2, tp=2, lockstep=True),
              config=_IN_STEP, workload=short),
        Phase(name="a wave and the next", topology=data_parallel(2, lockstep=True), config=_IN_STEP, workload=pair.then(
            add(0), behind=("r0", 5)).then(add(1), abort(0), behind=("r1", 3)).then(abort(1))),
        Phase(name="two clients with a core each", topology=external(2), config=_IN_STEP,
              workload=pair.then(_FEW).but(1, pair.then(add(0)))),
        Phase(name="two clients with a core each, which do not step together", topology=hybrid(2, 1),
              workload=pair.then(_FEW).but(1, pair.then(add(0)))),
        Phase(name="a headless core", topology=headless(2, 1), workload=short),
        Phase(name="a headless core in step", topology=headless(2, 1, lockstep=True), config=_IN_STEP,
              workload=pair.then(add(0), behind=("r0", 5)).then(add(1), abort(0), behind=("r1", 3)).then(abort(1))),
        *(Phase(name=f"a queue: {name}", topology=tensor_parallel(asked.readers), workload=pair, calm=not asked.swept,
                options=Options(queue=name), config=lab_config(ring=asked.ring))
          for name, asked in QUEUE_PLAYS.items()),
        Phase(name="a queue whose writer dies before it rings", topology=_TWO, workload=pair, calm=True,
              options=Options(queue="objects"), config=lab_config(ring=QUEUE_PLAYS["objects"].ring),
              plan=plan(kill("core.0", at="core.0/rpc:doorbell", nth=12))),
        Phase(name="two ranks of data", workload=short, config=lab_config(kv_events=_EVENTS), topology=side_by_side(
            *(Engine(tp=2, data_parallel_rank=k, subscribers=(k,)) for k in range(2)))),
    )


# -- plays ---------------------------------------------------------------------------------------------------


def crossings(phase: Phase, played: Callable[[Play], Any]) -> dict[str, int]:
    """How often each site is crossed where no fault is added. `played(play)` -> (simulation, lab)"""
    simulation, _ = played(phase.play())
    found: dict[str, int] = {}
    for journal in simulation.journal_files():
        for record in journal.records:
            if record.kind is Kind.CROSSING and not journal.life:
                found[record.site] = max(found.get(record.site, 0), record.nth)
    return found


def singles(phase: Phase, counts: dict[str, int]) -> Iterator[Play]:
    """One fault of each kind at each crossing; at marks of a core, of each other process as well."""
    if phase.calm:
        return
    for site, count in counts.items():
        taken = {fault.nth for fault in phase.plan.faults if fault.site == site}
        for nth in range(1, count + 1):
            if nth in taken:
                continue
            for fate in fates_at(site):
                for until in _untils(fate):
                    yield phase.play(_fault(site, nth, fate, until))
            for victim in _others(phase, site):
                for fate in _AT_ANOTHER:
                    for until in _untils(fate):
                        yield phase.play(_fault(site, nth, fate, until, victim))


def drawn(phase: Phase, counts: dict[str, int], dice: random.Random) -> Play:
    """One of `singles`, by chance: any crossing is as likely as any other. Where there are none, the phase as it is."""
    if phase.calm:
        return phase.play()
    site = dice.choices(list(counts), list(counts.values()))[0]
    nth, fate = dice.randint(1, counts[site]), dice.choice(fates_at(site))
    others = _others(phase, site) if fate in _AT_ANOTHER and dice.random() < 0.5 else []
    return phase.play(_fault(site, nth, fate, dice.choice(_untils(fate)), dice.choice(others) if others else None))


def _others(phase: Phase, site: str) -> list[str]:
    """Who else may be struck there: at marks of a core, each other process."""
    if not (site.startswith("core.") and "/mark:" in site):
        return []
    return [str(node) for node in phase.topology.nodes if not site.startswith(f"{node}/")]


def _fault(site: str, nth: int, fate: Fate, until: Until | None, victim: str | None = None) -> Fault:
    return Fault(id="swept", site=site, fate=fate, nth=nth, until=until, victim=victim)


def _untils(fate: Fate) -> tuple[Until | None, ...]:
    if fate in _HOLDS:
        return Until(seconds=SHORT_S), Until(seconds=LONG_S)
    if fate is Fate.CUT:
        return None, Until(seconds=SHORT_S)
    return (Until(seconds=SHORT_S),) if fate is Fate.DELAY else (None,)


def neighbours(one: Play, counts: dict[str, int], seed: int) -> Play | None:
    """The same play with a second fault at the crossing after it, its fate drawn from the seed. None: it has none."""
    fault = one.plan.faults[-1]
    if counts.get(fault.site, 0) <= fault.nth:
        return None
    dice = random.Random(f"{seed}/{fault.site}/{fault.nth}/{fault.fate}")
    fate = dice.choice(fates_at(fault.site))
    second = Fault(id="beside", site=fault.site, nth=fault.nth + 1, fate=fate, until=dice.choice(_untils(fate)))
    return msgspec.structs.replace(one, plan=Plan((*one.plan.faults, second)))


def sampled(plays: Iterable[Play], most: int | None, seed: int) -> list[Play]:
    found = list(plays)
    return found if most is None or len(found) <= most else random.Random(seed).sample(found, most)


# -- judging -------------------------------------------------------------------------------------------------


def red(play: Play, played: Callable[[Play], Any]) -> Finding | None:
    """What breaks in a play, if anything does."""
    try:
        simulation, lab = played(play)
        broken = judge(play, lab, simulation.journal_files()).red
    except Exception as error:
        return Finding(play=play, guarantee="", text=f"{type(error).__name__}: {error}")
    return None if broken is None else Finding(play=play, guarantee=broken.guarantee, text=broken.evidence[0].text)


def words(finding: Finding) -> str:
    """In one line."""
    faults = ", ".join(f"{f.fate.value} at {f.site} nth={f.nth}" + (f" of {f.victim}" if f.victim else "")
                       + (f" for {f.until.seconds} s" if f.until is not None else "") for f in finding.play.plan.faults)
    return f"{finding.play.scenario}: {finding.guarantee or 'the twin fell over'} by {faults}: {finding.text}"


def kinds(findings: Sequence[Finding]) -> dict[tuple[str, ...], list[Finding]]:
    """Findings that are alike: phase, guarantee, fate and place."""
    found: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        fault = finding.play.plan.faults[-1]
        found.setdefault((finding.play.scenario, finding.guarantee, fault.fate.value, fault.site), []).append(finding)
    return found
