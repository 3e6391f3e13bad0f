"""The load on a placement server over HTTP: requests, number of clients, and checks of the answers.

Only some answers are decoded: the client is not measured, and shares the two CPUs.
"""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from engine.inventories import ProviderId
from tests.placement_servers import PlacementServer
from tools.benchmarks.books import WrongBooksError
from tools.benchmarks.clouds import Cloud
from tools.benchmarks.http_client import HttpAnswer, HttpConnection, request
from tools.benchmarks.measuring import Details, Work, waits_of
from tools.benchmarks.messages import PROJECT, USER
from tools.benchmarks.roles import Handled

OK, GRANTED, CONFLICT = 200, 204, 409
# One answer in this many is decoded, and the first of each run.
DECODED_EVERY = 25
READERS = 2
CLAIMERS = 8
WRITES_A_S = 200

_consumers = itertools.count(1)


class Claims:
    """Claims in one cloud, each for a new consumer. Counts the granted ones, and those that had to be repeated."""

    def __init__(self, server: PlacementServer, cloud: Cloud) -> None:
        self._server = server
        self._cloud = cloud
        self.granted = 0
        self.asked_again = 0
        self._told = Handled()

    def orders(self, providers: Sequence[ProviderId]) -> Iterator[bytes]:
        """An endless sequence of claims, each on one of these providers."""
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
        """Repeat a claim until it is granted, as clients do: on a conflict with other writers the server asks for that."""
        while (
            answer := await connection.ask(order)
        ).status == CONFLICT and b"concurrent_update" in answer.body:
            self.asked_again += 1
        if answer.status != GRANTED:
            raise WrongBooksError(f"unexpected answer to a claim: {_shown(answer)}")
        self.granted += 1
        self._told.add(1)

    async def until_more(self, count: int) -> None:
        """Wait until this many more are granted, by any client."""
        await self._told.until(self.granted + count)

    async def check(self) -> None:
        """All granted claims are on the books, and nothing else."""
        async with HttpConnection(self._server) as connection:
            answer = await connection.ask(request("GET", f"/usages?project_id={PROJECT}"))
        wanted = {name: amount * self.granted for name, amount in self._cloud.claimed.items() if self.granted}
        seen = json.loads(answer.body).get("usages") if answer.status == OK else _shown(answer)
        if seen != wanted:
            raise WrongBooksError(
                f"{self.granted} claims were granted, which use {wanted}; on the books are {seen}"
            )


class Claiming:
    """Some clients; each sends its next claim when it has the last answer."""

    def __init__(
        self,
        server: PlacementServer,
        claims: Claims,
        providers: Sequence[ProviderId],
        clients: int = CLAIMERS,
    ) -> None:
        self._clients = clients
        self._server = server
        self._claims = claims
        self._orders = claims.orders(providers)

    def prepare(self, count: int) -> Work:
        orders = list(itertools.islice(self._orders, count))

        async def work() -> Details:
            again_before = self._claims.asked_again
            waits = await _asked_by(self._clients, self._server, iter(orders), self._claims.ask)
            return {**waits_of(waits), "asked again": self._claims.asked_again - again_before}

        return work


class Searching:
    """Two clients; each sends its next search when it has the last answer, while other clients write."""

    def __init__(self, server: PlacementServer, cloud: Cloud, limit: int | None, claims: Claims) -> None:
        self._server = server
        self._claims = claims
        self._wanted = cloud.candidates if limit is None else min(limit, cloud.candidates)
        # An answer with all providers shows whether it includes every claim that was granted before the question.
        self._used_each = cloud.claimed["VCPU"] if limit is None else 0
        query = cloud.query + ("" if limit is None else f"&limit={limit}")
        self._question = request("GET", f"/allocation_candidates?{query}")
        self._answered = 0

    def prepare(self, count: int) -> Work:
        async def work() -> Details:
            granted_before = self._claims.granted
            self._answered = 0
            waits = await _asked_by(READERS, self._server, itertools.repeat(self._question, count), self._ask)
            return {**waits_of(waits), "claims beside": self._claims.granted - granted_before}

        return work

    async def _ask(self, connection: HttpConnection, question: bytes) -> None:
        granted = self._claims.granted
        answer = await connection.ask(question)
        if answer.status != OK:
            raise WrongBooksError(f"unexpected answer to a search: {_shown(answer)}")
        if self._answered % DECODED_EVERY == 0:
            self._check(json.loads(answer.body), granted)
        self._answered += 1

    def _check(self, told: dict[str, Any], granted: int) -> None:
        found = len(told["allocation_requests"])
        if found != self._wanted:
            raise WrongBooksError(f"{self._wanted} candidates expected, but the answer has {found}")
        used = sum(
            each["resources"].get("VCPU", {"used": 0})["used"] for each in told["provider_summaries"].values()
        )
        if used < granted * self._used_each:
            raise WrongBooksError(
                f"{granted} claims were granted before, but the answer shows {used} VCPU used"
            )


@asynccontextmanager
async def writing(
    server: PlacementServer, claims: Claims, providers: Sequence[ProviderId]
) -> AsyncIterator[None]:
    """Send this many claims a second meanwhile, or as many as the server manages."""
    pace = _Pacer(1 / WRITES_A_S)
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
            # Finish the requests under way: otherwise it would be unknown whether they were granted.
            enough.set()


class _Pacer:
    """A steady pace. If no client is free for a turn, that turn is dropped."""

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
    """Each request by the next free client; records how long each took."""
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


def _shown(answer: HttpAnswer) -> str:
    return f"{answer.status}: {answer.body[:500].decode(errors='replace')}"
