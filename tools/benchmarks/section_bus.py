"""The bus alone: the cost of a message from publisher to worker, and of a question with its answer."""

import asyncio
import os
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import cycle, islice
from typing import Protocol

from bus.messages.placement import ClaimAnswered, ClaimResources
from bus.settings import BusSettings
from bus.workers.connections import Station
from bus.workers.publisher import Outgoing
from engine.refusals import Claimed
from tests.running import closing
from tests.varied import varied
from tools.benchmarks.books import WrongBooksError
from tools.benchmarks.brokers import Bus, memory_bus, rabbitmq_bus
from tools.benchmarks.cpu import OneProcess, Spender
from tools.benchmarks.measuring import Details, Effort, Result, Work, measured
from tools.benchmarks.messages import HOST_IDS, batches_of, claims, reports
from tools.benchmarks.remote_role import remote_role
from tools.benchmarks.roles import asker, granting_placement, reader

# Items per parcel, and how many messages make a run of a second or two.
PARCELS = {1: 5_000, 50: 40_000, 200: 80_000}
# How many messages are handed to the publisher at once, and how many of them may be unconfirmed; more have to wait.
SAID_AT_ONCE = 200
SAID_UNCONFIRMED_MAX = 20

QUESTIONS = {1: 4_000, 50: 20_000, 200: 40_000}
ASKS_IN_FLIGHT = 4


class Worked(Protocol):
    async def until(self, count: int) -> object: ...


async def bus_section(effort: Effort) -> list[Result]:
    results: list[Result] = []
    for opened in buses(effort):
        async with opened as bus:
            results += await _one_way(bus, effort)
            results += await _there_and_back(bus, effort)
    return results


def buses(effort: Effort) -> tuple[AbstractAsyncContextManager[Bus], ...]:
    return (memory_bus(), *((rabbitmq_bus(),) if effort.servers else ()))


# One way


async def _one_way(bus: Bus, effort: Effort) -> list[Result]:
    results = []
    async with _worker("reader", bus) as (worked, worker):
        sent = _Sent(worked)
        for items, usual in effort.some(PARCELS).items():
            settings = varied(BusSettings(), PARCEL_ITEMS_MAX=items)
            async with closing(Station(bus.broker, "publisher", settings=settings)) as (station,):
                results.append(
                    await measured(
                        "bus, one way",
                        {"broker": bus.name, "items a parcel": items},
                        _processes("publisher", "worker", worker, bus),
                        operations=effort.operations(usual, max(items, SAID_AT_ONCE)),
                        effort=effort,
                        prepare=partial(sent.prepare, station),
                    )
                )
    return results


class _Sent:
    """Counts the sent reports, which the reader must receive."""

    def __init__(self, worked: Worked) -> None:
        self._worked = worked
        self._sent = 0

    def prepare(self, station: Station, count: int) -> Work:
        outgoing = [Outgoing(report) for report in islice(cycle(reports()), count)]
        return partial(self._send, station, outgoing)

    async def _send(self, station: Station, outgoing: list[Outgoing]) -> Details:
        publisher, parcels_before = station.publisher, station.publisher.sender.parcels_sent
        self._sent += len(outgoing)
        reached = asyncio.ensure_future(self._worked.until(self._sent))
        unconfirmed: deque[asyncio.Future[None]] = deque()
        for start in range(0, len(outgoing), SAID_AT_ONCE):
            unconfirmed.append(publisher.send_all(outgoing[start : start + SAID_AT_ONCE]))
            if len(unconfirmed) == SAID_UNCONFIRMED_MAX:
                await unconfirmed.popleft()
        await asyncio.gather(*unconfirmed)
        await reached
        return {"a parcel": len(outgoing) / (publisher.sender.parcels_sent - parcels_before)}


# There and back


async def _there_and_back(bus: Bus, effort: Effort) -> list[Result]:
    async with _worker("yes-sayer", bus) as (_, worker), asker(bus.broker) as client:
        return [
            await measured(
                "bus, asked and answered",
                {"broker": bus.name, "questions a call": batch, "calls in flight": in_flight},
                _processes("asker", "answerer", worker, bus),
                operations=effort.operations(usual // (4 if in_flight == 1 else 1), batch),
                effort=effort,
                prepare=partial(asking, client, batch, in_flight),
            )
            for batch, usual in effort.some(QUESTIONS).items()
            # A single question at a time shows how long a caller waits on an idle bus.
            for in_flight in ((1, ASKS_IN_FLIGHT) if batch == 1 else (ASKS_IN_FLIGHT,))
        ]


def asking(client: Station, batch: int, in_flight: int, count: int) -> Work:
    """This many claims on hosts all over the cloud; each must be granted."""
    return partial(_ask, client, list(batches_of(claims(count, HOST_IDS), batch)), in_flight)


async def _ask(client: Station, batches: Sequence[Sequence[ClaimResources]], in_flight: int) -> Details:
    left, waited_s = iter(batches), list[float]()
    asked_again = client.asked_again

    async def ask_on() -> None:
        for batch in left:
            asked_s = time.perf_counter()
            answers = await client.ask_all(batch)
            waited_s.append(time.perf_counter() - asked_s)
            if not all(isinstance(each, ClaimAnswered) and each.verdict == Claimed() for each in answers):
                raise WrongBooksError(f"not all of {len(answers)} claims were granted")

    async with asyncio.TaskGroup() as askers:
        for _ in range(in_flight):
            askers.create_task(ask_on())
    if client.asked_again > asked_again:
        raise WrongBooksError(f"{client.asked_again - asked_again} questions had to be asked again")
    return {"median wait ms": statistics.median(waited_s) * 1000}


# The processes


@asynccontextmanager
async def _worker(role: str, bus: Bus) -> AsyncIterator[tuple[Worked, Spender | None]]:
    """In a process of its own where the bus reaches other processes."""
    if bus.url:
        async with remote_role(role, bus.url) as other:
            yield other, other.spender
    else:
        async with (reader if role == "reader" else granting_placement)(bus.broker) as handled:
            yield handled, None


def _processes(here: str, there: str, worker: Spender | None, bus: Bus) -> Mapping[str, Spender]:
    ours = OneProcess(os.getpid())
    return {"all in one": ours} if worker is None else {here: ours, there: worker, **bus.spenders}
