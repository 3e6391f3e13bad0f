"""Obeys a scheduler's order to tell a part of a guest's console."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from bus.messages.cells import VALUES_BYTES_MAX
from bus.messages.consoles import ConsoleTold, TellConsole
from bus.workers.handling import Handlers, ReadOnly, Received, Said, Tell
from compute_sim.drivers import NoConsole
from compute_sim.fleet import Fleet
from compute_sim.store import ComputeStore

# The clocks of scheduler and compute may differ. Nobody waits for longer: what was asked while the compute was down is not told.
ASKED_BEFORE_MAX = timedelta(minutes=2)
_NONE_MAX = 255


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
        return msgspec.structs.replace(told, none=str(none)[:_NONE_MAX])
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
