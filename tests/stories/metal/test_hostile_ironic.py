"""An Ironic and a bus that send wrong data: no daemon ends because of it, and when they are correct again everything
recovers.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from operator import not_
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from bus.message import Parcel
from bus.topology import IRONIC
from engine.flavors import InstanceId
from ironic_sync.core.ordering import NOT_LISTED, Belief
from laboratory.ironic import available_nodes
from tests.stories.metal.test_deploys import QUICK, DeploySetup, deploy_setup
from tests.stories.metal.test_restored_ironic import until_swept
from tests.unit.ironic.captured import SCENARIOS, bodies_of, notification_in
from tests.waiting import until

HTML = b"<html><body>It works!</body></html>"
FAULT = json.dumps({"error_message": json.dumps({"faultstring": "Node could not be found."})}).encode()
OLD = {"X-OpenStack-Ironic-API-Maximum-Version": "1.50", "X-OpenStack-Ironic-API-Minimum-Version": "1.1"}
# Responses in place of Ironic's: status, body, headers.
WRONG_ANSWERS: Sequence[tuple[int, bytes, dict[str, str]]] = (
    *((status, HTML, {}) for status in (200, 202, 302, 400, 401, 403, 404, 405, 418, 500, 502, 503)),
    # Acceptances, in Ironic's form, of requests that it never received.
    (202, b"", {}),
    (204, b"", {}),
    (404, FAULT, {}),
    (409, FAULT.replace(b"could not be found", b"is locked by host x"), {}),
    (409, FAULT, {}),
    (429, b"", {}),
    (406, FAULT, OLD),
    (200, b"[" * 100_000, {}),
    (200, b'{"nodes": [{"uuid": "no uuid"}, null, 5], "next": "http://[x"}', {}),
    (200, b'{"nodes": [], "next": "http://x/v1/nodes?marker=1"}', {}),
    (200, b'{"nodes": []}', {}),
)


class WrongTransport(httpx.AsyncBaseTransport):
    """An HTTP transport between a daemon and Ironic. While `is_on`, it replaces the answer of half of the requests,
    before or after Ironic has carried them out.
    """

    def __init__(self, way: httpx.AsyncBaseTransport, chance: random.Random) -> None:
        self.is_on = True
        self.wrong_answers = 0
        self._way = way
        self._chance = chance

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.is_on or self._chance.random() < 0.5:
            return await self._way.handle_async_request(request)
        self.wrong_answers += 1
        how = self._chance.choice(
            (self._wrong_answer, self._wrong_answer_afterwards, self._lose, self._half_answer)
        )
        return await how(request)

    async def _wrong_answer(self, request: httpx.Request) -> httpx.Response:
        status, body, headers = self._chance.choice(WRONG_ANSWERS)
        return httpx.Response(status, content=body, headers=headers, request=request)

    async def _wrong_answer_afterwards(self, request: httpx.Request) -> httpx.Response:
        await self._way.handle_async_request(request)
        return await self._wrong_answer(request)

    async def _lose(self, request: httpx.Request) -> httpx.Response:
        kinds = (httpx.ReadTimeout, httpx.ConnectTimeout, httpx.ReadError, httpx.RemoteProtocolError)
        kind = self._chance.choice(kinds)
        if kind is not httpx.ConnectTimeout:
            await self._way.handle_async_request(request)
        raise kind("lost", request=request)

    async def _half_answer(self, request: httpx.Request) -> httpx.Response:
        """A list without half of its nodes and with some invalid ones; or half of an answer."""
        answer = await self._way.handle_async_request(request)
        body = await answer.aread()
        try:
            said = json.loads(body)
            said["nodes"] = [each for each in said["nodes"] if self._chance.random() < 0.5]
            said["nodes"] += [None, 5, {"uuid": "no uuid"}, {"uuid": str(UUID(int=1)), "properties": 10**30}]
            body = json.dumps(said).encode()
        except (ValueError, LookupError, TypeError):
            body = body[: len(body) // 2]
        return httpx.Response(answer.status_code, content=body, request=request)


def wrong_notification(node: UUID, chance: random.Random) -> bytes:
    """A captured notification about this node with changed values, times and publishers, sometimes cut off."""
    said = notification_in(chance.choice(bodies_of(chance.choice(SCENARIOS))))
    data = said["payload"]["ironic_object.data"]
    if "allocation" not in said["event_type"]:
        data["uuid"] = str(node)
    for field in chance.sample(sorted(data), 3):
        data[field] = chance.choice(VALUES)(data[field])
    away = timedelta(seconds=chance.choice((-1e6, -3600, -1, 0, 1, 3600, 1e8)))
    said["timestamp"] = f"{datetime.now(UTC) + away:%Y-%m-%d %H:%M:%S.%f}"
    said["publisher_id"] = chance.choice(
        ("ironic-conductor.a", "ironic-conductor.b", "x" * 300, said["publisher_id"])
    )
    said["payload"]["ironic_object.version"] = chance.choice(("1.15", "1.99", "2.0", "", "x"))
    body = json.dumps(said).encode()
    return chance.choice((body, body, body, body[: chance.randrange(len(body))], b""))


VALUES: Sequence[Callable[[Any], Any]] = (
    lambda value: value,
    lambda _: None,
    lambda _: 10**30,
    lambda _: "available",
    lambda _: "\0",
    lambda _: "x" * 10_000,
    lambda _: ["CUSTOM_A"] * 500,
    lambda _: {"a": {"b": [1]}},
    lambda _: "11111111-2222-3333-4444-555555555555",
    lambda _: True,
)


@asynccontextmanager
async def sending_wrong_notifications(metal: DeploySetup, chance: random.Random) -> AsyncIterator[None]:
    async def talk() -> None:
        while True:
            node = chance.choice(metal.nodes)
            parcel = Parcel(
                IRONIC, "ironic_versioned_notifications.info", wrong_notification(UUID(node.uuid), chance)
            )
            await metal.cloud.client.publisher.offer(parcel)
            await asyncio.sleep(0.02)

    talking = asyncio.create_task(talk())
    try:
        yield
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)


@pytest.mark.hits("the %s of instance %s on node %s has made %d tries without success, and goes on: %s")
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_wrong_answer_or_notification_ends_a_daemon_and_everything_recovers(
    seed: int,
) -> None:
    chance = random.Random(seed)
    nodes = available_nodes(6)
    settings = structs.replace(QUICK, sweep_s=0.5, belief=Belief(few=2, after_s=1.0))
    async with deploy_setup("memory", "memory", *nodes) as metal:
        hostile = metal.way = WrongTransport(metal.way, chance)
        hostile.is_on = False
        async with metal.daemon("d1", settings), metal.daemon("d2", settings):
            await metal.until_offered(*nodes)
            hostile.is_on = True
            async with sending_wrong_notifications(metal, chance):
                instances = [await metal.boot(number, ports=(f"port-{number}",)) for number in range(1, 9)]
                for answers in range(20, 220, 20):
                    await metal.delete(chance.choice(instances))
                    await until(lambda: hostile.wrong_answers, "Ironic answers wrongly", answers.__le__)
            hostile.is_on = False

            for instance in instances:
                await metal.cloud.until_state(instance, "active", "error", "deleted")
            await until(lambda: _wrong(metal, instances), "each instance is where it is said to be", not_)
            await asyncio.gather(*map(metal.delete, instances))
            await metal.until_free(*nodes)


class Proxy(WrongTransport):
    """A transport to an Ironic that lists two nodes at a time. While `is_on`, a field of the first of them cannot be read, and a proxy on the
    way finds no single node.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/nodes"):
            request = httpx.Request("GET", request.url.copy_set_param("limit", 2), headers=request.headers)
            listed = json.loads(await (await self._way.handle_async_request(request)).aread())
            for each in listed["nodes"][: self.is_on]:
                each["maintenance"] = "yes"
            return httpx.Response(200, json=listed, request=request)
        if not self.is_on:
            return await self._way.handle_async_request(request)
        self.wrong_answers += 1
        return httpx.Response(404, content=HTML, request=request)


async def test_a_node_that_a_list_shows_wrongly_and_a_proxy_does_not_find_is_not_taken_for_deleted() -> None:
    nodes, settings = available_nodes(8), structs.replace(QUICK, sweep_s=0.2)
    async with deploy_setup("memory", "memory", *nodes) as metal:
        proxy = metal.way = Proxy(metal.way, random.Random(1))
        proxy.is_on = False
        async with metal.daemon("d1", settings):
            await metal.until_offered(*nodes)
            before = await metal.cloud.providers()
            proxy.is_on = True
            # It takes nodes over, and reads each of them alone.
            async with metal.daemon("d2", settings) as parts:
                await until(lambda: proxy.wrong_answers, "single nodes are asked for", (8).__le__)
                await until_swept(parts)

            after = await metal.cloud.providers()
            # One that was removed would have come back under another number.
            assert all(after[name].internal == each.internal for name, each in before.items())
            assert not any(NOT_LISTED in row.doubts for row in await metal.all_rows())


async def _wrong(metal: DeploySetup, instances: Sequence[InstanceId]) -> list[object]:
    wrong: list[object] = []
    for instance in instances:
        state = await metal.cloud.instance(instance)
        nodes = metal.with_instance(instance)
        if state is None or [node.uuid for node in nodes] != (
            [state.host] if state.state == "active" else []
        ):
            wrong.append((state, nodes, [await metal.row(node) for node in nodes]))
    return wrong
