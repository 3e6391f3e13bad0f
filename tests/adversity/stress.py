"""Workers that share the database of placement decide orders at once."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from engine.inventories import ConsumerId
from kit.sql import open_database
from placement_worker.core.ledger import ClaimOrder
from tests.contracts.store_client import ClaimDecision, StoreClient
from tests.running import closing

WORKERS = 6
TIME_LIMIT_S = 60
T = TypeVar("T")


class Stress:
    """How far each consumer is, and what the workers met."""

    def __init__(self, consumers: Iterable[ConsumerId]) -> None:
        self.attempts = dict.fromkeys(consumers, 1)
        self.verdicts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def decide(self, client: StoreClient, orders: Sequence[ClaimOrder]) -> ClaimDecision:
        decision = await client.decide_among_others(orders)
        self.verdicts.update(type(verdict).__name__ for verdict in decision.verdicts)
        return decision

    def has_met(self, *verdicts: str) -> None:
        """A run without collisions would prove nothing."""
        assert [each for each in verdicts if not self.verdicts[each]] == [], self.verdicts


async def at_once(
    work: Callable[[int, random.Random], Coroutine[Any, Any, None]], *more: Coroutine[Any, Any, None]
) -> None:
    """Each worker does this, by a chance of its own, and more is done beside them."""
    works = [work(number, random.Random(number)) for number in range(WORKERS)]
    async with asyncio.timeout(TIME_LIMIT_S), asyncio.TaskGroup() as tasks:
        for each in (*works, *more):
            tasks.create_task(each)


async def seen_in(url: str, look: Callable[..., T], *arguments: object) -> T:
    """The committed rows, read without the store."""
    async with closing(open_database(url)) as (database,), database.reading() as transaction:
        return await transaction.run(look, *arguments)
