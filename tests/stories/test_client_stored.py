"""The public client and what is stored for all: flavors and images under names, and the quotas of projects."""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import pytest

from bus.messages.stored_names import SetApplication
from bus.topology import objects_of_application
from moor.client import (
    Client,
    Flavor,
    NamedImage,
    NotAllowed,
    NotDone,
    NotFound,
    QuotaState,
    Rejected,
)
from tests.contracts.broker_under_test import SHOP
from tests.stories.cloud import cloud, cloud_on
from tests.stories.layouts import BOTH, one_broker_with_users
from tests.stories.test_client import client, workers

pytestmark = [pytest.mark.asyncio, BOTH]

GOLD = Flavor(name="gold", vcpus=2, ram_mb=1024, root_gb=1, extra_specs={"hw:cpu_policy": "shared"})
DEBIAN = NamedImage(name="debian", source="http://images/debian-13", properties={"os_type": "linux"})


async def rejected(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(Rejected) as wrong:
        await call
    return wrong.value.field, wrong.value.value


async def not_found(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(NotFound) as unknown:
        await call
    return unknown.value.what, unknown.value.name


async def test_flavors_are_stored_used_by_name_and_deleted(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, workers(setup, "h1"):
        assert [await moor.create_flavor(GOLD) for _ in range(2)] == [GOLD, GOLD]
        assert await rejected(moor.create_flavor(Flavor(name="gold", vcpus=4))) == ("flavor.vcpus", "4")
        assert (await rejected(moor.create_flavor(Flavor(vcpus=4))))[0] == "flavor.name"
        many = [f"small-{number:03}" for number in range(205)]
        for name in many:
            await moor.create_flavor(Flavor(name=name, vcpus=1))

        request = await moor.boot("gold")
        assert [each.state for each in await request.until_done()] == ["active"]

        assert await moor.show_flavor("gold") == GOLD
        assert [each.name async for each in moor.list_flavors()] == ["gold", *many]
        assert await moor.delete_flavor("gold") == GOLD
        for call in (moor.delete_flavor("gold"), moor.show_flavor("gold")):
            assert await not_found(call) == ("flavor", "gold")
        for nameless in (moor.delete_flavor(""), moor.show_flavor("")):
            assert await not_found(nameless) == ("flavor", "")
        assert (await moor.show(request.instances[0])).state == "active"


async def test_quotas_are_set_refuse_what_exceeds_them_and_are_removed(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, client(setup) as moor, workers(setup, "h1"):
        assert await not_found(moor.show_quota("shop")) == ("quota of project", "shop")
        assert (await rejected(moor.show_quota()))[0] == "project"
        quota = await moor.set_quota("shop", {"instances": 5, "VCPU": 3})
        assert quota == QuotaState(project="shop", limits={"instances": 5, "VCPU": 3})
        await moor.set_quota("bank", {"VCPU": 0})

        await (await moor.boot(GOLD, project="shop")).until_done()
        with pytest.raises(NotDone, match="VCPU limit 3, used 2, asked 2"):
            await (await moor.boot(GOLD, project="shop")).until_done()

        used = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1, "instances": 1}
        assert await moor.show_quota("shop") == QuotaState(
            project="shop", limits={"instances": 5, "VCPU": 3}, used=used
        )
        assert [each.project async for each in moor.list_quotas()] == ["bank", "shop"]
        # Nothing of an order with a wrong class is done.
        wrong = {"instances": 1, "CUSTOM_LICENCE": 1}
        assert await rejected(moor.set_quota("shop", wrong)) == ("limits", "CUSTOM_LICENCE")
        for nothing in ({}, {"vcpus": 1}, {"VCPU": -1}, {"VCPU": "many"}):
            with pytest.raises(Rejected):
                await moor.set_quota("shop", nothing)  # type: ignore[arg-type]
        assert (await moor.set_quota("shop", {"VCPU": None})).limits == {"instances": 5}
        assert (await moor.set_quota("shop", {"instances": None})).limits == {}
        assert [each.project async for each in moor.list_quotas()] == ["bank"]


async def test_an_application_reads_what_is_stored_and_its_own_quota_and_changes_nothing(
    bus: str, books: str
) -> None:
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(one_broker_with_users(bus, SHOP.user))
        await brokers.api.declare(objects_of_application(SHOP))
        setup = await stack.enter_async_context(cloud_on(brokers, books))
        await stack.enter_async_context(workers(setup, "h1"))
        await setup.client.ask(SetApplication(name="shop", projects=SHOP.projects))
        shop = await stack.enter_async_context(
            Client(brokers.api.broker(SHOP.user), project="shop", patience_s=10)
        )
        admin = await stack.enter_async_context(client(setup))
        await admin.create_flavor(GOLD)
        await admin.create_image(DEBIAN)
        ours = await admin.set_quota("shop", {"VCPU": 3})
        await admin.set_quota("bank", {"VCPU": 3})

        refused = await asyncio.gather(
            shop.create_flavor(GOLD),
            shop.delete_flavor("gold"),
            shop.create_image(DEBIAN),
            shop.set_image("debian", source="x"),
            shop.delete_image("debian"),
            shop.set_quota("shop", {"VCPU": None}),
            shop.show_quota("bank"),
            return_exceptions=True,
        )

        assert [type(each) for each in refused] == [NotAllowed] * 7, refused
        assert [each async for each in shop.list_flavors()] == [GOLD]
        assert [each async for each in shop.list_images()] == [DEBIAN]
        assert await shop.show_quota() == ours
        assert [each async for each in shop.list_quotas()] == [ours]
