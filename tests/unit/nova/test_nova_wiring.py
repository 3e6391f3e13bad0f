"""The parts of a worker in the place of nova-scheduler after its settings have changed."""

import pytest

from bus.addresses import broker_at
from bus.settings import BusSettings
from bus.workers.sending import Link
from kit.keystone import OpenStackSettings
from kit.settings import tell_followers
from nova_bridge.cloud import NovaCloud
from nova_bridge.placement_api import PlacementApi
from nova_bridge.settings import NovaSettings
from nova_bridge.wiring import nova_parts
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring import Staged

pytestmark = pytest.mark.asyncio


class KnowsNothing:
    cloud: NovaCloud | None = None


async def test_both_kinds_of_requests_are_weighed_by_the_new_settings() -> None:
    """Requests that name their host have filters of their own, and weighers like all others."""
    choice = SchedulerSettings()
    api = PlacementApi("http://127.0.0.1:1", OpenStackSettings())
    (staged,) = nova_parts(
        Link(broker_at("amqp://guest:guest@127.0.0.1:1/nova"), BusSettings()),
        KnowsNothing(),
        NovaSettings(),
        choice,
        api=api,
    )
    assert isinstance(staged, Staged)
    plugins = [
        each._plugins  # noqa: SLF001 - nobody else has those for forced requests
        for each in staged.parts
        if isinstance(each, Claimer)
    ]

    await api.close()
    tell_followers(choice, SchedulerSettings(ram_weight_multiplier=3.5))

    assert len(plugins) == 2
    assert [{each.multiplier for each in one.weighers if each.name == "ram"} for one in plugins] == [
        {3.5}
    ] * 2
