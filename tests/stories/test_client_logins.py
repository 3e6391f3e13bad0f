"""The public client at RabbitMQ's door."""

import pytest

from moor.client import BrokerAway, Client, NotAllowed
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.stories.layouts import layout

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq]


async def test_a_wrong_password_and_an_unknown_user_are_told_at_once() -> None:
    async with layout("rabbitmq") as brokers:
        broker = brokers.api
        assert isinstance(broker, RabbitMQUnderTest)
        right = broker.url()
        for wrong in (right.replace("@", "x@", 1), right.replace("//", "//nobody", 1)):
            with pytest.raises(NotAllowed):
                async with Client(wrong):
                    pass
        async with Client(right, patience_s=0.2) as moor:
            await broker.unplug()
            with pytest.raises(BrokerAway):
                await moor.list_cells()
