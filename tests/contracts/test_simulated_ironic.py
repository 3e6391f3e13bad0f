"""Contract of the simulated Ironic: readers of its exchange get what it publishes, byte for byte, on every broker."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from bus.workers.consuming import InboxConsuming, consumer
from bus.workers.sending import Link
from ironic_sync.settings import Inbox
from kit.parts import PartState, Status
from laboratory.ironic import (
    IronicSimSettings,
    NotificationSender,
    SimulatedIronic,
    SimulatedNode,
    WorkDurations,
    available_nodes,
)
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import within_patience
from tests.contracts.stage import SETTINGS
from tests.running import running
from tests.waiting import until

QUICK = IronicSimSettings(delays=WorkDurations(deploy_s=0.01, tear_down_s=0.01, clean_s=0.01))
COUNT = 20


async def test_a_reader_hears_what_is_published_in_order_and_byte_for_byte(
    under_test: BrokerUnderTest,
) -> None:
    sender = NotificationSender(under_test.broker(), QUICK)
    written: list[tuple[str, bytes]] = []

    def publish(routing_key: str, properties: Mapping[str, Any], body: bytes) -> None:
        written.append((routing_key, body))
        sender.publish(routing_key, properties, body)

    ironic = SimulatedIronic(available_nodes(COUNT), time.time, publish, QUICK)
    link = Link(under_test.broker(), SETTINGS)
    async with running((ironic, sender), link):
        # The sender declares the exchange: what it publishes before a reader is bound reaches no one.
        await until(lambda: sender.status.state is PartState.WELL, "the sender is ready")
        opens = partial(InboxConsuming.open, inbox=Inbox().objects, prefetch=SETTINGS.prefetch, bind_s=0.02)
        async with consumer(link, Status("inbox"), opens) as reader:
            for node in ironic.nodes.values():
                assert isinstance(ironic.provision(node.uuid, "active"), SimulatedNode)
            heard: list[bytes] = []
            while len(heard) < 2 * COUNT:
                heard += [each.parcel.body for each in await within_patience(reader.receive())]

    assert heard == [body for _, body in written]
    assert {key for key, _ in written} == {"ironic_versioned_notifications.info"}
    assert {node.provision_state for node in ironic.nodes.values()} == {"active"}
