"""The promise about what clients tell a coordinator by the first protocol of this kind, and by none that came later."""

from __future__ import annotations

from engine.topology import Channel, NodeKind
from scenarios.guarantees.base import DAMAGE, DEATHS, Envelope, Finding, Guarantee
from scenarios.guarantees.chapters.serving.cores import CHAPTER
from scenarios.guarantees.readers.group.lockstep import groups, is_woken
from scenarios.history.history import History, Record

SOURCE = "vLLM V1 data-parallel coordinator"


def check_first_told(history: History) -> Finding:
    finding = Finding(history)
    for group in groups(history):
        for client in history.of_kind(NodeKind.FRONTEND) if group.hub else ():
            if {engine.core for engine in history.engines_of(client)} & group.nodes:
                _judge_waves(finding, client)
                _judge(finding, client, history.sends(f"{client}->{group.hub}/{Channel.STATS.value}"))
    return finding


def _judge_waves(finding: Finding, client: str) -> None:
    """A request says which wave its client believes in: the highest that it was told of. Outputs that are changed on
    their way may say that one is over, as those of an offline core do.
    """
    history = finding.history
    if any(history.faults.hit(*DAMAGE, channel=channel.value) for channel in (Channel.REQUESTS, Channel.OUTPUTS)):
        return
    wave, believed = 0, dict[str, int]()
    for record in history.records(client):
        if record.site == "view":
            wave = max(wave, record.data["wave"])
        elif record.site == "accepted":
            believed[record.data["internal"]] = wave
    for core, record in history.observed("request"):
        known = believed.get(record.data["request"])
        if record.data["action"] == "add" and known is not None and record.data["wave"] != known:
            finding.broke("{} asked {} for {!r} in wave {}, and had been told of wave {}", client, core,
                          record.data["request"], record.data["wave"], known, at=record.at, node=client)
            return


def _judge(finding: Finding, client: str, upward: list[Record]) -> None:
    """What it sends, beside what it says that it sends, and what it believes by then."""
    history = finding.history
    sent = [record for record in upward if "first_request" in record.data]
    if history.play.config.data_parallel.wave_protocol != "old":
        for record in sent[:1]:
            finding.broke("{} told of a first request, which its protocol does not have", client, at=record.at,
                          node=client)
        return
    events = [*sent, *(record for name in ("view", "accepted", "first-request")
                       for record in history.by_node(name).get(client, ()))]
    wave, running = 0, False
    unsent = {end.data.get("internal") for end in history.by_node("end").get(client, ())
              if end.data.get("error") == "UnroutableError"}
    asked: set[int] = set()  # cores that were sent a request
    said: list[tuple[int, int]] = []  # and not sent yet
    for record in sorted(events, key=lambda event: event.number):
        data, wrong = record.data, ""
        if record.site == "view":
            if data["wave"] >= wave:
                wave, running = data["wave"], data["running"]
        elif record.site == "accepted":
            if data["internal"] not in unsent:
                asked.add(data["core"])
        elif record.site == "first-request":
            if running or data["wave"] != wave or data["rank"] not in asked:
                wrong = f"spoke of a first request to core.{data['rank']} in wave {data['wave']}, and believed that " \
                        f"wave {wave} {'runs' if running else 'is to come'}"
            running = True
            said.append((data["rank"], data["wave"]))
        elif said[:1] != [(data["first_request"], data["wave"])]:
            wrong = f"told of a first request to core.{data['first_request']} in wave {data['wave']}, and had not " \
                    "said so"
        else:
            said.pop(0)
            finding.witness("{} believed that all rest, and told of its request to core.{}", client,
                            data["first_request"], at=record.at, node=client)
            if record.data.get("fate") in DEATHS:
                return
        if wrong:
            finding.broke("{} {}", client, wrong, at=record.at, node=client)
            return


GUARANTEES = (
    Guarantee(
        id="dp-first-told", chapter=CHAPTER, source=SOURCE, check=check_first_told, applies=is_woken,
        sentence="By the first protocol a client tells the coordinator once of a request that it has sent to a group "
                 "which it believes at rest, in the wave that it believes in; by that of today of none. Each request "
                 "says which wave that is: the highest that it was told of.",
        wrong={"once": "tells of each first request twice",
               "today": "tells of first requests by the protocol of today, too",
               "falls": "believes what comes last, and goes back to a wave that is over"},
        blind_in={"falls in engine": "whether a later notice comes before a request is chance"},
        witness="a client believed that all rest, and told of its request",
        envelope=Envelope(),
    ),
)
