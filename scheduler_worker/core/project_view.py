"""What a project sees of the cloud: docs/bus-concepts.md has the rule ("What a project sees"), and this file alone keeps it.

An answer to an application, or for a member of a project, and a copy for a project's feed go through `seen_by_project`. It keeps
counts, states and reasons, and the hosts that the project's own instances were given. It drops what says something of another
host: names, free amounts, alternates, pools, and what operators have noted.

Most reasons are texts, written by schedulers, cells and computes. `in_public` takes out of a text what names a host or says how
much of it is free. Texts about what is free or noted are in the forms of engine/choosing/explaining.py, engine/hosts.py,
cell_conductor/core/rows.py and swapping.py, ironic_sync/core/offers.py and deploying.py: `tests/unit/scheduler/test_project_view.py` holds the forms against these.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected, InstanceEvent, InstancesFound, InstanceState
from bus.messages.moves import Change, HistoryFound
from bus.messages.planning import Explanation, ExplanationsFound, HostChoice, PlanFound
from bus.messages.projects import GroupsFound
from engine.picture.picture import NO_HOST
from engine.refusals import NoValidHost, PlannedFlavor

# Is this the name of a host, or the id of a provider?
IsHost = Callable[[str], bool]

P = TypeVar("P", PlanFound, PlannedFlavor)
C = TypeVar("C", bound=HostChoice)

# What follows the first ones is dropped, up to the next step of a funnel or to the end: it may quote what an operator has noted.
_FORMS = (
    (re.compile(r"( removed by [^(]+?) \((?:(?!, \d+ removed by ).)*", re.DOTALL), r"\1"),
    (re.compile(r"(is draining|is set down|is dead): .*", re.DOTALL), r"\1"),
    (re.compile(r"((?:is|was put) in maintenance(?: while it was deployed)?): .*", re.DOTALL), r"\1"),
    (re.compile(r"(has changed since it was chosen): .*", re.DOTALL), r"\1"),
    (re.compile(rf"({NO_HOST}); near it: .*", re.DOTALL), r"\1"),
    (re.compile(r" has members on host .*", re.DOTALL), " has members elsewhere"),
    (re.compile(r" has \d+ members in \S+"), " has members there"),
    (re.compile(r"\bhas \d+ instances, at most \d+"), "has as many instances as it may"),
    (
        re.compile(
            r"(?: of [0-9a-f-]{36})? asked (\d+), free \d+(?: of \d+)?(?: at \S+)?(?: \([a-z_]+ \d+\))?"
        ),
        r" asked \1, has less",
    ),
)
_LESS = re.compile(r"with (\d+) (\S+) in place of (\d+)")
_WORD = re.compile(r"(host )?([A-Za-z0-9](?:[\w.-]*\w)?)")


def in_public(text: str, is_host: IsHost) -> str:
    """The text without names of hosts, without what is free on hosts, and without notes of operators."""
    if not text:
        return text
    for form, by in _FORMS:
        text = form.sub(by, text)

    def unnamed(found: re.Match[str]) -> str:
        before, word = found[1] or "", found[2]
        if not is_host(word):
            return found[0]
        return "host" if before else "a host"

    return _WORD.sub(unnamed, text)


def seen_by_project(message: Message, is_host: IsHost) -> Message:  # noqa: PLR0911 - one for each answer
    """The message as a project may see it."""
    match message:
        case InstanceEvent():
            told = _state(message.instance, is_host)
            return message if told is message.instance else structs.replace(message, instance=told)
        case BuildRejected():
            return structs.replace(message, reason=in_public(message.reason, is_host))
        case InstancesFound():
            cells = tuple([structs.replace(each, reason="") for each in message.cells])
            states = tuple([_state(each, is_host) for each in message.instances])
            return structs.replace(message, instances=states, cells=cells)
        case PlanFound():
            others = tuple([_plan(each) for each in message.alternatives])
            return structs.replace(_plan(message), alternatives=others)
        case ExplanationsFound():
            plan = None if message.plan is None else seen_by_project(message.plan, is_host)
            explained = tuple([_explanation(each, is_host) for each in message.explanations])
            return structs.replace(message, explanations=explained, plan=plan)
        case HistoryFound():
            changes = tuple([_change(each, is_host) for each in message.changes])
            return structs.replace(
                message, instance=message.instance and _state(message.instance, is_host), changes=changes
            )
        case GroupsFound():
            # A group of all projects has members of others.
            groups = tuple(
                [
                    structs.replace(
                        each, members=tuple([structs.replace(one, host="") for one in each.members])
                    )
                    for each in message.groups
                ]
            )
            return structs.replace(message, groups=groups)
    return message


def _state(told: InstanceState, is_host: IsHost) -> InstanceState:
    """The state with the hosts that the instance was given: those that refused it before it came there are not named."""
    if not (told.reason or told.failures or told.refusals or told.passed_over or told.no_valid_host) and not (
        told.move or told.waiting or told.rebuild
    ):
        # As nearly all are.
        return told
    move, rebuild, waiting = told.move, told.rebuild, told.waiting
    tried = [each.host for each in told.failures if not each.is_refused]
    own = {told.host, *((move.source, move.destination) if move else ()), *tried}
    # Also hosts that are gone meanwhile.
    refused = {each.host for each in told.refusals} | {each.host for each in told.failures if each.is_refused}

    def public(text: str) -> str:
        return in_public(text, lambda word: word not in own and (word in refused or is_host(word)))

    return structs.replace(
        told,
        reason=public(told.reason),
        failures=tuple(
            [
                structs.replace(each, host="" if each.is_refused else each.host, reason=public(each.reason))
                for each in told.failures
            ]
        ),
        refusals=tuple(
            [structs.replace(each, host="", reason=public(each.reason)) for each in told.refusals]
        ),
        no_valid_host=told.no_valid_host and _funnel(told.no_valid_host),
        passed_over=tuple(
            [
                structs.replace(
                    each,
                    reason=public(each.reason),
                    no_valid_host=each.no_valid_host and _funnel(each.no_valid_host),
                )
                for each in told.passed_over
            ]
        ),
        move=move and structs.replace(move, failure=public(move.failure)),
        waiting=waiting and structs.replace(waiting, reason=public(waiting.reason)),
        rebuild=rebuild and structs.replace(rebuild, failure=public(rebuild.failure)),
    )


def _funnel(found: NoValidHost) -> NoValidHost:
    steps = tuple([structs.replace(each, example="") for each in found.steps])
    return structs.replace(found, steps=steps, nearest=())


def _plan(found: P) -> P:
    # With how much less a host would qualify is what the fullest of them has free.
    relaxed = tuple(
        [
            structs.replace(each, change=_LESS.sub(r"with less \2 than \3", each.change))
            for each in found.relaxations
        ]
    )
    return structs.replace(found, funnel=_funnel(found.funnel), relaxations=relaxed, pools=())


def _choice(choice: C) -> C:
    return structs.replace(choice, alternates=())


def _explanation(explained: Explanation, is_host: IsHost) -> Explanation:
    boot = explained.boot and _choice(explained.boot)
    return structs.replace(_choice(explained), state=_state(explained.state, is_host), boot=boot)


def _change(change: Change, is_host: IsHost) -> Change:
    own = (change.source, change.destination)
    public = in_public(change.failure, lambda word: word not in own and is_host(word))
    return structs.replace(change, failure=public)
