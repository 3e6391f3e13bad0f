"""Requests that name stored flavors, a stored image, or by a flavor a stored device profile.

Such a request is read with what is stored just then, and its row keeps that: a flavor or an image that is changed later changes no
instance. A repeated request is told by the names. If there is no such name, the request is accepted, and its instances end in
error. It is not rejected, since a request may be delivered once more after its flavor was deleted, and must then get the same
answer.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, Flavor
from bus.messages.device_profiles import DeviceProfile
from bus.messages.images import NamedImage
from bus.workers.handling import Received
from scheduler_worker.core.requests.device_profiles import PROFILE, profile_to_find, with_profile
from scheduler_worker.requests.answering import rejection
from scheduler_worker.requests.request_reader import RequestReader, ValidRequest, names_stored
from scheduler_worker.store import NameQuery, SchedulerStore

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
    naming = [ask for ask in asks if names_stored(ask.message)]
    stored = await _stored(store, [ask.message for ask in naming])
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
