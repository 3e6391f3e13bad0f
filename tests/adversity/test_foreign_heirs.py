"""A rival, an application with its own user on the real broker, takes ids of consumers that hold something for another project's
instance while it moves. It names them by `instance_ids` of its own builds. The other instance always ends its move as if nobody had.
"""

from collections.abc import AsyncIterator
from operator import not_
from uuid import uuid4, uuid5

import pytest
import pytest_asyncio

from bus.messages.build import BuildInstance, DeleteInstance, InstanceState, MoveEnd
from bus.messages.moves import EndMove, MoveInstance
from bus.topology import API
from engine.flavors import InstanceId, RequestId
from engine.inventories import ConsumerId
from tests.adversity.real_cloud import RealCloud, real_cloud
from tests.adversity.test_authority import SMALL, Cloud, has_providers, say
from tests.contracts.broker_under_test import SHOP
from tests.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(240),
]

CELL = "harbour"
RIVAL = "shop"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[RealCloud]:
    async with real_cloud(CELL, HOSTS_PER_CELL="3") as here:
        await here.under_test.add_users((SHOP.user,), (CELL,))
        await here.start("placement-1", "scheduler-1", f"conductor-{CELL}", f"compute-{CELL}")
        await here.until_up(3)
        await until(lambda: has_providers(here, 3), "placement has the hosts")
        yield here


@pytest_asyncio.fixture(loop_scope="module")
async def victim(workers: RealCloud) -> "Victim":
    cloud = Cloud(workers)
    cloud.theirs = await cloud.boot("bank")
    return Victim(cloud)


class Victim:
    """An instance of the bank that moves, and a rival that builds under ids of its choice."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.here = cloud.here
        self.id = cloud.theirs
        self.source = cloud.host
        self.move = RequestId(uuid4())

    async def moves(self) -> None:
        await self.here.client.ask(
            MoveInstance(request_id=self.move, instance=self.id, kind="migrate", confirm_s=3600)
        )
        assert (await self.here.until_state(self.id, "moved", "active", "error")).state == "moved"

    async def ends(self, how: MoveEnd) -> InstanceState:
        await self.here.client.ask(EndMove(request_id=self.move, instance=self.id, how=how))
        return await self.here.until_state(self.id, "active", "error")

    async def rival_builds(self, id_: ConsumerId) -> InstanceState:
        build = BuildInstance(
            request_id=RequestId(uuid4()), flavor=SMALL, project=RIVAL, instance_ids=(InstanceId(id_),)
        )
        await say(self.cloud, SHOP.user, API, f"build.request.{RIVAL}", build)
        return await self.here.until_state(InstanceId(id_), "active", "error")

    async def rival_deletes(self, id_: ConsumerId) -> None:
        order = DeleteInstance(instance=InstanceId(id_), project=RIVAL)
        await say(self.cloud, SHOP.user, API, f"instance.delete.{RIVAL}", order)
        await self.here.until_state(InstanceId(id_), "deleted")

    async def heirs(self) -> list[ConsumerId]:
        """What holds something for the instance beside it."""
        rows = await self.here.rows(
            "SELECT DISTINCT c.uuid FROM consumers c JOIN holders h ON h.consumer_id = c.id"  # noqa: S608
            f" WHERE c.type <> 'INSTANCE' AND c.project_id = 'bank' AND c.uuid <> '{self.id}'"
        )
        return [ConsumerId(uuid) for (uuid,) in rows]

    async def held_by(self, id_: ConsumerId) -> int:
        ((count,),) = await self.here.rows(
            f"SELECT count(*) FROM holders h JOIN consumers c ON c.id = h.consumer_id WHERE c.uuid = '{id_}'"  # noqa: S608
        )
        return int(count)


@pytest.mark.parametrize("how", ["confirm", "revert"])
async def test_a_rival_that_takes_ids_which_could_be_derived_hinders_no_move(
    victim: Victim, how: MoveEnd
) -> None:
    foreseen = [ConsumerId(uuid5(victim.id, str(attempt))) for attempt in (1, 2)]
    for each in foreseen:
        assert (await victim.rival_builds(each)).state == "active"
    await victim.moves()
    ended = await victim.ends(how)
    await until(victim.heirs, "what the move held beside the instance is free", not_)

    assert (ended.state, ended.host == victim.source) == ("active", how == "revert")
    assert await victim.held_by(victim.id)
    for each in foreseen:
        # What the rival has built is its own.
        assert await victim.held_by(each)
        await victim.rival_deletes(each)
