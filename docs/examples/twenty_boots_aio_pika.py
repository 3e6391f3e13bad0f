"""Boots twenty instances with aio-pika alone, and waits for the end of each. Nothing of Moorage is imported.

    python twenty_boots_aio_pika.py amqp://USER:PASSWORD@BROKER/ [PROJECT]

An admin application needs no project, and hears all events. Any other names its project, and hears the project's feed.

Each request has an id of ours. If this program ends before the answers, publish the same requests again: each is built once.
A program that must survive a broken connection asks `instance.query` after it has connected again (docs/bus-concepts.md).
"""

import asyncio
import json
import sys
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

import aio_pika

BOOTS = 20
TIMEOUT_S = 120
ENDED = ("active", "error", "deleted")
FLAVOR = {"name": "small", "vcpus": 1, "ram_mb": 512, "root_gb": 1}


async def listen(channel: aio_pika.abc.AbstractChannel, project: str) -> aio_pika.abc.AbstractQueue:
    """A queue of all events about requests and instances, from now on. The broker names it, and deletes it at the end."""
    feed = await channel.declare_queue(exclusive=True)
    if project:
        await feed.bind("moor.feed", project)
    else:
        await feed.bind("moor.events", "build.#")
        await feed.bind("moor.events", "instance.#")
    return feed


async def publish(channel: aio_pika.abc.AbstractChannel, request: dict[str, Any], user: str) -> None:
    """Return when the broker has the request on its disk. Raises DeliveryError if no queue takes it."""
    exchange = await channel.get_exchange("moor.api", ensure=False)
    message = aio_pika.Message(
        json.dumps({"message": request}).encode(),
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        user_id=user,
    )
    await exchange.publish(message, f"build.request.{request['project'] or '-'}", mandatory=True)


async def until_ended(
    feed: aio_pika.abc.AbstractQueue, requests: set[str]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read events until every request is rejected, or all its instances have ended: the last states, and the rejections."""
    states: dict[str, dict[str, Any]] = {}
    rejected: list[dict[str, Any]] = []
    open_requests = set(requests)
    async with feed.iterator(no_ack=True) as messages:
        async for message in messages:
            for line in message.body.splitlines():  # several events may share one AMQP message
                event = json.loads(line)["message"]
                instance = event.get("instance", {})
                request = event.get("request_id") or instance.get("request_id")
                if request not in requests:
                    continue  # another program's
                if event["type"] == "build.rejected":
                    rejected.append(event)
                    open_requests.discard(request)
                elif instance:
                    known = states.get(instance["id"], {"sequence": -1})
                    if instance["sequence"] > known["sequence"]:  # events may come twice, and out of order
                        states[instance["id"]] = instance
                    if states[instance["id"]]["state"] in ENDED:
                        open_requests.discard(request)
            if not open_requests:
                break
    return states, rejected


async def main(url: str, project: str = "") -> int:
    user = unquote(urlsplit(url).username or "guest")
    requests = [
        {
            "type": "build.request",
            "request_id": str(uuid.uuid4()),
            "name": f"web-{number}",
            "flavor": FLAVOR,
            "project": project,
        }
        for number in range(1, BOOTS + 1)
    ]
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        feed = await listen(channel, project)
        await asyncio.gather(*(publish(channel, request, user) for request in requests))
        ids = {str(request["request_id"]) for request in requests}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                states, rejected = await until_ended(feed, ids)
        except TimeoutError:
            print(f"not all requests have ended within {TIMEOUT_S} s; they go on", file=sys.stderr)
            return 3
    for each in sorted(states.values(), key=lambda state: str(state["name"])):
        print(each["name"], each["id"], each["state"], each.get("host") or each.get("reason", ""))
    for each in rejected:
        print("rejected:", each["field"], repr(each["value"]), each["reason"])
    active = sum(each["state"] == "active" for each in states.values())
    print(f"{active} of {BOOTS} are active")
    return 0 if active == BOOTS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
