"""Who may name which instance, project, cell, host, provider, group and request in which message, and with what it is compared: a table of
the bus's reference.

The messages, their fields and their senders come from the code. What a field is compared with is written here (`RULES`), or in the
route of its message type. A test fails if a
field has no rule, or a rule no field; another one sends all these messages with foreign values (tests/stories/authority).
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from bus.message import REPLY, Message, Scope, type_of
from bus.messages import ALL
from bus.queues import Grant
from bus.topology import OF_ADMINS, ROLES, of_projects
from tools.pages.identity_fields import paths_of

HEAD = """## Who may name what

Each message that is no answer, the roles that may send it, and with what each name in it is compared. An answer counts only for a question under
way, and only from a role that reads the question's queue. A test sends every message with every foreign value, as an application and
as the users of a cell, and finds nothing of another's changed.
"""


class Rule(Struct, frozen=True):
    """What these fields of these messages are compared with. Of several rules for a field the first one counts."""

    types: tuple[str, ...]
    paths: tuple[str, ...]
    compared: str


KEY_CELL = "the key: the broker lets the users of a cell send only keys of their own cell"
KEY_PROJECT = "the key: the broker lets an application send only keys of its own projects"
OF_ROW = "the project of the instance's row"
ROLE = "nothing else: its senders may speak for every cell and project"
TEXT = "nothing: a text, by which nothing is looked up"
PLACE = "nothing: where a page begins; the page itself is judged"
CONSUMER = "the consumer's row: cell, project and type ([whose it is](bus-concepts.md#whose-a-consumer-is))"
OF_TREE = "the cell of the provider's tree"
OF_API = ("place", "adopt", "remove", "give_back", "rebuild", "move", "settle", "alternates")
TO_HOST = (
    "spawn",
    "adopt.guest",
    "respawn",
    "destroy",
    "leave",
    "stop",
    "start",
    "receive",
    "deploy",
    "undeploy",
    "redeploy",
    "adopt.node",
    "leave.node",
)
OF_HOST = ("spawned", "spawn.failed", "destroyed", "stopped", "redeployed", "deploy.progress")
# What only those send who may speak for everything.
OF_OPERATORS = (
    *(
        type_of(kind)
        for kind in ALL
        if "operator" in kind.ROUTE.by and {*kind.ROUTE.by} <= {"operator", "scheduler", "keeper"}
    ),
    "aggregate.*",
)

RULES: tuple[Rule, ...] = (
    # Events of cells tell whole states of instances.
    Rule(("instance.mend", "instance.adopt", "instance.give_back"), ("*",), ROLE),
    Rule(("instance.*",), ("instance.id",), "the instance's row at the API level: it must be in this cell"),
    Rule(
        ("instance.*",),
        ("instance.*",),
        "nothing: request, name and project are repeated from the row",
    ),
    # Operators, and other roles of the API level.
    Rule(("cell.books.query", "host.books.query"), ("cell",), KEY_CELL),
    Rule(("cell.books.query", "host.books.query"), ("*",), "the rows of that cell; asked by operators only"),
    Rule(OF_OPERATORS, ("*",), ROLE),
    Rule(("build.rejected", "build.accepted", "host.changed", "node.undeploy_ordered", "node.power", "providers.changed", "inventory.refused", "campaign.changed", "movement.changed", "question.changed"), ("*",), ROLE),
    Rule(("*",), ("cell",), KEY_CELL),
    # Orders of clients.
    Rule(("build.request", "plan.query"), ("*project",), KEY_PROJECT),
    Rule(("reasons.query",), ("request.project",), ROLE),
    Rule(("claim", "claims", "release"), ("project",), CONSUMER),
    Rule(("place", "deploy", "spawn", "respawn", "stop"), ("project",), "nothing: it comes from the row of its sender"),
    Rule(("*",), ("project",), KEY_PROJECT),
    Rule(("build.request",), ("request_id",), "the request's row: the same content, or it is rejected"),
    Rule(("build.request",), ("instance_ids",), "the rows of instances, and the consumer's row: an id that is taken is refused"),
    Rule(("build.request", "plan.query", "reasons.query"), ("*group.id",), "the project of the group, if it has one"),
    Rule(("build.request", "plan.query", "reasons.query"), ("*same_host", "*different_host"), OF_ROW),
    Rule(("build.request", "plan.query", "reasons.query"), ("*hosts",), "nothing: a wish, to which all filters apply"),
    Rule(("plan.query", "reasons.query"), ("request.request_id", "request.instance_ids"), "nothing: nothing is built"),
    Rule(("explain.query", "instance.query"), ("request_id", "instance", "instances", "host", "cell", "name", "part", "flavor", "image", "id_prefix", "request_prefix"), OF_ROW),
    Rule(("console.query",), ("instance",), OF_ROW),
    Rule(("instance.delete", "instance.rebuild", "history.query"), ("instance",), OF_ROW),
    Rule(("move.request", "move.end"), ("instance", "together"), OF_ROW),
    Rule(("move.request",), ("hosts",), "nothing: a wish, to which all filters apply"),
    Rule(("move.request",), ("source",), "the host of the instance's row"),
    Rule(("instance.rebuild", "move.request", "move.end"), ("request_id",), "the last order on the instance's row"),
    Rule(("group.*",), ("id", "id_prefix", "name"), "the project of the group"),
    Rule(("migration.query", "drain.query", "cell.query", "host.query"), ("host", "name", "cell", "instances", "avoid", "to"), ROLE),
    Rule(("campaign.*", "movement.*", "budget.*", "question.*", "policy.*"), ("*",), ROLE),
    # Orders to a cell, and inside it.
    Rule(("place", "adopt", "move", "alternates"), ("*share.*",), f"{OF_TREE}, when placement is asked for a share of it"),
    Rule(("console.tell",), ("instance",), "the attempts of this compute's hosts"),
    Rule((*OF_API, *TO_HOST), ("instance",), "the cell's own rows; at a host: its attempt"),
    Rule(OF_API, ("*request_id", "move.*", "group.id", "other_flavors"), ROLE),
    Rule(TO_HOST, ("host",), "the hosts of this compute"),
    Rule(TO_HOST, ("source", "share.*"), "nothing: its conductor holds the claim"),
    Rule(OF_HOST, ("instance", "host"), "the instance's row in the cell: the attempt, and its host"),
    Rule(("host.holds",), ("host", "attempts.instance"), "the cell's rows; an attempt that is not of this host is destroyed there"),
    Rule(("host.not_here",), ("hosts",), "the rows of the cell that wait for these hosts"),
    Rule(("host.mode", "host.check", "host.cleaned"), ("host",), "the host's row: its cell"),
    Rule(("host.holds",), ("next",), PLACE),
    # What hosts tell of themselves.
    Rule(("host.state",), ("hosts.id",), "the host's row and its tree in placement: their cell"),
    Rule(("host.state",), ("hosts.name",), "the hosts of the same cell: a name counts only there"),
    Rule(("host.state",), ("hosts.projects",), "nothing: it binds this host alone"),
    Rule(("host.beat", "host.metrics", "host.images", "conductor.beat"), ("hosts", "hosts.id", "silent"), "the host's row: its cell"),
    # Placement.
    Rule(("claim", "swap", "release", "claims"), ("consumer", "places.consumer"), CONSUMER),
    Rule(("swap",), ("heir.id",), "the consumer's row: an id that another one has is taken"),
    Rule(("swap",), ("returns",), "the consumer's row: a MIGRATION of the same cell and project"),
    Rule(("swap",), ("leaves",), "nothing: it frees members of the consumer's own group alone"),
    Rule(("claim", "swap"), ("*share.*",), OF_TREE),
    Rule(("swap",), ("*group.id",), "the group that the consumer's row names; if it names none, as in a claim"),
    Rule(("claim", "claims"), ("group.id",), "the project of the group's row, which the API level's claims make"),
    Rule(("claims",), ("templates.cell", "places.providers"), ROLE),
    Rule(("inventory.report", "host.reshape", "host.shape.query"), ("root", "removed", "providers.id", "providers.parent"), OF_TREE),
    Rule(("host.reshape",), ("moved.consumer", "moved.amounts*"), "what the consumer holds of this tree: its sums stay"),
    Rule(("inventory.report", "host.reshape"), ("providers.name",), "the names of all providers: one that is taken is refused"),
    Rule(("candidates", "consumer.query", "holders.query"), ("groups.in_tree", "consumer", "provider"), ROLE),
    Rule(("*",), ("after", "after.instance"), PLACE),
    Rule(("*",), ("*name", "*image.source", "flavor.*"), TEXT),
)  # fmt: skip


def compared(kind: type[Message], path: str) -> str:
    """With what this field is compared: as the type itself says, or by a rule. Empty if neither says it."""
    own = (text for pattern, text in kind.ROUTE.compared.items() if fnmatchcase(path, pattern))
    rule = rule_of(type_of(kind), path)
    return next(own, rule.compared if rule else "")


def rule_of(type_: str, path: str) -> Rule | None:
    return next((rule for rule in RULES if _matches(rule.types, type_) and _matches(rule.paths, path)), None)


def _matches(patterns: tuple[str, ...], word: str) -> bool:
    return any(fnmatchcase(word, each) for each in patterns)


def named() -> Iterator[tuple[type[Message], dict[str, str]]]:
    """The messages that are no answers, with their fields that name something."""
    for kind in sorted(ALL, key=type_of):
        if kind.ROUTE.exchange != REPLY and (paths := paths_of(kind)):
            yield kind, paths


def senders(kind: type[Message]) -> list[str]:
    """The roles that may send it. An application may send it if it does so for its own projects."""
    route = kind.ROUTE
    key = type_of(kind) if kind.SCOPE is Scope.NONE else f"{type_of(kind)}.x"
    found = [role.name for role in ROLES if _may(role.writes, route.exchange, key)]
    if _may(of_projects("x"), route.exchange, key):
        found.append("application")
    if _may((*of_projects("*"), *OF_ADMINS), route.exchange, key):
        found.append("admin")
    return found


def _may(grants: tuple[Grant, ...], exchange: str, key: str) -> bool:
    return any(grant.allows(exchange, key, "x") for grant in grants)


def section() -> str:
    return "\n".join((HEAD, *_table()))


def _table() -> Iterator[str]:
    yield "| message | sent by | names | compared with |"
    yield "| --- | --- | --- | --- |"
    rows: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], list[str]] = {}
    for kind, paths in named():
        with_what: dict[str, list[str]] = {}
        for path in paths:
            with_what.setdefault(compared(kind, path), []).append(path)
        fields = tuple((", ".join(f"`{path}`" for path in some), what) for what, some in with_what.items())
        rows.setdefault((tuple(senders(kind)), fields), []).append(f"`{type_of(kind)}`")
    for (roles, fields), kinds in rows.items():
        for number, (names, what) in enumerate(fields):
            first = (", ".join(kinds), ", ".join(roles)) if not number else ("", "")
            yield f"| {first[0]} | {first[1]} | {names} | {what} |"
