"""The program of docs/bus.md that reports a bare-metal node with another AMQP library, on the real servers and without
an Ironic.
"""

import asyncio
import json
import os
import sys
from uuid import UUID

import pytest

from engine.inventories import ProviderId
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.stories.metal.test_nodes import nodes_setup
from tests.stories.test_plain_amqp import PROGRAMS

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql]

NODE = ProviderId(UUID(int=77))
AVAILABLE = {"uuid": str(NODE), "provision_state": "available", "resource_class": "gold"}


async def say(url: str, node: dict[str, object], *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", PROGRAMS["node.py"], *arguments),
        stdin=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "MOOR_BUS_URL": url},
    )
    await process.communicate(json.dumps(node).encode())
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [("--envelope",), ()], ids=["enveloped", "plain"])
async def test_the_program_moves_a_node_from_maintenance_to_schedulable(arguments: tuple[str, ...]) -> None:
    async with nodes_setup("rabbitmq", "postgresql") as setup, setup.daemon("d1"):
        broker = setup.cloud.brokers.api
        assert isinstance(broker, RabbitMQUnderTest)
        url = broker.url()
        await say(url, {**AVAILABLE, "maintenance": True}, *arguments)
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 1})
        await say(url, dict(AVAILABLE), *arguments)
        await setup.until_stocks(NODE, {"CUSTOM_GOLD": 0})
