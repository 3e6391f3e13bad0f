"""The program of docs/bus.md that reports a bare-metal node with another AMQP library, on the real servers and without
an Ironic.
"""

from uuid import UUID

import pytest

from engine.inventories import ProviderId
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.stories.metal.test_nodes import nodes_setup
from tests.stories.test_examples import run

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql]

NODE = ProviderId(UUID(int=77))
AVAILABLE = {"uuid": str(NODE), "provision_state": "available", "resource_class": "gold"}


@pytest.mark.parametrize("arguments", [("--envelope",), ()], ids=["enveloped", "plain"])
async def test_the_program_moves_a_node_from_maintenance_to_schedulable(arguments: tuple[str, ...]) -> None:
    async with nodes_setup("rabbitmq", "postgresql") as setup, setup.daemon("d1"):
        broker = setup.cloud.brokers.api
        assert isinstance(broker, RabbitMQUnderTest)
        url = broker.url()
        await run("node.py", url, *arguments, stdin={**AVAILABLE, "maintenance": True})
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 1})
        await run("node.py", url, *arguments, stdin=AVAILABLE)
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 0})
