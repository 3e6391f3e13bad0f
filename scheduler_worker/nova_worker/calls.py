"""A call of nova-conductor while it is under way, and what is remembered of calls that came twice."""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Protocol

from bus.broker import Receipt
from scheduler_worker.nova.oslo_envelope import RpcCall, RpcRequest

# oslo.messaging remembers the last 16 messages.
ENDED_KEPT = 1000


class Acknowledges(Protocol):
    """The connection by which a request came, and on which alone it can be acknowledged."""

    async def acknowledge(self, tag: int) -> None: ...

    async def reply(self, queue: str, body: bytes) -> Receipt: ...


class NovaCall:
    """`deliveries` are all deliveries of this call: it comes again after the connection broke. `heard_at` is when its caller last got
    a sign of life, or began to wait. After `expires_at`, no caller waits whatever it has got.
    """

    def __init__(
        self,
        request: RpcRequest,
        call: RpcCall,
        *,
        received_at: datetime,
        heard_at: datetime,
        waits: timedelta,
        is_redelivered: bool,
    ) -> None:
        self.request = request
        self.call = call
        self.received_at = received_at
        self.heard_at = heard_at
        self.expires_at = received_at + waits
        self.is_redelivered = is_redelivered
        self.deliveries: list[tuple[Acknowledges, int]] = []

    @property
    def ends_by(self) -> datetime:
        """When the caller gives up. If it asks for signs of life, it also does so after it has missed two of them."""
        if self.call.heartbeat_s is None:
            return self.expires_at
        return min(self.expires_at, self.heard_at + 2 * timedelta(seconds=self.call.heartbeat_s))

    def came_by(self, connection: Acknowledges | None) -> bool:
        """Did it come by this connection? All calls of a connection that broke go to any scheduler, which then has to answer."""
        return any(each is connection for each, _ in self.deliveries)

    @property
    def key(self) -> str:
        """What tells this call from all others; a call that comes twice has the same."""
        return self.request.unique_id or f"{self.call.reply_queue} {self.call.id}"


class KnownCalls:
    """The calls under way, and the last ones that have ended, by their keys."""

    def __init__(self) -> None:
        self._open: dict[str, NovaCall] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def has_ended(self, key: str) -> bool:
        return key in self._ended

    def get(self, key: str) -> NovaCall | None:
        return self._open.get(key)

    def begin(self, call: NovaCall) -> None:
        self._open[call.key] = call

    def forget(self, call: NovaCall) -> None:
        """It may come again."""
        self._open.pop(call.key, None)

    def end(self, call: NovaCall) -> None:
        self.forget(call)
        self._ended[call.key] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
