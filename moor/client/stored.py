"""Flavors, images and device profiles, stored under names for all projects; the quotas of projects, server groups, and applications."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar
from uuid import UUID, uuid4

from msgspec import Struct

from bus.message import Message
from bus.messages.books import (
    AskQuotas,
    AskUsages,
    QuotasFound,
    SetQuota,
    TypeUsage,
    UsagesFound,
)
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
)
from bus.messages.projects import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    AskGroups,
    CreateGroup,
    DeleteGroup,
    GroupsFound,
    GroupState,
    KnownApplication,
    SetApplication,
)
from engine.flavors import DeviceProfile, Flavor
from engine.inventories import GroupId, GroupPolicy, PlaceRule, QuotaState, near
from moor.client.errors import ClientError, NotFound, Rejected
from moor.client.finding import Named, group_id
from moor.client.placement import PlacementSession
from moor.client.requests import Listing

T = TypeVar("T")
P = TypeVar("P")

PAGE = 500
GROUPS_PAGE = 200
QUOTAS_PAGE = 100


class StoredKind(Struct, Generic[T, P], frozen=True):
    """A kind of things that schedulers store under names: the word for one, and the messages about them."""

    word: str
    ask: Callable[..., Message]
    found: type[P]
    items: Callable[[P], Sequence[T]]


FLAVORS = StoredKind[Flavor, FlavorsFound]("flavor", AskFlavors, FlavorsFound, lambda page: page.flavors)
IMAGES = StoredKind[NamedImage, ImagesFound]("image", AskImages, ImagesFound, lambda page: page.images)
PROFILES = StoredKind[DeviceProfile, DeviceProfilesFound](
    "device profile",
    AskDeviceProfiles,
    DeviceProfilesFound,
    lambda page: page.profiles,
)


class StoredCalls(PlacementSession):
    """The client's methods about what is stored under names."""

    async def create_flavor(self, flavor: Flavor) -> Flavor:
        """Store a flavor under its name, for all projects: `boot("NAME")` uses it. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another flavor has this name: delete that one first.
        """
        return (await self._ask(CreateFlavor(flavor=flavor), FlavorsFound)).flavors[0]

    async def delete_flavor(self, name: str) -> Flavor:
        """Delete a stored flavor; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_stored(FLAVORS, DeleteFlavor(name=name), name)

    async def show_flavor(self, name: str) -> Flavor:
        """The flavor that is stored under this name. Raises `NotFound`."""
        return await self._one_stored(FLAVORS, FLAVORS.ask(name=name, project=self.project), name)

    def list_flavors(self) -> Listing[Flavor, FlavorsFound]:
        """All stored flavors in the order of their names."""
        return self._stored(FLAVORS)

    async def create_image(self, image: NamedImage) -> NamedImage:
        """Store an image with its properties under its name, for all projects: `boot(..., image_name="NAME")` uses it. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another image has this name: change that one, or delete
        it first.
        """
        return (await self._ask(CreateImage(image=image), ImagesFound)).images[0]

    async def set_image(
        self,
        name: str,
        *,
        source: str | None = None,
        checksum: str | None = None,
        kernel: str | None = None,
        ramdisk: str | None = None,
        properties: Mapping[str, str | None] | None = None,
    ) -> NamedImage:
        """Change a stored image for later boots; what is not named stays, and so do instances. Raises `NotFound`. For operators.

        A property with a value is set, and one with None is removed.
        """
        order = SetImage(
            name=name,
            source=source,
            checksum=checksum,
            kernel=kernel,
            ramdisk=ramdisk,
            properties=dict(properties or {}),
        )
        return await self._one_stored(IMAGES, order, name)

    async def delete_image(self, name: str) -> NamedImage:
        """Delete a stored image; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_stored(IMAGES, DeleteImage(name=name), name)

    async def show_image(self, name: str) -> NamedImage:
        """The image that is stored under this name. Raises `NotFound`."""
        return await self._one_stored(IMAGES, IMAGES.ask(name=name, project=self.project), name)

    def list_images(self) -> Listing[NamedImage, ImagesFound]:
        """All stored images in the order of their names."""
        return self._stored(IMAGES)

    async def create_device_profile(self, profile: DeviceProfile) -> DeviceProfile:
        """Store a device profile under its name, for all projects: a flavor names it by `accel:device_profile`. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another profile has this name: delete that one first.
        """
        return (await self._ask(CreateDeviceProfile(profile=profile), DeviceProfilesFound)).profiles[0]

    async def delete_device_profile(self, name: str) -> DeviceProfile:
        """Delete a stored device profile; instances keep their devices. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_stored(PROFILES, DeleteDeviceProfile(name=name), name)

    async def show_device_profile(self, name: str) -> DeviceProfile:
        """The device profile that is stored under this name. Raises `NotFound`."""
        return await self._one_stored(PROFILES, PROFILES.ask(name=name, project=self.project), name)

    def list_device_profiles(self) -> Listing[DeviceProfile, DeviceProfilesFound]:
        """All stored device profiles in the order of their names."""
        return self._stored(PROFILES)

    def _stored(self, kind: StoredKind[T, P]) -> Listing[T, P]:
        return Listing(self, kind.ask(project=self.project, limit=PAGE), kind.found, kind.items)

    async def _one_stored(self, kind: StoredKind[T, P], message: Message, name: str) -> T:
        """The thing of this name that this message asks for, changes or deletes. An error names those whose names are near it."""
        try:
            return await self._one(message, kind.found, kind.items, kind.word, name)
        except NotFound as unknown:
            names: list[str] = []
            with suppress(ClientError):
                first = await self._stored(kind).first(PAGE)
                names = [str(getattr(each, "name", "")) for each in first]
            raise NotFound(kind.word, unknown.name, near=near(name, names)) from None

    # Server groups

    async def create_group(
        self,
        policy: GroupPolicy,
        *,
        name: str = "",
        max_per_host: int = 1,
        rules: Sequence[PlaceRule] = (),
        group: UUID | None = None,
    ) -> GroupState:
        """Create a server group; `boot(..., group=group.id)` builds members of it. `rules` say how members are placed in domains. To repeat
        it with the same id (`group`) is harmless.
        """
        order = CreateGroup(
            id=GroupId(group or uuid4()),
            policy=policy,
            name=name,
            max_per_host=max_per_host,
            rules=tuple(rules),
            project=self.project,
        )
        return (await self._ask(order, GroupsFound)).groups[0]

    async def delete_group(self, group: Named) -> GroupState:
        """Delete a server group; its members stay. Returns it as it was. Raises `NotFound`."""
        return await self._one_group(DeleteGroup, group)

    async def show_group(self, group: Named) -> GroupState:
        """A server group with its members and their hosts. Raises `NotFound`."""
        return await self._one_group(AskGroups, group)

    def list_groups(self, *, name: str = "") -> Listing[GroupState, GroupsFound]:
        """All server groups, without their members; or those of this name."""
        question = AskGroups(project=self.project, name=name, limit=GROUPS_PAGE)
        return Listing(self, question, GroupsFound, lambda page: page.groups)

    async def _one_group(self, message: Callable[..., Message], group: Named) -> GroupState:
        with self._raising():
            id_ = await group_id(self._bus, group, self.project)
        about = message(id=id_, project=self.project)
        return await self._one(about, GroupsFound, lambda page: page.groups, "server group", id_)

    # Quotas

    async def set_quota(self, project: str, limits: Mapping[str, int | None]) -> QuotaState:
        """Set limits of a project, on `instances` or on resource classes such as `VCPU`; None removes one, and others stay. For operators.

        Returns all limits of the project, and what it uses. Nothing is taken from a project that has more than a limit. Raises
        `Rejected`, and sets none of these limits, if one names an unknown class.
        """
        await self._write(SetQuota(project=project, limits=dict(limits)))
        found = await self._quotas_of(project)
        return found[0] if found else QuotaState(project=project, limits={})

    async def show_quota(self, project: str = "") -> QuotaState:
        """The limits of a project (the client's, if none is named), and what it uses. Raises `NotFound` if it has no limits."""
        named = project or self.project
        if not named:
            raise Rejected(
                "project", "", "the client has no project, so name the one whose quota is asked for"
            )
        found = await self._quotas_of(named)
        if not found:
            raise NotFound("quota of project", named)
        return found[0]

    def list_quotas(self) -> Listing[QuotaState, QuotasFound]:
        """The quotas of all projects that have limits, in the order of projects; or of the client's project alone."""
        question = AskQuotas(project=self.project, limit=QUOTAS_PAGE)
        return Listing(self, question, QuotasFound, lambda page: page.quotas)

    async def usage(self, project: str, *, user: str = "") -> tuple[TypeUsage, ...]:
        """The amount of each resource class that a project, or one of its users, holds, by the type of consumer."""
        return (await self._ask(AskUsages(project=project, user=user), UsagesFound)).usages

    async def _quotas_of(self, project: str) -> tuple[QuotaState, ...]:
        return (await self._ask(AskQuotas(project=project), QuotasFound)).quotas

    # Applications

    async def create_application(
        self, name: str, *, projects: Sequence[str] = (), admin: bool = False
    ) -> KnownApplication:
        """Tell the schedulers which projects an application speaks for; with `admin`, for all. An earlier word about it is replaced.

        Its user on the broker is made by `moor application create`. For operators.
        """
        order = SetApplication(name=name, projects=tuple(projects), admin=admin)
        known = (await self._ask(order, ApplicationSet)).application
        assert known is not None, "it was not removed"
        return known

    async def delete_application(self, name: str) -> None:
        """Tell the schedulers that there is no such application any more. For operators."""
        await self._ask(SetApplication(name=name, removed=True), ApplicationSet)

    async def show_application(self, name: str) -> KnownApplication:
        """An application, with its projects. Raises `NotFound`. For operators."""
        every = await self.list_applications()
        found = [each for each in every if each.name == name]
        if not found:
            raise NotFound("application", name, near=near(name, [each.name for each in every]))
        return found[0]

    def list_applications(self) -> Listing[KnownApplication, ApplicationsFound]:
        """All applications that the schedulers know, in the order of their names. For operators."""
        return Listing(self, AskApplications(), ApplicationsFound, lambda page: page.applications)
