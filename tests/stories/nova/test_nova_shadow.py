"""Shadow mode beside a Nova that goes on with nova-scheduler, on a real RabbitMQ: recorded requests, and allocations as Nova writes them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bus.workers.sending import Link
from engine.flavors import InstanceId
from kit.keystone import OpenStackSettings
from nova_bridge.cloud import ServerSeen
from nova_bridge.placement_api import PlacementApi
from nova_bridge.settings import NovaSettings
from nova_bridge.shadow.notes import ShadowNote, read_notes
from nova_bridge.shadow.wiring import COPIES, shadow_parts
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import QUICK
from tests.stories.moor.moor_process import moor, moor_json, moor_says
from tests.stories.nova.conductor import TOKEN, asked_for
from tests.stories.nova.nova_world import AMOUNTS, ONCE, NovaWorld, an_instance, nova_world
from tests.waiting import until

pytestmark = pytest.mark.rabbitmq


class Shadow:
    """The worker's notes and its page of metrics."""

    def __init__(self, file: Path, page: Callable[[], str]) -> None:
        self.file = file
        self.page = page

    @property
    def notes(self) -> Sequence[ShadowNote]:
        return read_notes(self.file).notes if self.file.exists() else ()

    async def note_of(self, instance: UUID) -> ShadowNote:
        return await until(
            lambda: next((each for each in self.notes if each.instance == instance), None),
            f"a note of instance {instance}",
        )

    async def counted(self, copies: int, outcome: str = "decided") -> None:
        """Wait until the page counts so many with this outcome."""
        line = f'moor_nova_shadow_copies_total{{outcome="{outcome}"}} {copies}.0'
        await until(self.page, line, lambda page: line in page)


@asynccontextmanager
async def in_the_shadow(
    world: NovaWorld,
    folder: Path,
    *,
    asks_server: Callable[[InstanceId], Awaitable[ServerSeen | None]] | None = None,
    wait_s: float = 1.0,
) -> AsyncIterator[Shadow]:
    """A worker in shadow mode beside a Nova. Nova's choice is looked for at short intervals, and waited for for so long."""
    file = folder / "shadow.jsonl"
    settings = NovaSettings(rpc_timeout_s=wait_s, shadow_file=str(file))
    api = PlacementApi("http://placement", OpenStackSettings(), limits=ONCE, transport=world.line)
    link = Link(world.broker.broker(), SETTINGS, name="Nova")
    parts = shadow_parts(
        link,
        world.known,
        settings,
        QUICK,
        api=api,
        look_s=0.05,
        asks_server=asks_server,
        look_again=world.known.read_soon,
    )
    async with world.running(parts, link, api) as page:
        await world.until_heard(COPIES)
        yield Shadow(file, page)


async def ask(world: NovaWorld, *instances: UUID, **changes: Any) -> str:
    """Nova's conductor asks; what answers is nova-scheduler, here nobody."""
    return await world.conductor.send("select_destinations", asked_for(*instances, **changes))


async def test_the_same_host_as_novas_is_noted_and_nothing_is_claimed_or_answered(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", VCPU=8)
        instance = an_instance()
        async with in_the_shadow(world, tmp_path) as shadow:
            call = await ask(world, instance)
            await shadow.counted(1)
            assert await world.held(instance) == {}
            await world.allocate({instance: {"h1": AMOUNTS}})
            note = await shadow.note_of(instance)
            page = shadow.page()

        assert 'moor_nova_shadow_notes_total{verdict="same"} 1.0' in page
        assert (note.verdict, note.ours, note.nova) == ("same", "h1", "h1")
        assert note.request_id == f"req-{call}"
        assert note.nova_after_s is not None
        assert (note.hosts, note.qualified, note.flavor) == (1, 1, note.flavor)
        assert note.flavor
        assert call not in world.conductor.heard
        assert await world.held(instance) == {"h1": AMOUNTS}
        assert TOKEN not in shadow.file.read_text()
        assert shadow.file.stat().st_mode & 0o777 == 0o600


async def test_a_choice_takes_room_of_the_next_requests_until_novas_own_claim_is_seen(tmp_path: Path) -> None:
    async with nova_world() as world:
        await world.add("h1", "h2", VCPU=1)
        first, second, third = (an_instance() for _ in range(3))
        # Longer than a loaded machine may take: after it, the first choice takes no room any more.
        async with in_the_shadow(world, tmp_path, wait_s=60) as shadow:
            await ask(world, first)
            await shadow.counted(1)
            await ask(world, second)
            await shadow.counted(2)
            await world.allocate({first: {"h2": AMOUNTS}, second: {"h1": AMOUNTS}})
            one, other = await shadow.note_of(first), await shadow.note_of(second)
            await world.allocate({first: {}, second: {}})
            await ask(world, third)
            await shadow.counted(3)
            await world.allocate({third: {"h1": AMOUNTS}})
            last = await shadow.note_of(third)

    assert {one.ours, other.ours} == {"h1", "h2"}
    assert {one.verdict, other.verdict} <= {"same", "as_good"}
    assert last.qualified == 2


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


async def test_nova_schedulers_own_queue_keeps_every_request_and_the_copies_expire(tmp_path: Path) -> None:
    """Two workers in the shadow with their own queues have all copies each, and nova-scheduler loses none."""
    async with nova_world() as world:
        await world.add("h1")
        async with world.scheduler(), in_the_shadow(world, tmp_path) as shadow:
            instance = an_instance()
            (chosen,) = await world.conductor.select(instance)
            note = await shadow.note_of(instance)
            await world.conductor.declares(
                COPIES, {"x-expires": 300_000, "x-max-length": 1000, "x-overflow": "drop-head"}
            )

    assert chosen[0]["service_host"] == note.nova == "h1"


async def test_while_placement_is_away_requests_are_left_undecided_and_the_next_ones_are_decided(
    tmp_path: Path,
) -> None:
    async with nova_world() as world:
        await world.add("h1")
        async with in_the_shadow(world, tmp_path) as shadow:
            async with world.without_placement():
                await ask(world, an_instance())
                await shadow.counted(1, "undecided")
            await ask(world, an_instance())
            await shadow.counted(1)


async def test_a_worse_host_of_nova_is_noted_with_the_weighers_and_the_report_counts_what_was_noted(
    tmp_path: Path,
) -> None:
    async with nova_world() as world:
        await world.add("roomy", VCPU=32)
        await world.add("tight", VCPU=4)
        same, worse, refused = (an_instance() for _ in range(3))
        async with in_the_shadow(world, tmp_path) as shadow:
            for number, (instance, host) in enumerate(((worse, "tight"), (same, "roomy")), 1):
                await ask(world, instance)
                await shadow.counted(number)
                await world.allocate({instance: {host: AMOUNTS}})
                await shadow.note_of(instance)
            note = await shadow.note_of(worse)
            await ask(world, refused, flavor={"vcpus": 1000})
            await shadow.note_of(refused)
        file = ("--file", str(shadow.file))
        await moor_says(0, ("3 instances of 3 requests", "weigher cpu"), "nova", "shadow", *file)
        report = await moor_json("nova", "shadow", *file, "--since", "1h")
        (listed,) = await moor_json("nova", "shadow", *file, "--list", "--verdict", "nova_worse")
        rows = await moor("nova", "shadow", *file, "--list", COLUMNS="80")
        missing = ("nova", "shadow", "--file", str(tmp_path / "none"))
        await moor_says(1, "`moor run nova-scheduler --shadow` writes it", *missing)
        await moor_says(2, "--since is 'soon'", "nova", "shadow", *file, "--since", "soon")

    assert (note.verdict, note.ours, note.nova) == ("nova_worse", "roomy", "tight")
    (cpu,) = note.weighed
    assert (cpu.weigher, cpu.ours, cpu.nova) == ("cpu", 32, 4)
    assert note.reason == "cpu 32 on roomy, 4 on tight (+0.88)"
    counts = {each["verdict"]: each["instances"] for each in report["verdicts"] if each["instances"]}
    assert counts == {"same": 1, "nova_worse": 1, "neither": 1}
    assert (listed["instance"], listed["ours"], listed["nova"]) == (str(worse), "roomy", "tight")
    assert all(str(each)[:8] in rows.out for each in (same, worse, refused))
