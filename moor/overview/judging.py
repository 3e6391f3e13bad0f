"""What is wrong with a cloud, and what its operator should know besides. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import combinations

from bus.messages.cloud import Overview, WorkerAlive, WorkerHeard
from bus.topology import CELL0
from moor.overview.gathering import BrokerSeen, CloudView

# A scheduler that has just started has not heard the others yet.
HEARD_ALL_AFTER = timedelta(seconds=12)
# Of the API level, and of each cell with hypervisors.
NEEDED_ABOVE = ("placement", "scheduler")
NEEDED_BELOW = ("conductor", "compute")


def troubles_of(view: CloudView) -> tuple[str, ...]:
    """What keeps the cloud from being healthy: each needs somebody to do something."""
    found = [line for broker in view.brokers for line in _troubles_of_broker(broker)]
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
            f"the broker {broker.url} lacks the {_queues(len(missing))} {', '.join(missing)}; "
            "`moor broker declare` creates what is missing"
        )
    if broker.dead_letters:
        yield f"dead letters: {broker.dead_letters}; `moor dead list` shows them"


def _queues(count: int) -> str:
    return "queue" if count == 1 else "queues"


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
    if overview.workers_left_out:
        yield f"workers that are not shown here: {overview.workers_left_out}"
    releases = releases_of(overview.workers)
    if len(releases) > 1:
        yield f"workers run several releases: {', '.join(sorted(releases))}"


def releases_of(workers: Iterable[WorkerHeard]) -> set[str]:
    return {each.beat.release for each in workers if each.life == "up"}
