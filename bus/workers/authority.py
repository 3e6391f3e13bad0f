"""Decides whether a message counts. The intake, the asker and the listener call this for every message that arrives.

A message counts only if two things hold. It arrived under the routing key of its own type, and of the cell or project
that it names. Its sender is a user whose role may send it. The broker checks part of this. It does not check the keys
in a CC header, the key under which a queue forwards its dead letters, the headers, or the contents of a parcel. All rules
follow from the routes of the types, bus/topology.py.

Pure: the facts about the broker are a value (`BrokerFacts`), and so is the verdict.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from bus.broker import Delivery, Origin
from bus.message import (
    API,
    BROKER_EXCHANGE,
    BROKER_KEY,
    BROKER_QUEUE,
    BROKER_REASON,
    EXCHANGE,
    EXPIRATION,
    KEY,
    REPLY,
    SENDER,
    Kind,
    Message,
    Scope,
    type_of,
)
from bus.queues import (
    DEAD,
    FEED,
    NO_PROJECT,
    Grant,
    application_exchange,
    is_retry_exchange,
)
from bus.topology import (
    OF_ADMINS,
    REJECTION,
    ROLES,
    ROLES_BY_NAME,
    BrokerUser,
    Destination,
    broker_user_of,
    destination_of,
    destination_of_like,
    is_named,
    of_projects,
)

REPLY_TO_LENGTH_MAX = 255
# Two words follow `answers`: the user, and a name that tells the processes of that user apart.
_REPLY_TO = re.compile(r"answers\.(?P<user>[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")


class BrokerFacts(Struct, frozen=True, cache_hash=True):
    """Facts about the broker that a process reads from.

    With `has_users`, each role has its own user, the broker verifies every sender, and messages of other users are
    ignored. `cells` are the cells that a cell's own broker serves: senders there may speak for these cells only. On
    the API level's broker, `cells` is None.
    """

    has_users: bool = False
    cells: frozenset[str] | None = None


class Refused(Struct, frozen=True):
    """The message does not count: its route, sender or reply address is not what the topology allows.

    `is_told` says whether the sender may be told; a sender whose name the broker has not verified may not.
    """

    reason: str
    field: str = ""
    value: str = ""
    is_told: bool = False


def broker_facts_of(user: str, cells: Iterable[str] | None = None) -> BrokerFacts:
    """The facts about the broker to which a process is connected as this user.

    If this user is one of the topology's, the broker has the users of all roles, so it verifies senders.
    """
    return BrokerFacts(broker_user_of(user) is not None, None if cells is None else frozenset(cells))


def origin_of(delivery: Delivery, facts: BrokerFacts) -> Origin:
    """Whose message this is, where it was first published, and where its answer goes.

    Who parks a message publishes it under a user of its own. So the first sender, exchange and key travel in headers, which count
    only then (`is_parked`). Everybody else is the sender, whatever the headers say. Of a dead letter of the broker itself,
    the exchange and the key stand in headers that its sender may have written: they count where the sender's rights
    follow from its name. Which projects an application has, only the broker knows: under which key it sent, nobody has verified.
    """
    parcel = delivery.parcel
    said = parcel.headers.get
    has_died = BROKER_REASON in parcel.headers
    astray = str(said(BROKER_QUEUE, "")) if has_died and parcel.exchange != DEAD else ""
    if is_parked(delivery, facts):
        sender, exchange, key, expiration = [str(said(name, "")) for name in _OF_FIRST]
        return Origin(sender, parcel.reply_to, exchange, key, astray, expiration)
    if parcel.exchange != DEAD:
        exchange, key = parcel.exchange, parcel.routing_key
        return Origin(delivery.sender, parcel.reply_to, exchange, key, astray, delivery.expiration)
    speaker = broker_user_of(delivery.sender)
    if speaker is not None and speaker.application:
        return Origin(delivery.sender, parcel.reply_to)
    exchange, key = str(said(BROKER_EXCHANGE, "")), str(said(BROKER_KEY, ""))
    return Origin(delivery.sender, parcel.reply_to, exchange, key)


# The headers by which who parks a message names its first sender, exchange, key and expiration.
_OF_FIRST = (SENDER, EXCHANGE, KEY, EXPIRATION)


def is_parked(delivery: Delivery, facts: BrokerFacts) -> bool:
    """Is this what a worker has returned to its queue, or dead-lettered, or what an operator replays? Only then our headers count."""
    parcel = delivery.parcel
    if not (parcel.exchange == DEAD or is_retry_exchange(parcel.exchange)):
        return False
    if BROKER_REASON not in parcel.headers and parcel.exchange == DEAD and not delivery.sender:
        # Written there by a process that owns its broker: an application has no right to write to the dead letters.
        return True
    # What came back too often after a retry has the headers of both: of the worker, and of the broker.
    is_by_hand = SENDER in parcel.headers or BROKER_REASON not in parcel.headers
    return is_by_hand and _may_park(delivery.sender, parcel.routing_key, facts)


@functools.lru_cache(maxsize=10_000)
def _may_park(user: str, queue: str, facts: BrokerFacts) -> bool:
    """Whether this user, verified by the broker, reads the queue, or replays dead letters. A worker of a cell reads those of its cell."""
    speaker = broker_user_of(user)
    if speaker is None:
        # Where the broker has no users, nobody is another.
        return not facts.has_users
    if speaker.application:
        return False
    role = ROLES_BY_NAME[speaker.role]
    return role.operates or any(is_named(queue, each, speaker.cell) for each in role.reads)


def judge_parcel(origin: Origin, facts: BrokerFacts) -> Refused | None:
    """Refuse the whole parcel for its route, its sender or its reply address. None if its messages are to be
    judged one by one.
    """
    if origin.astray:
        return Refused(
            f"it arrived as a dead letter of the queue {origin.astray!r}, which is not a way to send it"
        )
    wrong = wrong_reply_to(origin.reply_to, origin.sender, facts) if origin.reply_to else ""
    if facts.has_users and broker_user_of(origin.sender) is None:
        if not origin.sender:
            return Refused("sent without a user_id: set AMQP's user_id to the name of your user", "user_id")
        # The broker has verified the name, so a question may be answered at an address of this name: `_may_say` refuses it.
        if wrong or not origin.reply_to:
            return _of_stranger(origin.sender)
    return Refused(wrong, "reply_to", origin.reply_to) if wrong else None


def judge(message: Message, origin: Origin, facts: BrokerFacts) -> Refused | None:
    """Refuse one message of a parcel that was not refused as a whole. None if the message counts."""
    if origin.exchange == FEED and destination_of(message).kind is Kind.EVENT:
        if origin.key != (project_of(message) or NO_PROJECT):
            return _elsewhere(type_of(message), destination_of(message), origin)
        return _may_say(origin.sender, FEED, origin.key, "", facts)
    kind = type(message)
    end, cell = _reader_of_names(kind)(message)
    return _judge_like(kind, end, cell, origin, facts)


def all_count(messages: Sequence[Message], origin: Origin, facts: BrokerFacts) -> bool:
    """Whether none of these messages of a parcel is refused. Most parcels have one type: what its messages name is judged once."""
    kinds = {*map(type, messages)}
    if len(kinds) != 1 or origin.exchange == FEED:
        return all(judge(each, origin, facts) is None for each in messages)
    kind = kinds.pop()
    named = {*map(_reader_of_names(kind), messages)}
    return all(_judge_like(kind, end, cell, origin, facts) is None for end, cell in named)


@functools.cache
def _reader_of_names(kind: type[Message]) -> Callable[[Message], tuple[str, str]]:
    """Returns a function that reads the end (`reader_of_end`) of a message of this type, and the cell that it names."""
    return operator.attrgetter(kind.SCOPE.value, "cell" if kind.SCOPE is Scope.CELL else "NOTHING")


@functools.lru_cache(maxsize=10_000)
def _judge_like(
    kind: type[Message], end: str, cell: str, origin: Origin, facts: BrokerFacts
) -> Refused | None:
    """Judge messages of this type which name this cell, and have this end (`reader_of_end`)."""
    if origin.expiration:
        return Refused(
            "AMQP's expiration must not be set: a message that expires becomes a dead letter, and nobody answers it; send it without",
            "expiration",
            origin.expiration,
            is_told=True,
        )
    destination = destination_of_like(kind, end)
    if destination.routing_key != origin.key or (
        destination.exchange != origin.exchange and not _is_by_its_own_exchange(destination.exchange, origin)
    ):
        return _elsewhere(type_of(kind), destination, origin)
    return _may_say(origin.sender, destination.exchange, destination.routing_key, cell, facts)


@functools.lru_cache(maxsize=10_000)
def judge_answer(
    question: type[Message], answer: type[Message], exchange: str, sender: str, facts: BrokerFacts
) -> Refused | None:
    """Why an answer of this type to a question of that type does not count: its type, exchange or sender is wrong. None if it counts."""
    asked, answered = type_of(question), type_of(answer)
    wanted = question.ROUTE.answer
    if answered not in (wanted, REJECTION) or exchange != REPLY:
        return Refused(f"{answered!r} on {exchange!r} does not answer {asked!r}: that takes {wanted!r}")
    if facts.has_users:
        speaker = broker_user_of(sender)
        if speaker is None or speaker.role not in answering(question):
            return Refused(f"{sender!r} may not answer {asked!r}")
    return None


@functools.lru_cache(maxsize=10_000)
def speaks_for(sender: str, facts: BrokerFacts) -> str | None:
    """The only cell that this sender may speak for. None for a sender of the API level."""
    if facts.cells is not None and len(facts.cells) == 1:
        return next(iter(facts.cells))
    speaker = broker_user_of(sender)
    return None if speaker is None else speaker.cell or None


@functools.lru_cache(maxsize=10_000)
def wrong_reply_to(reply_to: str, sender: str, facts: BrokerFacts) -> str:
    """Why no answer can be sent to this address. Empty if one can."""
    found = _REPLY_TO.fullmatch(reply_to)
    if found is None or len(reply_to) > REPLY_TO_LENGTH_MAX:
        shown = reply_to[:REPLY_TO_LENGTH_MAX]
        return f"reply_to must be answers.USER.NAME of letters, digits, - and _, at most {REPLY_TO_LENGTH_MAX}: {shown!r}"
    if facts.has_users and found["user"] != sender:
        return f"reply_to {reply_to!r} is not yours: it must begin with answers.{sender}."
    return ""


@functools.cache
def answering(question: type[Message]) -> frozenset[str]:
    """The roles that may answer questions of this type: those that read the queue in which such questions arrive."""
    return frozenset(role.name for role in ROLES if question.ROUTE.to in role.reads)


def _is_by_its_own_exchange(exchange: str, origin: Origin) -> bool:
    """An application may publish on its own exchange instead of the API's, since a queue behind it takes its orders."""
    speaker = broker_user_of(origin.sender)
    if exchange != API or speaker is None or not speaker.application:
        return False
    return origin.exchange == application_exchange(speaker.application)


@functools.lru_cache(maxsize=100_000)
def _may_say(sender: str, exchange: str, key: str, cell: str, facts: BrokerFacts) -> Refused | None:
    if cell and facts.cells is not None and cell not in facts.cells:
        return Refused(
            f"cell {cell!r} cannot be named on this broker, which serves {', '.join(sorted(facts.cells))}",
            "cell",
            cell,
        )
    if not facts.has_users:
        return None
    speaker = broker_user_of(sender)
    if speaker is None:
        return structs.replace(_of_stranger(sender), is_told=True)
    if any(grant.allows(exchange, key, speaker.cell) for grant in _grants(speaker)):
        return None
    return Refused(
        f"{sender!r} has no right to send {key!r} to {exchange!r}", "user_id", sender, is_told=True
    )


def _of_stranger(sender: str) -> Refused:
    return Refused(
        f"sent by the user {sender!r}, which the topology does not have: connect as moor-operator or as an application's user, and set "
        "AMQP's user_id to that name",
        "user_id",
        sender,
    )


def _grants(speaker: BrokerUser) -> tuple[Grant, ...]:
    """The rights to send of this sender.

    For an application they cover all projects, since the broker has checked these already.
    """
    if not speaker.application:
        return ROLES_BY_NAME[speaker.role].writes
    return (*of_projects("*"), *OF_ADMINS)


def project_of(event: Message) -> str:
    """The project that an event is about; empty if it names none."""
    return getattr(event, "project", "") or getattr(getattr(event, "instance", None), "project", "")


def _elsewhere(name: str, destination: Destination, origin: Origin) -> Refused:
    return Refused(
        f"{name!r} counts only under the key {destination.routing_key!r} of {destination.exchange!r}, and this one came "
        f"under {origin.key!r} of {origin.exchange!r}",
        "routing key",
        origin.key,
        is_told=True,
    )
