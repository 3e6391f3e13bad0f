"""On a host whose rows are mostly of builds that ended in error there, questions and orders find the instance that lives."""

from datetime import timedelta

from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.hosts import DeleteHost
from bus.messages.planning import AskDrain, DrainFound
from engine.flavors import Flavor
from engine.requests import InstanceSpec
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import accepted
from scheduler_worker.store_sql import NewRequest
from tests.contracts.scheduler_rows import accept, instance, request_id
from tests.unit.choosing.scheduler_worlds import a_host
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler, rejection

# More than are read at once.
FAILED = 1100


async def test_an_instance_behind_a_thousand_that_ended_in_error_is_not_overlooked() -> None:
    lone = LoneScheduler()
    host = a_host("h1", up=False)
    lone.picture.put_hosts([host, a_host("h2")])
    async with lone.store.transaction() as transaction:
        await transaction.save_hosts([host], NOON)
    build = BuildInstance(request_id=request_id(1), name="web", flavor=Flavor(vcpus=1))
    ids = [instance(number) for number in range(1, FAILED + 2)]
    spec = encoded(InstanceSpec(amounts=(("VCPU", 1),)), build)
    rows = [
        structs.replace(
            row,
            told=structs.replace(
                row.told, state="active" if row.id == ids[-1] else "error", cell=host.cell, host=host.name
            ),
        )
        for row in accepted(build, ids, NOON, NOON + timedelta(minutes=10), spec)
    ]
    await accept(lone.store, NewRequest(request_id(1), b"same", tuple(rows)))

    drained = await lone.ask(AskDrain(host="h1"))
    refused = rejection(await lone.handle(DeleteHost(host="h1")))

    assert isinstance(drained, DrainFound)
    assert ([each.id for each in drained.instances], drained.more) == ([ids[-1]], False)
    assert refused.reason == "has 1 instances (web-1101): evacuate or delete them first"
