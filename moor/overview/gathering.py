"""What schedulers and brokers say about the whole cloud now, what is wrong with it, and how fast its queues are worked on."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from bus.topology import CELL0, DEAD_QUEUE, Queue, QueueKind, Site
from kit.errors import ConnectionLost, Refusal
from kit.settings import without_password
from moor.broker.deployments import BrokerDeployment, deployments_of, depths_of
from moor.client import Client, ClientError, Overview, WorkerAlive, WorkerHeard
from moor.options import broker_of
from moor.settings import Settings
from moor.tables import Columns

if TYPE_CHECKING:
    from bus.broker import Connection


class BrokerSeen(Struct, frozen=True):
    """How many parcels wait in each queue of a broker; None in one that is not declared. `unread` are the queues that no worker
    consumes. `trouble` says why nothing is known of the broker.
    """

    url: str
    queues: Mapping[str, int | None] = {}
    trouble: str = ""
    unread: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        return sum(depth or 0 for depth in self.queues.values())

    @property
    def dead_letters(self) -> int:
        return self.queues.get(DEAD_QUEUE) or 0


class CloudView(Struct, frozen=True):
    """`silent` says why no scheduler has answered; then there is no overview. `cells` are those that the settings name. `nodes`
    says what keeps bare-metal nodes unused, if Ironic was asked, and `nodes_trouble` why it has not answered.
    """

    overview: Overview | None
    silent: str = ""
    brokers: tuple[BrokerSeen, ...] = ()
    cells: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    nodes_trouble: str = ""


class CloudViewer:
    """Looks at a cloud as often as it is told to. Its connections to the brokers stay open between two looks.

    With `brokers_kept_s`, what is known of the brokers is kept so long. With `once` it looks only once, and may cost a scheduler more.
    """

    def __init__(
        self, moor: Client, settings: Settings, *, brokers_kept_s: float = 0.0, once: bool = False
    ) -> None:
        self._moor = moor
        self._once = once
        self._settings = settings
        self._kept_s = brokers_kept_s
        self._brokers: tuple[BrokerSeen, ...] = ()
        self._kept_until_s = 0.0
        self._connections: dict[str, Connection] = {}

    async def look(self, silent: str = "") -> CloudView:
        """`silent` says why no scheduler can be asked."""
        overview = None
        if not silent:
            try:
                overview = await self._moor.overview(once=self._once)
            except ClientError as problem:
                silent = str(problem)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._kept_until_s:
            self._brokers = tuple([await self._seen(each) for each in brokers_of(self._settings, overview)])
            self._kept_until_s = now_s + self._kept_s
        return CloudView(overview, silent, self._brokers, self._settings.addresses.cells)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()

    async def _seen(self, deployment: BrokerDeployment) -> BrokerSeen:
        url = deployment.url
        queues = deployment.objects().queues
        try:
            if url not in self._connections:
                self._connections[url] = await broker_of(url).connect()
            connection = self._connections[url]
            depths = await depths_of([each.name for each in queues], connection)
            read = [each.name for each in queues if _is_read(each) and depths[each.name] is not None]
            unread = tuple([name for name in read if not await connection.consumers(name)])
        except (ConnectionLost, Refusal) as problem:
            if (lost := self._connections.pop(url, None)) is not None:
                with suppress(ConnectionLost, Refusal):
                    await lost.close()
            return BrokerSeen(without_password(url), trouble=str(problem))
        # Ironic's notifications have no queue where there is no Ironic.
        needed = {each.name for each in queues if each.site is not Site.IRONIC}
        return BrokerSeen(
            without_password(url),
            {name: at for name, at in depths.items() if at is not None or name in needed},
            unread=unread,
        )


def brokers_of(settings: Settings, overview: Overview | None) -> tuple[BrokerDeployment, ...]:
    """The brokers of the cells that the settings name, and of those that schedulers know."""
    addresses = structs.replace(settings.addresses, bus_url=settings.bus_url)
    cells = {*addresses.cells, *([each.cell for each in overview.cells] if overview else ())}
    return deployments_of(addresses, sorted(cells))


def _is_read(queue: Queue) -> bool:
    """Does each worker of the role that the queue is named after consume it? A compute need not answer questions."""
    is_optional = queue.kind is QueueKind.QUESTIONS and queue.name.startswith("compute.")
    return queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS) and not is_optional


# The troubles of a cloud, and the notes that its operator should read besides. Pure.

# The counter of rows at which a part of a worker has met a bug, in its heartbeats.
ROWS_FAILED = "rows_failed."
# A scheduler that has just started has not heard the others yet.
HEARD_ALL_AFTER = timedelta(seconds=12)
# Of the API level, and of each cell with hypervisors.
NEEDED_ABOVE = ("placement", "scheduler")
NEEDED_BELOW = ("conductor", "compute")


def troubles_of(view: CloudView) -> tuple[str, ...]:
    """What keeps the cloud from being healthy: each needs somebody to do something."""
    found = [line for broker in view.brokers for line in _troubles_of_broker(broker)]
    found += [view.nodes_trouble] if view.nodes_trouble else []
    if view.overview is None:
        return (f"no scheduler answers: {view.silent}", *found)
    return (
        *[f"cell {each.cell} is down: {each.reason}" for each in view.overview.cells if each.life == "down"],
        *[line for worker in view.overview.workers for line in _troubles_of_worker(worker)],
        *_missing(view.overview, view.cells),
        *_twice(view.overview),
        *_unread(view, view.overview),
        *[
            f"hosts of cell {each.cell} that nobody has heard of late: {each.count}; `moor host list --down` shows them; if they "
            "are to be away, say so by `moor host set`"
            for each in view.overview.hosts
            if each.state == "silent" and not each.kind
        ],
        *found,
    )


def _troubles_of_broker(broker: BrokerSeen) -> Iterator[str]:
    if broker.trouble:
        yield f"the broker {broker.url}: {broker.trouble}"
    if missing := [name for name, depth in broker.queues.items() if depth is None]:
        yield (
            f"the broker {broker.url} lacks the {'queue' if len(missing) == 1 else 'queues'} {', '.join(missing)}; "
            "`moor broker declare` creates what is missing"
        )
    if broker.dead_letters:
        yield f"dead letters: {broker.dead_letters}; `moor dead list` shows them"


def _troubles_of_worker(worker: WorkerHeard) -> Iterator[str]:
    name = name_of(worker.beat)
    if worker.life == "down":
        yield f"{name} was last heard at {worker.heard_at:%Y-%m-%d %H:%M:%S %Z}, and did not say that it ends"
    elif worker.beat.awaits:
        yield f"{name} is not ready: {worker.beat.awaits}"
    elif worker.beat.fails:
        yield f"{name}: {worker.beat.fails}"


def name_of(beat: WorkerAlive) -> str:
    return beat.worker if beat.cell in ("", CELL0) else f"{beat.worker} of {beat.cell}"


def _unread(view: CloudView, overview: Overview) -> Iterator[str]:
    """The queues that no worker consumes though one of their role says that it is ready. RabbitMQ may have forgotten it."""
    ready = {
        (each.beat.role, each.beat.cell)
        for each in overview.workers
        if each.life == "up" and not each.beat.awaits
    }
    for name in [name for broker in view.brokers for name in broker.unread]:
        role, *rest = name.split(".")
        if (role, rest[0] if rest[1:] else CELL0) in ready:
            yield f"no {role} worker reads the queue {name}; one that lost it consumes it again within a minute, or else start it again"


def _missing(overview: Overview, configured: Sequence[str]) -> Iterator[str]:
    """The roles that no worker has, and the configured cells that nobody has heard."""
    if not _has_heard_all(overview):
        return
    there = {(each.beat.role, each.beat.cell) for each in overview.workers if each.life == "up"}
    roles = {role for role, _ in there}
    yield from (f"no {role} worker runs" for role in NEEDED_ABOVE if role not in roles)
    hypervisors = {each.cell for each in overview.hosts if not each.kind}
    for cell in [each.cell for each in overview.cells if each.life != "down"]:
        for role in NEEDED_BELOW:
            if (role, cell) not in there and (role != "compute" or cell in hypervisors):
                yield f"no {role} of cell {cell} runs"
    known = {each.cell for each in overview.cells}
    yield from (
        f"cell {cell} is configured, and no worker of it was ever heard"
        for cell in configured
        if cell not in known
    )
    with_hosts = {each.cell for each in overview.hosts}
    yield from (
        f"cell {cell} is configured, and has no hosts: no compute or bare-metal daemon of it was ever heard"
        for cell in configured
        if cell in known - with_hosts
    )


def _twice(overview: Overview) -> Iterator[str]:
    """Cells with two computes at once. One that was killed was last heard before its successor began."""
    computes = [each.beat for each in overview.workers if each.life == "up" and each.beat.role == "compute"]
    for one, other in combinations(sorted(computes, key=lambda each: each.started_at), 2):
        if one.cell == other.cell and one.told_at > other.started_at:
            yield (
                f"cell {one.cell} has two computes, {one.worker} and {other.worker}: one has all of its hosts; stop the other, or give "
                "it a cell of its own"
            )


def _has_heard_all(overview: Overview) -> bool:
    own = [each.beat for each in overview.workers if each.beat.worker == overview.scheduler]
    return any(overview.made_at - each.started_at >= HEARD_ALL_AFTER for each in own)


def notes_of(view: CloudView) -> tuple[str, ...]:
    """What an operator should know, though nothing is wrong."""
    return (*(_notes(view.overview) if view.overview else ()), *view.nodes)


def _notes(overview: Overview) -> Iterator[str]:
    if not _has_heard_all(overview):
        yield f"{overview.scheduler} has just started, and may not have heard all workers yet"
    states = Counter[str]()
    for each in overview.hosts:
        if each.kind or each.state != "silent":
            states[each.state] += each.count
    yield from (f"hosts {state}: {count}" for state, count in sorted(states.items()) if state != "up")
    if overview.waiting.count:
        since = overview.waiting.oldest
        yield f"waiting for room: {overview.waiting.count}" + (
            f", the first since {since:%Y-%m-%d %H:%M:%S %Z}" if since else ""
        )
    yield from (
        f"cell {each.cell} has not answered {each.waiting} orders yet"
        for each in overview.cells
        if each.waiting
    )
    for worker in overview.workers:
        bugs = {name: count for name, count in worker.beat.counts.items() if name.startswith(ROWS_FAILED)}
        if bugs and worker.life == "up":
            parts = ", ".join(name.removeprefix(ROWS_FAILED) for name in sorted(bugs))
            yield (
                f"{name_of(worker.beat)} has met bugs at rows, {sum(bugs.values())} times since it started ({parts}), and goes on; its log "
                "has the tracebacks, `moor dead list` the rows that were given up"
            )
    if overview.workers_left_out:
        yield f"workers that are not shown here: {overview.workers_left_out}"
    releases = {each.beat.release for each in overview.workers if each.life == "up"}
    if len(releases) > 1:
        yield f"workers run several releases: {', '.join(sorted(releases))}"


# Rates, from the counters in the heartbeats of workers. Pure.

# Verdicts about claims that are no conflicts.
CLAIMED = ("claims.claimed", "claims.already_claimed")


class Rate(Struct, frozen=True):
    """How many messages of a queue are handled a second, by how many workers, and how many were since these started."""

    queue: str
    per_s: float
    workers: int
    handled: int


class Rates:
    """Remembers the last two heartbeats of each worker that differ."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[WorkerHeard, WorkerHeard | None]] = {}

    def take(self, overview: Overview) -> None:
        known = self._last
        self._last = {}
        for each in overview.workers:
            last, before = known.get(each.beat.worker, (each, None))
            is_new = each.beat.told_at > last.beat.told_at
            # The newest says whether it is still heard.
            self._last[each.beat.worker] = (each, last if is_new else before)

    def by_queue(self) -> list[Rate]:
        """The busiest queue first. A worker of which only one heartbeat is known adds no rate yet."""
        per_s, workers, handled = Counter[str](), Counter[str](), Counter[str]()
        for now, before in self._last.values():
            handled.update(now.beat.handled)
            workers.update(now.beat.handled.keys())
            per_s.update(_rates(now, before, now.beat.handled, before.beat.handled if before else {}))
        found = [
            Rate(queue, per_s[queue], workers[queue], count) for queue, count in handled.items() if count
        ]
        return sorted(found, key=lambda each: (-each.per_s, each.queue))

    def conflicts_per_s(self) -> float:
        """Claims that placement refused, since a picture of a scheduler was outdated."""
        return sum(
            rate
            for now, before in self._last.values()
            for name, rate in _rates(
                now, before, now.beat.counts, before.beat.counts if before else {}
            ).items()
            if name.startswith("claims.") and name not in CLAIMED
        )


def _rates(
    now: WorkerHeard, before: WorkerHeard | None, counts: Mapping[str, int], earlier: Mapping[str, int]
) -> dict[str, float]:
    if before is None or now.life != "up":
        return {}
    seconds = (now.beat.told_at - before.beat.told_at).total_seconds()
    return {name: (count - earlier.get(name, 0)) / seconds for name, count in counts.items()}


RATES = Columns[Rate](
    {
        "queue": lambda each: each.queue,
        "messages/s": lambda each: f"{each.per_s:,.1f}",
        "workers": lambda each: str(each.workers),
        "handled": lambda each: f"{each.handled:,}",
    }
)
