"""Flavors that are stored under names: the orders to create and delete them, questions about them, and requests that name them.

A request that names flavors is read with those that are stored just then, and its row keeps them: a flavor that is created anew
later changes no instance. A repeated request is told by the names. If there is no such flavor, the request is accepted, and its
instances end in error. It is not rejected, since a request may be delivered once more after its flavor was deleted, and must
then get the same answer.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, Flavor
from bus.messages.flavors import AskFlavors, CreateFlavor, DeleteFlavor, FlavorsFound
from bus.workers.handling import Answer, Bury, Handlers, ReadOnly, Received, Said
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejection
from scheduler_worker.requests.request_reader import RequestReader, ValidRequest
from scheduler_worker.store import FlavorQuery, SchedulerStore

# In place of a flavor that is not stored: its request is accepted, and none is built.
_NO_FLAVOR = Flavor(vcpus=1)
_canonical = msgspec.json.Encoder(order="deterministic").encode


async def read_requests(
    reader: RequestReader, store: SchedulerStore, asks: Sequence[Received[BuildInstance]], now: datetime
) -> list[ValidRequest | BuildRejected]:
    """Each request checked, with the flavors that it names."""
    names = {name for ask in asks for name in ask.message.flavor_names}
    if not names:
        return [reader.read(ask, now) for ask in asks]
    stored = await _stored(store, names)
    return [_read(reader, ask, now, stored) for ask in asks]


async def with_named(store: SchedulerStore, build: BuildInstance) -> BuildInstance | BuildRejected:
    """A request for which nothing is built, with the flavors that it names."""
    if not build.flavor_names:
        return build
    named = _named(build, await _stored(store, {*build.flavor_names}))
    return rejection("flavor_names", named, _unknown(named)) if isinstance(named, str) else named


async def _stored(store: SchedulerStore, names: set[str]) -> dict[str, Flavor]:
    return {each.name: each for each in await store.flavors(FlavorQuery(names=tuple(sorted(names))))}


def _read(
    reader: RequestReader, ask: Received[BuildInstance], now: datetime, stored: dict[str, Flavor]
) -> ValidRequest | BuildRejected:
    build = ask.message
    if not build.flavor_names:
        return reader.read(ask, now)
    if build.flavor is not None or build.alternatives:
        field = "alternatives" if build.flavor is None else "flavor"
        reason = f"{field} is given, too: a request has either"
        return rejection("flavor_names", ", ".join(build.flavor_names), reason, build.request_id)
    named = _named(build, stored)
    missing = named if isinstance(named, str) else ""
    if isinstance(named, str):
        named = structs.replace(build, flavor=_NO_FLAVOR, flavor_names=())
    read = reader.read(structs.replace(ask, message=named), now)
    if isinstance(read, BuildRejected):
        return read
    content = _canonical(structs.replace(build, request_id=None))
    digest = hashlib.sha256(content).digest()
    return structs.replace(read, digest=digest, unjoined=_unknown(missing) if missing else "")


def _named(build: BuildInstance, stored: dict[str, Flavor]) -> BuildInstance | str:
    """The request with the stored flavors in place of their names; or the first name that is not stored."""
    for name in build.flavor_names:
        if name not in stored:
            return name
    best, *others = (stored[name] for name in build.flavor_names)
    return structs.replace(build, flavor=best, alternatives=tuple(others), flavor_names=())


def _unknown(name: str) -> str:
    return f"flavor_names has {name!r}: there is no flavor of this name; `moor flavor list` shows all"


# Orders and questions


def flavor_order_handlers(reader: RequestReader) -> Handlers:
    async def on_create(asks: Sequence[Received[CreateFlavor]], transaction: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        # All workers write the rows of several orders in one order.
        for ask in sorted(asks, key=lambda ask: ask.message.flavor.name):
            flavor = ask.message.flavor
            wrong = _wrong(reader, flavor)
            if wrong is None:
                known = await (await transaction.begun()).create_flavor(flavor)
                wrong = _taken(flavor, known)
            said.append(_answered(ask, wrong or FlavorsFound(flavors=(flavor,))))
        return said

    async def on_delete(asks: Sequence[Received[DeleteFlavor]], transaction: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        for ask in sorted(asks, key=lambda ask: ask.message.name):
            gone = await (await transaction.begun()).delete_flavor(ask.message.name)
            said.append(Answer(ask, FlavorsFound(flavors=() if gone is None else (gone,))))
        return said

    return {CreateFlavor: on_create, DeleteFlavor: on_delete}


def flavor_questions(store: SchedulerStore) -> Handlers:
    async def on_ask(asks: Sequence[Received[AskFlavors]]) -> list[Said]:
        return [Answer(ask, await _found(store, ask.message)) for ask in asks]

    return {AskFlavors: ReadOnly(on_ask)}


async def _found(store: SchedulerStore, ask: AskFlavors) -> FlavorsFound:
    names = (ask.name,) if ask.name else None
    found = await store.flavors(FlavorQuery(names=names, after=ask.after, limit=ask.limit + 1))
    page = tuple(found[: ask.limit])
    return FlavorsFound(flavors=page, next=page[-1].name if len(found) > ask.limit else "")


def _wrong(reader: RequestReader, flavor: Flavor) -> BuildRejected | None:
    if not flavor.name:
        return rejection("flavor.name", "", "there is none: requests name the flavor by it")
    read = reader.alternatives_of(BuildInstance(flavor=flavor))
    return read if isinstance(read, BuildRejected) else None


def _taken(flavor: Flavor, known: Flavor) -> BuildRejected | None:
    """The rejection of a flavor whose name another one has; it names the first field that differs."""
    for field in Flavor.__struct_fields__:
        if (asked := getattr(flavor, field)) != (stored := getattr(known, field)):
            reason = (
                f"flavor {flavor.name!r} is stored with {stored!r}: delete it first, or choose another name"
            )
            return rejection(f"flavor.{field}", asked, reason)
    return None


def _answered(ask: Received[CreateFlavor], answer: FlavorsFound | BuildRejected) -> Said:
    if isinstance(answer, BuildRejected) and not ask.reply_to:
        # No one waits for an answer, and an invalid order must not vanish.
        return Bury(ask, f"{answer.field} is {answer.value}: {answer.reason}")
    return Answer(ask, answer)
