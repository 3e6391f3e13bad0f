"""How many passwords are checked at once: a flood of logins must not make a right one wait.

A check costs much CPU, or a question to Keystone. The checks of one name run one after the other, and only few checks of one name or
of one address may wait. So a login waits for few checks of others, and a client that sends many is told to try again later. The
address is that of the client, as a trusted proxy says it. Addresses of this machine have no limit: a proxy may use them that
does not name its clients.

Nobody locks a user out by trying the user's name from elsewhere. Where the name has logged in before, others of its checks do not
count; from any other place one check may wait, however many there are.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Final
from weakref import WeakValueDictionary

from placement_worker.api.values.problems import ApiError

NAME_MAX: Final = 16
ADDRESS_MAX: Final = 8
RIGHT_MAX: Final = 10_000
_ANYWHERE: Final = "anywhere"


class LoginTurns:
    def __init__(self) -> None:
        # By what is limited, such as ("address", "203.0.113.7", "").
        self._under_way: Counter[tuple[str, str, str]] = Counter()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        # The names and senders of logins that were right, the last at the end.
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    @asynccontextmanager
    async def of(self, name: str, address: str) -> AsyncIterator[None]:
        """The turn of a check. A login that is wrong ends it by an exception. Whether the name exists must not be seen from outside:
        ask for a turn of any. Raises ApiError 429.
        """
        sender = _sender(address)
        place = sender if (name, sender) in self._right else _ANYWHERE
        alone = "name and address", name, sender
        limits = {("user", name, place): NAME_MAX, alone: NAME_MAX}
        if sender:
            limits["address", sender, ""] = ADDRESS_MAX
        for each, limit in limits.items():
            is_first = each[0] == "user" and not self._under_way[alone]
            if self._under_way[each] >= limit and not is_first:
                raise _too_many(each[0], limit)
        self._under_way.update(limits.keys())
        turn = self._turns.setdefault((name, place), asyncio.Lock())
        try:
            async with turn:
                yield
            self._right[name, sender] = None
            self._right.move_to_end((name, sender))
            if len(self._right) > RIGHT_MAX:
                self._right.popitem(last=False)
        finally:
            for each in limits:
                self._under_way[each] -= 1
                if not self._under_way[each]:
                    del self._under_way[each]


def _sender(address: str) -> str:
    """What has the limit of an address: of IPv6 a whole network of 64 bits, which one client has. Empty for this machine."""
    host = address.removeprefix("[").partition("]")[0]
    # Some proxies add the port.
    host = host.partition(":")[0] if host.count(":") == 1 else host
    try:
        parsed = ip_address(host)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback:
        return ""
    return f"{int(parsed) >> 64:x}" if isinstance(parsed, IPv6Address) else str(parsed)


def _too_many(what: str, limit: int) -> ApiError:
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{limit} logins of this {what} are being checked, which is the most at once: try again in a second",
        headers={"retry-after": "1"},
    )
