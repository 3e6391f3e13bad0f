"""The roles of processes and what each may do, applications, and the users of both on a broker."""

import functools
from collections.abc import Iterable

from msgspec import Struct, structs

from bus.topology.queues import EXCHANGES, INBOXES, QUEUES
from bus.topology.routes import (
    AGGREGATE_ORDERS,
    AUDIT_QUESTIONS,
    AUDIT_WRITES,
    BOOK_WRITES,
    STORED_NAME_ORDERS,
    in_cell,
)
from bus.topology.values import (
    API,
    API_QUEUES,
    APPLICATION,
    APPLICATION_NAME,
    APPLICATION_USER,
    CELL,
    CELL0,
    CELL_NAME,
    DEAD_QUEUE,
    EVENTS,
    EVERY_SITE,
    FEED,
    IRONIC_EVENTS,
    NO_PROJECT,
    PLACEMENT,
    PROJECT_NAME,
    RETRY,
    Binding,
    Exchange,
    Grant,
    Limits,
    Objects,
    Queue,
    QueueKind,
    Role,
    Site,
    application_exchange,
    application_queue,
)

# All events, listed by name instead of `#`: a cell can forward answers meant for it to the events exchange, but not
# under these keys.
FACTS = (
    "build.#",
    "instance.#",
    "host.#",
    "node.#",
    "providers.changed",
    "inventory.refused.*",
    "aggregate.changed",
)
# The heartbeats of a cell's hosts.
BEATS = ("host.beat.{cell}",)
# Events for schedulers alone.
OF_CONDUCTORS = ("conductor.beat",)
OF_COMPUTES = ("console.told",)
# The heartbeats of workers: those of a cell say so for their own cell.
WORKER_BEAT = "worker.beat"
# What an application may send for its projects, by the part of the key before the project; and what only admin
# applications may ask.
_OF_A_PROJECT = (
    *(
        Grant(API, (f"{key}.{{project}}",))
        for key in ("build.request", "move.request", "move.end", "instance.delete", "instance.rebuild")
    ),
    Grant(API, ("instance.query.{project}", "console.query.{project}")),
    Grant(API, ("group.*.{project}",)),
    Grant(API, ("flavor.query.{project}", "image.query.{project}", "device.profile.query.{project}")),
    Grant(API, ("plan.query.{project}", "explain.query.{project}", "history.query.{project}")),
    Grant(PLACEMENT, ("usages.query.{project}", "quota.query.{project}")),
)


def of_projects(*projects: str) -> tuple[Grant, ...]:
    """The rights of an application to send messages for these projects; `*` stands for all projects."""
    return tuple(
        Grant(
            grant.exchange,
            tuple(each.replace("{project}", project) for each in grant.patterns for project in projects),
        )
        for grant in _OF_A_PROJECT
    )


OF_ADMINS = (
    Grant(
        API,
        ("host.query", "cell.query", "overview.query", "tiles.query", *AGGREGATE_ORDERS, "aggregate.query"),
    ),
    # They tell the names and the room of all hosts.
    Grant(API, ("reasons.query", "capability.query", "drain.query", "migration.query")),
    Grant(PLACEMENT, ("candidates", "consumer.query", "holders.query", "names.query")),
)

ROLES: tuple[Role, ...] = (
    Role(
        "scheduler",
        writes=(
            Grant(
                PLACEMENT,
                (
                    *("claim.*", "claims", "release.*", "snapshot", "revisions", "members"),
                    *("aggregates.set", "consumer.query", "quota.query.*"),
                ),
            ),
            Grant(
                CELL,
                (
                    "place.*",
                    "adopt.*",
                    "give_back.*",
                    "remove.*",
                    "rebuild.*",
                    "move.*",
                    "settle.*",
                    "alternates.*",
                    "host.mode.*",
                    "console.tell.*",
                ),
            ),
            Grant(
                EVENTS,
                ("instance.#", "build.#", "aggregate.changed", "host.changed.*", f"{WORKER_BEAT}.*"),
            ),
            Grant(FEED, ("*",)),
        ),
        reads=(*API_QUEUES, *(application_queue(each, "*") for each in API_QUEUES), "scheduler.events"),
        listens=(
            Grant(EVENTS, (*FACTS, *(f"{key}.*" for key in (*OF_CONDUCTORS, *OF_COMPUTES, WORKER_BEAT)))),
        ),
        asks=True,
        answers=True,
    ),
    Role(
        "placement",
        writes=(Grant(EVENTS, ("providers.changed", "inventory.refused.*", f"{WORKER_BEAT}.*")),),
        reads=("placement.work", "placement.claims", "placement.searches", "placement.questions"),
        answers=True,
    ),
    Role(
        "conductor",
        writes=(
            # It claims for instances that were offloaded.
            Grant(PLACEMENT, ("swap.{cell}", "release.{cell}", "claim.{cell}")),
            Grant(
                CELL,
                tuple(
                    f"{key}.{{cell}}"
                    for key in (
                        *("spawn", "respawn", "destroy", "stop", "start", "receive", "host.check"),
                        *("adopt.guest", "leave"),
                        *("deploy", "undeploy", "redeploy"),
                    )
                ),
            ),
            Grant(
                EVENTS,
                (
                    *("instance.*.{cell}", "host.cleaned.{cell}"),
                    *(f"{key}.{{cell}}" for key in (*OF_CONDUCTORS, WORKER_BEAT)),
                ),
            ),
        ),
        reads=("conductor.{cell}.work", "conductor.{cell}.questions"),
        listens=(Grant(EVENTS, BEATS),),
        asks=True,
        answers_to=("operator",),
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "compute",
        writes=(
            Grant(PLACEMENT, ("inventory.report.{cell}", "host.shape.query.{cell}", "host.reshape.{cell}")),
            Grant(
                CELL,
                tuple(
                    f"{key}.{{cell}}"
                    for key in (
                        *("spawned", "spawn.failed", "redeployed", "destroyed", "stopped"),
                        *("host.holds", "host.not_here"),
                    )
                ),
            ),
            # Not `host.changed`: only the API level may say that.
            Grant(
                EVENTS,
                (
                    *(f"host.{what}.{{cell}}" for what in ("state", "beat", "metrics", "images")),
                    *(f"{key}.{{cell}}" for key in (*OF_COMPUTES, WORKER_BEAT)),
                ),
            ),
        ),
        reads=("compute.{cell}.work", "compute.{cell}.questions"),
        asks=True,
        answers_to=("operator",),
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "ironic",
        writes=(
            Grant(PLACEMENT, ("inventory.report.*", "snapshot")),
            Grant(CELL, ("spawned.*", "spawn.failed.*", "destroyed.*", "deploy.progress.*", "redeployed.*")),
            Grant(EVENTS, ("host.state.*", "host.beat.*", "node.#", f"{WORKER_BEAT}.*")),
        ),
        reads=(IRONIC_EVENTS, "ironic.{cell}.work"),
        asks=True,
    ),
    # The broker allows an operator everything; but only these messages of an operator count.
    Role(
        "operator",
        writes=(
            Grant(API, ("host.set", "application.set", "application.query", *STORED_NAME_ORDERS)),
            *of_projects("*"),
            *OF_ADMINS,
            Grant(PLACEMENT, (*BOOK_WRITES, "snapshot", "revisions", "members")),
            # An audit, and what mends its faults.
            Grant(PLACEMENT, (*AUDIT_QUESTIONS, *AUDIT_WRITES)),
            Grant(API, ("instance.mend", "instance.adopt", "instance.give_back")),
            Grant(CELL, ("cell.books.query.*", "host.books.query.*", "remove.*", "destroy.*")),
        ),
        reads=(DEAD_QUEUE,),
        listens=(Grant(EVENTS, FACTS),),
        asks=True,
        operates=True,
    ),
)
ROLES_BY_NAME = {role.name: role for role in ROLES}


class Application(Struct, frozen=True):
    """A client program with its own user: it speaks for its projects, or as an admin for all."""

    name: str
    projects: tuple[str, ...] = ()
    admin: bool = False

    def __post_init__(self) -> None:
        if not APPLICATION_NAME.fullmatch(self.name):
            raise ValueError(f"an application's name is {APPLICATION_NAME.pattern}, not {self.name!r}")
        for project in self.projects:
            if project == NO_PROJECT or not PROJECT_NAME.fullmatch(project):
                raise ValueError(f"a project's name is {PROJECT_NAME.pattern} and not '-': {project!r}")
        if self.admin == bool(self.projects):
            raise ValueError(f"application {self.name!r} must either be an admin or have projects, not both")

    @property
    def user(self) -> str:
        return user_of(self.role.name)

    @property
    def exchange(self) -> str:
        return application_exchange(self.name)

    @property
    def role(self) -> Role:
        """The application's rights as a role, with keys that name its projects."""
        says = (*of_projects("*"), *OF_ADMINS) if self.admin else of_projects(*self.projects)
        by_its_own = (Grant(self.exchange, each.patterns) for each in says if each.exchange == API)
        heard = Grant(EVENTS, ("build.#", "instance.#")) if self.admin else Grant(FEED, self.projects)
        return Role(
            f"{APPLICATION}{self.name}",
            writes=(*says, *by_its_own),
            listens=(heard,),
            asks=True,
            site=Site.API,
        )


def user_of(role: str, cell: str = "") -> str:
    """The broker's user for a role; a cell's user has the cell in its name."""
    return f"moor-{role}-{cell}" if cell else f"moor-{role}"


class BrokerUser(Struct, frozen=True):
    """The role or the application that a broker's user stands for; with its cell if the role belongs to one."""

    role: str
    cell: str = ""
    application: str = ""

    @property
    def is_worker(self) -> bool:
        return not self.application and not ROLES_BY_NAME[self.role].operates


@functools.lru_cache(maxsize=10_000)
def broker_user_of(user: str) -> BrokerUser | None:
    """The role or the application to which a broker's user belongs; None for an unknown user."""
    if user.startswith(APPLICATION_USER):
        name = user.removeprefix(APPLICATION_USER)
        return BrokerUser("", application=name) if APPLICATION_NAME.fullmatch(name) else None
    for role in ROLES:
        if not role.per_cell:
            if user == user_of(role.name):
                return BrokerUser(role.name)
            continue
        of_cells = f"{user_of(role.name)}-"
        if user.startswith(of_cells) and CELL_NAME.fullmatch(cell := user.removeprefix(of_cells)):
            return None if cell == CELL0 else BrokerUser(role.name, cell)
    return None


# The exchanges and queues that one broker must have.
#
# They follow from the cells that it serves, and its sites: whether it serves the API level, cells, or Ironic.


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
