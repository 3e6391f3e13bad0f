"""What is done to a Nova through its own API, and what must be seen then.

Each operation returns what was seen, in words without names that chance gives, so that two schedulers can be compared. All
are done on one cloud, one after another; what one has made is taken away before the next.
"""

import time
from collections.abc import Callable

import httpx
from msgspec import Struct

from tests.conformance.nova import boots, moves, ports
from tests.conformance.nova.cloud import FAILING, FLAVORS, MORTAL, Cloud, Operation
from tests.conformance.nova.nova_api import NovaRefusedError
from tests.conformance.nova.stack import NotStartedError, NovaStack
from tests.waiting import NeverTrueError

FAST = {"aggregate_instance_extra_specs:speed": "fast"}


class Outcome(Struct, frozen=True):
    what: str
    expected: str
    seen: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.seen == self.expected


def nothing_left(cloud: Cloud) -> str:
    left = {name: amount for name, amount in cloud.used().items() if amount}
    return f"in use: {left or 'nothing'}; servers: {len(cloud.nova.servers())}"


OPERATIONS = (
    *boots.OPERATIONS,
    *moves.OPERATIONS,
    *ports.OPERATIONS,
    Operation("at the end", "in use: nothing; servers: 0", nothing_left),
)


def prepared(stack: NovaStack) -> Cloud:
    """Start the hosts that die and those that fail, too."""
    stack.start_computes("cell1", (MORTAL,))
    stack.start_computes("cell2", FAILING, driver="fake.FakeRescheduleDriver")
    stack.manage("cell_v2", "discover_hosts")
    cloud = Cloud(stack)
    for name, sizes in FLAVORS.items():
        cloud.nova.flavor(name, *sizes, FAST if name == "fast" else {})
    cloud.clear()
    return cloud


def done(cloud: Cloud, operation: Operation) -> Outcome:
    began_s = time.monotonic()
    return Outcome(
        operation.what,
        operation.expected,
        _told(lambda: operation.seen(cloud)) + _told(cloud.clear),
        time.monotonic() - began_s,
    )


def _told(asked: Callable[[], str | None]) -> str:
    """Or what went wrong."""
    try:
        return asked() or ""
    except (NovaRefusedError, NotStartedError, NeverTrueError, httpx.HTTPError, LookupError) as problem:
        return f"{type(problem).__name__}: {problem}"
