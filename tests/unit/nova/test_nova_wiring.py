"""The parts of a worker in the place of nova-scheduler after its settings have changed."""

import pytest

from bus.configuration.live import tell_followers
from bus.configuration.settings import BusSettings
from bus.urls import broker_at
from bus.workers.link import Link
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.nova.cloud.values import NovaCloud
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.settings import NovaPlacementSettings
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.nova_worker.wiring import nova_parts
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring.staged import Staged

pytestmark = pytest.mark.asyncio


class KnowsNothing:
    cloud: NovaCloud | None = None


async def test_both_kinds_of_requests_are_weighed_by_the_new_settings() -> None:
    """Requests that name their host have filters of their own, and weighers like all others."""
    choice, asking = SchedulerSettings(), NovaPlacementSettings(url="http://127.0.0.1:1")
    api = PlacementApi(asking)
    (staged,) = nova_parts(
        Link(broker_at("amqp://guest:guest@127.0.0.1:1/nova"), BusSettings()),
        KnowsNothing(),
        NovaSchedulerSettings(),
        choice,
        api=api,
        refresh_s=asking.refresh_s,
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
