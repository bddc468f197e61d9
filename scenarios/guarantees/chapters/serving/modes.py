"""The promise about engines and clients that are started apart from each other: they serve when all agree."""

from __future__ import annotations

from engine.topology import Channel
from faults.journal import Record
from scenarios.guarantees.base import DEATHS, MESSAGE, STALLS, Envelope, Finding, Guarantee, Where
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.history.history import EngineLife, Fate, History
from scenarios.history.names import base
from scenarios.history.operations import Startup
from scenarios.history.play import Play

#: What a core says to each with whom it shakes hands: an empty frame, HELLO, READY.
_GREETINGS = 3
#: What it takes over from the head, whatever it was started with.
_ADOPTED = frozenset({"data_parallel_size"})
_OF_THE_MODEL = frozenset({"tensor_parallel_size", "pipeline_parallel_size"})
_OF_THE_GROUP = frozenset({"load_balancing", "sync_interval", "wave_protocol"})


#: What offline ranks must have in common.
_OF_ALL = _OF_THE_MODEL | _ADOPTED | frozenset({"sync_interval", "wave_protocol"})


def meet(play: Play) -> bool:
    topology = play.topology
    return bool(topology.offline or topology.launchers) or any(map(topology.is_spread, (
        engine.index for engine in topology.engines)))


def check_handshakes_agree(history: History) -> Finding:
    finding = Finding(history)
    _judge_offline(finding)
    _judge_attached(finding)
    for engine in history.engines:
        greeted = history.greeted_by(engine)
        if not history.play.topology.is_spread(engine.engine) or greeted[0] == history.owner(engine):
            continue
        _judge_first_work(finding, engine, greeted)
        _judge_adopted(finding, engine, greeted[0])
        if history.owner(engine) == history.owner(history.engines[-1]):
            _judge_contradiction(finding, engine, greeted)
    return finding


def _judge_first_work(finding: Finding, engine: EngineLife, greeted: tuple[str, ...]) -> None:
    """Whoever asks it first does so behind its READY to all, and their answers."""
    history, core, channel = finding.history, engine.core, Channel.HANDSHAKE.value
    first = _first_work(history, core)
    promised = history.sends(f"{core}->{greeted[-1]}/{channel}")[_GREETINGS - 1:] if len(greeted) > 1 else []
    asked = [(record, greeted) for record in (first,) if record] + [(record, greeted[:1]) for record in promised[:1]]
    for record, nodes in asked:
        _judge_words(finding, core, record, nodes)
    if first is None:
        return
    hits = [receipt for receipt in history.faults.at(f"/{channel}:") if base(core) in receipt.site]
    if hits and len(greeted) > 1:
        finding.witness("a word between {} and {} met {}, and it went to work when both had answered", core,
                        " or ".join(greeted), hits[0].fate, at=first.at, node=core)


def _judge_words(finding: Finding, core: str, first: Record, nodes: tuple[str, ...]) -> None:
    history, channel = finding.history, Channel.HANDSHAKE.value
    for node in nodes:
        said = sum(record.number < first.number for record in history.sends(f"{core}->{node}/{channel}"))
        heard = any(record.number < first.number for record in history.receives(f"{node}->{core}/{channel}"))
        if said < _GREETINGS or not heard:
            finding.broke("{} was ready to work when it had said {} of {} words to {}, which had {}", core, said,
                          _GREETINGS, node, "answered" if heard else "not answered", at=first.at, node=core)


def _first_work(history: History, core: str) -> Record | None:
    """A request, or a step that others have it make."""
    found = [records[0] for records in (history.by_node("request").get(core), history.by_node("start-heard").get(core))
             if records]
    return min(found, key=lambda record: record.number, default=None)


def _judge_adopted(finding: Finding, engine: EngineLife, head: str) -> None:
    """What the head says for all is what each core goes by."""
    history = finding.history
    ready, said = (next(iter(history.by_node("ready").get(node, ())), None) for node in (engine.core, head))
    if ready is None or said is None:
        return
    for name, value in said.data["parallel_config"].items():
        if ready.data["parallel_config"].get(name) != value:
            finding.broke("{} is {} by {}, and {} goes by {}", name, value, head, engine.core,
                          ready.data["parallel_config"].get(name), at=ready.at, node=engine.core)
    for name in _ADOPTED & history.play.options.differs.keys():
        finding.witness("{} was started with {} {}, and goes by that of {}", engine.core, name,
                        history.play.options.differs[name], head, at=ready.at, node=engine.core)


def _judge_contradiction(finding: Finding, engine: EngineLife, greeted: tuple[str, ...]) -> None:
    """Who is configured otherwise does not serve; the head, and its own client, are told in what."""
    history, differs = finding.history, finding.history.play.options.differs
    wrong = differs.keys() & (_OF_THE_GROUP | _OF_THE_MODEL | (_ADOPTED if len(greeted) > 1 else frozenset()))
    ready = next(iter(history.by_node("ready").get(engine.core, ())), None)
    if not wrong:
        if differs and ready is None and not history.faults.receipts:
            finding.broke("{} did not start, and differs in nothing that it may not", engine.core, node=engine.core)
        return
    if ready is not None:
        finding.broke("{} is ready, and {} of others differs", engine.core, " and ".join(sorted(wrong)), at=ready.at,
                      node=engine.core)
    if not any(history.sends(f"{engine.core}->{node}/{Channel.HANDSHAKE.value}") for node in greeted):
        return  # it was not started, and who did not start it is told why
    for startup in history.startups:
        if startup.node not in greeted or startup.end is None:
            continue
        _judge_named(finding, startup.node, startup.end, sorted(wrong), may_be_lost=bool(history.faults.receipts))


def _judge_named(finding: Finding, node: str, failed: Record, wrong: list[str], *, may_be_lost: bool = False) -> None:
    """Whose start failed is told what differs; `may_be_lost`: unless the word of it did not come."""
    unnamed = [name for name in wrong if name not in str(failed.data.get("reason", ""))]
    if not unnamed:
        finding.witness("{} was told by name that {} differs", node, " and ".join(wrong), at=failed.at, node=node)
    elif not may_be_lost:
        finding.broke("{} was not told that {} differs", node, " and ".join(unnamed), at=failed.at, node=node)


def _judge_offline(finding: Finding) -> None:
    """Of ranks that nobody starts together: who differs from the others, or never comes, is named to all of them."""
    history, differs = finding.history, finding.history.play.options.differs
    for one in history.play.topology.offline:
        ranks = [engine for engine in history.engines if engine.engine in one.engines]
        _judge_met(finding, ranks)
        if any(engine.core in history.by_node("ready") for engine in ranks):
            if wrong := differs.keys() & _OF_ALL:
                finding.broke("ranks are ready, and {} of them differs", " and ".join(sorted(wrong)))
            continue
        gone = [engine.core for engine in ranks if engine.core in history.ends and history.ends[engine.core].planned]
        named = [ranks[-1].core] if "data_parallel_rank" in differs else sorted(differs.keys() & _OF_ALL) or gone
        for startup in history.startups:
            if "data_parallel_rank" in differs and startup.end is not None and not startup.ready:
                _judge_rank(finding, ranks, startup.end, startup.node)
            others = [name for name in named if name not in {engine.core for engine in history.engines_of(startup.node)}
                      or differs]
            said = "" if startup.end is None else str(startup.end.data.get("reason", ""))
            several = named is gone and len(gone) > 1  # each may name whom it missed first
            if len(others) != 1 or several or startup.end is None or startup.ready or _misses_its_own(
                    history, startup, said):
                continue
            if others[0] not in said or (len(ranks) > 2 and any(
                    engine.core in said for engine in ranks if engine.core != others[0])):
                finding.broke("{} was told {!r}, and it was {} that kept all from starting", startup.node, said,
                              others[0], at=startup.end.at, node=startup.node)
            else:
                finding.witness("{} was told of {}", startup.node, others[0], at=startup.end.at, node=startup.node)


def _misses_its_own(history: History, startup: Startup, said: str) -> bool:
    """Whether it was told of its own core, or what that said as it left, where words between the two were struck."""
    mine = [engine.core for engine in history.engines_of(startup.node)]
    last = [record.data["reason"] for core in mine for record in history.by_node("dying").get(core, ())]
    return (any(core in said for core in mine) or any(said and reason.endswith(said) for reason in last)) and any(
        receipt.node in (startup.node, *mine) and receipt.fate in MESSAGE for receipt in history.faults.receipts)


def _judge_attached(finding: Finding) -> None:
    """Of clients of engines that run already: whose settings are not those of the engines is told which."""
    history = finding.history
    for startup in history.startups:
        launcher = history.owner(history.engines_of(startup.node)[0])
        theirs = next(iter(history.by_node("ready").get(launcher, ())), None)
        if theirs is None or startup.end is None or not history.is_attached(startup.node):
            continue
        settings = theirs.data["parallel_config"]
        if startup.ready:
            mine = startup.end.data["parallel_config"]
            if wrong := sorted(name for name in {*mine, *settings} if mine.get(name) != settings.get(name)):
                finding.broke("{} is ready, and {} of its engines differs", startup.node, " and ".join(wrong),
                              at=startup.end.at, node=startup.node)
        elif wrong := sorted(history.play.options.differs.keys() & settings.keys()):
            _judge_named(finding, startup.node, startup.end, wrong)


def _judge_met(finding: Finding, ranks: list[EngineLife]) -> None:
    """Whoever is ready has met all; who was gone before the last one came is none of those that have met."""
    history = finding.history
    names = {base(one.core) for one in ranks}
    for met in ranks:
        records = history.by_node("ranks-met").get(met.core, [])
        if met.core in history.by_node("ready") and not any(names == set(one.data["ranks"]) for one in records):
            finding.broke("{} was ready and had not met all others", met.core, node=met.core)
        for record in records:
            gone = [one.core for one in ranks if base(one.core) in record.data["ranks"]
                    and history.ends.at(one.core) + history.bounds.detection_s < record.at]
            if gone:
                finding.broke("{} has met {}, which was gone", met.core, " and ".join(gone), at=record.at,
                              node=met.core)


def _judge_rank(finding: Finding, ranks: list[EngineLife], failed: Record, node: str) -> None:
    """As which rank the last one came is said; where it is another one's, of both, and by their processes. Where it
    differs from the others in more than its rank, and came first, that is what is said.
    """
    history, differs = finding.history, finding.history.play.options.differs
    rank, said = differs["data_parallel_rank"], str(failed.data.get("reason", ""))
    if any(f"{name} is {differs[name]} of {ranks[-1].core} and" in said for name in differs.keys() & _OF_ALL):
        return
    wanted = [f"rank {rank}"]
    for engine in (ranks[rank], ranks[-1]) if rank < len(ranks) - 1 else ():
        wanted += [engine.core, *(f"pid {born.data['pid']}" for born in history.by_node("born").get(engine.core, ()))]
    if missing := [what for what in wanted if what not in said]:
        finding.broke("{} was told {!r}, which says nothing of {}", node, said, " and ".join(missing), at=failed.at,
                      node=node)


GUARANTEES = (
    Guarantee(
        id="dp-handshakes-agree", chapter=CHAPTER, source="vLLM V1 data-parallel engine core",
        check=check_handshakes_agree, applies=meet,
        sentence="A core that the head of its group has not started serves nobody before it, and the core's own "
                 "client, where it has one, have answered its greetings and got its READY; it goes by what the head "
                 "says for all; and where any other setting differs it serves nobody, and both are told which. Ranks "
                 "that nobody starts together are all told what differs, and who never came. A client attaches to "
                 "engines that have its settings alone, and is told which differ.",
        wrong={
            "serves": "serves its own client when that has answered, whatever the head says",
            "adopts": "goes by its own settings where the head has said others for all",
            "names": "refuses what differs, and does not say what that is",
            "attaches": "attaches to whatever runs",
        },
        witness="a word of one handshake was late, lost or doubled, and the core went to work behind both; or some "
                "were configured otherwise than others",
        envelope=Envelope(outside=(
            Where(DEATHS | STALLS | frozenset({Fate.HANG}), nodes="frontend.*", why="the caller itself"),
        )),
    ),
)
