"""What schedulers and brokers say about the whole cloud now."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from bus.broker import ConnectionLost, Refusal
from bus.configuration.sections import without_password
from bus.messages.overview import AskOverview, Overview
from bus.topology import DEAD_QUEUE, Queue, Site
from bus.workers.asking import NoAnswer
from moor.asking import Asks, answer_of
from moor.broker.applications_command import depths_of
from moor.broker.deployments import BrokerDeployment, deployments_of
from moor.options import broker_of
from moor.settings import Settings


class BrokerSeen(Struct, frozen=True):
    """How many parcels wait in each queue of a broker; None in one that is not declared. `trouble` says why nothing is
    known of the broker.
    """

    url: str
    queues: Mapping[str, int | None] = {}
    trouble: str = ""

    @property
    def dead_letters(self) -> int:
        return self.queues.get(DEAD_QUEUE) or 0


class CloudView(Struct, frozen=True):
    """`silent` says why no scheduler has answered; then there is no overview."""

    overview: Overview | None
    silent: str = ""
    brokers: tuple[BrokerSeen, ...] = ()

    @property
    def dead_letters(self) -> int:
        return sum(broker.dead_letters for broker in self.brokers)


async def view_of(asking: Asks, settings: Settings) -> CloudView:
    try:
        overview, silent = await answer_of(asking, AskOverview(), Overview), ""
    except NoAnswer as problem:
        overview, silent = None, str(problem)
    addresses = structs.replace(settings.addresses, bus_url=settings.bus_url)
    cells = {*addresses.cells, *([each.cell for each in overview.cells] if overview else ())}
    return CloudView(overview, silent, await brokers_seen(deployments_of(addresses, sorted(cells))))


async def brokers_seen(deployments: Sequence[BrokerDeployment]) -> tuple[BrokerSeen, ...]:
    return tuple([await _seen(each) for each in deployments])


async def _seen(deployment: BrokerDeployment) -> BrokerSeen:
    url = without_password(deployment.url)
    try:
        connection = await broker_of(deployment.url).connect()
        try:
            depths = await depths_of([each.name for each in deployment.objects().queues], connection)
        finally:
            await connection.close()
    except (ConnectionLost, Refusal) as problem:
        return BrokerSeen(url, trouble=str(problem))
    needed = {each.name for each in deployment.objects().queues if _is_needed(each)}
    return BrokerSeen(url, {name: at for name, at in depths.items() if at is not None or name in needed})


def _is_needed(queue: Queue) -> bool:
    """Ironic's notifications have no queue where there is no Ironic."""
    return queue.site is not Site.IRONIC
