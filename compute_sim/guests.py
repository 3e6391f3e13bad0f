"""Answers questions about the guests of hosts: those of an audit, and those for what they write to their consoles."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec

from bus.messages.audit import AskHostBooks, BrokenGuest, HostBooksFound, HostEntry
from bus.messages.cell import (
    ConsoleTold,
    TellConsole,
)
from bus.messages.cloud import VALUES_BYTES_MAX
from bus.workers.handlers import Handlers, ReadOnly, Received, Said, Tell, answering
from compute_sim.core.attempts import (
    LABEL_MAX,
)
from compute_sim.drivers import NoConsole
from compute_sim.handlers import ComputeStore, Fleet

# Obeys a scheduler's order to tell a part of a guest's console.


# The clocks of scheduler and compute may differ. Nobody waits for longer: what was asked while the compute was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)


def console_handlers(fleet: Fleet, store: ComputeStore, clock: Callable[[], datetime]) -> Handlers:
    async def on_tell(orders: Sequence[Received[TellConsole]]) -> list[Said]:
        since = clock() - ASKED_BEFORE_MAX
        return [
            Tell(await _told(fleet, store, each.message), each)
            for each in orders
            if each.message.asked_at >= since
        ]

    return {TellConsole: ReadOnly(on_tell)}


async def _told(fleet: Fleet, store: ComputeStore, order: TellConsole) -> ConsoleTold:
    """What a guest has written, by the last attempt of the instance here: an earlier one was left by a move."""
    attempts = await store.living((order.instance,), None, 1)
    here = [each for each in attempts if fleet.get(each.host) is not None]
    told = ConsoleTold(cell=order.cell, question=order.question)
    if not here:
        return msgspec.structs.replace(told, none=f"no host of cell {order.cell!r} has the instance")
    attempt = max(here, key=lambda each: each.attempt)
    told = msgspec.structs.replace(told, attempt=attempt.attempt)
    try:
        found = await fleet[attempt.host].console(attempt, order.start, order.limit)
    except NoConsole as none:
        return msgspec.structs.replace(told, none=str(none)[:LABEL_MAX])
    part, text = _that_fits(found.text)
    return msgspec.structs.replace(
        told, text=text, start=found.start, next=found.start + len(part), size=found.size
    )


def _that_fits(part: bytes) -> tuple[bytes, str]:
    """As much of the beginning as one message has room for: characters that cannot be printed take six bytes each there."""
    text = part.decode(errors="replace")
    while len(msgspec.json.encode(text)) > VALUES_BYTES_MAX:
        part = part[: len(part) // 2]
        text = part.decode(errors="replace")
    return part, text


# Answers an audit's questions about the instances on hosts.


def books_handlers(fleet: Fleet, store: ComputeStore) -> Handlers:
    return {AskHostBooks: answering(partial(_books_found, fleet, store))}


async def _books_found(fleet: Fleet, store: ComputeStore, question: AskHostBooks) -> HostBooksFound:
    """Answer an audit: the attempts on hosts that work. A silent or dead host cannot be asked, and is left out."""
    attempts = await store.living(question.instances, question.after, question.limit)
    at_s = fleet.clock_s()
    named = {*question.hosts, *[each.host for each in attempts]}
    well = {*fleet.well([each for each in named if fleet.get(each) is not None], at_s)}
    there = [each for each in attempts if each.host in well]
    return HostBooksFound(
        entries=tuple(
            [HostEntry(instance=each.instance, host=each.host, attempt=each.attempt) for each in there]
        ),
        broken=tuple(
            [
                BrokenGuest(instance=each.instance, host=each.host, attempt=each.attempt, why=why)
                for each in there
                if (why := fleet[each.host].why_broken(each))
            ]
        ),
        asked=tuple([each for each in question.hosts if each in well]),
        next=attempts[-1].instance if len(attempts) >= question.limit else None,
    )
