"""Publishes notifications to Ironic's exchange on a broker, at most once, as Ironic's own sender does.

These messages have a message_id and a user_id, which Ironic's do not have, and lack content_encoding and priority. The
body, the exchange and the routing key are as Ironic's.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from bus.broker import Broker, Parcel
from bus.errors import Operational
from bus.parts import Supervised
from bus.topology import Exchange, Objects
from compute_sim.laboratory.ironic.settings import IronicSimSettings


class NotificationSender(Supervised):
    """Sends notifications; `publish` never waits. Messages under way when a connection breaks are lost, and counted."""

    def __init__(self, broker: Broker, settings: IronicSimSettings) -> None:
        super().__init__("send notifications", self._send)
        self._broker = broker
        self._settings = settings
        self._unsent: deque[Parcel] = deque()
        self._has_work = asyncio.Event()
        self.sent = 0
        self.lost = 0

    def publish(self, routing_key: str, properties: Mapping[str, Any], body: bytes) -> None:
        if len(self._unsent) >= self._settings.unsent_max:
            self._unsent.popleft()
            self.lost += 1
        self._unsent.append(
            Parcel(
                self._settings.exchange,
                routing_key,
                body,
                content_type=properties["content_type"],
                persistent=properties["delivery_mode"] == _PERSISTENT,
            )
        )
        self._has_work.set()

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    async def _send(self) -> None:
        connection = await self._broker.connect()
        try:
            # Declared as Ironic does: it is not durable, so it is declared again with each connection.
            await connection.declare(Objects(exchanges=(Exchange(self._settings.exchange, durable=False),)))
            publishing = await connection.open_publishing()
            self.status.well()
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while self._unsent:
                    await self._send_some(publishing.publish)
        finally:
            await connection.close()

    async def _send_some(self, publish: Any) -> None:
        count = min(len(self._unsent), self._settings.sends_at_once_max)
        parcels = [self._unsent.popleft() for _ in range(count)]
        receipts = await asyncio.gather(*map(publish, parcels), return_exceptions=True)
        problems = [each for each in receipts if isinstance(each, BaseException)]
        self.sent += count - len(problems)
        self.lost += len(problems)
        if problems:
            self._has_work.set()
            raise next((each for each in problems if not isinstance(each, Operational)), problems[0])


_PERSISTENT = 2
