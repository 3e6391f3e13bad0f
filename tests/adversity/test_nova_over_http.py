"""Claims over HTTP as things go wrong: placement hangs, connections are reset, schedulers die, plugins of other packages fail.

In the end, each instance holds what its caller was answered, and nothing is held for a caller that got no host.
"""

from typing import Any
from uuid import UUID, uuid4

import pytest

from nova_bridge.serving import ServingLimits
from tests.stories.nova.conductor import SELECT, asked_for, failure_of
from tests.stories.nova.nova_world import (
    AMOUNTS,
    EACH,
    IMPATIENT,
    NovaWorld,
    an_instance,
    any_write,
    gives_back,
    hosts_of,
    nova_world,
)
from tests.waiting import until

pytestmark = pytest.mark.rabbitmq

LONG_S = 1800


@pytest.mark.hits(
    "an answer to Nova is given up: its caller does not wait any more",
    "an answer to %s of %s was %s: what it claimed is released",
)
@EACH
async def test_nothing_is_claimed_for_a_caller_that_gave_up(kind: str) -> None:
    """One got no signs of life in time. The others waited in Nova's queue: since the scheduler had as many calls as it takes, and since
    there was no scheduler yet.
    """
    async with nova_world(kind) as world:
        await world.add("h1", "h2")
        silent, crowded, early, later = (an_instance() for _ in range(4))
        async with world.scheduler(ServingLimits(prefetch=1)) as metrics:
            await world.conductor.select(an_instance())
            world.line.open.clear()
            await world.conductor.send(SELECT, asked_for(silent), _timeout=60, expires_s=LONG_S)
            await until(lambda: world.line.held > 0, "placement is asked")
            began: dict[str, Any] = {"_context_timestamp": world.clock().replace(tzinfo=None).isoformat()}
            await world.conductor.send(SELECT, asked_for(crowded), _timeout=60, expires_s=LONG_S, **began)
            world.clock.pass_s(61)
            world.line.open.set()
            await world.until_ended(metrics, "late", 2)
        await world.conductor.send(SELECT, asked_for(early), _timeout=60, expires_s=LONG_S, **began)
        async with world.scheduler() as metrics:
            await world.until_ended(metrics, "late")
            await world.conductor.select(later)

        assert [await world.held(each) for each in (silent, crowded, early)] == [{}] * 3
        assert len(await world.held(later)) == 1


@pytest.mark.hits("claims for %d instances are not released yet: %s")
@EACH
@pytest.mark.parametrize(
    "trouble",
    ["loses_request", "loses_answer", "hangs_at"],
    ids=["request lost", "answer lost", "placement hangs"],
)
async def test_a_refused_request_gives_all_back_whatever_happens_meanwhile(kind: str, trouble: str) -> None:
    async with nova_world(kind) as world:
        await world.add("h1", "h2", VCPU=1)
        instances = [an_instance() for _ in range(3)]
        async with world.scheduler(asking=IMPATIENT):
            line = world.line
            setattr(line, trouble, gives_back)
            id_ = await world.conductor.send(SELECT, asked_for(*instances))
            # It has tried again since.
            await until(lambda: line.lost == 1 or line.held > 2, "a release that fails")
            line.open.set()
            said = await world.conductor.until_answered(id_)
            assert "3 instances need a host each, 2 found one" in failure_of(said)
            assert [await world.held(each) for each in instances] == [{}] * 3
            # The room is free for others.
            await world.conductor.select(*(an_instance() for _ in range(2)))


async def moving(world: NovaWorld, case: str) -> tuple[UUID, dict[str, dict[str, int]], dict[str, Any]]:
    """An instance that is to move, what it holds and keeps, and what the conductor asks with."""
    instance, kept = an_instance(), {"h1": AMOUNTS}
    if case == "from a pool":
        kept = {"h1": {"VCPU": 1, "MEMORY_MB": 64}, "pool": {"DISK_GB": 1}}
    if case == "a boot":
        return instance, {}, {}
    if case == "a resize":
        # What it held is the migration's.
        await world.allocate({an_instance(): kept})
        return instance, {}, {"flavor": {"vcpus": 2}, "ignore_hosts": ["h1"]}
    if case == "evacuated twice":
        kept = {"h2": AMOUNTS, "h1": AMOUNTS}
        world.set_service("h2", is_up=False)
    await world.allocate({instance: kept})
    world.set_service("h1", is_up=False)
    return instance, kept, {"ignore_hosts": ["h1"]}


@pytest.mark.hits("the queue of a caller of Nova does not exist: the answer is tried again")
@EACH
@pytest.mark.parametrize("case", ["a boot", "a resize", "evacuated", "evacuated twice", "from a pool"])
async def test_a_claim_of_a_scheduler_that_died_is_answered_by_the_next_one_with_the_same_host(
    kind: str, case: str
) -> None:
    async with nova_world(kind) as world:
        await world.add(*(f"h{number}" for number in range(1, 9)), pooled=case == "from a pool")
        instance, kept, changes = await moving(world, case)
        # Its answer cannot be sent, since the queue is missing: so the first worker holds the request when it dies.
        queue = f"reply_{uuid4().hex}"
        async with world.scheduler(ServingLimits(reply_retry_s=60), dies=True):
            id_ = await world.conductor.send(SELECT, asked_for(instance, **changes), _reply_q=queue)
            held = await world.until_held(instance, len(kept) + 1)
        (claimed,) = held.keys() - kept.keys()
        if case == "a boot":
            # As long as this may be its own claim it counts, although nobody would choose this host now.
            world.set_service(claimed, is_up=False)
        await world.conductor.listen_on(queue)
        async with world.scheduler():
            (host,) = hosts_of(await world.conductor.until_answered(id_))

        assert await world.held(instance) == held
        assert host == claimed
        assert {name: held[name] for name in kept} == kept


@pytest.mark.hits("placement does not answer: hosts are looked for again")
@EACH
@pytest.mark.parametrize("case", ["a boot", "evacuated", "from a pool"])
async def test_a_claim_whose_answer_is_lost_is_answered_and_given_back_if_nobody_hears_that(
    kind: str, case: str
) -> None:
    async with nova_world(kind) as world:
        await world.add(*(f"h{number}" for number in range(1, 9)), pooled=case == "from a pool")
        instance, kept, changes = await moving(world, case)
        async with world.scheduler(ServingLimits(reply_retry_s=0.3)) as metrics:
            world.line.loses_answer = any_write
            (host,) = hosts_of(await world.conductor.call(SELECT, asked_for(instance, **changes)))
            held = await world.held(instance)
            assert {host} == held.keys() - kept.keys()
            # Its caller has gone since, and nobody hears the answer to the next one.
            await world.allocate({instance: kept})
            world.line.loses_answer = any_write
            await world.conductor.send(
                SELECT, asked_for(instance, **changes), _reply_q=f"reply_{uuid4().hex}"
            )
            await world.until_ended(metrics, "undeliverable")

        assert world.line.lost == 2
        assert await world.held(instance) == kept


@pytest.mark.hits("claims are not given back: the call is not this scheduler's any more")
@EACH
async def test_a_scheduler_that_lost_its_connection_releases_nothing_that_another_one_has_answered(
    kind: str,
) -> None:
    async with nova_world(kind) as world:
        await world.add("h1", "h2", "h3", "h4")
        instance, queue = an_instance(), f"reply_{uuid4().hex}"
        async with world.scheduler(ServingLimits(reply_retry_s=LONG_S)):
            # Its answer cannot be sent yet.
            id_ = await world.conductor.send(
                SELECT, asked_for(instance), _timeout=60, expires_s=LONG_S, _reply_q=queue
            )
            held = await world.until_held(instance, 1)
            await world.broker.unplug()
            await world.conductor.listen_on(queue)
            async with world.scheduler(is_direct=True):
                (host,) = hosts_of(await world.conductor.until_answered(id_))
            world.clock.pass_s(61)
            await world.broker.plug_in()
            await world.conductor.select(an_instance())

        assert held == {host: AMOUNTS}
        assert await world.held(instance) == held
