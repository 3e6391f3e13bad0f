"""Shadow mode beside a Nova that goes on with nova-scheduler, on a real RabbitMQ: recorded requests, and allocations as Nova writes them."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from engine.flavors import InstanceId
from nova_bridge.cloud import ServerSeen
from nova_bridge.shadow.wiring import COPIES
from tests.stories.cloud import QUICK, wait_until
from tests.stories.moor.moor_process import moor, moor_json
from tests.stories.nova.conductor import TOKEN, asked_for
from tests.stories.nova.nova_world import NovaWorld, an_instance, nova_world, with_service
from tests.stories.nova.shadow_world import SMALL, in_the_shadow

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq]


async def ask(world: NovaWorld, *instances: UUID, **changes: Any) -> str:
    """Nova's conductor asks; what answers is nova-scheduler, here nobody."""
    return await world.conductor.send("select_destinations", asked_for(*instances, **changes))


async def test_the_same_host_as_novas_is_noted_and_nothing_is_claimed_or_answered(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", VCPU=8)
        instance = an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            call = await ask(world, instance)
            await shadow.decided(1)
            assert await world.held(instance) == {}
            await world.allocate({instance: {"h1": SMALL}})
            note = await shadow.note_of(instance)
            page = shadow.page()

        assert 'moor_nova_shadow_notes_total{verdict="same"} 1.0' in page
        assert (note.verdict, note.ours, note.nova) == ("same", "h1", "h1")
        assert note.request_id == f"req-{call}"
        assert note.nova_after_s is not None
        assert (note.hosts, note.qualified, note.flavor) == (1, 1, note.flavor)
        assert note.flavor
        assert call not in world.conductor.heard
        assert await world.held(instance) == {"h1": SMALL}
        assert TOKEN not in shadow.file.read_text()
        assert shadow.file.stat().st_mode & 0o777 == 0o600


async def test_a_claim_that_nova_has_made_already_does_not_count_against_its_host(tmp_path: Path) -> None:
    """The last processor of a host is Nova's own choice for this instance: it was free when the request came."""
    async with nova_world() as world:
        await world.add("h1", VCPU=1)
        instance = an_instance()
        await world.allocate({instance: {"h1": SMALL}})
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance)
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.nova, note.refusal) == ("same", "h1", "h1", "")


async def test_what_nova_has_claimed_for_others_counts(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", VCPU=1)
        await world.allocate({an_instance(): {"h1": SMALL}})
        async with in_the_shadow(world, tmp_path) as shadow:
            instance = an_instance()
            await ask(world, instance)
            note = await shadow.note_of(instance)

    assert note.verdict == "neither"
    assert "VCPU asked 1, free 0" in note.refusal
    assert note.nova_reason == "it holds nothing of any host 1 s after its request"


async def test_a_choice_takes_room_of_the_next_requests_until_novas_own_claim_is_seen(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2", VCPU=1)
        first, second, third = (an_instance() for _ in range(3))
        async with in_the_shadow(world, tmp_path, wait_s=20) as shadow:
            await ask(world, first)
            await shadow.decided(1)
            await ask(world, second)
            await shadow.decided(2)
            await world.allocate({first: {"h2": SMALL}, second: {"h1": SMALL}})
            one, other = await shadow.note_of(first), await shadow.note_of(second)
            await world.allocate({first: {}, second: {}})
            await ask(world, third)
            await shadow.decided(3)
            await world.allocate({third: {"h1": SMALL}})
            last = await shadow.note_of(third)

    assert {one.ours, other.ours} == {"h1", "h2"}
    assert {one.verdict, other.verdict} <= {"same", "as_good"}
    assert last.qualified == 2


async def test_a_host_that_nova_has_just_discovered_may_be_named(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1")
        before = world.known.cloud
        await world.add("h2")
        world.known.unread, world.known.cloud = world.known.cloud, before
        instance = an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance, force_hosts=["h2"])
            note = await shadow.note_of(instance)

    assert (note.ours, note.refusal) == ("h2", "")


async def test_a_choice_for_a_request_that_is_left_undecided_takes_no_room(tmp_path: Path) -> None:
    """Placement fails between the choice and its comparison with what Nova has claimed meanwhile."""
    async with nova_world() as world:
        await world.add("h1", VCPU=1)
        async with in_the_shadow(world, tmp_path) as shadow:
            first = an_instance()
            asked = 0

            def is_asked_again(request: httpx.Request) -> bool:
                nonlocal asked
                asked += request.url.path == f"/allocations/{first}"
                return asked == 2

            world.line.loses_request = is_asked_again
            await ask(world, first)

            async def is_left() -> bool:
                return 'outcome="undecided"} 1.0' in shadow.page()

            await wait_until(is_left, "it is left undecided")
            second = an_instance()
            await ask(world, second)
            note = await shadow.note_of(second)

    assert (note.ours, note.refusal) == ("h1", "")


async def test_a_worse_host_of_nova_is_told_with_the_weighers_and_their_numbers(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("roomy", VCPU=32)
        await world.add("tight", VCPU=4)
        instance = an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance)
            await shadow.decided(1)
            await world.allocate({instance: {"tight": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.nova) == ("nova_worse", "roomy", "tight")
    (cpu,) = note.weighed
    assert (cpu.weigher, cpu.ours, cpu.nova) == ("cpu", 32, 4)
    assert note.reason == "cpu 32 on roomy, 4 on tight (+0.88)"


async def test_a_host_equal_by_our_weighers_is_as_good(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2")
        first, second = an_instance(), an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, first)
            await shadow.decided(1)
            await world.allocate({first: {"h1": SMALL}})
            ours = (await shadow.note_of(first)).ours
            await world.allocate({first: {}})
            await ask(world, second)
            await shadow.decided(2)
            other = "h2" if ours == "h1" else "h1"
            await world.allocate({second: {other: SMALL}})
            note = await shadow.note_of(second)

    assert (note.verdict, note.ours, note.nova) == ("as_good", ours, other)
    assert (note.reason, note.weighed) == ("", ())


async def test_a_filter_of_ours_that_refuses_novas_host_is_named_with_its_reason(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2")
        assert world.known.cloud is not None
        world.known.cloud = with_service(
            world.known.cloud, "h2", is_disabled=True, disabled_reason="new memory"
        )
        instance, alone = an_instance(), an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance)
            await shadow.decided(1)
            await world.allocate({instance: {"h2": SMALL}})
            note = await shadow.note_of(instance)
            world.known.cloud = with_service(world.known.cloud, "h1", is_forced_down=True)
            await ask(world, alone)
            await shadow.decided(2)
            await world.allocate({alone: {"h2": SMALL}})
            refused = await shadow.note_of(alone)

    assert (note.verdict, note.ours, note.nova, note.filter) == ("filtered", "h1", "h2", "enabled")
    assert "new memory" in note.reason
    assert (refused.verdict, refused.ours, refused.filter) == ("only_nova", "", "enabled")
    assert "no host among 2" in refused.refusal


async def test_a_host_that_this_scheduler_does_not_know_is_told(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1")
        cloud = world.known.cloud
        await world.add("new")
        whole, world.known.cloud = world.known.cloud, cloud
        instance = an_instance()
        async with in_the_shadow(world, tmp_path, wait_s=20) as shadow:
            await ask(world, instance)
            await shadow.decided(1)
            world.known.cloud = whole
            await world.allocate({instance: {"new": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.nova, note.filter) == ("filtered", "h1", "new", "registered")


async def test_instances_of_one_request_are_paired_by_their_hosts(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2", "h3", VCPU=1)
        instances = sorted(an_instance() for _ in range(3))
        async with in_the_shadow(world, tmp_path, wait_s=20) as shadow:
            await ask(world, *instances)
            await shadow.decided(1)
            await world.allocate({each: {f"h{number}": SMALL} for number, each in enumerate(instances, 1)})
            notes = [await shadow.note_of(each) for each in instances]

    assert [each.verdict for each in notes] == ["same"] * 3
    assert [each.nova for each in notes] == ["h1", "h2", "h3"]
    assert {each.instances for each in notes} == {3}


async def test_a_fault_in_novas_api_says_why_nova_had_no_host_and_a_server_that_is_gone_is_not_compared(
    tmp_path: Path,
) -> None:
    refused, gone = an_instance(), an_instance()

    async def server(instance: InstanceId) -> ServerSeen | None:
        return ServerSeen("No valid host was found.") if instance == refused else None

    async with nova_world() as world:
        await world.add("h1")
        async with in_the_shadow(world, tmp_path, asks_server=server, wait_s=60) as shadow:
            await ask(world, refused)
            note = await shadow.note_of(refused)
            await ask(world, gone)
            other = await shadow.note_of(gone)

    assert (note.verdict, note.ours, note.nova) == ("only_ours", "h1", "")
    assert note.nova_reason == "No valid host was found."
    assert (other.verdict, other.reason) == ("not_compared", "Nova has no such instance any more")


async def test_the_host_that_an_evacuated_instance_leaves_is_not_taken_for_novas_choice(
    tmp_path: Path,
) -> None:
    async with nova_world() as world:
        await world.add("lost", "next")
        instance = an_instance()
        await world.allocate({instance: {"lost": SMALL}})
        async with in_the_shadow(world, tmp_path, wait_s=20) as shadow:
            await ask(world, instance, ignore_hosts=["lost"])
            await shadow.decided(1)
            await world.allocate({instance: {"lost": SMALL, "next": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.nova) == ("same", "next", "next")


async def test_a_request_that_asks_for_what_is_not_supported_is_noted_as_refused(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1")
        instance = an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance, flavor={"extra_specs": {"hw:no_such": "1"}})
            await shadow.decided(1)
            await world.allocate({instance: {"h1": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.nova) == ("only_nova", "", "h1")
    assert "hw:no_such" in note.refusal


async def test_messages_that_cannot_be_read_are_counted_and_the_worker_lives(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1")
        async with in_the_shadow(world, tmp_path) as shadow:
            await world.conductor.send("select_destinations", {"instance_uuids": ["no id"]})
            await world.conductor.send("select_destinations", asked_for(an_instance()), version="9.0")
            instance = an_instance()
            await ask(world, instance)
            await shadow.decided(1)
            page = shadow.page()

    assert 'moor_nova_shadow_copies_total{outcome="unreadable"} 2.0' in page


async def test_nova_schedulers_own_queue_keeps_every_request_and_the_copies_expire(tmp_path: Path) -> None:
    """Two workers in the shadow with their own queues have all copies each, and nova-scheduler loses none."""
    async with nova_world() as world:
        await world.add("h1")
        async with world.scheduler(), in_the_shadow(world, tmp_path) as shadow:
            instance = an_instance()
            (chosen,) = await world.conductor.select(instance)
            note = await shadow.note_of(instance)
            bounds = {"x-expires": 300_000, "x-max-length": 1000, "x-overflow": "drop-head"}
            await world.conductor.declares(COPIES, bounds)

    assert chosen[0]["service_host"] == note.nova == "h1"


async def test_while_placement_is_away_requests_are_left_undecided_and_the_next_ones_are_decided(
    tmp_path: Path,
) -> None:
    async with nova_world() as world:
        await world.add("h1")
        async with in_the_shadow(world, tmp_path) as shadow:
            async with world.without_placement():
                await ask(world, an_instance())

                async def is_counted() -> bool:
                    return 'moor_nova_shadow_copies_total{outcome="undecided"} 1.0' in shadow.page()

                await wait_until(is_counted, "the request is left undecided", shadow.page())
            instance = an_instance()
            await ask(world, instance)
            await shadow.decided(1)


async def test_a_worker_that_stops_notes_what_it_knows(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1")
        instance = an_instance()
        async with in_the_shadow(world, tmp_path, wait_s=60) as shadow:
            await ask(world, instance)
            await shadow.decided(1)
        (note,) = shadow.notes

    assert (note.verdict, note.ours) == ("not_compared", "h1")
    assert note.reason == "the worker stopped before Nova's choice was seen"


async def test_an_instance_stays_apart_from_the_one_that_its_hint_names(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("roomy", VCPU=32)
        await world.add("tight", VCPU=4)
        other, instance = an_instance(), an_instance()
        await world.allocate({other: {"roomy": SMALL}})
        async with in_the_shadow(world, tmp_path) as shadow:
            await ask(world, instance, scheduler_hints={"different_host": [str(other)]})
            await shadow.decided(1)
            await world.allocate({instance: {"tight": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.qualified) == ("same", "tight", 1)


async def test_a_forced_host_is_judged_as_nova_does(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2")
        instance = an_instance()
        async with in_the_shadow(world, tmp_path, choice=structs.replace(QUICK, alternates_max=0)) as shadow:
            await ask(world, instance, force_hosts=["h2"])
            await shadow.decided(1)
            await world.allocate({instance: {"h2": SMALL}})
            note = await shadow.note_of(instance)

    assert (note.verdict, note.ours, note.is_forced, note.alternates) == ("same", "h2", True, ())


async def test_many_requests_at_once_are_all_noted(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add(*(f"h{number}" for number in range(10)), VCPU=8)
        instances = [an_instance() for _ in range(40)]
        async with in_the_shadow(world, tmp_path, wait_s=20) as shadow:
            await asyncio.gather(*[ask(world, each) for each in instances])
            for number, each in enumerate(instances):
                await world.allocate({each: {f"h{number % 10}": SMALL}})
            notes = [await shadow.note_of(each) for each in instances]

    assert all(each.ours and each.nova for each in notes)
    assert {each.verdict for each in notes} <= {"same", "as_good", "nova_worse", "nova_better"}


async def test_the_report_counts_what_was_noted(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("roomy", VCPU=32)
        await world.add("tight", VCPU=4)
        same, worse, refused = (an_instance() for _ in range(3))
        async with in_the_shadow(world, tmp_path) as shadow:
            for number, (instance, host) in enumerate(((same, "roomy"), (worse, "tight")), 1):
                await ask(world, instance)
                await shadow.decided(number)
                await world.allocate({instance: {host: SMALL}})
                await shadow.note_of(instance)
            await ask(world, refused, flavor={"vcpus": 1000})
            await shadow.note_of(refused)
        file = ("--file", str(shadow.file))
        table = await moor("shadow", "report", *file)
        report = await moor_json("shadow", "report", *file, "--since", "1h")
        (listed,) = await moor_json("shadow", "report", *file, "--list", "--verdict", "nova_worse")
        rows = await moor("shadow", "report", *file, "--list", COLUMNS="80")
        missing = await moor("shadow", "report", "--file", str(tmp_path / "none"))
        wrong = await moor("shadow", "report", *file, "--since", "soon")

    assert table.code == 0, table.err
    assert "3 instances of 3 requests" in table.out
    assert "weigher cpu" in table.out
    counts = {each["verdict"]: each["instances"] for each in report["verdicts"] if each["instances"]}
    assert counts == {"same": 1, "nova_worse": 1, "neither": 1}
    assert (listed["instance"], listed["ours"], listed["nova"]) == (str(worse), "roomy", "tight")
    assert all(str(each)[:8] in rows.out for each in (same, worse, refused))
    assert (missing.code, wrong.code) == (1, 2)
    assert "`moor run nova-scheduler --shadow` writes it" in " ".join(missing.err.split())
    assert "--since is 'soon'" in " ".join(wrong.err.split())
