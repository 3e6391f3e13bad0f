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
from tests.unit.scheduler.test_scheduler_handlers import an_ask

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = TellConsole(
    cell="c1", question="q", asked_at=NOON, instance=CONSUMER, start=0, limit=CONSOLE_BYTES_MAX
)


class Writes(SimulatedDriver):
    """A host whose guest has written nothing that can be printed."""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:  # noqa: ARG002 - all have the same
        text = b"\0" * (CONSOLE_BYTES_MAX + 1)
        return ConsoleText(text[start : start + limit], start, len(text))


async def told(kind: type[SimulatedDriver], order: TellConsole, *, has_it: bool = True) -> ConsoleTold | None:
    (host,) = equal_hosts("c1", 1)
    driver = kind(host, FaultScript())
    store = ComputeStore(lambda: 0.0)
    if has_it:
        async with store.transaction() as tx:
            await tx.save(
                [
                    AttemptRecord(
                        cell="c1", host=driver.root, instance=CONSUMER, attempt=3, state=AttemptState.BUILT
                    )
                ]
            )
    handler = console_handlers(Fleet([driver], lambda: 0.0), store, lambda: NOON)[TellConsole]
    assert isinstance(handler, ReadOnly)
    said = await handler.handle([an_ask(order)])
    if not said:
        return None
    (tell,) = said
    assert isinstance(tell, Tell)
    assert isinstance(tell.message, ConsoleTold)
    return tell.message


@pytest.mark.asyncio
async def test_the_part_that_was_asked_for_is_told_with_its_attempt() -> None:
    found = await told(SimulatedDriver, structs.replace(ORDER, start=-8, limit=7))
    assert found is not None

    assert (found.text, found.attempt, found.next) == ("started", 3, found.size - 1)


@pytest.mark.asyncio
async def test_an_instance_that_no_host_has_has_no_console() -> None:
    found = await told(SimulatedDriver, ORDER, has_it=False)

    assert found == ConsoleTold(cell="c1", question="q", none="no host of cell 'c1' has the instance")


@pytest.mark.asyncio
async def test_bytes_that_cannot_be_printed_do_not_make_the_message_too_large() -> None:
    found = await told(Writes, ORDER)
    assert found is not None

    assert len(encode(Envelope(message=found))) < PARCEL_BYTES_MAX
    assert 0 < found.next < found.size == CONSOLE_BYTES_MAX + 1


@pytest.mark.asyncio
async def test_nothing_is_told_of_what_nobody_waits_for_any_more() -> None:
    assert await told(SimulatedDriver, structs.replace(ORDER, asked_at=NOON - timedelta(minutes=3))) is None
