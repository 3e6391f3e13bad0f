"""Runs a worker in the place of nova-scheduler as a process."""

import secrets
from contextlib import AsyncExitStack

from bus.configuration.addresses import Addresses
from bus.configuration.sections import BadSetting
from bus.configuration.settings import BusSettings
from bus.operating.running import about, run_worker
from bus.rabbit import RabbitBroker
from bus.urls import broker_at
from bus.workers.link import Link
from scheduler_worker.nova_cloud.databases import NovaDatabaseError, open_nova_database
from scheduler_worker.nova_cloud.keeping import NovaCloudKeeper
from scheduler_worker.nova_cloud.reading import CloudReader, NovaCells
from scheduler_worker.nova_cloud.rest import NovaApi
from scheduler_worker.nova_cloud.settings import NOVA_CLOUD, NovaCloudSettings
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.settings import NOVA_PLACEMENT, NovaPlacementSettings
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.nova_worker.wiring import nova_parts
from scheduler_worker.settings import SchedulerSettings

ROLE = "nova-scheduler"


async def run(
    addresses: Addresses,
    settings: NovaSchedulerSettings,
    choice: SchedulerSettings,
    cloud: NovaCloudSettings,
    placement: NovaPlacementSettings,
    *,
    bus: BusSettings | None = None,
    health_at: str = "",
) -> None:
    """Raises BadSetting if it is not said where Nova and placement are."""
    bus = bus or BusSettings()
    async with AsyncExitStack() as stack:
        reader = reader_of(cloud)
        stack.push_async_callback(reader.close)
        link = Link(broker_of_nova(addresses), bus, name="connection to Nova")
        stack.push_async_callback(link.close)
        keeper = NovaCloudKeeper(
            reader, cloud, link=link, queue=f"moorage.{ROLE}.{secrets.token_hex(8)}", bus=bus
        )
        api = placement_of(placement)
        stack.push_async_callback(api.close)
        await run_worker(
            about(ROLE, brokers=(addresses.nova_bus_url,)),
            nova_parts(
                link,
                keeper,
                settings,
                choice,
                api=api,
                refresh_s=placement.refresh_s,
                beside=(keeper,),
                look_again=keeper.read_soon,
            ),
            bus.drain_ms_max / 1000,
            stations=(link,),
            health_at=health_at,
        )


def placement_of(placement: NovaPlacementSettings) -> PlacementApi:
    if not placement.is_named:
        why = "claims are written there over HTTP: name the placement of this Nova, or set auth to keystone"
        raise BadSetting(f"{NOVA_PLACEMENT.name}.url", "", "not set", why)
    return PlacementApi(placement)


def reader_of(cloud: NovaCloudSettings) -> CloudReader:
    if not cloud.is_named:
        why = "hosts, services and aggregates are read from Nova's compute API: name it, or set auth to keystone"
        raise BadSetting(f"{NOVA_CLOUD.name}.url", "", "not set", why)
    if not cloud.api_db:
        why = "Nova's API does not say which cell a host is in: name its API database, mysql://USER:PASSWORD@HOST/nova_api"
        raise BadSetting(f"{NOVA_CLOUD.name}.api_db", "", "not set", why)
    try:
        database = open_nova_database(f"{NOVA_CLOUD.name}.api_db", cloud.api_db)
    except NovaDatabaseError as wrong:
        raise BadSetting(f"{NOVA_CLOUD.name}.api_db", cloud.api_db, "as set", str(wrong)) from None
    return CloudReader(NovaApi(cloud), NovaCells(database), default_zone=cloud.default_zone)


def broker_of_nova(addresses: Addresses) -> RabbitBroker:
    url = addresses.nova_bus_url
    if not url:
        why = "name Nova's own RabbitMQ: `transport_url` of nova.conf as amqp://USER:PASSWORD@HOST/VHOST"
        raise BadSetting("nova_bus_url", "", "not set", why)
    broker = broker_at(url)
    if not isinstance(broker, RabbitBroker):
        raise BadSetting("nova_bus_url", url, "as set", "Nova's RPC is on a RabbitMQ: amqp:// or amqps://")
    return broker
