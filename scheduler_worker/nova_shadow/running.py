"""Runs a worker in shadow mode as a process."""

import secrets
from contextlib import AsyncExitStack
from pathlib import Path

from bus.configuration.addresses import Addresses
from bus.configuration.sections import BadSetting
from bus.configuration.settings import BusSettings
from bus.operating.running import about, run_worker
from bus.workers.link import Link
from scheduler_worker.nova_cloud.keeping import NovaCloudKeeper
from scheduler_worker.nova_cloud.rest import NovaApi
from scheduler_worker.nova_cloud.settings import NovaCloudSettings
from scheduler_worker.nova_shadow.notes_file import open_notes
from scheduler_worker.nova_shadow.settings import NOVA_SHADOW, NovaShadowSettings
from scheduler_worker.nova_shadow.wiring import shadow_parts
from scheduler_worker.nova_worker.over_http.settings import NovaPlacementSettings
from scheduler_worker.nova_worker.running import broker_of_nova, placement_of, reader_of
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.settings import SchedulerSettings

ROLE = "nova-shadow"


async def run_in_shadow(
    addresses: Addresses,
    settings: NovaSchedulerSettings,
    shadow: NovaShadowSettings,
    choice: SchedulerSettings,
    *,
    cloud: NovaCloudSettings,
    placement: NovaPlacementSettings,
    bus: BusSettings | None = None,
    health_at: str = "",
) -> None:
    """Raises BadSetting if it is not said where Nova and placement are, or if the file of notes cannot be written."""
    bus = bus or BusSettings()
    check_file(shadow)
    async with AsyncExitStack() as stack:
        reader = reader_of(cloud)
        stack.push_async_callback(reader.close)
        nova = NovaApi(cloud)
        stack.push_async_callback(nova.close)
        api = placement_of(placement)
        stack.push_async_callback(api.close)
        link = Link(broker_of_nova(addresses), bus, name="connection to Nova")
        stack.push_async_callback(link.close)
        keeper = NovaCloudKeeper(
            reader, cloud, link=link, queue=f"moorage.shadow.{secrets.token_hex(8)}", bus=bus
        )
        await run_worker(
            about(ROLE, brokers=(addresses.nova_bus_url,)),
            shadow_parts(
                link,
                keeper,
                settings,
                shadow,
                choice,
                api=api,
                refresh_s=placement.refresh_s,
                beside=(keeper,),
                asks_server=nova.server,
                look_again=keeper.read_soon,
            ),
            bus.drain_ms_max / 1000,
            stations=(link,),
            health_at=health_at,
        )


def check_file(shadow: NovaShadowSettings) -> None:
    """Raise BadSetting if the file of notes cannot be written: it is only opened for what is compared later."""
    try:
        open_notes(Path(shadow.file)).close()
    except OSError as problem:
        raise BadSetting(
            f"{NOVA_SHADOW.name}.file",
            shadow.file,
            NOVA_SHADOW.variable("file"),
            f"it cannot be written: {problem.strerror or problem}",
        ) from None
