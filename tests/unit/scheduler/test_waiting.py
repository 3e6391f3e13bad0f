"""How many of those that wait are tried at once, which of them a change wakes, and what that costs."""

from asyncio import run
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.choosing.choosing import choose
from engine.flavors import InstanceId
from engine.hosts import Aggregate
from engine.inventories import (
    AggregateId,
    GroupId,
    GroupMember,
    Holder,
    InventoryState,
    ProviderUsage,
    ResourceAmount,
    ServerGroup,
    Share,
)
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from scheduler_worker import waiting
from scheduler_worker.store_sql import WaitingInstance
from scheduler_worker.waiting import MoveSource, WaitingSpecs, first_that_fit
from tests.contracts.placement_orders import consumer, provider
from tests.planted.replacing import replaced
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_state, usage_of
from tests.unit.scheduler.lone_scheduler import NOON


@given(
    rows=st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=12),
    room=st.fixed_dictionaries({digest: st.integers(1, 6) for digest in (b"a", b"b", b"c")}),
)
def test_as_many_are_tried_as_fit_together_for_sure_by_the_least_of_their_rooms(
    rows: list[bytes], room: dict[bytes, int]
) -> None:
    taken = first_that_fit(rows, room)

    def fit(count: int) -> bool:
        return all(room[digest] >= count for digest in rows[:count])

    assert fit(taken)
    assert taken == len(rows) or not fit(taken + 1)
    assert taken or not rows


# What a change wakes


HOSTS = 20


class Waits:
    """What waits, as one worker knows it, on hosts that are full; each change of a host is a later state of it."""

    def __init__(self, inventories: dict[str, InventoryState] | None = None) -> None:
        self.states = [
            a_state(
                f"h{number}", inventories or {"VCPU": InventoryState(total=8, used=8)}, internal=number + 1
            )
            for number in range(HOSTS)
        ]
        self.picture = a_picture(*self.states)
        self.specs = WaitingSpecs(self.picture, standard_plugins())
        self._revision = 1
        self.judged = 0

    def add(
        self, number: int, spec: InstanceSpec, *, priority: int = 0, source: MoveSource | None = None
    ) -> None:
        turn = -priority, NOON + timedelta(seconds=number)
        self.specs.learn(b"%06d" % number, (spec,), turn, source)

    def use(self, host: int, used: int) -> None:
        self._revision += 1
        self.picture.use([usage_of(self.states[host], used, self._revision)])

    def judge(self) -> dict[bytes, int]:
        """What may be tried now: piece after piece is judged until something may be, or nothing is left."""

        with replaced(waiting, "hosts_with_room", self._counted):
            room = self.specs.room()
            while not room and self.specs.is_judging:
                room = self.specs.room()
        return room

    def _counted(self, real: Any) -> Any:
        def count(picture: Picture, specs: Sequence[InstanceSpec], *rest: Any) -> Any:
            self.judged += len(specs)
            return real(picture, specs, *rest)

        return count

    def ends(self, number: int) -> None:
        """The search for this one has found a host, and no other one waits with its spec."""
        self.specs.succeeded(b"%06d" % number)
        self.specs.forget(b"%06d" % number)


def a_group(number: int, policy: Any = "anti-affinity") -> ServerGroup:
    return ServerGroup(id=GroupId(UUID(int=number + 1)), policy=policy)


DIFFERENT: dict[str, Callable[[int], InstanceSpec]] = {
    "by their groups": lambda number: InstanceSpec((("VCPU", 1),), server_group=a_group(number)),
    "by the hosts that they name": lambda number: InstanceSpec((("VCPU", 1),), hosts=(f"h{number % HOSTS}",)),
    "by their amounts": lambda number: InstanceSpec((("VCPU", 1), ("MEMORY_MB", number + 1))),
    "by their projects": lambda number: InstanceSpec((("VCPU", 1),), project=f"p{number}"),
}


@pytest.mark.parametrize("how", DIFFERENT)
async def test_what_waits_and_what_is_deleted_cost_as_much_as_there_is_of_them(how: str) -> None:
    memory = InventoryState(total=10_000)
    waits = Waits({"VCPU": InventoryState(total=8, used=8), "MEMORY_MB": memory})
    count = 100
    for number in range(count):
        waits.add(number, DIFFERENT[how](number))
    assert waits.judge() == {}
    woken: list[int] = []
    waits.judged = 0

    for number in range(count):
        waits.use(number % HOSTS, 7)
        while room := waits.judge():
            assert len(room) == 1, "one processor is free"
            (digest,) = room
            woken.append(int(digest))
            waits.use(number % HOSTS, 8)
            waits.ends(int(digest))

    assert sorted(woken) == list(range(count))
    assert how == "by the hosts that they name" or woken == sorted(woken)
    assert waits.judged <= 6 * count


async def test_a_processor_that_is_freed_costs_nothing_for_those_that_wait_for_something_else() -> None:
    waits = Waits()
    for number in range(5_000):
        amounts = (("VCPU", 1), ("VGPU", 1 + number % 4))
        waits.add(number, InstanceSpec(amounts, server_group=a_group(number)))
    waits.judge()
    waits.judged = 0

    for number in range(50):
        waits.use(number % HOSTS, 7)
        assert waits.judge() == {}
        waits.use(number % HOSTS, 8)

    assert waits.judged == 0


async def test_those_in_another_zone_are_judged_as_one() -> None:
    waits = Waits()
    for number in range(500):
        spec = InstanceSpec((("VCPU", 1),), availability_zone="z9", server_group=a_group(number))
        waits.add(number, spec)
    waits.judge()
    waits.judged = 0

    for number in range(HOSTS):
        waits.use(number, 7)
        assert waits.judge() == {}

    assert waits.judged == HOSTS


async def test_the_first_in_turn_is_found_whatever_was_learned_first() -> None:
    waits = Waits()
    waits.add(3, InstanceSpec((("VCPU", 1),), project="c"))
    waits.add(2, InstanceSpec((("VCPU", 1),), project="b"))
    waits.add(9, InstanceSpec((("VCPU", 1),), project="a"), priority=5)
    assert waits.judge() == {}

    waits.use(0, 7)

    assert [*waits.judge()] == [b"000009"]


async def test_one_whose_earlier_instances_are_over_is_not_tried_before_others_that_wait_longer() -> None:
    waits = Waits()
    first, second = b"000001", b"000005"
    waits.add(1, InstanceSpec((("VCPU", 1),), project="a"))
    waits.add(5, InstanceSpec((("VCPU", 1),), project="b"))
    assert waits.judge() == {}
    waits.use(0, 7)
    assert [*waits.judge()] == [first]

    # The database has one that began to wait later than was known.
    now = WaitingInstance(InstanceId(UUID(int=1)), first, b"", (0, NOON + timedelta(seconds=9)))
    waits.specs.read([now])

    assert not waits.specs.may_be_tried(now.turn)
    assert {*waits.judge()} == {first, second}
    assert waits.specs.may_be_tried((0, NOON + timedelta(seconds=5)))
    assert not waits.specs.may_be_tried(now.turn)


async def test_a_member_that_leaves_wakes_its_group_alone() -> None:
    waits = Waits({"VCPU": InventoryState(total=8)})
    group = a_group(0)
    members = [
        GroupMember(group.id, consumer(f"m{number}"), 1, provider(f"h{number}")) for number in range(HOSTS)
    ]
    waits.picture.groups.join(members)
    other = [
        GroupMember(a_group(1).id, consumer(f"o{number}"), 1, provider(f"h{number}"))
        for number in range(HOSTS)
    ]
    waits.picture.groups.join(other)
    for number in range(2):
        waits.add(number, InstanceSpec((("VCPU", 1),), server_group=a_group(number)))
    assert waits.judge() == {}
    waits.judged = 0

    waits.picture.groups.leave([Holder(consumer=members[3].consumer, attempt=1)])

    assert [*waits.judge()] == [b"000000"]
    assert waits.judged <= 2


async def test_a_pool_wakes_its_users_when_less_of_it_is_used_and_not_when_more_is() -> None:
    shared = AggregateId(UUID(int=7))
    disk = InventoryState(total=100, used=100)
    pool = a_state(
        "pool", {"DISK_GB": disk}, traits=("MISC_SHARES_VIA_AGGREGATE",), aggregates=(shared,), internal=90
    )
    user = a_state("h0", {"VCPU": InventoryState(total=8)}, aggregates=(shared,), internal=1)
    waits = Waits()
    waits.picture = a_picture(pool, user, a_state("h1", {"VCPU": InventoryState(total=8)}, internal=2))
    waits.specs = WaitingSpecs(waits.picture, standard_plugins())
    waits.add(0, InstanceSpec((("VCPU", 1), ("DISK_GB", 10))))
    assert waits.judge() == {}
    waits.judged = 0

    def uses(used: int, revision: int) -> None:
        usage = ProviderUsage(internal=90, id=pool.id, base=1, revision=revision, used={"DISK_GB": used})
        waits.picture.use([usage])

    uses(100, 2)
    assert waits.judge() == {}
    assert waits.judged == 0

    uses(90, 3)
    assert waits.judge() == {b"000000": 1}
    uses(95, 4)
    assert waits.judge() == {}


async def test_a_resize_that_may_stay_is_tried_when_its_own_host_changes_though_the_columns_say_it_is_full() -> (
    None
):
    waits = Waits()
    source = MoveSource("c1", "h4", may_stay=True)
    waits.add(0, InstanceSpec((("VCPU", 8),), hosts=("h4",), cell="c1"), source=source)
    assert waits.judge() == {b"000000": 1}
    waits.specs.failed(b"000000", may_pass=False)
    waits.use(5, 1)
    assert waits.judge() == {}

    # A search that succeeds ends the pause after one that failed.
    waits.specs.succeeded(b"000000")
    waits.use(4, 7)

    assert waits.judge() == {b"000000": 1}


# Never a wrong wait: whatever happens to hosts, what may be tried by all hosts is found.


ZONES, GROUP = ("z1", "z2"), a_group(0)
GROUP_TOO = a_group(1, "affinity")
ASKED: tuple[InstanceSpec, ...] = (
    InstanceSpec((("VCPU", 2),)),
    InstanceSpec((("VCPU", 1), ("DISK_GB", 20))),
    InstanceSpec((("VCPU", 1),), required=("CUSTOM_A",)),
    InstanceSpec((("VCPU", 1),), availability_zone="z2"),
    InstanceSpec((("VCPU", 3),), hosts=("h1", "h2")),
    InstanceSpec((("VCPU", 1),), server_group=GROUP),
    InstanceSpec((("VCPU", 1),), server_group=GROUP_TOO),
    InstanceSpec((("VCPU", 1),), member_of=((AggregateId(UUID(int=9)),),)),
    InstanceSpec((("VCPU", 1),), project="shop"),
)


class Changes:
    """A small cloud in which anything may happen. `h0` and `h1` share a pool, and `h2` is a tree."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.picture = Picture()
        self._revision = 0
        self._up = [True] * 4
        self._mode = ["up"] * 4
        self._zone = ["z1"] * 4
        self._traits: list[tuple[str, ...]] = [()] * 4
        self._aggregates: list[tuple[AggregateId, ...]] = [()] * 4
        self._total = [4] * 4
        for number in range(4):
            self._host(number)
            self._shape(number)
        self._pool(60)
        self._members: list[Any] = []
        self._held = 0

    def happen(self) -> None:
        number = self._random.randrange(4)
        getattr(self, self._random.choice([name for name in dir(self) if name.startswith("_on_")]))(number)

    def _on_use(self, number: int) -> None:
        self._revision += 1
        name = f"h{number}-0" if number == 2 else f"h{number}"
        used, consumers = self._random.randrange(5), self._random.randrange(4)
        self.picture.use([self._usage(name, {"VCPU": used}, consumers)])

    def _on_use_of_pool(self, _number: int) -> None:
        self._revision += 1
        self.picture.use([self._usage("pool", {"DISK_GB": self._random.choice((40, 50, 60))}, 0)])

    def _on_state_of_pool(self, _number: int) -> None:
        self._pool(self._random.choice((60, 80)))

    def _on_life(self, number: int) -> None:
        self._up[number] = not self._up[number]
        self._host(number)

    def _on_mode(self, number: int) -> None:
        self._mode[number] = self._random.choice(("up", "draining"))
        self._host(number)

    def _on_zone(self, number: int) -> None:
        self._zone[number] = self._random.choice(ZONES)
        self._host(number)

    def _on_traits(self, number: int) -> None:
        self._traits[number] = self._random.choice(((), ("CUSTOM_A",)))
        self._shape(number)

    def _on_total(self, number: int) -> None:
        self._total[number] = self._random.randrange(2, 7)
        self._shape(number)

    def _on_aggregates(self, number: int) -> None:
        self._aggregates[number] = self._random.choice(((), (AggregateId(UUID(int=9)),)))
        self._shape(number)

    def _on_metadata(self, _number: int) -> None:
        self._revision += 1
        metadata = self._random.choice(({}, {"filter_tenant_id": "shop"}, {"filter_tenant_id": "bank"}))
        aggregate = Aggregate(
            id=AggregateId(UUID(int=9)), name="a", metadata=metadata, sequence=self._revision
        )
        self.picture.put_aggregates([aggregate])

    def _on_cells(self, _number: int) -> None:
        self.picture.put_cells_down(self._random.choice(({}, {"c1": "no conductor"})))

    def _on_member(self, number: int) -> None:
        self._revision += 1
        if self._members and self._random.random() < 0.6:
            gone = self._members.pop(self._random.randrange(len(self._members)))
            self.picture.groups.leave([Holder(consumer=gone, attempt=1)])
            return
        group = self._random.choice((GROUP.id, GROUP_TOO.id))
        host = provider(f"h{number}")
        if group == GROUP_TOO.id and (others := self.picture.groups.of_group(group)):
            # An affinity group is on one host.
            host = others[0].host
        self._members.append(consumer(f"m{self._revision}"))
        self.picture.groups.join([GroupMember(group, self._members[-1], 1, host)])

    def _on_hold(self, number: int) -> None:
        self._held += 1
        provider_id = provider(f"h{number}-0" if number == 2 else f"h{number}")
        amount = ResourceAmount(provider=provider_id, resource="VCPU", amount=1)
        share = Share(host=provider(f"h{number}"), amounts=(amount,))
        self.picture.hold([(consumer(f"held{self._held}"), 1, share)])

    def _on_drop(self, _number: int) -> None:
        self.picture.drop([(consumer(f"held{self._random.randrange(self._held + 1)}"), 1)])

    def _usage(self, name: str, used: dict[str, int], consumers: int) -> ProviderUsage:
        return ProviderUsage(
            internal=_internal(name),
            id=provider(name),
            base=1,
            revision=self._revision,
            used=used,
            consumers=consumers,
        )

    def _host(self, number: int) -> None:
        host = a_host(
            f"h{number}",
            up=self._up[number],
            mode=self._mode[number],  # type: ignore[arg-type]
            availability_zone=self._zone[number],
        )
        self.picture.put_hosts([host])

    def _shape(self, number: int) -> None:
        self._revision += 1
        name = f"h{number}"
        stock = {"VCPU": InventoryState(total=self._total[number], used=self._random.randrange(3))}
        more: dict[str, Any] = {"shape": self._revision, "revision": self._revision}
        pools = (AggregateId(UUID(int=5)),) if number < 2 else ()
        root = a_state(
            name,
            {} if number == 2 else stock,
            internal=_internal(name),
            traits=self._traits[number],
            aggregates=(*pools, *self._aggregates[number]),
            **more,
        )
        child = a_state(
            f"{name}-0", stock, internal=_internal(f"{name}-0"), parent=root.id, root=root.id, **more
        )
        self.picture.apply([root, child] if number == 2 else [root])

    def _pool(self, total: int) -> None:
        self._revision += 1
        pool = a_state(
            "pool",
            {"DISK_GB": InventoryState(total=total, used=50)},
            internal=_internal("pool"),
            traits=("MISC_SHARES_VIA_AGGREGATE",),
            aggregates=(AggregateId(UUID(int=5)),),
            shape=self._revision,
            revision=self._revision,
        )
        self.picture.apply([pool])


def _internal(name: str) -> int:
    return 1 + ("h0", "h1", "h2", "h3", "h0-0", "h1-0", "h2-0", "h3-0", "pool").index(name)


# What a planted mistake in the picture or in `waiting.py` breaks was seen by one of the first three, as far as by the first six.
@pytest.mark.parametrize(
    "seed", [0, 1, 5, *[pytest.param(each, marks=pytest.mark.proof) for each in (2, 3, 4, *range(6, 24))]]
)
def test_nothing_waits_that_a_change_has_helped(seed: int) -> None:
    random = Random(seed)
    changes = Changes(random)
    picture = changes.picture
    plugins = standard_plugins(instances_max=3)
    specs = WaitingSpecs(picture, plugins)
    for number, spec in enumerate(ASKED):
        specs.learn(b"%d" % number, (spec,), (0, NOON + timedelta(seconds=random.randrange(9))))

    async def look() -> None:
        for _ in range(40):
            for _ in range(random.choice((0, 1, 1, 2))):
                changes.happen()
            if random.random() < 0.3:
                continue
            found = specs.room()
            while specs.is_judging:
                found |= specs.room()
            for number, spec in enumerate(ASKED):
                (one,) = choose(picture, [spec], plugins, 0, 0, explained_max=0)
                assert isinstance(one, NoValidHost) or b"%d" % number in found, spec

    run(look())
