"""Tells Moorage the state of a bare-metal node, as Ironic would: by a notification on Ironic's exchange, with aio-pika alone.

    python ironic_event.py amqp://USER:PASSWORD@BROKER/ NODE --resource-class gold
    python ironic_event.py amqp://USER:PASSWORD@BROKER/ NODE --resource-class gold --maintenance

The broker is the one that Ironic publishes to (MOOR_IRONIC_BUS_URL). A daemon (`moor run ironic`) must run on it. Without an Ironic,
`moor broker declare --ironic` creates its exchange. NODE is the node's uuid. The first command offers the node to the schedulers, and
the second takes it away from them; both within milliseconds.
"""

import argparse
import asyncio
import json
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import aio_pika

EXCHANGE = "ironic"
KEY = "ironic_versioned_notifications.info"


def notification_of(node: dict[str, Any]) -> dict[str, Any]:
    """The node in the two envelopes that Ironic's messages have: that of the notification, and that of oslo.messaging."""
    payload = {
        "ironic_object.name": "NodePayload",
        "ironic_object.namespace": "ironic",
        "ironic_object.version": "1.17",
        "ironic_object.data": node,
    }
    now = datetime.now(UTC).replace(tzinfo=None)
    notification = {
        "message_id": str(uuid.uuid4()),
        "publisher_id": "ironic_event.py",
        "event_type": "baremetal.node.update.end",
        "priority": "INFO",
        "timestamp": str(now),
        "payload": payload,
    }
    return {"oslo.version": "2.0", "oslo.message": json.dumps(notification)}


def node_of(arguments: argparse.Namespace) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {
        "uuid": str(arguments.node),
        "provision_state": arguments.state,
        "power_state": "power off",
        "maintenance": arguments.maintenance,
        "resource_class": arguments.resource_class,
        "traits": arguments.trait,
        "retired": False,
        "fault": None,
        "instance_uuid": None,
        "conductor_group": "",
        "owner": None,
        "lessee": None,
        "updated_at": now,
    }


async def publish(url: str, node: dict[str, Any]) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        # Passive: the exchange is Ironic's, and is not created here.
        exchange = await channel.get_exchange(EXCHANGE)
        body = json.dumps(notification_of(node)).encode()
        message = aio_pika.Message(body, content_type="application/json")
        await exchange.publish(message, KEY, mandatory=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("node", type=uuid.UUID, metavar="NODE")
    parser.add_argument("--state", default="available", help="its provision state (default: available)")
    parser.add_argument("--resource-class", required=True, metavar="CLASS")
    parser.add_argument("--trait", action="append", default=[], help="may be repeated")
    parser.add_argument("--maintenance", action="store_true")
    arguments = parser.parse_args()
    try:
        asyncio.run(publish(arguments.url, node_of(arguments)))
    except aio_pika.exceptions.ChannelNotFoundEntity as missing:
        print(
            f"there is no exchange {EXCHANGE!r}: {missing}; `moor broker declare --ironic`", file=sys.stderr
        )
        return 1
    except aio_pika.exceptions.DeliveryError:
        print(f"no queue takes {KEY!r}: no daemon has bound its inbox to {EXCHANGE!r}", file=sys.stderr)
        return 1
    print(f"told: {arguments.node} is {arguments.state}{', in maintenance' * arguments.maintenance}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
