"""The exchanges and queues that one broker must have.

They follow from the cells that it serves, and its sites: whether it serves the API level, cells, or Ironic.
"""

import functools
from collections.abc import Iterable

from msgspec import structs

from bus.topology.names import API_QUEUES, RETRY, application_queue
from bus.topology.queues import EXCHANGES, INBOXES, QUEUES
from bus.topology.roles import ROLES, Application
from bus.topology.routes import in_cell
from bus.topology.values import EVERY_SITE, Binding, Exchange, Limits, Objects, Queue, QueueKind, Site


def objects_of(
    cells: Iterable[str],
    sites: Iterable[Site] = EVERY_SITE,
    *,
    create_foreign: bool = False,
    limits: Limits | None = None,
) -> Objects:
    """All exchanges and queues of a broker that serves these sites and cells.

    Queues are also bound to exchanges of other programs, if these exist. With `create_foreign`, these exchanges are
    created.
    """
    wanted, names = {*sites}, tuple(cells)
    if wanted & {Site.API, Site.CELL}:
        wanted.add(Site.BOTH)
    exchanges = [
        structs.replace(
            exchange, name=in_cell(exchange.name, cell), foreign=exchange.foreign and not create_foreign
        )
        for exchange in EXCHANGES
        if exchange.site in wanted
        for cell in (names if "{cell}" in exchange.name else ("",))
    ]
    queues = [
        _queue_in_cell(queue, cell)
        for queue in QUEUES
        if queue.site in wanted
        for cell in (names if "{cell}" in queue.name else ("",))
    ]
    return Objects(tuple(exchanges), tuple(queues), limits or Limits())


def objects_of_application(application: Application, *, limits: Limits | None = None) -> Objects:
    """An application's own exchange, and its own queues behind it: they take what those for all take from the API's exchange.

    So a flood of one application does not delay what another one sends. The exchange is its own, too: by the keys in a CC
    header, a writer to an exchange reaches every queue that is bound to it.
    """
    queues = (
        Queue(
            application_queue(queue.name, application.name),
            queue.kind,
            tuple(Binding(application.exchange, each.pattern) for each in queue.bindings),
        )
        for queue in QUEUES
        if queue.name in API_QUEUES
    )
    exchange = Exchange(application.exchange, Site.API)
    return Objects((exchange,), tuple(_queue_in_cell(queue, "") for queue in queues), limits or Limits())


@functools.lru_cache(maxsize=10_000)
def retry_exchange_of(queue: str) -> str:
    """The exchange through which workers return a message to this queue. Each role that reads queues has one of its own."""
    if queue in INBOXES:
        raise ValueError(f"queue {queue!r} is an inbox: messages of other programs are not sent again")
    for role in ROLES:
        for read in role.reads:
            before, of_a_cell, after = read.partition("{cell}")
            if of_a_cell and queue.startswith(before) and queue.endswith(after):
                cell = queue.removeprefix(before).removesuffix(after)
                return f"{RETRY}{role.name}.{cell}"
            if read == queue or (read.endswith(".*") and queue.startswith(read.removesuffix("*"))):
                return f"{RETRY}{role.name}"
    raise ValueError(f"no role reads the queue {queue!r}")


def kind_of(queue: str) -> QueueKind | None:
    """The kind of a queue of this name: one of the table, of a cell, or of an application. None for any other name."""
    for each in QUEUES:
        before, of_a_cell, after = each.name.partition("{cell}")
        is_of_cell = of_a_cell and queue.startswith(before) and queue.endswith(after)
        is_own = each.name in API_QUEUES and queue.startswith(application_queue(each.name, ""))
        if each.name == queue or is_of_cell or is_own:
            return each.kind
    return None


def is_retry_exchange(name: str) -> bool:
    return name.startswith(RETRY)


def _queue_in_cell(queue: Queue, cell: str) -> Queue:
    name = in_cell(queue.name, cell)
    bindings = tuple(
        Binding(in_cell(binding.exchange, cell), in_cell(binding.pattern, cell)) for binding in queue.bindings
    )
    may_be_retried = queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
    return structs.replace(
        queue,
        name=name,
        bindings=(*bindings, Binding(retry_exchange_of(name), name)) if may_be_retried else bindings,
    )
