"""Which of these consumers does Nova know, as an instance or a migration? The audit asks, before it frees anything of Nova's."""

from collections.abc import Collection

from bus.auditing.unknown_to_nova import HoldersAsked
from bus.message import ConsumerId
from scheduler_worker.nova_cloud.rest import NovaApi
from scheduler_worker.nova_cloud.settings import NovaCloudSettings

# So many are asked for one by one: more unknown ones at once mean that another Nova answers, or an empty one.
UNKNOWN_MAX = 1000


class NovaHolders:
    """Asks the Nova of these settings."""

    def __init__(self, settings: NovaCloudSettings) -> None:
        self._api = NovaApi(settings)

    @property
    def name(self) -> str:
        return self._api.name

    async def unknown(self, consumers: Collection[ConsumerId]) -> HoldersAsked:
        return await ask_nova(self._api, consumers)

    async def close(self) -> None:
        await self._api.close()


async def ask_nova(api: NovaApi, consumers: Collection[ConsumerId]) -> HoldersAsked:
    """Raises `Operational` if Nova does not answer, or refuses.

    All instances and all migrations are read. Of the consumers that are among neither, each is asked for by its id as well: the lists
    have no instance that was deleted softly, and an instance may be new.
    """
    left = {*consumers}
    services = await api.services()
    if services.silent:
        return HoldersAsked(
            problem=f"the cell of {len(services.silent)} hosts ({services.silent[0]}, ...) is silent"
        )
    async for page in api.servers():
        left.difference_update(page.ids)
        if page.is_partial:
            return HoldersAsked(problem="a cell is silent: Nova knows only the ids of its servers")
    if left:
        async for page in api.migrations():
            left.difference_update(page.ids)
            if not left:
                break
    if len(left) > UNKNOWN_MAX:
        return HoldersAsked(
            problem=f"Nova knows {len(left):,} of {len(consumers):,} consumers not, more than {UNKNOWN_MAX:,}: is this the Nova that "
            "uses this placement?"
        )
    unknown = [
        each for each in sorted(left) if not await api.has_server(each) and not await api.has_migration(each)
    ]
    return HoldersAsked(frozenset(unknown))
