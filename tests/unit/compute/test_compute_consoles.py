"""A compute tells a part of a guest's console, as much as one message has room for."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.codec import encode
from bus.message import PARCEL_BYTES_MAX, Envelope
from bus.messages.cell import CONSOLE_BYTES_MAX, ConsoleTold, TellConsole
from bus.workers.handling import ReadOnly, Tell
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.drivers import ConsoleText
from compute_sim.guests import console_handlers
from compute_sim.handlers import ComputeStore, Fleet
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import equal_hosts
from tests.unit.examples.values import CONSUMER
from tests.unit.scheduler.lone_scheduler import an_ask

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = TellConsole(
    cell="c1", question="q", asked_at=NOON, instance=CONSUMER, start=0, limit=CONSOLE_BYTES_MAX
)


class Writes(SimulatedDriver):
    """A host whose guest has written nothing that can be printed."""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:  # noqa: ARG002 - all have the same
        text = b"\0" * (CONSOLE_BYTES_MAX + 1)
        return ConsoleText(text[start : start + limit], start, len(text))


@pytest.mark.asyncio
async def test_a_part_that_fits_into_a_message_is_told_and_nothing_of_what_nobody_waits_for_any_more() -> (
    None
):
    driver = Writes(equal_hosts("c1", 1)[0], FaultScript())
    store = ComputeStore(lambda: 0.0)
    attempt = AttemptRecord(
        cell="c1", host=driver.root, instance=CONSUMER, attempt=3, state=AttemptState.BUILT
    )
    async with store.transaction() as tx:
        await tx.save([attempt])
    handler = console_handlers(Fleet([driver], lambda: 0.0), store, lambda: NOON)[TellConsole]
    assert isinstance(handler, ReadOnly)

    (tell,) = await handler.handle([an_ask(ORDER)])
    assert isinstance(tell, Tell)
    assert isinstance(tell.message, ConsoleTold)
    assert len(encode(Envelope(message=tell.message))) < PARCEL_BYTES_MAX
    assert 0 < tell.message.next < tell.message.size == CONSOLE_BYTES_MAX + 1
    assert await handler.handle([an_ask(structs.replace(ORDER, asked_at=NOON - timedelta(minutes=3)))]) == []
