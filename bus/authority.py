"""May this message count? One function judges every message that arrives: intake, asking and listening call it.

A message counts only under the key of its type and of the cell or project that it names, from a user whose role may say
it. The broker enforces what it can of this; it does not judge the keys in a CC header, a queue's dead letters, or what is
inside of a parcel. All of it follows from the one table, bus/topology.py.

Pure: what is known of the broker is a value (`Post`), and so is the verdict.
"""

import functools
import operator
import re
import typing
from collections.abc import Callable, Iterable

from msgspec import Struct

from bus.message import Message, type_of
from bus.origin import Origin
from bus.permissions import key_pattern
from bus.topology import (
    FEED,
    NO_PROJECT,
    OF_ADMINS,
    OF_PROJECTS,
    QUEUES,
    REJECTION,
    REPLY,
    ROLES,
    ROLES_BY_NAME,
    ROUTES,
    Grant,
    Kind,
    Scope,
    Speaker,
    address_of,
    speaker_of,
)

REPLY_TO_LENGTH_MAX = 255
# Two words after `answers`: the user, and whatever tells that user's processes apart.
_REPLY_TO = re.compile(r"answers\.(?P<user>[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")


class Post(Struct, frozen=True):
    """The facts that a process has about the broker that it reads from.

    Where `has_users`, each role has its user, the broker verifies who sends what, and nobody else is listened to. `cells`
    are those that a cell's own broker serves, for which alone it speaks; None on the broker of the API level.
    """

    has_users: bool = False
    cells: frozenset[str] | None = None


class Refused(Struct, frozen=True):
    """The message does not count. `is_told` says whether its sender may hear of it: not one whom nobody knows."""

    reason: str
    field: str = ""
    value: str = ""
    is_told: bool = False


def post_of(user: str, cells: Iterable[str] | None = None) -> Post:
    """Where a process of ours has its own user, everybody has one."""
    return Post(speaker_of(user) is not None, None if cells is None else frozenset(cells))


def judge_parcel(origin: Origin, post: Post) -> Refused | None:
    """Refuse a parcel as a whole, for its way, its sender or its reply address; None if its messages may be judged."""
    if origin.astray:
        return Refused(f"it came here as a dead letter of the queue {origin.astray!r}")
    if post.has_users and speaker_of(origin.sender) is None:
        who = (
            f"by {origin.sender!r}, who is no user of the topology" if origin.sender else "without a user_id"
        )
        return Refused(f"sent {who}: set AMQP's user_id to the name of your user", "user_id", origin.sender)
    if origin.reply_to and (wrong := wrong_reply_to(origin.reply_to, origin.sender, post)):
        return Refused(wrong, "reply_to", origin.reply_to)
    return None


def judge(message: Message, origin: Origin, post: Post) -> Refused | None:
    """Refuse one message of a parcel that was not refused as a whole; None if the message counts."""
    address = address_of(message)
    if address.kind is Kind.EVENT and origin.exchange == FEED:
        if not _is_of_feed(message, origin):
            return _elsewhere(message, origin)
        return _may_say(origin.sender, FEED, origin.key, "", post)
    if address.routing_key != origin.key or address.exchange != origin.exchange:
        return _elsewhere(message, origin)
    return _may_say(origin.sender, address.exchange, address.routing_key, getattr(message, "cell", ""), post)


def judged_by(message: Message) -> tuple[type[Message], object]:
    """The parts of a message that decide its verdict: two messages of one parcel that agree in these both count, or
    neither does.
    """
    kind = type(message)
    return kind, names_in(kind)(message)


def judge_answer(question: Message, answer: Message, origin: Origin, post: Post) -> Refused | None:
    """Refuse an answer to this question; None if the answer counts."""
    return _may_answer(type_of(question), type_of(answer), origin.exchange, origin.sender, post)


@functools.lru_cache(maxsize=10_000)
def _may_answer(asked: str, answered: str, exchange: str, sender: str, post: Post) -> Refused | None:
    route = ROUTES[asked]
    if answered not in (route.answer, REJECTION) or exchange != REPLY:
        return Refused(f"{answered!r} on {exchange!r} is no answer to {asked!r}, which {route.answer!r} is")
    if post.has_users:
        speaker = speaker_of(sender)
        if speaker is None or speaker.role not in answering(asked):
            return Refused(f"{sender!r} may not answer {asked!r}")
    return None


@functools.lru_cache(maxsize=10_000)
def speaks_for(sender: str, post: Post) -> str | None:
    """The one cell that a sender may speak for; None if it stands above cells."""
    if post.cells is not None and len(post.cells) == 1:
        return next(iter(post.cells))
    speaker = speaker_of(sender)
    return speaker.cell or None if speaker else None


@functools.lru_cache(maxsize=10_000)
def wrong_reply_to(reply_to: str, sender: str, post: Post) -> str:
    """Why nobody can be answered there; empty if somebody can."""
    found = _REPLY_TO.fullmatch(reply_to)
    if found is None or len(reply_to) > REPLY_TO_LENGTH_MAX:
        shown = reply_to[:REPLY_TO_LENGTH_MAX]
        return f"reply_to must be answers.USER.NAME of letters, digits, - and _, at most {REPLY_TO_LENGTH_MAX}: {shown!r}"
    if post.has_users and found["user"] != sender:
        return f"reply_to {reply_to!r} is not yours: it must begin with answers.{sender}."
    return ""


@functools.cache
def answering(question: str) -> frozenset[str]:
    """The roles that read the queues in which this type of question arrives, and answer. A type's name begins its key, so
    its key alone tells the queues.
    """
    key = question if ROUTES[question].scope is Scope.NONE else f"{question}.x"
    queues = {
        queue.name
        for queue in QUEUES
        for binding in queue.bindings
        if key_pattern(Grant(binding.exchange, (binding.pattern,))).fullmatch(key)
    }
    return frozenset(role.name for role in ROLES if role.answers and queues & set(role.reads))


@functools.cache
def names_in(kind: type[Message]) -> Callable[[Message], object]:
    """Reads the cells and projects that a message of this type names."""
    fields: list[str] = [name for name in ("cell", "project") if name in kind.__struct_fields__]
    if "instance" in kind.__struct_fields__ and "project" in getattr(
        typing.get_type_hints(kind)["instance"], "__struct_fields__", ()
    ):
        fields.append("instance.project")
    return operator.attrgetter(*fields) if fields else (lambda _: None)


@functools.lru_cache(maxsize=100_000)
def _may_say(sender: str, exchange: str, key: str, cell: str, post: Post) -> Refused | None:
    if cell and post.cells is not None and cell not in post.cells:
        return Refused(
            f"nobody speaks for cell {cell!r} on the broker of {', '.join(sorted(post.cells))}", "cell", cell
        )
    if not post.has_users:
        return None
    speaker = speaker_of(sender)
    assert speaker is not None, "a parcel by a stranger is refused as a whole"
    for grant in _grants(speaker):
        # On the exchange of a cell the key, too, ends with the cell: it is enough to compare that.
        is_there = key_pattern(Grant(exchange, (grant.exchange,))).fullmatch(exchange)
        if is_there and key_pattern(grant, speaker.cell).fullmatch(key):
            return None
    return Refused(f"{sender!r} has no right to say {key!r} on {exchange!r}", "user_id", sender, is_told=True)


def _grants(speaker: Speaker) -> tuple[Grant, ...]:
    """Which projects an application may speak for the broker has judged, by its rights to the key."""
    if not speaker.application:
        return ROLES_BY_NAME[speaker.role].writes
    any_project = (
        Grant(grant.exchange, tuple(each.replace("{project}", "*") for each in grant.patterns))
        for grant in OF_PROJECTS
    )
    return (*any_project, *OF_ADMINS)


def _is_of_feed(message: Message, origin: Origin) -> bool:
    project = getattr(message, "project", None) or getattr(getattr(message, "instance", None), "project", "")
    return origin.key == (project or NO_PROJECT)


def _elsewhere(message: Message, origin: Origin) -> Refused:
    address = address_of(message)
    return Refused(
        f"{type_of(message)!r} counts only under the key {address.routing_key!r} of {address.exchange!r}, and this one came "
        f"under {origin.key!r} of {origin.exchange!r}",
        "routing key",
        origin.key,
        is_told=True,
    )
