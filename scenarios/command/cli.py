"""`ringtwin`: play scenarios, play one again, use the engine alone, look at what there is.

Promises
- Exit codes: 0 everything is as declared; 1 a broken promise or a disagreement of the worlds; 2 something is not
  known; 3 the harness failed or the order was bad; 130 and 143 after Ctrl-C and SIGTERM.
- A bad order ends in one line that names what, where and the next step, and leaves nothing behind.
- Ctrl-C at any moment leaves no process, segment or socket file; what was played whole is in a report of its own.
- Two runs never write into one folder at once.
- Answers go to stdout, progress to stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engine.config import CacheConfig, DataParallelConfig, EngineConfig, SchedulerConfig
from engine.errors import RingtwinError
from engine.topology import tensor_parallel
from faults.plan import CALLS_OF_A_START, Plan, PlanError, load_plan, plan_to_json, to_two_phases
from scenarios.command import checks, conclusion
from scenarios.command.claim import claimed
from scenarios.command.playing import replaying
from scenarios.command.playing.run import run_all
from scenarios.command.screen import Screen
from scenarios.guarantees.registry import load_installed
from scenarios.history.play import Play
from scenarios.lab.catalogue import catalogue, selected, worth_naming
from scenarios.lab.player import ScenarioResult, Settings, Worlds, replay
from scenarios.lab.settings import MODEL, lab_config
from scenarios.worlds.registry import EVERY, WORLDS, can_play, no_real_processes, worlds_of
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.selection import is_usual

BAD, INTERRUPTED = 3, 130
#: By which a shell asks for completions, as click names it.
COMPLETING = "_RINGTWIN_COMPLETE"

path_argument = click.Path(path_type=Path)
world_option = click.option("--world", type=click.Choice([*WORLDS, EVERY]), default=None,
                            help="Who plays. Default: both where torch and pyzmq are installed, else sim.")
device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
out_option = click.option("--out", type=path_argument, default=Path("out"), show_default=True,
                          help="Folder for runs, results and report.")
lockstep_option = click.option("--lockstep", is_flag=True, help="Engines of --dp step together, with a coordinator.")
coordinator_option = click.option("--coordinator", is_flag=True, help="One carries the counts of the engines of --dp.")
json_option = click.option("--json", "json_file", type=path_argument, default=None,
                           help="Write results.json here, too; - is stdout.")
scenarios_option = click.option("--scenarios", "folders", type=path_argument, multiple=True, metavar="DIR",
                                help="Those of this folder, or file, instead of the shipped ones; may be repeated.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ringtwin")
def cli() -> None:
    """A reliability lab for multi-process tensor-parallel inference engines."""
    load_installed()


# -- playing


@cli.command()
@world_option
@click.option("--scenario", "globs", multiple=True, metavar="GLOB",
              help="Play only what this names: scenarios, or their file (kv*); may be repeated.")
@scenarios_option
@click.option("--tp", type=click.IntRange(1), default=None, help="Ranks of a stage. Default: as each scenario says.")
@click.option("--pp", type=click.IntRange(1), default=None, help="Pipeline stages. Default: as each scenario says.")
@click.option("--dp", type=click.IntRange(1), default=None,
              help="Engines for one client. Default: as each scenario says.")
@lockstep_option
@coordinator_option
@click.option("--clients", type=click.IntRange(1), default=None,
              help="Clients of the same engines. Default: as each scenario says.")
@device_option
@click.option("--vllm-python", type=path_argument, default=None,
              help="An interpreter that has vLLM, for --world vllm. Default: RINGTWIN_VLLM_PYTHON, or what `make vllm` "
                   "has built.")
@click.option("--model", type=path_argument, default=None,
              help="A Llama's Hugging Face directory, instead of the small one that is shipped.")
@click.option("--jobs", type=click.IntRange(1), default=None,
              help="How many are played at once. Default: one a core and three more, beside plays that take only what "
                   "processor time these leave; of the twin one a core; of vLLM two; on GPUs one in all.")
@click.option("--seed", type=int, default=0, show_default=True,
              help="Of plays in which something is drawn by lot: the same seed draws the same.")
@click.option("--unsteady", type=click.FloatRange(0.0, 1.0), default=0.0, metavar="SHARE",
              help="Real processes stand still for some ms at this share of their crossings, as on a machine that has "
                   "too much to do: 0.005 is much. A play that is red by it depends on luck.")
@out_option
@json_option
def run(world: str | None, globs: tuple[str, ...], folders: tuple[Path, ...], tp: int | None, pp: int | None,
        dp: int | None, lockstep: bool, coordinator: bool, clients: int | None, device: str,
        vllm_python: Path | None, model: Path | None, jobs: int | None, seed: int, unsteady: float, out: Path,
        json_file: Path | None) -> int:
    """Play scenarios and write the report to OUT/report/index.html.

    What cannot be played by so many ranks, stages, engines or clients is left out, and says why.
    """
    checks.together(dp, lockstep=lockstep, coordinator=coordinator)
    if vllm_python is not None:
        os.environ[VARIABLE] = str(vllm_python.absolute())
    names = playable(world)
    checks.unsteady(unsteady, names)
    chosen = [one for one in selected(catalogue(*folders), globs) if worth_naming(one, names)]
    if names == ("vllm",) and not globs:
        chosen = [one for one in chosen if is_usual(one.name)]
    asked = EngineConfig(model=str(model or MODEL), tensor_parallel_size=tp or 2, pipeline_parallel_size=pp or 1,
                         device=device)  # type: ignore[arg-type]
    if model is not None or tp is not None or pp is not None:
        checks.servable(asked)
    if real(names):
        checks.enough_shared_memory(lab_config().ring, asked.grid.size, engines=max(2, dp or 1))
        checks.enough_gpus(asked.grid.size * (dp or 1), device)
    checks.writable(out)
    settings = Settings(out=out, tp=tp, pp=pp, dp=dp, lockstep=lockstep, coordinator=coordinator, clients=clients,
                        seed=seed, unsteady=unsteady, device=device)
    with claimed(out):
        return run_all(chosen, names, settings, model, json_file, jobs)


@cli.command("replay")
@click.argument("run_or_plan", type=path_argument)
@click.option("--world", type=click.Choice([*WORLDS, EVERY]), default=None,
              help="Who plays. Default: the run's own world; for a plan, all that can.")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True)
@click.option("--promise", "promises", multiple=True, metavar="ID,...",
              help="Guarantees that must hold, beside those that a run was promised. Any number.")
@device_option
@click.option("--out", type=path_argument, default=Path("out/replay"), show_default=True)
@json_option
def replay_(run_or_plan: Path, world: str | None, times: int, promises: tuple[str, ...], device: str, out: Path,
            json_file: Path | None) -> int:
    """Play a run directory again, or a plan (JSON) with a calm workload.

    A plan promises nothing by itself: say what must hold, as in --promise ends-once,death-is-told.
    """
    wanted = checks.guarantees(promises)
    given = checks.run_or_plan(run_or_plan)
    play_ = replaying.promising(replaying.play_of(given, run_or_plan) if isinstance(given, Plan) else given, wanted)
    names = playable(world or (None if isinstance(given, Plan) else play_.world))
    if real(names):
        ranks = sum(engine.ranks for engine in play_.topology.engines)
        checks.enough_shared_memory(play_.config.ring, ranks)
        checks.enough_gpus(ranks, device)
    checks.writable(out)
    with claimed(out):
        return _replay(play_, names, times, out, replaying.inside(run_or_plan, out), device, json_file)


def _replay(play_: Play, names: Sequence[str], times: int, out: Path, is_inside: bool, device: str,
            json_file: Path | None) -> int:
    results: list[ScenarioResult] = []
    with Screen(times * len(names), quiet=json_file == Path("-")) as screen:
        for number in range(1, times + 1):
            # A folder of its own for each time: the run that is replayed may lie in `out` itself.
            folder = out if times == 1 and not is_inside else replaying.fresh(out)
            worlds = Worlds(Settings(out=folder, seed=play_.seed, device=device))
            try:
                for name in names:
                    screen.playing(play_.scenario, name)
                    results.append(replay(play_, worlds.open(name)))
                    screen.played(results[-1], *conclusion.verdict_of(results[-1]))
            finally:
                if number == times:
                    worlds.close()
        if times > 1:
            screen.say(replaying.repeated(results))
    return conclusion.conclude(results, out, json_file)


def real(names: Sequence[str]) -> bool:
    """Whether one of these worlds takes processes and memory of this machine."""
    return not all(WORLDS[name].virtual_time for name in names)


def playable(world: str | None) -> tuple[str, ...]:
    names = worlds_of(world)
    for name in names:
        if (reason := can_play(name)) is not None:
            raise checks.BadInputError(f"--world {world}: {reason}")
    return names


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=path_argument)
@click.option("-o", "--output", type=path_argument, default=Path("page.html"), show_default=True)
@json_option
def report(runs: tuple[Path, ...], output: Path, json_file: Path | None) -> int:
    """Judge run directories again, from their records alone, and write one page of them.

    What was broken off in the middle is named and left out.
    """
    whole, halves = checks.runs_below(runs)
    for half in halves:
        complain(f"left out: {half}", BAD)
    return conclusion.conclude_again(whole, output, json_file, len(halves))


@cli.command()
@click.argument("before", type=path_argument)
@click.argument("after", type=path_argument)
@click.option("-o", "--output", type=path_argument, default=Path("compare.html"), show_default=True)
@json_option
def compare(before: Path, after: Path, output: Path, json_file: Path | None) -> int:
    """Say which cells turned between two results: files results.json, or the folders that runs were written to.

    Exit code 1 where any turned worse.
    """
    return conclusion.compare(before, after, output, json_file)


@cli.command()
@click.argument("run_folder", metavar="RUN", type=path_argument)
@click.option("--format", "format_", type=click.Choice(["perfetto"]), default="perfetto", show_default=True)
@click.option("-o", "--output", type=path_argument, default=Path("trace.json"), show_default=True)
def export(run_folder: Path, format_: str, output: Path) -> int:
    """Write a run's journals as a trace: a lane for each process and thread, an arrow for each message."""
    return conclusion.export(checks.one_run(run_folder), output)


@cli.command()
@click.argument("plan_file", metavar="PLAN", type=path_argument)
@click.option("--calls", type=click.IntRange(0), default=CALLS_OF_A_START, show_default=True,
              help="How many calls the start made of its workers.")
def convert(plan_file: Path, calls: int) -> int:
    """Print a plan of steps that were one call for steps that are two, execute and sample."""
    click.echo(plan_to_json(to_two_phases(load_plan(plan_file), calls)))
    return 0


@cli.command()
@click.argument("run_folder", metavar="RUN", type=path_argument)
@click.option("--out", "output", type=path_argument, default=None, help="Write it here. Default: stdout.")
@click.option("--times", type=click.IntRange(0), default=0, show_default=True, help="Play it again, and count.")
@click.option("--control", is_flag=True, help="Play it with the cause of a finding of vLLM's mended, too.")
def issue(run_folder: Path, output: Path | None, times: int, control: bool) -> int:
    """Write a bug report of a run, as Markdown. It is sent nowhere."""
    return conclusion.issue(checks.one_run(run_folder), output, times, control, Path("out/issue"))


# -- the engine alone


@cli.command()
@click.option("--model", type=path_argument, required=True, help="A Llama's Hugging Face directory.")
@click.option("--prompt", required=True)
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Ranks of a stage.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--dp", type=click.IntRange(1), default=1, show_default=True, help="Engines, each with all of the model.")
@lockstep_option
@coordinator_option
@click.option("--max-model-len", type=click.IntRange(2), default=None,
              help="Tokens of prompt and answer together. Default: what the model was built for.")
@click.option("--cache-mib", type=click.IntRange(1), default=None,
              help="KV cache of each rank on a CPU. Default: one request of the full length, 256 at least, if it fits.")
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True,
              help="Share of a GPU's memory that the ranks on it take.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              show_default=True, help="auto is what the checkpoint says.")
@click.option("--max-tokens", type=int, default=64, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=0, show_default=True, help="0 takes all tokens.")
@click.option("--seed", type=int, default=None, help="Of this request, where tokens are drawn by lot.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated.")
@device_option
def generate(model: Path, prompt: str, tp: int, pp: int, dp: int, lockstep: bool, coordinator: bool, device: str,
             max_model_len: int | None, cache_mib: int | None, gpu_memory_utilization: float, dtype: str,
             **sampling: Any) -> int:
    """Stream what a model says."""
    checks.together(dp, lockstep=lockstep, coordinator=coordinator)
    if (reason := no_real_processes()) is not None:
        raise checks.BadInputError(reason)
    from scenarios.command.generate import stream

    stream(prompt, sampling, sys.stdout.write, EngineConfig(
        model=str(model), tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp,
        data_parallel=DataParallelConfig(lockstep=lockstep, coordinator=coordinator),
        device=device, dtype=dtype,  # type: ignore[arg-type]
        scheduler=SchedulerConfig(max_model_len=max_model_len), cache=CacheConfig(
            cpu_cache_bytes=None if cache_mib is None else cache_mib << 20, memory_fraction=gpu_memory_utilization)))
    return 0


@cli.command("kv-tail")
@click.argument("endpoint")
@click.option("--replay", default=None, metavar="ENDPOINT", help="Where missing batches can be asked for.")
@click.option("--topic", default="", help="Only messages whose topic begins so.")
@click.option("--json", "json_lines", is_flag=True, help="One JSON object a line.")
@click.option("--mirror", is_flag=True, help="Tell how many blocks and prefix chains are cached.")
@click.option("--seconds", type=click.FloatRange(0), default=None, help="Stop after this time. Default: at Ctrl-C.")
def kv_tail(endpoint: str, replay: str | None, topic: str, json_lines: bool, mirror: bool,
            seconds: float | None) -> int:
    """Show the KV-cache events of a running engine, Ringtwin's or vLLM's: batches, gaps, replays, a rate."""
    from scenarios.command.kv_tail import tail

    tail(endpoint, replay, topic, click.echo, json=json_lines, mirror=mirror, seconds=seconds)
    return 0


# -- what there is


@cli.command("list")
@click.argument("what", type=click.Choice(["scenarios", "guarantees", "sites", "faults"]))
@click.option("--tp", type=click.IntRange(1), default=2, show_default=True, help="Ranks of a stage, for the sites.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline stages, for the sites.")
@click.option("--subscribers", type=click.IntRange(0), default=1, show_default=True,
              help="KV subscribers, for the sites.")
@click.option("--world", type=click.Choice(list(WORLDS)), default=None,
              help="Whose sites. Of vLLM's each says whether a fault reaches it, and why not.")
@scenarios_option
def list_(what: str, tp: int, pp: int, subscribers: int, world: str | None, folders: tuple[Path, ...]) -> int:
    """Name every scenario, guarantee, site or fault."""
    from scenarios.command import listing

    for line in listing.lines(what, tensor_parallel(tp, subscribers=subscribers, pp=pp), folders, world):
        click.echo(line)
    return 0


@cli.command()
@click.option("--clean", is_flag=True, help="End and remove what dead engines and dead labs left.")
def doctor(clean: bool) -> int:
    """What this machine can run, and why not."""
    from scenarios.command import doctor as examination

    for line in examination.examine(clean):
        click.echo(line)
    return 0


# -- from the shell and back


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Every end goes through here, so that no exit code ever means something else."""
    sys.exit(outcome_of(arguments))


def outcome_of(arguments: Sequence[str] | None) -> int:
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return cli.main(args=None if arguments is None else list(arguments), prog_name="ringtwin",
                        standalone_mode=False) or 0
    except click.UsageError as error:
        where = f"; see '{error.ctx.command_path} --help'" if error.ctx is not None else ""
        return complain(f"{error.format_message()}{where}", BAD)
    except (KeyboardInterrupt, click.Abort):
        return complain("interrupted; whatever was started is gone", INTERRUPTED)
    except _Terminated:
        return complain("terminated; whatever was started is gone", 128 + signal.SIGTERM)
    except (RingtwinError, PlanError, click.ClickException) as error:
        return complain(str(error), BAD)
    except SystemExit as ended:  # click's: a shell was told how to complete, or the reader of our stdout saw enough
        return int(ended.code or 0) if COMPLETING in os.environ else 128 + signal.SIGPIPE
    except OSError as error:
        return complain(f"{error.filename or 'the system'}: {error.strerror or error}", BAD)
    except Exception as error:
        traceback.print_exc()
        return complain(f"a bug of the lab itself, not of the engine: {type(error).__name__}: {error}", BAD)
    finally:
        from scenarios.lab import home

        home.end()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Terminated(BaseException):
    """SIGTERM or SIGHUP came."""


def _interrupt(number: int, frame: Any) -> None:
    """Once: what follows is bounded and must not be interrupted itself."""
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else _Terminated


def complain(text: str, code: int) -> int:
    click.echo("ringtwin: " + " ".join(text.split()), err=True)
    return code
