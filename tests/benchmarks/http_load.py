"""What is asked of a placement server over HTTP, by how many at once, and whether the answers can be right.

An answer is decoded only now and then: the client is not what is measured, and has the same two processors.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from bus.message import ProviderId
from tests.benchmarks.books import WrongBooksError
from tests.benchmarks.clouds import Cloud
from tests.benchmarks.http_client import HttpAnswer, HttpConnection, request
from tests.benchmarks.measuring import Details, Work
from tests.benchmarks.messages import PROJECT, USER
from tests.benchmarks.roles import Handled
from tests.placement_servers import PlacementServer

OK, GRANTED, CONFLICT = 200, 204, 409
# Of so many answers one is decoded, and the first of each run.
DECODED_EVERY = 25
READERS = 2
CLAIMERS = 8
WRITES_A_S = 200
MS_PER_S = 1e3

_consumers = itertools.count(1)


class Claims:
    """Claims of one cloud, each for a new consumer; how many were granted, and how often one had to be asked again."""

    def __init__(self, server: PlacementServer, cloud: Cloud) -> None:
        self._server = server
        self._cloud = cloud
        self.granted = 0
        self.asked_again = 0
        self._told = Handled()

    def orders(self, providers: Sequence[ProviderId]) -> Iterator[bytes]:
        """Without end, each on one of these."""
        chance = random.Random(1)
        while True:
            body = {
                "allocations": {str(chance.choice(providers)): {"resources": self._cloud.claimed}},
                "consumer_generation": None,
                "project_id": PROJECT,
                "user_id": USER,
            }
            consumer = UUID(int=random.Random(next(_consumers)).getrandbits(128), version=4)
            yield request("PUT", f"/allocations/{consumer}", json.dumps(body).encode())

    async def ask(self, connection: HttpConnection, order: bytes) -> None:
        """Until it is granted: a server that says that others were in the way is asked again, as clients do."""
        while (
            answer := await connection.ask(order)
        ).status == CONFLICT and b"concurrent_update" in answer.body:
            self.asked_again += 1
        if answer.status != GRANTED:
            raise WrongBooksError(f"a claim was answered {_shown(answer)}")
        self.granted += 1
        self._told.add(1)

    async def until_more(self, count: int) -> None:
        """So many more than now, whoever asks for them."""
        await self._told.until(self.granted + count)

    async def check(self) -> None:
        """Whether all that was granted is on the books, and nothing else."""
        async with HttpConnection(self._server) as connection:
            answer = await connection.ask(request("GET", f"/usages?project_id={PROJECT}"))
        wanted = {name: amount * self.granted for name, amount in self._cloud.claimed.items() if self.granted}
        seen = json.loads(answer.body).get("usages") if answer.status == OK else _shown(answer)
        if seen != wanted:
            raise WrongBooksError(
                f"{self.granted} claims were granted, which use {wanted}; on the books are {seen}"
            )


class Claiming:
    """Eight clients, each of which asks for the next claim when it has the last."""

    def __init__(self, server: PlacementServer, claims: Claims, providers: Sequence[ProviderId]) -> None:
        self._server = server
        self._claims = claims
        self._orders = claims.orders(providers)

    def prepare(self, count: int) -> Work:
        orders = list(itertools.islice(self._orders, count))

        async def work() -> Details:
            again_before = self._claims.asked_again
            waits = await _asked_by(CLAIMERS, self._server, iter(orders), self._claims.ask)
            return {**_waits(waits), "asked again": self._claims.asked_again - again_before}

        return work


class Searching:
    """Two clients, each of which asks for candidates again when it has been answered, while others write."""

    def __init__(self, server: PlacementServer, cloud: Cloud, limit: int | None, claims: Claims) -> None:
        self._server = server
        self._claims = claims
        self._wanted = cloud.candidates if limit is None else min(limit, cloud.candidates)
        # Who is told of all providers can tell whether the answer knows of all claims granted before the question.
        self._used_each = cloud.claimed["VCPU"] if limit is None else 0
        query = cloud.query + ("" if limit is None else f"&limit={limit}")
        self._question = request("GET", f"/allocation_candidates?{query}")
        self._answered = 0

    def prepare(self, count: int) -> Work:
        async def work() -> Details:
            granted_before = self._claims.granted
            self._answered = 0
            waits = await _asked_by(READERS, self._server, itertools.repeat(self._question, count), self._ask)
            return {**_waits(waits), "claims beside": self._claims.granted - granted_before}

        return work

    async def _ask(self, connection: HttpConnection, question: bytes) -> None:
        granted = self._claims.granted
        answer = await connection.ask(question)
        if answer.status != OK:
            raise WrongBooksError(f"a question for candidates was answered {_shown(answer)}")
        if self._answered % DECODED_EVERY == 0:
            self._check(json.loads(answer.body), granted)
        self._answered += 1

    def _check(self, told: dict[str, Any], granted: int) -> None:
        found = len(told["allocation_requests"])
        if found != self._wanted:
            raise WrongBooksError(f"{self._wanted} candidates were to be found, and {found} were")
        used = sum(
            each["resources"].get("VCPU", {"used": 0})["used"] for each in told["provider_summaries"].values()
        )
        if used < granted * self._used_each:
            raise WrongBooksError(
                f"{granted} claims were granted before, and the answer tells of {used} VCPU used"
            )


@asynccontextmanager
async def writing(
    server: PlacementServer, claims: Claims, providers: Sequence[ProviderId]
) -> AsyncIterator[None]:
    """So many claims a second meanwhile; where the server does not keep up, as many as it can."""
    pace = _Pace(1 / WRITES_A_S)
    orders = claims.orders(providers)
    enough = asyncio.Event()

    async def write() -> None:
        async with HttpConnection(server) as connection:
            while not enough.is_set():
                await pace.turn()
                await claims.ask(connection, next(orders))

    async with asyncio.TaskGroup() as writers:
        for _ in range(CLAIMERS):
            writers.create_task(write())
        try:
            yield
        finally:
            # What has been asked is answered first: nobody would know whether it was granted.
            enough.set()


class _Pace:
    """Turns at equal distances. One that nobody was free to take is lost, and not made up for."""

    def __init__(self, distance_s: float) -> None:
        self._distance_s = distance_s
        self._next_at = 0.0

    async def turn(self) -> None:
        now = time.monotonic()
        at = max(self._next_at, now)
        self._next_at = at + self._distance_s
        await asyncio.sleep(at - now)


Ask = Callable[[HttpConnection, bytes], Awaitable[None]]


async def _asked_by(
    clients: int, server: PlacementServer, requests: Iterator[bytes], ask: Ask
) -> list[float]:
    """Each request by whichever client is free; how long each took."""
    waits: list[float] = []

    async def client() -> None:
        async with HttpConnection(server) as connection:
            for each in requests:
                began = time.perf_counter()
                await ask(connection, each)
                waits.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as asking:
        for _ in range(clients):
            asking.create_task(client())
    return waits


def _waits(waits: Sequence[float]) -> Details:
    ordered = sorted(waits)
    return {
        "median wait ms": statistics.median(ordered) * MS_PER_S,
        "p99 wait ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * MS_PER_S,
    }


def _shown(answer: HttpAnswer) -> str:
    return f"{answer.status}: {answer.body[:500].decode(errors='replace')}"
