"""What Nova's conductor does before and after it asks: moves, evacuations, rebuilds, requests for several instances."""

from uuid import UUID

import pytest

from nova_bridge.serving import ServingLimits
from tests.stories.nova.conductor import SELECT, asked_for
from tests.stories.nova.nova_world import (
    AMOUNTS,
    EACH,
    NovaWorld,
    an_instance,
    hosts_of,
    nova_world,
    scheduled,
)
from tests.unit.nova.recorded import an_object
from tests.waiting import until

pytestmark = pytest.mark.rabbitmq


async def booted(world: NovaWorld, *, by_us: bool = True) -> tuple[UUID, str]:
    """An instance and its host, claimed by us or written by a scheduler of Nova."""
    instance = an_instance()
    if by_us:
        (chosen,) = await world.conductor.select(instance)
        return instance, str(chosen[0]["service_host"])
    await world.allocate({instance: {"h1": AMOUNTS}})
    return instance, "h1"


@EACH
@pytest.mark.parametrize("by_us", [True, False], ids=["claimed by us", "written by another one"])
async def test_a_migration_takes_the_old_share_and_the_instance_a_new_one_and_back(
    kind: str,
    by_us: bool,  # noqa: FBT001
) -> None:
    async with scheduled("h1", "h2", kind=kind) as world:
        instance, source = await booted(world, by_us=by_us)
        migration = an_instance()
        for _ in range(2):
            # Nova gives what the instance holds to the migration, asks, and then reverts.
            await world.allocate({migration: {source: AMOUNTS}, instance: {}})
            (chosen,) = await world.conductor.select(instance, ignore_hosts=[source])
            target = chosen[0]["service_host"]

            assert target != source
            assert await world.held(instance) == {target: AMOUNTS}
            assert await world.held(migration) == {source: AMOUNTS}
            await world.allocate({instance: {source: AMOUNTS}, migration: {}})
            assert await world.held(instance) == {source: AMOUNTS}


@EACH
@pytest.mark.parametrize("by_us", [True, False], ids=["claimed by us", "written by another one"])
async def test_an_evacuated_instance_keeps_what_it_holds_of_its_old_host(
    kind: str,
    by_us: bool,  # noqa: FBT001
) -> None:
    async with scheduled("h1", "h2", kind=kind) as world:
        instance, source = await booted(world, by_us=by_us)
        world.set_service(source, is_up=False)
        (chosen,) = await world.conductor.select(instance, ignore_hosts=[source], alternates=False)

        target = chosen[0]["service_host"]
        assert target != source
        assert len(chosen) == 1
        assert await world.held(instance) == {source: AMOUNTS, target: AMOUNTS}


@EACH
async def test_a_request_for_several_instances_gives_each_a_host_or_claims_nothing(kind: str) -> None:
    async with scheduled("h1", "h2", kind=kind, VCPU=2) as world:
        instances = [an_instance() for _ in range(3)]
        chosen = await world.conductor.select(*instances)
        more = [an_instance() for _ in range(2)]
        reason = await world.conductor.refusal(*more)

        assert [len(each) > 0 for each in chosen] == [True] * 3
        for instance, hosts in zip(instances, chosen, strict=True):
            assert await world.held(instance) == {hosts[0]["service_host"]: AMOUNTS}
        assert "2 instances need a host each, 1 found one" in reason
        assert [await world.held(instance) for instance in more] == [{}, {}]


async def test_a_host_that_is_down_or_disabled_is_not_chosen_and_the_reason_says_so() -> None:
    async with scheduled("h1", "h2") as world:
        world.set_service("h1", is_forced_down=True)
        world.set_service("h2", is_disabled=True, disabled_reason="a new disk")
        reason = await world.conductor.refusal(an_instance())

    assert "h1: is set down: its service is forced down" in reason
    assert "h2: is draining: its service is disabled: a new disk" in reason


async def test_a_rebuild_stays_on_its_host_and_claims_nothing() -> None:
    async with scheduled("h1", "h2") as world:
        instance, host = await booted(world)
        (stays,) = await world.conductor.select(
            instance,
            scheduler_hints={"_nova_check_type": ["rebuild"]},
            requested_destination=an_object("Destination", "1.4", host=host, node=host),
            alternates=False,
        )

        assert [each["service_host"] for each in stays] == [host]
        assert stays[0]["allocation_request"] is None
        assert await world.held(instance) == {host: AMOUNTS}


def a_group(*hosts: str) -> dict[str, object]:
    """A group for anti-affinity with members on these hosts, as nova-conductor tells of it."""
    return an_object(
        "InstanceGroup",
        "1.11",
        uuid=str(UUID(int=77)),
        policy="anti-affinity",
        members=[],
        hosts=[*hosts],
    )


@EACH
async def test_members_that_two_schedulers_place_at_once_get_alternates_for_the_check_of_computes(
    kind: str,
) -> None:
    """Placement knows no groups: both may choose one host. Nova's compute checks the group again, and the conductor goes on to an alternate."""
    async with nova_world(kind) as world:
        await world.add("roomy", VCPU=32)
        await world.add("h2", "h3")
        instances, one_call = [an_instance() for _ in range(2)], ServingLimits(prefetch=1)
        async with world.scheduler(one_call), world.scheduler(one_call, is_direct=True):
            await world.until_heard(by=2)
            # Both have chosen before a claim is there.
            world.line.open.clear()
            calls = [
                await world.conductor.send(SELECT, asked_for(each, instance_group=a_group()))
                for each in instances
            ]
            await until(lambda: world.line.writes_held >= 2, "both claims are on their way")
            world.line.open.set()
            chosen = [hosts_of(await world.conductor.until_answered(each)) for each in calls]
            answers = [world.conductor.answer(each)[0] for each in calls]

            assert chosen == [["roomy"], ["roomy"]]
            # The first compute's check passes, and the second one's fails: the conductor claims the alternate.
            (_, alternate, *_) = answers[1]
            await world.allocate({instances[1]: {}})
            await world.allocate({instances[1]: {alternate["service_host"]: AMOUNTS}})
            there = ("roomy", alternate["service_host"])
            assert {*there} < {"roomy", "h2", "h3"}
            # Whichever scheduler gets the next ones knows from the conductor where the members are.
            (third,) = await world.conductor.select(an_instance(), instance_group=a_group(*there))
            full = a_group(*there, third[0]["service_host"])
            reasons = [await world.conductor.refusal(an_instance(), instance_group=full) for _ in range(2)]

        assert {*there, third[0]["service_host"]} == {"roomy", "h2", "h3"}
        assert all("anti-affinity" in each or "ignore" in each for each in reasons), reasons


async def test_what_computes_tell_of_their_instances_decides_hints() -> None:
    known = an_instance()
    async with scheduled("h1", "h2") as world:
        await world.conductor.send(
            "sync_instance_info",
            {"host_name": "h2", "instance_uuids": [str(known)]},
            version="4.2",
            key="",
            exchange="scheduler_fanout",
            call=False,
        )
        hinted = {"scheduler_hints": {"same_host": [str(known)]}}
        for _ in range(50):
            said = await world.conductor.select(an_instance(), alternates=False, **hinted)
            if said[0][0]["service_host"] == "h2":
                break
        together = await world.conductor.select(an_instance(), alternates=False, **hinted)
        apart = await world.conductor.select(
            an_instance(), alternates=False, scheduler_hints={"different_host": [str(known)]}
        )

        assert together[0][0]["service_host"] == "h2"
        assert apart[0][0]["service_host"] == "h1"


async def test_a_host_that_nova_has_discovered_meanwhile_is_found_before_a_request_is_refused() -> None:
    async with scheduled("h1", VCPU=1) as world:
        before = world.known.cloud
        await world.conductor.select(an_instance())
        await world.add("h2")
        # Nova has it, and no notification has told so.
        world.known.unread, world.known.cloud = world.known.cloud, before
        (chosen,) = await world.conductor.select(an_instance())

    assert [each["service_host"] for each in chosen] == ["h2"]
