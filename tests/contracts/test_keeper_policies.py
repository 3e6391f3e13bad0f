"""The policies that keepers store: on both databases."""

from collections.abc import AsyncIterator, Sequence

import pytest

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.hosts import HostsFound
from bus.messages.policies import (
    POLICIES_MAX,
    AskPolicies,
    DeletePolicy,
    KeepingPolicy,
    PoliciesFound,
    PolicyScope,
    PolicyState,
    SetPolicy,
)
from bus.workers.handlers import Received
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.hooks import Hooks
from keeper.policies import PolicyBook
from keeper.store_sql import KeeperStore
from tests.contracts.stores import STORES, open_keeper_store
from tests.contracts.test_keeper_store import NOON


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[KeeperStore]:
    async with open_keeper_store(request.param) as opened:
        yield opened


class Book:
    def __init__(self, store: KeeperStore) -> None:
        self.book = PolicyBook(Schedulers(self._no_hosts), store, Hooks(""), lambda: NOON)

    async def _no_hosts(self, questions: Sequence[Message]) -> Sequence[Message]:
        return [HostsFound(hosts=()) for _ in questions]

    async def set(self, scope: PolicyScope, of: str, restarts: int = 1) -> Message:
        order = SetPolicy(policy=KeepingPolicy(scope=scope, of=of, restarts=restarts), for_user="ann")
        return await self.book.set(_received(order))

    async def delete(self, scope: PolicyScope, of: str) -> Sequence[PolicyState]:
        found = await self.book.delete(_received(DeletePolicy(scope=scope, of=of)))
        assert isinstance(found, PoliciesFound)
        return found.policies

    async def all(self) -> list[tuple[str, str, int | None]]:
        found = await self.book.found(AskPolicies())
        assert isinstance(found, PoliciesFound)
        return [(each.policy.scope, each.policy.of, each.policy.restarts) for each in found.policies]


def _received(message: Message) -> Received:  # type: ignore[type-arg]
    return Received(message=message, id="7", trace="", sender="moor-operator", reply_to="client", attempts=0)


async def test_a_policy_replaces_the_one_of_its_scope_and_name_and_is_deleted_by_them(
    store: KeeperStore,
) -> None:
    book = Book(store)
    for scope, of, restarts in (("project", "shop", 1), ("cloud", "", 2), ("project", "shop", 3)):
        said = await book.set(scope, of, restarts)  # type: ignore[arg-type]
        assert isinstance(said, PoliciesFound)
        assert (said.policies[0].by, said.policies[0].set_at) == ("moor-operator for ann", NOON)
    assert await book.all() == [("cloud", "", 2), ("project", "shop", 3)]
    assert [each.policy.restarts for each in await book.delete("project", "shop")] == [3]
    assert await book.delete("project", "shop") == ()
    assert await book.all() == [("cloud", "", 2)]


async def test_so_many_policies_may_be_set(store: KeeperStore) -> None:
    book = Book(store)
    async with store.transaction() as transaction:
        for number in range(POLICIES_MAX):
            policy = KeepingPolicy(scope="project", of=f"p{number}", restarts=1)
            await transaction.run(rows.save_policy, PolicyState(policy=policy))
    refused = await book.set("project", "one-more")
    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.value) == ("policy.of", "one-more")
    # One of those that are there may change.
    assert isinstance(await book.set("project", "p7", 2), PoliciesFound)
