"""What the nodes of a cluster keep of our queues, and what a lost node would take with it.

Pure: it reads what `rabbitmqctl` printed, and says what an operator should know and do.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bus.topology import Queue, QueueKind

# The columns of `rabbitmqctl list_queues` that are read here.
COLUMNS = ("name", "type", "members", "pid")
CLASSIC, QUORUM = "classic", "quorum"
# What a virtual host's name may have that means something in a pattern of rabbitmq-queues.
_SPECIAL, _ESCAPED = re.compile(r"([.^$*+?()\[\]{}|\\])"), r"\\\1"
_NODE_OF_PROCESS = re.compile(r"<(.+?)\.\d+\.\d+\.\d+>")
# What it means that a queue of this kind is away, or is lost with its node.
_WITHOUT = {
    QueueKind.INBOX: "while the node is down, changes in Ironic are found by the daemons' sweeps",
    QueueKind.MISSED: "it only says that an inbox was full",
    QueueKind.QUESTIONS: "while the node is down nobody is answered, and nothing is built",
}


class QueueOnNodes(Struct, frozen=True):
    """A queue as the broker has it: its type, and the nodes that have a copy of it."""

    name: str
    type: str
    nodes: tuple[str, ...]


class BrokerNodes(Struct, frozen=True):
    """The nodes of a broker, those of them that run, and the queues of one virtual host."""

    nodes: tuple[str, ...]
    running: frozenset[str]
    queues: tuple[QueueOnNodes, ...]

    @property
    def away(self) -> tuple[str, ...]:
        return tuple(node for node in self.nodes if node not in self.running)


class Replication(Struct, frozen=True):
    """What is to be said: facts, and warnings with what ends them."""

    facts: tuple[str, ...]
    warnings: tuple[str, ...]


def nodes_in(status: str, queues: str) -> BrokerNodes:
    """Read the output of `cluster_status --formatter json`, and that of `list_queues` with COLUMNS, as text. Raises ValueError
    if it is none.
    """
    try:
        read = json.loads(status)
        nodes = (*read["disk_nodes"], *read.get("ram_nodes", ()))
        running = frozenset(read["running_nodes"])
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"cluster_status printed something else than the state of a cluster: {problem!r}"
        ) from None
    return BrokerNodes(tuple(sorted(nodes)), running, tuple(map(_queue_in, queues.splitlines())))


def _queue_in(line: str) -> QueueOnNodes:
    name, kind, members, process = [*line.split("\t"), *[""] * len(COLUMNS)][: len(COLUMNS)]
    on_one = _NODE_OF_PROCESS.fullmatch(process)
    listed = tuple(node for each in members.strip("[]").split(",") if (node := each.strip()))
    return QueueOnNodes(name, kind, listed or ((on_one[1],) if on_one else ()))


def questions_on_one_node(declared: Iterable[Queue], found: BrokerNodes) -> tuple[str, ...]:
    """The queues of questions that exist as classic queues: their type cannot be changed."""
    names = {queue.name for queue in declared if queue.kind is QueueKind.QUESTIONS}
    return tuple(each.name for each in found.queues if each.name in names and each.type == CLASSIC)


def replication_of(declared: Sequence[Queue], found: BrokerNodes, virtual_host: str) -> Replication:
    """What the broker has of the declared queues. Raises ValueError if it has not all of them: it is another broker."""
    there = {each.name: each for each in found.queues}
    missing = [queue.name for queue in declared if queue.name not in there]
    if missing:
        raise ValueError(
            f"it knows no queue {missing[0]!r} in {virtual_host!r}, so it is that of another broker"
        )
    kinds = {queue.name: queue.kind for queue in declared}
    ours = [there[queue.name] for queue in declared]
    copied = [each for each in ours if each.type == QUORUM]
    alone = [each for each in ours if each.type != QUORUM]
    return Replication(
        (
            _about_nodes(found),
            *_about_copies(copied),
            *(_about_one(each, kinds[each.name]) for each in alone),
            _OWN,
        ),
        (*_few_nodes(found), *_few_members(copied, found, virtual_host)),
    )


_OWN = (
    "queues of answers and feeds are on the node of their reader's connection: if it is lost, the reader makes them anew on "
    "another node, asks its open questions again, and reads again what it may have missed"
)


def _about_nodes(found: BrokerNodes) -> str:
    away = f"; not running: {', '.join(found.away)}" if found.away else ""
    return f"the broker has {len(found.nodes)} nodes: {', '.join(found.nodes)}{away}"


def _about_copies(copied: Sequence[QueueOnNodes]) -> list[str]:
    by_members = Counter(len(each.nodes) for each in copied)
    return [
        f"quorum queues with {members} member{'s' if members > 1 else ''}: {count}; {_may_be_lost(members)}"
        for members, count in sorted(by_members.items(), reverse=True)
    ]


def _may_be_lost(members: int) -> str:
    lost = (members - 1) // 2
    match lost:
        case 0:
            return "they need every one of these nodes"
        case 1:
            return "they go on when one of these nodes is lost"
    return f"they go on when {lost} of these nodes are lost"


def _about_one(queue: QueueOnNodes, kind: QueueKind) -> str:
    node = queue.nodes[0] if queue.nodes else "a node that is down"
    return f"{queue.name} is a {queue.type} queue, on {node} alone: {_WITHOUT.get(kind, 'it is lost with its node')}"


def _few_nodes(found: BrokerNodes) -> list[str]:
    if len(found.nodes) == 1:
        return ["the broker has one node: nothing is replicated"]
    if len(found.nodes) == 2:  # noqa: PLR2004 - one of two is no majority
        return [
            "the broker has two nodes, and quorum queues need more than half of them: if one is lost, everything waits"
        ]
    return []


def _few_members(copied: Sequence[QueueOnNodes], found: BrokerNodes, virtual_host: str) -> list[str]:
    """A queue that was declared while there were fewer nodes does not grow by itself."""
    few = [each for each in copied if len(each.nodes) < len(found.nodes)]
    if not few:
        return []
    lacking = sorted({node for each in few for node in found.nodes if node not in each.nodes})
    pattern = f"^{_SPECIAL.sub(_ESCAPED, virtual_host)}$"
    commands = " and ".join(
        f"`rabbitmq-queues grow {node} all --vhost-pattern '{pattern}'`" for node in lacking
    )
    names = ", ".join(each.name for each in few[:3])
    more = f" and {len(few) - 3} more" if len(few) > 3 else ""  # noqa: PLR2004 - as many are named
    return [f"fewer members than there are nodes: {names}{more}; {commands} adds them"]
