"""Answers to effects on other processes: children, whoever started this one, and others by their identity."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from engine.effects import (
    AwaitEnds,
    AwaitParent,
    EndChild,
    EndProcesses,
    ExitNow,
    Gone,
    HearChildren,
    Identity,
    IsAlive,
    Loop,
    StartChild,
    TellChild,
    TellParent,
    WhoAmI,
)
from engine.process.recipes import Garbled, Recipe, Word, life_of, sealed, unreadable, unsealed
from sim.process.effects import RunLoop, TakeRecipe
from sim.process.pipes import lose_parent, say, take
from sim.process.process import SimProcess
from sim.process.thread import NEVER, WAIT, Answers, SimThread, ThreadEndedError

#: What `multiprocessing` knows of them.
START_METHODS = ("spawn", "fork")


def _who_am_i(process: SimProcess, thread: SimThread, effect: WhoAmI) -> Identity:
    return Identity(process.pid, process.pid, process.parent.pid if process.parent else 1)


# -- children


def _start_child(process: SimProcess, thread: SimThread, effect: StartChild) -> Identity:
    node, kin = effect.node, process.kin
    assert effect.start_method in START_METHODS, effect.start_method

    def ended() -> None:
        kin.ended[node] = child.exitcode
        process.look_again()

    child = kin.children[node] = process.sim.start_process(node, _live, parent=process)
    child.kin.sleeps = True
    child.context.update(process.context)
    process.watch(child, ended)
    return Identity(child.pid, child.pid, process.pid)


def _live(process: SimProcess) -> Loop[None]:
    """A child sleeps until its recipe comes; one whose parent goes before has nothing to do."""
    _watch_parent(process)
    message = yield TakeRecipe()
    process.kin.sleeps = False
    try:
        recipe = unsealed(message, Recipe)
    except msgspec.DecodeError as error:
        yield RunLoop(unreadable(process.node, error))
        return
    process.recheck_s = recipe.config.bounds.ring_recheck_s
    yield RunLoop(life_of(process.node, recipe))


def _take_recipe(process: SimProcess, thread: SimThread, effect: TakeRecipe) -> Any:
    assert process.parent is not None
    message = take(process, thread, process.parent)
    if message is WAIT:
        return thread.ask_again(_take_recipe, effect, NEVER)
    if message is not None:
        return message
    process.attend(thread)
    return thread.ask_again(_take_recipe, effect, NEVER)


def _watch_parent(process: SimProcess) -> None:
    """From the first time on that it matters. Who has no parent loses none."""
    if process.parent is not None and not process.kin.parent_watched:
        process.kin.parent_watched = True
        process.watch(process.parent, partial(lose_parent, process))


def _tell_child(process: SimProcess, thread: SimThread, effect: TellChild) -> Any:
    return say(process, thread, process.kin.children[effect.node], sealed(effect.recipe))


def _hear_children(process: SimProcess, thread: SimThread, effect: HearChildren) -> Any:
    kin = process.kin
    for node in effect.nodes:
        message = take(process, thread, kin.children[node])
        if message is WAIT:
            return thread.ask_again(_hear_children, effect, NEVER)
        if message is not None:
            return node, _word(message)
        if node in kin.ended:
            return node, Gone(kin.ended[node])
    if effect.deadline <= process.kernel.now:
        return None
    process.attend(thread)
    return thread.ask_again(_hear_children, effect, effect.deadline)


def _word(message: bytes) -> Any:
    try:
        return unsealed(message, Word)
    except msgspec.DecodeError as error:
        return Garbled(str(error))


def _await_ends(process: SimProcess, thread: SimThread, effect: AwaitEnds) -> Any:
    ended = process.kin.ended
    gone = {node: Gone(ended[node]) for node in effect.nodes if node in ended}
    until = NEVER if effect.deadline is None else effect.deadline
    if gone or until <= process.kernel.now:
        return gone
    process.attend(thread)
    return thread.ask_again(_await_ends, effect, until)


def _end_child(process: SimProcess, thread: SimThread, effect: EndChild) -> None:
    child = process.kin.children[effect.node]
    if effect.how == "hang-up":
        process.kernel.after(process.kernel.costs.hop_s, child.deliver, partial(lose_parent, child))
    elif effect.how == "terminate":
        child.terminate()
    else:
        child.kill()


# -- whoever started it


def _await_parent(process: SimProcess, thread: SimThread, effect: AwaitParent) -> Any:
    _watch_parent(process)
    if process.kin.parent_lost:
        return None
    process.attend(thread)
    return thread.ask_again(_await_parent, effect, NEVER)


def _tell_parent(process: SimProcess, thread: SimThread, effect: TellParent) -> Any:
    assert process.parent is not None
    return say(process, thread, process.parent, sealed(effect.message))


# -- others


def _is_alive(process: SimProcess, thread: SimThread, effect: IsAlive) -> bool:
    other = process.sim.process_of(effect.process.pid)
    return other is not None and other.alive


def _end_processes(process: SimProcess, thread: SimThread, effect: EndProcesses) -> Any:
    found = [process.sim.process_of(identity.pid) for identity in effect.processes]
    others = [other for other in found if other is not None]
    for other in others:
        process.watch(other, process.look_again)
    return _until_ended(process, thread, (others, process.kernel.now + effect.patience_s))


def _until_ended(process: SimProcess, thread: SimThread, about: tuple[list[SimProcess], float]) -> Any:
    others, until = about
    left = [other for other in others if other.alive]
    if left and process.kernel.now < until:
        process.attend(thread)
        return thread.ask_again(_until_ended, about, until)
    for other in left:
        other.kill()
    return None


def _exit_now(process: SimProcess, thread: SimThread, effect: ExitNow) -> None:
    process.exit_now(effect.code)
    raise ThreadEndedError


ANSWERS: Answers = {
    WhoAmI: _who_am_i,
    StartChild: _start_child,
    TellChild: _tell_child,
    HearChildren: _hear_children,
    AwaitEnds: _await_ends,
    EndChild: _end_child,
    AwaitParent: _await_parent,
    TellParent: _tell_parent,
    TakeRecipe: _take_recipe,
    IsAlive: _is_alive,
    EndProcesses: _end_processes,
    ExitNow: _exit_now,
}
