"""Reading rests while many small messages come: for them, waking up to read is most of the cost.

Without rests a boot costs a fifth more while boots come one by one, some hundred a second (docs/benchmarks.md).
"""

import asyncio
from typing import Any, cast

from aiormq import TransportFactory
from yarl import URL

# The cost of a read hardly depends on how much it brings. Rests may pay while reads come this close to each other.
QUICK_S = 0.004
QUICK_READS_MIN = 8
# Messages wait for half of it on average.
REST_S = 0.008
# Reading rests only if so many messages are to be expected meanwhile.
WORTH_IT = 3
# After so many rests it is tried again how fast messages come without them.
RESTS_MAX = 32
QUICK_READS_MAX = 4096
# A read that brings so many bytes needs no rest: they have gathered already.
LARGE_BYTES = 64 * 1024


class Rests:
    """Decides after each read whether to rest.

    A rest pays if messages come meanwhile as fast as before. Where they do not, their sender waits for answers to the last ones, and
    a rest only holds it up. So each rest that brings less than half doubles the number of quick reads before the next one.
    """

    def __init__(self) -> None:
        self._read_s = 0.0
        # Reads since there was a pause, when these began, and what they brought.
        self._quick = 0
        self._since_s = 0.0
        self._messages = 0
        self._quick_needed = QUICK_READS_MIN
        # Messages a second as they came without rests.
        self._rate = 0.0
        self._rests_left = 0
        self._has_rested = False

    def after_read_s(self, now_s: float, messages: int, size: int) -> float:
        """How long to rest after a read of so many messages and bytes. 0: not at all."""
        passed_s, self._read_s = now_s - self._read_s, now_s
        if self._has_rested:
            has_paid = messages >= self._rate * passed_s / 2
            self._quick_needed = QUICK_READS_MIN if has_paid else min(2 * self._quick_needed, QUICK_READS_MAX)
            self._rests_left -= 1
            self._has_rested = has_paid and self._rests_left > 0 and size < LARGE_BYTES
            if not self._has_rested:
                self._begin(now_s)
        elif passed_s >= QUICK_S:
            self._begin(now_s)
        else:
            self._quick += 1
            self._messages += messages
            if self._quick >= self._quick_needed:
                self._rate = self._messages / max(now_s - self._since_s, QUICK_S / 1000)
                self._rests_left = RESTS_MAX
                self._has_rested = self._rate * REST_S >= WORTH_IT and size < LARGE_BYTES
        return REST_S if self._has_rested else 0.0

    def _begin(self, now_s: float) -> None:
        """Count quick reads anew, from this one on."""
        self._quick, self._since_s, self._messages = 0, now_s, 0


class RestingTransports(TransportFactory):
    """Opens the transport of one connection, and lets its reading rest."""

    _transport: asyncio.ReadTransport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rests = Rests()
        # The messages that have arrived in this turn of the event loop, and their bytes.
        self._messages = 0
        self._size = 0

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        # Further arguments of the loop are in the URL, such as `happy_eyeballs_delay`.
        reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context, **kwargs)
        self._transport = cast("asyncio.ReadTransport", writer.transport)
        return reader, writer

    def arrived(self, size: int) -> None:
        """Note that a message of so many bytes has been read."""
        if not self._messages:
            self._loop.call_soon(self._rest)
        self._messages += 1
        self._size += size

    def _rest(self) -> None:
        rest_s = self._rests.after_read_s(self._loop.time(), self._messages, self._size)
        self._messages = self._size = 0
        if rest_s and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_later(rest_s, self._read_again)

    def _read_again(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
