"""Orders to store flavors, images and device profiles under names, to change and to delete them, and questions about them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected, Flavor
from bus.messages.device_profiles import (
    AskDeviceProfiles,
    CreateDeviceProfile,
    DeleteDeviceProfile,
    DeviceProfile,
    DeviceProfilesFound,
)
from bus.messages.flavors import AskFlavors, CreateFlavor, DeleteFlavor, FlavorsFound
from bus.messages.images import (
    AskImages,
    CreateImage,
    DeleteImage,
    ImagesFound,
    NamedImage,
    SetImage,
    is_image_source,
)
from bus.workers.handling import Answer, Bury, Handlers, ReadOnly, Received, Said
from scheduler_worker.core.requests.checking import EXTRA_SPECS_MAX
from scheduler_worker.core.requests.device_profiles import with_profile, without_profile
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejection
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.store import Named, NameQuery, SchedulerStore

# With it an image's properties can be checked, whatever flavor its instances will have.
_ANY_FLAVOR = Flavor(vcpus=1)
M = TypeVar("M", bound=Message)
NameQuestion = AskFlavors | AskImages | AskDeviceProfiles


def stored_name_orders(reader: RequestReader) -> Handlers:
    async def create_flavor(order: CreateFlavor, transaction: OutboxTransaction) -> Message:
        wrong = _wrong_name("flavor", order.flavor.name) or _wrong_flavor(reader, order.flavor)
        return wrong or await _created(transaction, "flavor", order.flavor, _flavors)

    async def create_image(order: CreateImage, transaction: OutboxTransaction) -> Message:
        wrong = _wrong_name("image", order.image.name) or _wrong_image(reader, order.image, "image.")
        return wrong or await _created(transaction, "image", order.image, _images)

    async def set_image(order: SetImage, transaction: OutboxTransaction) -> Message:
        store = await transaction.begun()
        known = await store.lock_named(NamedImage, order.name)
        if known is None:
            return _images(())
        image = _changed(known, order)
        if (wrong := _wrong_image(reader, image, "")) is not None:
            return wrong
        if image != known:
            await store.save_named(image)
        return _images((image,))

    async def delete_flavor(order: DeleteFlavor, transaction: OutboxTransaction) -> Message:
        gone = await (await transaction.begun()).delete_named(Flavor, order.name)
        return _flavors(() if gone is None else (gone,))

    async def delete_image(order: DeleteImage, transaction: OutboxTransaction) -> Message:
        gone = await (await transaction.begun()).delete_named(NamedImage, order.name)
        return _images(() if gone is None else (gone,))

    return {
        CreateFlavor: _each(create_flavor, lambda order: order.flavor.name),
        DeleteFlavor: _each(delete_flavor, lambda order: order.name),
        CreateImage: _each(create_image, lambda order: order.image.name),
        SetImage: _each(set_image, lambda order: order.name),
        DeleteImage: _each(delete_image, lambda order: order.name),
        **_profile_orders(reader),
    }


def _profile_orders(reader: RequestReader) -> Handlers:
    async def create_profile(order: CreateDeviceProfile, transaction: OutboxTransaction) -> Message:
        wrong = _wrong_name("profile", order.profile.name) or _wrong_profile(reader, order.profile)
        return wrong or await _created(transaction, "profile", order.profile, _profiles)

    async def delete_profile(order: DeleteDeviceProfile, transaction: OutboxTransaction) -> Message:
        gone = await (await transaction.begun()).delete_named(DeviceProfile, order.name)
        return _profiles(() if gone is None else (gone,))

    return {
        CreateDeviceProfile: _each(create_profile, lambda order: order.profile.name),
        DeleteDeviceProfile: _each(delete_profile, lambda order: order.name),
    }


def stored_name_questions(store: SchedulerStore) -> Handlers:
    return {
        AskFlavors: _pages(store, Flavor, _flavors),
        AskImages: _pages(store, NamedImage, _images),
        AskDeviceProfiles: _pages(store, DeviceProfile, _profiles),
    }


def _flavors(found: Sequence[Flavor], next_: str = "") -> FlavorsFound:
    return FlavorsFound(flavors=tuple(found), next=next_)


def _images(found: Sequence[NamedImage], next_: str = "") -> ImagesFound:
    return ImagesFound(images=tuple(found), next=next_)


def _profiles(found: Sequence[DeviceProfile], next_: str = "") -> DeviceProfilesFound:
    return DeviceProfilesFound(profiles=tuple(found), next=next_)


def _each(follow: Callable[[Any, OutboxTransaction], Any], name_of: Callable[[Any], str]) -> Any:
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


def _pages(
    store: SchedulerStore, kind: type[Named], answer: Callable[[Sequence[Named], str], Message]
) -> Any:
    async def on_ask(asks: Sequence[Received[NameQuestion]]) -> list[Said]:
        return [Answer(ask, await found(ask.message)) for ask in asks]

    async def found(ask: NameQuestion) -> Message:
        names = (ask.name,) if ask.name else None
        known = await store.named(kind, NameQuery(names=names, after=ask.after, limit=ask.limit + 1))
        page = known[: ask.limit]
        return answer(page, page[-1].name if len(known) > ask.limit else "")

    return ReadOnly(on_ask)


async def _created(
    transaction: OutboxTransaction, word: str, named: Named, answer: Callable[[Sequence[Named]], Message]
) -> Message:
    known = await (await transaction.begun()).create_named(named)
    return _taken(word, named, known) or answer((named,))


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
