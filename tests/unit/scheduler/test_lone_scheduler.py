"""A scheduler refuses orders by their fields, ends requests that nobody can carry out, and counts a cloud."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.codec import encode
from bus.memory import MemoryBroker
from bus.message import Envelope, Message
from bus.messages.build import BuildInstance, DeleteInstance, InstanceFailed
from bus.messages.catalog import (
    AskImages,
    CreateDeviceProfile,
    CreateImage,
    ImagesFound,
    NamedImage,
    SetImage,
)
from bus.messages.cloud import AskOverview, AskTiles, HostCount, Overview, Tiles
from bus.messages.hosts import AskHosts, HostsFound, SetHost
from bus.messages.projects import CreateGroup
from bus.unreadable import Unreadable
from bus.workers.connections import Station
from bus.workers.handlers import Bury, Tell
from engine.flavors import (
    DeviceGroup,
    DeviceProfile,
    Flavor,
    Image,
    InstanceId,
    RequestId,
    Wait,
    instance_id_of,
)
from engine.inventories import GroupId, InventoryState, PlaceRule
from kit.errors import NotFound
from scheduler_worker.core.instances.lifecycle import deleted
from scheduler_worker.core.instances.rows import accepted, messages_of
from scheduler_worker.requests.limits import ProjectLimits
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import InstanceQuery, NewRequest
from scheduler_worker.wiring import scheduler_parts
from tests.contracts.scheduler_rows import a_placed, a_request, accept, an_active, rows_of
from tests.narrowing import must_be
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_state
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler, rejection, released

REQUEST = RequestId(UUID(int=9 << 80))
NEIGHBOUR = InstanceId(UUID(int=77))
SMALL = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1))


def changed(**fields: object) -> BuildInstance:
    return structs.replace(SMALL, **fields)


UNREADABLE = Unreadable(b"", "Expected `uuid`", kind="instance.delete", field="instance")
HOSTS = (
    a_host("web-1"),
    a_host("twin", cell="c1"),
    structs.replace(a_host("twin", cell="c2"), id=UUID(int=5)),
)

DEBIAN = NamedImage(
    name="debian", source="http://images/debian-13", checksum="0a1b", properties={"os_type": "linux"}
)
FPGA = DeviceGroup(resources={"FPGA": 1})
FAST = DeviceProfile(name="fast", groups=(FPGA, structs.replace(FPGA, required=("CUSTOM_FAST",))))
APART = CreateGroup(id=GroupId(UUID(int=5)), policy="anti-affinity", name="web", project="shop")
SPREAD = PlaceRule(level=2, policy="anti-affinity", max_members=2)
TOGETHER = PlaceRule(level=3, policy="affinity")


def a_group(*rules: PlaceRule) -> CreateGroup:
    return structs.replace(APART, id=GroupId(UUID(int=6)), name="db", rules=rules)


STORED = (CreateImage(image=DEBIAN), CreateDeviceProfile(profile=FAST), APART)


def an_image(name: str = "odd", **fields: Any) -> CreateImage:
    return CreateImage(image=NamedImage(name=name, **fields))


def a_profile(*groups: DeviceGroup, name: str = "new") -> CreateDeviceProfile:
    return CreateDeviceProfile(profile=DeviceProfile(name=name, groups=groups))


@pytest.mark.parametrize(
    ("order", "field", "reason"),
    [
        (changed(flavor=Flavor(vcpus=-1)), "flavor.vcpus", "an amount is 0 to"),
        (changed(same_host=(NEIGHBOUR,)), "same_host[0]", "no instance has this id"),
        (
            changed(different_host=(NEIGHBOUR,), project="shop"),
            "different_host[0]",
            "no instance of project shop",
        ),
        (
            SetHost(host="web-9", mode="draining"),
            "host",
            "no host of this name is known; near it: web-1; `moor host list` shows all hosts",
        ),
        (SetHost(host="web-1", mode="dead"), "sure", "its instances may still run"),
        (SetHost(host="twi", mode="draining"), "host", "near it: twin"),
        (SetHost(host="twin", mode="draining"), "host", "c1/twin or c2/twin"),
        (UNREADABLE, "instance", "Expected `uuid`"),
        (changed(image_name="debian", image=Image(source="x")), "image_name", "image is given, too"),
        (changed(flavor_names=("small",)), "flavor_names", "flavor is given, too"),
        (
            CreateImage(image=structs.replace(DEBIAN, checksum="2c")),
            "image.checksum",
            "image 'debian' is stored with '0a1b': `moor image set` changes it",
        ),
        (CreateImage(image=structs.replace(DEBIAN, properties={})), "image.properties", "is stored with"),
        (an_image(""), "image.name", "there is none: requests name the image by it"),
        (an_image(), "image.source", "there is none: it says where the image is"),
        (an_image(source="x", properties={"hw_odd": "1"}), "image.properties.hw_odd", ""),
        (an_image(source="x", properties={"os_type": "x" * 1001}), "image.properties.os_type", ""),
        (
            an_image(source="x", properties={f"trait:CUSTOM_T{n}": "required" for n in range(401)}),
            "image.properties",
            "an image has at most 400 properties here",
        ),
        # `--image` would take these names for an image's own id or URL, and never find the stored one.
        *[
            (an_image(name, source="x"), "image.name", "a uuid or a URL is an image itself")
            for name in ("http://images/x", "0b6d1c9e5d3f4a4f9c8e3a0b1c2d3e4f")
        ],
        *[
            (an_image(name, source="x"), "image.name", "a name has no space at its ends")
            for name in (" ", "odd ", "o\nd", "o\u202ed")
        ],
        # None of the changes of a wrong order is made.
        (SetImage(name="debian", properties={"hw_odd": "1", "os_type": None}), "properties.hw_odd", ""),
        (SetImage(name="debian", source=""), "source", "there is none: it says where the image is"),
        (a_profile(FPGA, name="fast"), "profile.groups", "delete it first, or choose another name"),
        (a_profile(FPGA, name=""), "profile.name", "there is none: requests name the profile by it"),
        (a_profile(), "profile.groups", "there are none: they say which devices"),
        (a_profile(DeviceGroup(resources={})), "profile.groups[0].resources", "there are none: a group says"),
        (a_profile(DeviceGroup(resources={"NONE": 1})), "profile.groups[0]", ""),
        (a_profile(FPGA, FPGA, structs.replace(FPGA, required=("NO_TRAIT",))), "profile.groups[2]", ""),
        (
            structs.replace(APART, policy="affinity"),
            "id",
            "it belongs to group 'web', which is anti-affinity",
        ),
        (structs.replace(APART, project="bank"), "id", "duplicate id: it belongs to another group"),
        (
            structs.replace(APART, id=GroupId(UUID(int=6)), policy="soft-affinity", max_per_host=2),
            "max_per_host",
            "only anti-affinity reads it",
        ),
        (a_group(SPREAD, SPREAD), "rules[1].level", "another rule is anti-affinity in domains of this level"),
        (
            a_group(PlaceRule(level=2, policy="affinity", max_members=2)),
            "rules[0].max_members",
            "only anti-affinity reads it, and the policy is affinity",
        ),
        (
            a_group(SPREAD, TOGETHER),
            "rules[0].policy",
            "all members are in one domain of level 3, so one domain of level 2 has them all",
        ),
        (a_group(TOGETHER, structs.replace(SPREAD, level=3)), "rules[1].policy", "in one domain of level 3"),
        (
            structs.replace(a_group(SPREAD), policy="affinity"),
            "rules[0].policy",
            "all members are on one host, so one domain of level 2 has them all",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_refusal_names_the_field_and_the_reason(order: Message, field: str, reason: str) -> None:
    scheduler = LoneScheduler()
    await scheduler.has(HOSTS)
    for each in STORED:
        await scheduler.handle(each)
    answer = rejection(await scheduler.handle(order))
    assert answer.field == field
    assert reason in answer.reason
    assert await scheduler.ask(AskImages()) == ImagesFound(images=(DEBIAN,))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (SchedulerSettings(project_rate=1), "may ask this scheduler for 1 a second"),
        (SchedulerSettings(project_records_max=100), "100 instances that have no host"),
    ],
)
def test_a_project_that_has_asked_for_all_that_it_may_is_refused(
    settings: SchedulerSettings, reason: str
) -> None:
    limits = ProjectLimits(MemorySchedulerStore(), settings)
    assert limits.over("shop", 100, NOON) == ""
    assert reason in limits.over("shop", 1, NOON)
    assert limits.over("bank", 1, NOON) == ""


async def test_an_order_that_cannot_be_read_is_kept_for_a_person() -> None:
    _, letter = await LoneScheduler().handle(UNREADABLE)
    assert must_be(Bury, letter).reason == "Expected `uuid`"


async def test_a_refused_request_that_comes_back_lets_go_of_what_it_may_have_claimed() -> None:
    said = await LoneScheduler().handle(changed(same_host=(NEIGHBOUR,)), attempts=1)
    assert released(said) == [instance_id_of(REQUEST, 0)]


async def test_a_request_that_is_buried_before_it_was_written_ends_in_error_and_lets_go() -> None:
    scheduler = LoneScheduler()
    said = await scheduler.bury(changed(count=2, name="a name"))
    instances = [instance_id_of(REQUEST, index) for index in range(2)]
    assert sorted(released(said)) == sorted(instances)
    told = [each.message for each in said if isinstance(each, Tell)]
    ended = [each.instance for each in told if isinstance(each, InstanceFailed)]
    assert sorted(each.id for each in ended) == sorted(instances)
    assert {(each.state, each.name) for each in ended} == {("error", "")}
    # If they are not sent, a timer does.
    noted = await scheduler.store.unconfirmed(NOON + timedelta(days=1), None, 10)
    assert sorted(row.id for each in noted for row in each.rows) == sorted(instances)
    # A worker that has a copy of it finds that, and releases its claims.
    again = await scheduler.handle(changed(count=2, name="a name"), attempts=1)
    assert {each.message for each in again if isinstance(each, Tell)} >= set(told)


async def test_a_request_that_is_buried_after_it_was_accepted_ends_in_error() -> None:
    scheduler = LoneScheduler()
    await scheduler.has([a_host("h1")])
    scheduler.picture.apply([a_state("h1", {"VCPU": InventoryState(total=8)})])
    together = changed(count=2, all_or_nothing=True)
    # Placement says nothing of their claims.
    with pytest.raises(ValueError, match="not enough values"):
        await scheduler.handle(together)
    said = await scheduler.bury(together)
    ended = [each.message for each in said if isinstance(each, Tell)]
    assert [each.instance.state for each in ended if isinstance(each, InstanceFailed)] == ["error"] * 2


async def test_a_buried_request_of_which_no_row_can_be_written_lets_go_all_the_same() -> None:
    scheduler = LoneScheduler()
    assert released(await scheduler.bury(SMALL, with_a_row=False)) == [instance_id_of(REQUEST, 0)]
    assert await scheduler.bury(changed(flavor=Flavor(vcpus=-1))) == []
    assert await scheduler.store.instances(InstanceQuery()) == []


async def test_messages_that_cannot_be_sent_keep_their_notes() -> None:
    scheduler = LoneScheduler()
    rows = accepted(changed(count=3), [instance_id_of(REQUEST, index) for index in range(3)], NOON, NOON)
    over = [each for row in rows if (each := deleted(row, NOON)) is not None]
    async with scheduler.store.transaction() as transaction:
        await transaction.accept([NewRequest(REQUEST, b"", tuple(over))])
        sent, *kept = await transaction.note([[each] for each in over])
        await transaction.confirm([sent])

    # Nothing is declared there.
    with pytest.raises(NotFound):
        await scheduler.outbox.publish([Tell(each, None, kept[0]) for each in messages_of(over[1])])

    (first,) = await scheduler.store.unconfirmed(NOON + timedelta(days=1), None, 1)
    (second,) = await scheduler.store.unconfirmed(NOON + timedelta(days=1), first.kept, 1)
    assert [each.id for note in (first, second) for each in note.rows] == [each.id for each in over[1:]]
    await scheduler.station.close()


async def test_requests_that_differ_by_their_priorities_alone_are_tried_together() -> None:
    scheduler = LoneScheduler()
    for number, priority in enumerate((0, 7, -7)):
        build = changed(
            request_id=RequestId(UUID(int=number + 20 << 80)), wait=Wait(for_s=3600), priority=priority
        )
        await scheduler.handle(build)

    (digest,) = await scheduler.store.waiting_digests()
    (first,) = await scheduler.store.one_waiting_of_each([digest])
    assert first.turn[0] == -7


async def test_a_request_that_is_deleted_while_it_waits_is_tried_no_more() -> None:
    scheduler = LoneScheduler()
    await scheduler.handle(changed(wait=Wait(for_s=3600)))
    assert len(await scheduler.store.waiting_digests()) == 1

    await scheduler.handle(DeleteInstance(instance=instance_id_of(REQUEST, 0)))

    assert not await scheduler.store.waiting_digests()


async def test_an_event_of_another_cell_changes_nothing_and_is_not_repeated() -> None:
    scheduler = LoneScheduler()
    await accept(scheduler.store, a_placed(a_request(1)))
    before = await rows_of(scheduler.store, 1)

    assert await scheduler.hear(an_active(1, cell="c2")) == []
    assert await rows_of(scheduler.store, 1) == before
    # The second one finds it active already.
    for sequence, host in ((101, "h8"), (102, "h9")):
        await scheduler.hear(an_active(1, sequence=sequence, host=host))
        assert [(each.told.state, each.told.host) for each in await rows_of(scheduler.store, 1)] == [
            ("active", host)
        ]


async def test_a_cloud_is_counted_by_what_its_hosts_can_take() -> None:
    scheduler = LoneScheduler()
    scheduler.hosts.learn([a_host("h1"), a_host("h2"), a_host("h3")])
    for name, used in (("h1", 5), ("h2", 0)):
        scheduler.picture.apply([a_state(name, {"VCPU": InventoryState(total=8, used=used)})])

    overview = await scheduler.ask(AskOverview(once=True))
    tiles = await scheduler.ask(AskTiles(in_cell="c1", named=True))

    assert isinstance(overview, Overview)
    assert overview.made_at == NOON
    assert HostCount(state="up", cell="c1", kind="", count=3) in overview.hosts
    assert [(each.resource_class, each.used, each.capacity) for each in overview.uses] == [("VCPU", 5, 16)]
    assert isinstance(tiles, Tiles)
    assert (tiles.names, tiles.hosts, len(tiles.tiles)) == (("h1", "h2", "h3"), 3, 3)


async def test_pages_of_tiles_cover_all_hosts_and_fit_into_a_message() -> None:
    scheduler = LoneScheduler()
    scheduler.hosts.learn([a_host(f"{number:05}-{'x' * 200}") for number in range(6000)])
    names: list[str] = []
    while len(names) < 6000:
        page = must_be(Tiles, await scheduler.ask(AskTiles(in_cell="c1", skipped=len(names), named=True)))
        assert len(page.names) == len(page.tiles) > 0
        assert len(encode(Envelope(message=page, id="", version=1))) < 256 * 1024
        names += page.names
    assert names == sorted(names)


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_hosts_of_one_name_are_on_one_page_so_that_no_page_leaves_one_out(limit: int) -> None:
    scheduler = LoneScheduler()
    names = ["h1", "h2", "h2", "h3"]
    rows = [
        structs.replace(a_host(name, cell=f"c{cell}"), id=UUID(int=cell)) for cell, name in enumerate(names)
    ]
    await scheduler.has(rows)
    listed: list[str] = []
    after = ""
    while after or not listed:
        page = must_be(HostsFound, await scheduler.ask(AskHosts(after=after, limit=limit)))
        listed += [host.name for host in page.hosts]
        after = page.next
    assert listed == names


def test_cells_that_are_waited_for_are_down_before_their_hosts_are() -> None:
    station = Station(MemoryBroker().as_user(), "scheduler", asks=True)
    settings = SchedulerSettings(when_cell_down="wait", cell_down_s=60.0)
    with pytest.raises(
        ValueError, match=r"cell_down_s is 60.0 .* must be less than bus.host_down_s \(60.0\)"
    ):
        scheduler_parts(station, MemorySchedulerStore(), settings)
