"""A nova-conductor as a scheduler sees it: it calls on Nova's RabbitMQ as oslo.messaging does, and writes allocations to placement."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.unit.nova.recorded import args_of, enveloped
from tests.waiting import until

SELECT = "select_destinations"
TOKEN = "gAAAAA-a-token-of-keystone"  # noqa: S105 - none of anyone's


class Conductor:
    def __init__(self, channel: AbstractChannel, reply_queue: str) -> None:
        self._channel = channel
        self.reply_queue = reply_queue
        # All that came for each call, by its id.
        self.heard: dict[str, list[dict[str, Any]]] = {}

    async def take(self, message: AbstractIncomingMessage) -> None:
        said = json.loads(json.loads(message.body)["oslo.message"])
        assert message.content_encoding == "utf-8"
        assert message.content_type == "application/json"
        self.heard.setdefault(said["_msg_id"], []).append(said)

    async def listen_on(self, name: str) -> None:
        queue = await self._channel.declare_queue(name, arguments={"x-expires": 600_000})
        await queue.consume(self.take, no_ack=True)

    async def declares(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Declare this queue. The broker refuses if it stands with other arguments."""
        await self._channel.declare_queue(name, arguments={**arguments})

    async def send(
        self,
        method: str,
        args: Mapping[str, Any],
        *,
        version: str = "4.5",
        key: str = "scheduler",
        exchange: str = "nova",
        expires_s: float | None = 60,
        call: bool = True,
        **fields: Any,
    ) -> str:
        """Send a call, or a cast. Returns the id of the call."""
        id_ = uuid4().hex
        message = {
            "method": method,
            "args": args,
            "version": version,
            "_unique_id": uuid4().hex,
            "_context_auth_token": TOKEN,
            "_context_request_id": f"req-{id_}",
            **({"_msg_id": id_, "_reply_q": self.reply_queue} if call else {}),
            **fields,
        }
        await self.publish(enveloped(message), key=key, exchange=exchange, expires_s=expires_s)
        return id_

    async def publish(
        self, body: bytes, *, key: str = "scheduler", exchange: str = "nova", expires_s: float | None = None
    ) -> None:
        there = await self._channel.get_exchange(exchange)
        await there.publish(
            aio_pika.Message(
                body, content_type="application/json", content_encoding="utf-8", expiration=expires_s
            ),
            key,
            mandatory=bool(key),
        )

    async def until_answered(self, id_: str) -> dict[str, Any]:
        return await until(
            lambda: next((said for said in self.heard.get(id_, ()) if said["ending"]), None),
            f"call {id_} is answered",
        )

    def answer(self, id_: str) -> list[list[dict[str, Any]]]:
        """The data of the Selection objects of each instance in the answer to this call."""
        said = next(said for said in self.heard[id_] if said["ending"])
        assert said["failure"] is None, said["failure"]
        return [[each["nova_object.data"] for each in of_one] for of_one in said["result"]]

    async def call(self, method: str, args: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        return await self.until_answered(await self.send(method, args, **fields))

    async def select(self, *instances: UUID, **changes: Any) -> list[list[dict[str, Any]]]:
        """Ask for hosts. Returns the data of the Selection objects of each instance."""
        id_ = await self.send(SELECT, asked_for(*instances, **changes))
        await self.until_answered(id_)
        return self.answer(id_)

    async def refusal(self, *instances: UUID, **changes: Any) -> str:
        """Ask for hosts that there are not. Returns the message of the exception."""
        return failure_of(await self.call(SELECT, asked_for(*instances, **changes)))


def failure_of(said: Mapping[str, Any]) -> str:
    failure = json.loads(said["failure"])
    assert (failure["module"], failure["class"]) == ("nova.exception", "NoValidHost")
    return str(failure["message"])


def asked_for(
    *instances: UUID,
    flavor: Mapping[str, Any] | None = None,
    alternates: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """The recorded request, for these instances, with these fields changed of its flavor and its spec."""
    args = args_of()
    data = args["spec_obj"]["nova_object.data"]
    data["num_instances"] = len(instances)
    data["flavor"]["nova_object.data"].update(flavor or {})
    data.update(spec)
    return args | {"instance_uuids": [str(each) for each in instances], "return_alternates": alternates}


@asynccontextmanager
async def conductor(url: str) -> AsyncIterator[Conductor]:
    """A conductor with its queue for answers, on the broker at this URL."""
    async with await aio_pika.connect(url) as connection:
        one = Conductor(await connection.channel(), f"reply_{uuid4().hex}")
        await one.listen_on(one.reply_queue)
        yield one
