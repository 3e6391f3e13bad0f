"""Each of a broker's three nodes is killed, and started again, in the middle of boots by a whole cloud on real servers."""

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self

import pytest

from bus.broker import Broker
from bus.definitions import definitions_of
from bus.rabbit import RabbitBroker
from bus.topology import Limits, Objects, objects_of
from tests.adversity.real_cloud import SMALL, a_build, cloud_on
from tests.contracts.broker_under_test import APPLICATIONS
from tests.servers import PrivateCluster
from tests.servers.free_places import place_in_memory

PASSWORD = "as-secret-as-a-test-can-be"  # noqa: S105 - of users that end with the tests


class ClusterUnderTest:
    """A virtual host of its own on a cluster."""

    def __init__(self, cluster: PrivateCluster, virtual_host: str) -> None:
        self.cluster = cluster
        self.virtual_host = virtual_host

    @classmethod
    async def start(cls, cluster: PrivateCluster) -> Self:
        name = f"test-{secrets.token_hex(4)}"
        everything = {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
        definitions = {"vhosts": [{"name": name}], "permissions": [everything]}
        here = cls(cluster, name)
        await here.ctl("import_definitions", stdin=json.dumps(definitions))
        return here

    async def ctl(self, *arguments: str, stdin: str = "") -> str:
        return await asyncio.to_thread(self.cluster.nodes[0].ctl, *arguments, stdin=stdin)

    def url(self, user: str = "") -> str:
        login = f"{user}:{PASSWORD}" if user else "guest:guest"
        return f"amqp://{login}@{self.cluster.addresses}/{self.virtual_host}"

    def broker(self, user: str = "") -> Broker:
        return RabbitBroker(self.url(user))

    async def declare(self, objects: Objects) -> None:
        connection = await self.broker().connect()
        await connection.declare(objects)
        await connection.close()
        await asyncio.to_thread(self.cluster.settle)

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None:
        passwords = dict.fromkeys(users, PASSWORD)
        definitions = definitions_of(
            objects_of(cells).exchanges,
            cells,
            passwords,
            salt=b"test",
            virtual_host=self.virtual_host,
            applications=APPLICATIONS.values(),
        )
        await self.ctl("import_definitions", stdin=json.dumps(definitions))

    async def kill(self, number: int) -> None:
        await asyncio.to_thread(self.cluster.nodes[number].kill)

    async def start_again(self, number: int) -> None:
        """Start a killed node, and wait until no queue depends on the two others alone."""
        node = self.cluster.nodes[number]
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.tool, "rabbitmq-upgrade", "await_online_quorum_plus_one")

    async def close(self) -> None:
        await self.ctl("delete_vhost", self.virtual_host)


pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(400)]

CELLS = ("c1", "c2")
WORKERS = ("placement-1", "placement-2", "scheduler-1", "scheduler-2")
OF_CELLS = tuple(f"{kind}-{cell}" for kind in ("conductor", "compute") for cell in CELLS)
HOSTS = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateCluster]:
    with PrivateCluster(place=place_in_memory()) as nodes:
        yield nodes


@pytest.mark.parametrize(
    ("boots", "killed"),
    [
        pytest.param(300, (0,), id="one node under 300 boots"),
        pytest.param(3000, (0, 1, 2), id="each node in turn under 3000 boots"),
    ],
)
async def test_nodes_of_the_broker_are_killed_under_boots_and_nothing_is_lost_or_built_twice(
    cluster: PrivateCluster, boots: int, killed: tuple[int, ...]
) -> None:
    """While a node is away, boots go on by the two others; only then it is started again."""
    under_test = await ClusterUnderTest.start(cluster)
    limits = Limits(replicates_questions=True)
    sizes = {"HOSTS_PER_CELL": str(HOSTS // len(CELLS))}
    async with cloud_on(under_test, *CELLS, limits=limits, sizes=sizes) as here:
        await here.start(*WORKERS, *OF_CELLS)
        await here.until_up(HOSTS)
        builds = [a_build(number) for number in range(1, boots + 1)]

        # Of each node's share, half is sent before it is killed, and half while it is away.
        share = boots // len(killed)
        asking, waits_s = [], []
        for number, node in enumerate(killed):
            mine = builds[number * share :][:share]
            before, after = mine[: share // 2], mine[share // 2 :]
            asking.append(asyncio.create_task(here.send(before)))
            await here.until_in(number * share + len(before) // 3, "active")
            await under_test.kill(node)
            killed_s = time.monotonic()
            asking.append(asyncio.create_task(here.send(after)))
            await here.until_in(number * share + len(before) + len(after) // 2, "active")
            waits_s.append(time.monotonic() - killed_s)
            await under_test.start_again(node)
        await asyncio.gather(*asking)
        await here.until_in(boots, "active")
        print(
            f"boots sent after each kill were half active within {', '.join(f'{each:.1f}' for each in waits_s)} s"
        )

        await here.until_at_rest(lambda _: SMALL)
        assert Counter(each.state for each in await here.instances()) == {"active": boots}
        in_cells = await here.rows("SELECT id FROM cell_instances")
        assert len({id_ for (id_,) in in_cells}) == len(in_cells) == boots
        assert sum(host.instances for host in await here.hosts()) == boots
        assert await here.audited() == ()
