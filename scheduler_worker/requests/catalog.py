"""Requests that name stored flavors, a stored image, or by a flavor a stored device profile.

Such a request is read with what is stored just then, and its row keeps that: a flavor or an image that is changed later changes no
instance. A repeated request is told by the names. If there is no such name, the request is accepted, and its instances end in
error. It is not rejected, since a request may be delivered once more after its flavor was deleted, and must then get the same
answer.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.catalog import (
    AskDeviceProfiles,
    AskFlavors,
    AskImages,
    CreateDeviceProfile,
    CreateFlavor,
    CreateImage,
    DeleteDeviceProfile,
    DeleteFlavor,
    DeleteImage,
    DeviceProfilesFound,
    FlavorsFound,
    ImagesFound,
    NamedImage,
    SetImage,
    is_image_source,
)
from bus.workers.handlers import Answer, Bury, Handlers, Received, Said, answering
from engine.flavors import DeviceProfile, Flavor
from engine.requests.reading import EXTRA_SPECS_MAX
from engine.requests.spec import PROFILE, profile_to_find, with_profile, without_profile
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.reading import RequestReader, ValidRequest, names_stored, rejection
from scheduler_worker.store_sql import NameQuery, SchedulerStore

# In place of a flavor that is not stored: its request is accepted, and none is built.
_NO_FLAVOR = Flavor(vcpus=1)
_canonical = msgspec.json.Encoder(order="deterministic").encode


class _Stored(NamedTuple):
    flavors: Mapping[str, Flavor]
    images: Mapping[str, NamedImage]
    profiles: Mapping[str, DeviceProfile]


class _Unknown(NamedTuple):
    """The first name of a request that is not stored."""

    field: str
    name: str
    reason: str

    def __str__(self) -> str:
        says = "has" if self.field == "flavor_names" else "is"
        return f"{self.field} {says} {self.name!r}: {self.reason}"


async def read_requests(
    reader: RequestReader, store: SchedulerStore, asks: Sequence[Received[BuildInstance]], now: datetime
) -> list[ValidRequest | BuildRejected]:
    """Each request checked, with the flavors and the image that it names."""
    if not (naming := [ask.message for ask in asks if names_stored(ask.message)]):
        return [reader.read(ask, now) for ask in asks]
    stored = await _stored(store, naming)
    return [
        _read(reader, ask, now, stored) if names_stored(ask.message) else reader.read(ask, now)
        for ask in asks
    ]


async def with_named(store: SchedulerStore, build: BuildInstance) -> BuildInstance | BuildRejected:
    """A request for which nothing is built, with what it names."""
    if not names_stored(build):
        return build
    if (wrong := _given_twice(build)) is not None:
        return wrong
    named = _named(build, await _stored(store, [build]))
    if isinstance(named, _Unknown):
        return rejection(named.field, named.name, named.reason, build.request_id)
    return named


async def _stored(store: SchedulerStore, builds: Sequence[BuildInstance]) -> _Stored:
    names = {name for build in builds for name in build.flavor_names}
    flavors = await store.named(Flavor, NameQuery(names=tuple(sorted(names)))) if names else ()
    wanted = {build.image_name for build in builds if build.image_name}
    images = await store.named(NamedImage, NameQuery(names=tuple(sorted(wanted)))) if wanted else ()
    given = [each for build in builds for each in (build.flavor, *build.alternatives)]
    profiles = await stored_profiles(store, [*given, *flavors])
    return _Stored({each.name: each for each in flavors}, {each.name: each for each in images}, profiles)


async def stored_profiles(
    store: SchedulerStore, flavors: Iterable[Flavor | None]
) -> Mapping[str, DeviceProfile]:
    """The stored device profiles that these flavors name, by their names."""
    names = {name for flavor in flavors if (name := profile_to_find(flavor))}
    found = await store.named(DeviceProfile, NameQuery(names=tuple(sorted(names)))) if names else ()
    return {each.name: each for each in found}


def _read(
    reader: RequestReader, ask: Received[BuildInstance], now: datetime, stored: _Stored
) -> ValidRequest | BuildRejected:
    build = ask.message
    if (wrong := _given_twice(build)) is not None:
        return wrong
    named = _named(build, stored)
    unknown = str(named) if isinstance(named, _Unknown) else ""
    if isinstance(named, _Unknown):
        named = structs.replace(build, image_name="")
        if build.flavor_names or names_stored(named):
            named = structs.replace(named, flavor=_NO_FLAVOR, alternatives=(), flavor_names=())
    read = reader.read(structs.replace(ask, message=named), now)
    if isinstance(read, BuildRejected):
        return read
    content = _canonical(structs.replace(build, request_id=None))
    digest = hashlib.sha256(content).digest()
    return structs.replace(read, digest=digest, unjoined=unknown)


def _given_twice(build: BuildInstance) -> BuildRejected | None:
    """The rejection of a request that names something, and has it in full, too."""
    for field, value, others in (
        ("flavor_names", ", ".join(build.flavor_names), ("flavor", "alternatives")),
        ("image_name", build.image_name, ("image",)),
    ):
        for other in others:
            if value and getattr(build, other):
                reason = f"{other} is given, too: a request has either"
                return rejection(field, value, reason, build.request_id)
    return None


def _named(build: BuildInstance, stored: _Stored) -> BuildInstance | _Unknown:
    """The request with what is stored in place of the names. The name of its image stays, to be shown."""
    for name in build.flavor_names:
        if name not in stored.flavors:
            return _unknown("flavor_names", name, "flavor")
    if build.flavor_names:
        best, *others = (stored.flavors[name] for name in build.flavor_names)
        build = structs.replace(build, flavor=best, alternatives=tuple(others), flavor_names=())
    for flavor in (build.flavor, *build.alternatives):
        if (profile := profile_to_find(flavor)) and profile not in stored.profiles:
            return _unknown(f"flavor.extra_specs.{PROFILE}", profile, "device-profile")
    build = structs.replace(
        build,
        flavor=None if build.flavor is None else _whole(build.flavor, stored),
        alternatives=tuple([_whole(each, stored) for each in build.alternatives]),
    )
    if not build.image_name:
        return build
    if (image := stored.images.get(build.image_name)) is None:
        return _unknown("image_name", build.image_name, "image")
    return structs.replace(
        build, image=image.image, image_properties={**image.properties, **build.image_properties}
    )


def _whole(flavor: Flavor, stored: _Stored) -> Flavor:
    name = profile_to_find(flavor)
    return with_profile(flavor, stored.profiles[name]) if name else flavor


def _unknown(field: str, name: str, word: str) -> _Unknown:
    # Without names that are near it: to compare it with all stored ones would cost more than a boot, for each request of a
    # flood. Commands find them before they send.
    return _Unknown(field, name, f"there is no {word} of this name; `moor {word} list` shows all")


# Orders to store flavors, images and device profiles under names, to change and to delete them, and questions about them.


# With it an image's properties can be checked, whatever flavor its instances will have.
_ANY_FLAVOR = Flavor(vcpus=1)
NameQuestion = AskFlavors | AskImages | AskDeviceProfiles


class _Kind(NamedTuple):
    """A kind of things that are stored under names. Orders have it in the field `word`; `found` is the answer with some."""

    word: str
    type: type[Any]
    found: Callable[[Sequence[Any], str], Message]
    why_wrong: Callable[[RequestReader, Any], BuildRejected | None]


def catalog_orders(reader: RequestReader) -> Handlers:
    async def create(kind: _Kind, order: Message, transaction: OutboxTransaction) -> Message:
        named: Any = getattr(order, kind.word)
        wrong = _wrong_name(kind.word, named.name) or kind.why_wrong(reader, named)
        if wrong is not None:
            return wrong
        known = await (await transaction.begun()).create_named(named)
        return _taken(kind.word, named, known) or kind.found((named,), "")

    async def delete(
        kind: _Kind, order: DeleteFlavor | DeleteImage | DeleteDeviceProfile, transaction: OutboxTransaction
    ) -> Message:
        gone = await (await transaction.begun()).delete_named(kind.type, order.name)
        return kind.found(() if gone is None else (gone,), "")

    async def set_image(order: SetImage, transaction: OutboxTransaction) -> Message:
        store = await transaction.begun()
        known = await store.lock_named(NamedImage, order.name)
        if known is None:
            return _IMAGES.found((), "")
        image = _changed(known, order)
        if (wrong := _wrong_image(reader, image, "")) is not None:
            return wrong
        if image != known:
            await store.save_named(image)
        return _IMAGES.found((image,), "")

    return {
        CreateFlavor: in_turn(partial(create, _FLAVORS), lambda order: order.flavor.name),
        DeleteFlavor: in_turn(partial(delete, _FLAVORS), lambda order: order.name),
        CreateImage: in_turn(partial(create, _IMAGES), lambda order: order.image.name),
        SetImage: in_turn(set_image, lambda order: order.name),
        DeleteImage: in_turn(partial(delete, _IMAGES), lambda order: order.name),
        CreateDeviceProfile: in_turn(partial(create, _PROFILES), lambda order: order.profile.name),
        DeleteDeviceProfile: in_turn(partial(delete, _PROFILES), lambda order: order.name),
    }


def catalog_questions(store: SchedulerStore) -> Handlers:
    return {
        AskFlavors: _pages(store, _FLAVORS),
        AskImages: _pages(store, _IMAGES),
        AskDeviceProfiles: _pages(store, _PROFILES),
    }


def in_turn(follow: Callable[[Any, OutboxTransaction], Any], name_of: Callable[[Any], str]) -> Any:
    """A handler that follows its orders one after another, and answers each."""

    async def on_orders(asks: Sequence[Received[Any]], transaction: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        # All workers write the rows of several orders in one order.
        for ask in sorted(asks, key=lambda ask: name_of(ask.message)):
            answer = await follow(ask.message, transaction)
            if isinstance(answer, BuildRejected) and not ask.reply_to:
                # No one waits for an answer, and an invalid order must not vanish.
                said.append(Bury(ask, f"{answer.field} is {answer.value}: {answer.reason}"))
            else:
                said.append(Answer(ask, answer))
        return said

    return on_orders


def _pages(store: SchedulerStore, kind: _Kind) -> Any:
    async def found(ask: NameQuestion) -> Message:
        names = (ask.name,) if ask.name else None
        known = await store.named(kind.type, NameQuery(names=names, after=ask.after, limit=ask.limit + 1))
        page = known[: ask.limit]
        return kind.found(page, page[-1].name if len(known) > ask.limit else "")

    return answering(found)


def _taken(word: str, named: Struct, known: Struct) -> BuildRejected | None:
    """The rejection of an order whose name is taken by something else; it names the first field that differs."""
    for field in named.__struct_fields__:
        if (asked := getattr(named, field)) != (stored := getattr(known, field)):
            name = getattr(named, "name", "")
            what_to_do = "`moor image set` changes it" if word == "image" else "delete it first"
            reason = f"{word} {name!r} is stored with {stored!r}: {what_to_do}, or choose another name"
            return rejection(f"{word}.{field}", asked, reason)
    return None


def _wrong_name(word: str, name: str) -> BuildRejected | None:
    """Why no flavor or image (`word`) can be stored under this name."""
    reason = ""
    if not name:
        reason = f"there is none: requests name the {word} by it"
    elif name != name.strip() or not name.isprintable():
        reason = "a name has no space at its ends, and no control characters"
    elif word == "image" and is_image_source(name):
        reason = "a uuid or a URL is an image itself, and no name of a stored one"
    return rejection(f"{word}.name", ascii(name)[1:-1], reason) if reason else None


def _wrong_flavor(reader: RequestReader, flavor: Flavor) -> BuildRejected | None:
    # The profile that it names is found when a request is read.
    flavor = structs.replace(flavor, extra_specs=without_profile(flavor.extra_specs))
    read = reader.alternatives_of(BuildInstance(flavor=flavor))
    return read if isinstance(read, BuildRejected) else None


def _wrong_profile(reader: RequestReader, profile: DeviceProfile) -> BuildRejected | None:
    """Why no flavor could name this profile. Classes and traits are read as those of a flavor's groups."""
    if not profile.groups:
        return rejection("profile.groups", "", "there are none: they say which devices an instance gets")
    for number, group in enumerate(profile.groups):
        if not group.resources:
            reason = "there are none: a group says how much of which class one provider gives"
            return rejection(f"profile.groups[{number}].resources", "", reason)
        alone = with_profile(_ANY_FLAVOR, structs.replace(profile, groups=(group,)))
        read = reader.alternatives_of(BuildInstance(flavor=alone))
        if isinstance(read, BuildRejected):
            return structs.replace(read, field=f"profile.groups[{number}]", value=read.value)
    return None


def _wrong_image(reader: RequestReader, image: NamedImage, prefix: str) -> BuildRejected | None:
    """Why no request could name this image. The fields of the order begin with `prefix`."""
    if not image.source:
        return rejection(
            f"{prefix}source", "", "there is none: it says where the image is, by an id or a URL"
        )
    if len(image.properties) > EXTRA_SPECS_MAX:
        reason = f"an image has at most {EXTRA_SPECS_MAX} properties here"
        return rejection(f"{prefix}properties", len(image.properties), reason)
    read = reader.alternatives_of(BuildInstance(flavor=_ANY_FLAVOR, image_properties=image.properties))
    if not isinstance(read, BuildRejected):
        return None
    return structs.replace(read, field=f"{prefix}{read.field.replace('image_properties', 'properties')}")


def _changed(image: NamedImage, order: SetImage) -> NamedImage:
    given = {
        field: value
        for field in ("source", "checksum", "kernel", "ramdisk")
        if (value := getattr(order, field)) is not None
    }
    merged = {**image.properties, **order.properties}
    properties = {key: value for key, value in merged.items() if value is not None}
    return structs.replace(image, **given, properties=properties)


_FLAVORS = _Kind(
    "flavor", Flavor, lambda some, after: FlavorsFound(flavors=tuple(some), next=after), _wrong_flavor
)
_IMAGES = _Kind(
    "image",
    NamedImage,
    lambda some, after: ImagesFound(images=tuple(some), next=after),
    lambda reader, image: _wrong_image(reader, image, "image."),
)
_PROFILES = _Kind(
    "profile",
    DeviceProfile,
    lambda some, after: DeviceProfilesFound(profiles=tuple(some), next=after),
    _wrong_profile,
)
