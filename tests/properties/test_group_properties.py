"""Server groups against slow and obvious references: placement's judgement of claims, and the scheduler's choice."""

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.choosing.choosing import Chosen, choose
from engine.inventories import ConsumerId, GroupId, GroupMember, ServerGroup
from engine.refusals import AlreadyClaimed, Claimed, GroupRefused, NotAllowed, NoValidHost, Superseded
from engine.requests import InstanceSpec
from placement_worker.core.ledger import ClaimOrder
from tests.contracts.placement_orders import (
    a_claim,
    a_host,
    a_release,
    a_share,
    a_swap,
    an_id,
    consumer,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.plugins import standard_plugins
from tests.properties.bounds import BOUNDED
from tests.stores_in_memory import MemoryPlacementStore
from tests.unit.choosing.scheduler_worlds import a_picture, a_state, vcpus

HOSTS = ("h1", "h2", "h3")
APART = ServerGroup(id=GroupId(an_id("apart")), policy="anti-affinity")
PAIRS = ServerGroup(id=GroupId(an_id("pairs")), policy="anti-affinity", max_per_host=2)
TOGETHER = ServerGroup(id=GroupId(an_id("together")), policy="affinity")
SOFT = ServerGroup(id=GroupId(an_id("soft")), policy="soft-anti-affinity")
GROUPS = (APART, PAIRS, TOGETHER, SOFT)
MEMBERS = {consumer(f"{group.policy} {group.max_per_host} {n}"): group for group in GROUPS for n in range(4)}
MIGRATIONS = {who: consumer(f"migration of {who}") for who in MEMBERS}
CLEANUPS = {who: consumer(f"cleanup of {who}") for who in MEMBERS}


@dataclass
class Life:
    attempt: int = 0
    host: str = ""


@dataclass
class Reference:
    """One order at a time; the places of all members are looked up anew for each. There is room for all, and no other reason to refuse."""

    lives: dict[ConsumerId, Life] = field(default_factory=dict)
    group_of: dict[ConsumerId, ServerGroup] = field(default_factory=dict)

    def answer(self, order: ClaimOrder) -> str:
        life = self.lives.get(order.consumer, Life())
        if isinstance(order, ReleaseClaim):
            return self._release(order, life)
        host = next(name for name in HOSTS if provider(name) == order.share.host)
        if isinstance(order, SwapClaim):
            return self._swap(order, life, host)
        if order.attempt < life.attempt or (order.attempt == life.attempt and not life.host):
            return "superseded"
        if life.host:
            return "already claimed"
        return self._place(order, host, set())

    def _release(self, order: ReleaseClaim, life: Life) -> str:
        if order.attempt < life.attempt:
            return "superseded"
        self.lives[order.consumer] = Life(order.attempt)
        return "released"

    def _swap(self, order: SwapClaim, life: Life, host: str) -> str:
        if not life.host or life.attempt not in (order.held_attempt, order.attempt):
            return "superseded"
        if life.attempt == order.attempt:
            return "already claimed"
        heir = self.lives.get(order.heir.id, Life()) if order.heir else None
        if heir and heir.host:
            return "not allowed"
        keeps = heir is not None and (not heir.attempt or heir.attempt < order.held_attempt)
        keeps_all = keeps and order.heir is not None and order.heir.type == "CLEANUP" and not order.returns
        migration = self.lives.get(order.returns, Life()) if order.returns else Life()
        comes_back = order.returns is not None and host in (life.host, migration.host)
        leaving = {order.consumer, order.returns or order.consumer}
        said = self._place(order, host, set() if keeps_all else leaving, comes_back=comes_back)
        if said != "claimed":
            return said
        if order.returns and migration.host:
            self.lives[order.returns] = Life(migration.attempt)
        if order.heir and keeps and (keeps_all or host != life.host):
            self.lives[order.heir.id] = Life(life.attempt, life.host)
            self.group_of[order.heir.id] = MEMBERS[order.consumer]
        return "came back" if comes_back else "claimed"

    def _place(
        self,
        order: ClaimResources | SwapClaim,
        host: str,
        leaving: set[ConsumerId],
        *,
        comes_back: bool = False,
    ) -> str:
        group = MEMBERS[order.consumer]
        if comes_back:
            return self._lives(order, host)
        there = [where for who, where in self.members(group).items() if who not in leaving]
        if group.policy == "anti-affinity" and there.count(host) >= group.max_per_host:
            return "refused"
        if group.policy == "affinity" and any(where != host for where in there):
            return "refused"
        return self._lives(order, host)

    def _lives(self, order: ClaimResources | SwapClaim, host: str) -> str:
        self.lives[order.consumer] = Life(order.attempt, host)
        self.group_of[order.consumer] = MEMBERS[order.consumer]
        return "claimed"

    def members(self, group: ServerGroup) -> dict[ConsumerId, str]:
        return {
            who: life.host
            for who, life in self.lives.items()
            if life.host and self.group_of.get(who) == group
        }


def plainly(verdict: object) -> str:
    match verdict:
        case Claimed():
            return "claimed"
        case AlreadyClaimed():
            return "already claimed"
        case GroupRefused():
            return "refused"
        case Superseded():
            return "superseded"
        case NotAllowed():
            return "not allowed"
        case _:
            return "released"


def orders() -> st.SearchStrategy[tuple[ClaimOrder, ...]]:
    who, host, attempt = st.sampled_from(list(MEMBERS)), st.sampled_from(HOSTS), st.integers(1, 3)

    def claim(who: ConsumerId, name: str, attempt: int) -> ClaimOrder:
        return a_claim(a_share(provider(name)), who, attempt, group=MEMBERS[who])

    def swap(who: ConsumerId, name: str, held: int, kind: str) -> ClaimOrder:
        return a_swap(
            a_share(provider(name)),
            who,
            held,
            held + 1,
            cleanup=CLEANUPS[who] if "cleanup" in kind else None,
            migration=MIGRATIONS[who] if kind == "migration" else None,
            returns=MIGRATIONS[who] if "back" in kind else None,
            group=MEMBERS[who],
        )

    kinds = st.sampled_from(("", "cleanup", "migration", "migration", "back", "back with a cleanup"))
    released = st.one_of(who, st.sampled_from([*CLEANUPS.values(), *MIGRATIONS.values()]))

    def move_and_back(who: ConsumerId, here: str, there: str) -> tuple[ClaimOrder, ...]:
        return claim(who, here, 1), swap(who, there, 1, "migration"), swap(who, here, 2, "back")

    single = st.one_of(
        st.builds(claim, who, host, attempt),
        st.builds(claim, who, host, st.just(1)),
        st.builds(swap, who, host, st.integers(1, 2), kinds),
        st.builds(a_release, released, attempt),
    )
    return st.one_of(*[single.map(lambda one: (one,))] * 4, st.builds(move_and_back, who, host, host))


def test_orders_in_any_batches_are_judged_as_the_reference_says() -> None:
    met: Counter[str] = Counter()

    @BOUNDED
    @given(st.lists(st.lists(orders(), min_size=1, max_size=8), min_size=1, max_size=8))
    def search(batches: list[list[tuple[ClaimOrder, ...]]]) -> None:
        met.update(asyncio.run(compare([list(itertools.chain(*batch)) for batch in batches])))

    search()
    met_often = ("claimed", "refused", "already claimed", "superseded", "released", "came back")
    assert min(met[what] for what in met_often) > 20


async def compare(batches: list[list[ClaimOrder]]) -> list[str]:
    store, reference = MemoryPlacementStore(), Reference()
    client = StoreClient(store)
    await client.report(*[a_host(name, VCPU=50) for name in HOSTS])
    met = []
    for batch in batches:
        said = [plainly(verdict) for verdict in await client.ask(*batch)]
        right = [reference.answer(order) for order in batch]
        assert said == ["claimed" if each == "came back" else each for each in right]
        page = await store.members_page(0, 1000)
        assert {(each.group, each.consumer, each.host) for each in page.members} == {
            (group.id, who, provider(host))
            for group in GROUPS
            for who, host in reference.members(group).items()
        }
        met += right
    return met


@BOUNDED
@given(
    st.sampled_from(GROUPS),
    st.lists(st.tuples(st.sampled_from(("h0", "h1", "h2", "h3", "gone")), st.booleans()), max_size=6),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_every_choice_keeps_the_group_and_is_refused_only_where_no_host_is_left(
    group: ServerGroup, members: list[tuple[str, bool]], room: list[int], instances: int
) -> None:
    names = [f"h{number}" for number in range(4)]
    picture = a_picture(
        *[
            a_state(name, vcpus(max(free, 1), 0 if free else 1), internal=number + 1)
            for number, (name, free) in enumerate(zip(names, room, strict=True))
        ]
    )
    for number, (host, is_answered) in enumerate(members):
        member = GroupMember(group=group.id, consumer=consumer(str(number)), attempt=1, host=provider(host))
        if is_answered:
            picture.groups.join([member])
        else:
            picture.groups.hold(member)

    outcomes = choose(
        picture,
        [InstanceSpec(amounts=(("VCPU", 1),), server_group=group)] * instances,
        standard_plugins(),
        salt=3,
    )

    there, left = [host for host, _ in members], dict(zip(names, room, strict=True))
    for outcome in outcomes:
        fitting = {
            name
            for name in names
            if left[name] > 0
            and not (group.policy == "anti-affinity" and there.count(name) >= group.max_per_host)
            and not (group.policy == "affinity" and any(host != name for host in there))
        }
        if isinstance(outcome, NoValidHost):
            # Two hosts that both have members of an affinity group: no rule says which of them is right.
            assert not fitting
            continue
        assert isinstance(outcome, Chosen)
        name = outcome.choice.name
        assert left[name] > 0
        assert group.policy != "anti-affinity" or there.count(name) < group.max_per_host
        assert group.policy != "affinity" or not there or name in there
        there.append(name)
        left[name] -= 1
