"""Members of an affinity group leave their host by one order, and follow the first one; so do members of a soft group."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.hosts import AskHosts, HostPlace, HostsFound, HostsPlaced, PlaceHosts
from bus.messages.planning import AskDrain, DrainFound
from bus.messages.projects import CreateGroup
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId
from engine.inventories import GroupId, PlaceRule
from laboratory.computes.faults import FailsToBuild, FailsToReceive, FaultScript
from laboratory.computes.hosts import HostSize
from moor.client.books.auditing import AuditOptions, Finding, audited
from moor.client.books.books_reader import BooksReader
from tests.stories.cloud import a_build, instance_of
from tests.stories.layouts import BOTH, EMBEDDED, STAGES
from tests.stories.moves.test_moves import SMALL, Movers, down, movers, script
from tests.waiting import until

GROUP = GroupId(UUID(int=77))
# The memory that a host gives to instances.
LARGE_MB = HostSize().ram_mb - HostSize().ram_mb_reserved


class Members:
    def __init__(self, here: Movers, ids: Sequence[InstanceId]) -> None:
        self.here = here
        self.ids = [*ids]

    async def until_all(
        self, state: str, outcome: str, ids: Sequence[InstanceId] = ()
    ) -> list[InstanceState]:
        return [await self.here.until(id_, state, outcome) for id_ in ids or self.ids]

    async def ended(self, id_: InstanceId, request: RequestId | None = None) -> InstanceState:
        """The instance after its move by this order, or the first one, has ended."""
        return await until(
            lambda: self.here.setup.instance(id_),
            f"the move of {id_} has ended",
            lambda told: told.move and told.move.outcome and request in (None, told.move.request_id),
        )

    async def apart(self) -> list[Finding]:
        """The findings of an audit, without those of what is in flight."""
        client = self.here.setup.client
        reader, options = BooksReader(client, {"c1": client}, ()), AuditOptions(settle=timedelta(0))
        return [*(await audited(reader, options, clock=lambda: datetime.now(UTC))).findings]

    async def hosts(self) -> set[str]:
        told = [await self.here.setup.instance(id_) for id_ in self.ids]
        return {each.host for each in told if each is not None}


@asynccontextmanager
async def members(
    bus: str,
    books: str,
    *hosts: str,
    policy: str = "affinity",
    count: int = 2,
    faults: FaultScript | None = None,
    wide: str = "",
) -> AsyncIterator[Members]:
    async with movers(bus, books, *hosts, script=faults, wide=wide) as here:
        await here.setup.client.ask(CreateGroup(id=GROUP, policy=policy, name="pair"))  # type: ignore[arg-type]
        joined = JoinedGroup(id=GROUP)
        yield Members(here, [await here.booted(number, group=joined) for number in range(1, count + 1)])


@STAGES
async def test_an_affinity_group_is_evacuated_together_and_again(bus: str, books: str) -> None:
    async with members(bus, books, "h1", "h2", "h3") as group:
        here = group.here
        await down(here, "h1")

        answer = await here.move(group.ids[0], "evacuate", with_group=True)

        assert {each.id for each in answer.instances} == {*group.ids}
        there = {each.host for each in await group.until_all("active", "confirmed")}
        assert len(there) == 1
        (first,) = there
        # What the lost host keeps does not hinder new members, nor the next evacuation.
        late = await here.setup.boot(9, flavor=SMALL, group=JoinedGroup(id=GROUP))
        assert late.host == first
        group.ids.append(late.id)
        await down(here, first)
        again = await here.move(
            group.ids[1], "evacuate", with_group=True, request_id=RequestId(UUID(int=2000))
        )
        assert len(again.instances) == 3
        await group.until_all("active", "confirmed")

        await until(
            group.hosts,
            "all are on the third host",
            lambda found: len(found) == 1 and not {"h1", first} & found,
        )


@STAGES
async def test_one_member_alone_is_refused_with_what_to_do_and_all_by_name_move(bus: str, books: str) -> None:
    async with members(bus, books, "h1", "h2") as group:
        one, other = group.ids
        refused = await group.here.refused(one)
        assert refused.field == "together"
        assert str(other) in refused.reason
        assert "moor migrate ID ID" in refused.reason

        moved = await group.here.move(one, together=(other,))

        assert {each.state for each in moved.instances} == {"moving"}
        assert {each.host for each in await group.until_all("active", "confirmed")} == {"h2"}
        await group.here.setup.until_used(h1=0, h2=2)


@EMBEDDED
async def test_a_plan_to_drain_says_where_members_go_together_and_the_others_beside_them(
    bus: str, books: str
) -> None:
    async with members(bus, books, "h1", "h2", "h3") as group:
        setup = group.here.setup
        # The second host has room for one, and the third for both members.
        for number, (host, ram_mb) in enumerate((("h2", LARGE_MB - 64), ("h3", LARGE_MB - 128)), start=20):
            await setup.send(a_build(number, flavor=Flavor(vcpus=1, ram_mb=ram_mb, root_gb=1), hosts=(host,)))
        lone = a_build(5, flavor=SMALL, hosts=("h1",))
        await setup.send(lone)
        await group.here.setup.until_used(h1=3, h2=1, h3=1)
        # The plan reads rows of instances, and a row has its host only after the claim.
        await setup.until_state(instance_of(lone), "active")
        await setup.until_current()

        planned = await setup.ask(AskDrain(host="h1"), DrainFound)

        assert {each.id: each.to for each in planned.instances} == {
            **dict.fromkeys(group.ids, "h3"),
            instance_of(lone): "h2",
        }
        # So does one for instances by their ids, which says who leaves together; and where none of them may go.
        (other,) = [each.id for each in (await setup.ask(AskInstances(host="h2"), InstancesFound)).instances]
        (h3,) = (await setup.ask(AskHosts(name="h3"), HostsFound)).hosts
        for avoid, to in (((), "h3"), ((h3.id,), "")):
            question = AskDrain(instances=(*group.ids, other), avoid=avoid)
            planned = await setup.ask(question, DrainFound)
            assert [(each.id, each.to, each.group) for each in planned.instances] == [
                *((id_, to, GROUP) for id_ in group.ids),
                (other, "", None),
            ]
        details = (await setup.ask(AskInstances(instances=tuple(group.ids)), InstancesFound)).details
        assert {(each.group, each.policy) for each in details} == {(GROUP, "affinity")}
        await group.here.move(group.ids[0], with_group=True)
        assert {each.host for each in await group.until_all("active", "confirmed")} == {"h3"}


@EMBEDDED
async def test_a_lone_member_of_an_affinity_group_may_leave_by_the_plan_as_by_the_move(
    bus: str, books: str
) -> None:
    async with members(bus, books, "h1", "h2", count=1) as group:
        await group.here.setup.until_current()
        planned = await group.here.setup.ask(AskDrain(host="h1"), DrainFound)
        assert [(each.to, each.reason) for each in planned.instances] == [("h2", "")]
        await group.here.move(group.ids[0])


@EMBEDDED
async def test_one_whose_destination_failed_stays_and_the_audit_says_how_it_follows(
    bus: str, books: str
) -> None:
    async with members(
        bus,
        books,
        "h1",
        "h2",
        "h3",
        count=5,
        faults=script(FailsToReceive(hosts=("h2",), probability=0.6)),
        wide="h2",
    ) as group:
        await group.here.move(group.ids[0], with_group=True)

        ended = [await group.ended(id_) for id_ in group.ids]

        assert {each.host for each in ended} == {"h1", "h2"}, "nobody goes to a third host"
        apart = await group.apart()
        assert [each.fault.kind for each in apart] == ["split group"] * len(apart)
        assert "moor migrate" in apart[0].why
        # A new member could be on neither host.
        await group.here.setup.boot(9, "error", flavor=SMALL, group=JoinedGroup(id=GROUP))
        for number in range(2000, 2030):
            behind = [each.id for each in ended if each.host == "h1"]
            if not behind:
                break
            request = RequestId(UUID(int=number))
            await group.here.move(behind[0], together=tuple(behind[1:]), request_id=request, confirm_s=0)
            ended = [await group.ended(id_, request if id_ in behind else None) for id_ in group.ids]
        assert await group.hosts() == {"h2"}
        assert await group.apart() == []


@asynccontextmanager
async def in_racks(
    bus: str, books: str, racks: Mapping[str, str], most: int, faults: FaultScript | None = None
) -> AsyncIterator[Movers]:
    """Hosts of real computes in these racks, and a group with at most so many members in each."""
    async with movers(bus, books, *racks, script=faults) as here:
        placed = PlaceHosts(hosts=tuple([HostPlace(host=name, place=rack) for name, rack in racks.items()]))
        await here.setup.ask(placed, HostsPlaced)
        rule = PlaceRule(level=1, policy="anti-affinity", max_members=most)
        await here.setup.client.ask(CreateGroup(id=GROUP, policy="anti-affinity", rules=(rule,)))
        yield here


@BOTH
async def test_a_member_moves_within_its_full_rack_and_is_evacuated_there(bus: str, books: str) -> None:
    async with in_racks(bus, books, {"h1": "r1", "h2": "r1", "h3": "r1", "h4": "r2"}, 2) as here:
        here_only = {"flavor": SMALL, "group": JoinedGroup(id=GROUP), "place": "r1"}
        one, other = [await here.setup.boot(number, **here_only) for number in (1, 2)]
        await here.setup.boot(3, "error", **here_only)

        await here.move(one.id, "live-migrate")
        moved = await here.until(one.id, "active", "confirmed")
        assert {moved.host, one.host, other.host} == {"h1", "h2", "h3"}

        await down(here, moved.host)
        await here.move(one.id, "evacuate", request_id=RequestId(UUID(int=3000)))
        assert (await here.until(one.id, "active", "confirmed")).host == one.host


@BOTH
async def test_alternates_of_a_host_that_fails_keep_the_rules(bus: str, books: str) -> None:
    racks = {"h1": "r1", "h2": "r1", "h3": "r2", "h4": "r2", "h5": "r3", "h6": "r3"}
    failing = script(FailsToBuild(hosts=("h1", "h3", "h5")))
    async with in_racks(bus, books, racks, 1, failing) as here:
        builds = [a_build(number, flavor=SMALL, group=JoinedGroup(id=GROUP)) for number in range(1, 4)]
        await here.setup.client.ask_all(builds)

        ends = await here.setup.until_each(builds, "active", "error")

        living = [end.host for end in ends if end.state == "active"]
        assert {*living} <= {"h2", "h4", "h6"}
        assert len({racks[host] for host in living}) == len(living) == 3
