"""Flavors, images and device profiles, stored under names for all projects; the quotas of projects, and server groups."""

from collections.abc import AsyncGenerator, Mapping
from uuid import UUID, uuid4

from bus.messages.administration import AskQuotas, QuotasFound, SetQuota, UnknownClass, WriteAnswered
from bus.messages.stored_names import (
    AskDeviceProfiles,
    AskFlavors,
    AskGroups,
    AskImages,
    CreateDeviceProfile,
    CreateFlavor,
    CreateGroup,
    CreateImage,
    DeleteDeviceProfile,
    DeleteFlavor,
    DeleteGroup,
    DeleteImage,
    DeviceProfilesFound,
    FlavorsFound,
    GroupsFound,
    GroupState,
    ImagesFound,
    NamedImage,
    SetImage,
)
from engine.flavors import DeviceProfile, Flavor
from engine.inventories import GroupId, GroupPolicy, QuotaState
from moor.client.errors import NotFound, Rejected
from moor.client.requests import ClientSession

PAGE = 200
QUOTAS_PAGE = 100


class FlavorCalls(ClientSession):
    """The client's methods about stored flavors."""

    async def create_flavor(self, flavor: Flavor) -> Flavor:
        """Store a flavor under its name, for all projects: `boot("NAME")` uses it. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another flavor has this name: delete that one first.
        """
        return (await self._ask(CreateFlavor(flavor=flavor), FlavorsFound)).flavors[0]

    async def delete_flavor(self, name: str) -> Flavor:
        """Delete a stored flavor; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one(
            DeleteFlavor(name=name), FlavorsFound, lambda page: page.flavors, "flavor", name
        )

    async def show_flavor(self, name: str) -> Flavor:
        """The flavor that is stored under this name. Raises `NotFound`."""
        return await self._one(
            AskFlavors(name=name, project=self.project),
            FlavorsFound,
            lambda page: page.flavors,
            "flavor",
            name,
        )

    def list_flavors(self) -> AsyncGenerator[Flavor, None]:
        """All stored flavors in the order of their names."""
        return self._items(
            AskFlavors(project=self.project, limit=PAGE), FlavorsFound, lambda page: page.flavors
        )


class ImageCalls(ClientSession):
    """The client's methods about stored images."""

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
        return await self._one(order, ImagesFound, lambda page: page.images, "image", name)

    async def delete_image(self, name: str) -> NamedImage:
        """Delete a stored image; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one(DeleteImage(name=name), ImagesFound, lambda page: page.images, "image", name)

    async def show_image(self, name: str) -> NamedImage:
        """The image that is stored under this name. Raises `NotFound`."""
        return await self._one(
            AskImages(name=name, project=self.project), ImagesFound, lambda page: page.images, "image", name
        )

    def list_images(self) -> AsyncGenerator[NamedImage, None]:
        """All stored images in the order of their names."""
        return self._items(AskImages(project=self.project, limit=PAGE), ImagesFound, lambda page: page.images)


class DeviceProfileCalls(ClientSession):
    """The client's methods about stored device profiles."""

    async def create_device_profile(self, profile: DeviceProfile) -> DeviceProfile:
        """Store a device profile under its name, for all projects: a flavor names it by `accel:device_profile`. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another profile has this name: delete that one first.
        """
        return (await self._ask(CreateDeviceProfile(profile=profile), DeviceProfilesFound)).profiles[0]

    async def delete_device_profile(self, name: str) -> DeviceProfile:
        """Delete a stored device profile; instances keep their devices. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one(
            DeleteDeviceProfile(name=name),
            DeviceProfilesFound,
            lambda page: page.profiles,
            "device profile",
            name,
        )

    async def show_device_profile(self, name: str) -> DeviceProfile:
        """The device profile that is stored under this name. Raises `NotFound`."""
        return await self._one(
            AskDeviceProfiles(name=name, project=self.project),
            DeviceProfilesFound,
            lambda page: page.profiles,
            "device profile",
            name,
        )

    def list_device_profiles(self) -> AsyncGenerator[DeviceProfile, None]:
        """All stored device profiles in the order of their names."""
        return self._items(
            AskDeviceProfiles(project=self.project, limit=PAGE),
            DeviceProfilesFound,
            lambda page: page.profiles,
        )


class QuotaCalls(ClientSession):
    """The client's methods about quotas."""

    async def set_quota(self, project: str, limits: Mapping[str, int | None]) -> QuotaState:
        """Set limits of a project, on `instances` or on resource classes such as `VCPU`; None removes one, and others stay. For operators.

        Returns all limits of the project, and what it uses. Nothing is taken from a project that has more than a limit. Raises
        `Rejected`, and sets none of these limits, if one names an unknown class.
        """
        verdict = (await self._ask(SetQuota(project=project, limits=dict(limits)), WriteAnswered)).verdict
        if isinstance(verdict, UnknownClass):
            raise Rejected("limits", ", ".join(verdict.names), "there is no resource class of this name")
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

    def list_quotas(self) -> AsyncGenerator[QuotaState, None]:
        """The quotas of all projects that have limits, in the order of projects; or of the client's project alone."""
        return self._items(
            AskQuotas(project=self.project, limit=QUOTAS_PAGE), QuotasFound, lambda page: page.quotas
        )

    async def _quotas_of(self, project: str) -> tuple[QuotaState, ...]:
        return (await self._ask(AskQuotas(project=project), QuotasFound)).quotas


class GroupCalls(ClientSession):
    """The client's methods about server groups."""

    async def create_group(
        self, policy: GroupPolicy, *, name: str = "", max_per_host: int = 1, group: UUID | None = None
    ) -> GroupState:
        """Create a server group; `boot(..., group=group.id)` builds members of it. To repeat it with the same id (`group`) is harmless."""
        order = CreateGroup(
            id=GroupId(group or uuid4()),
            policy=policy,
            name=name,
            max_per_host=max_per_host,
            project=self.project,
        )
        return (await self._ask(order, GroupsFound)).groups[0]

    async def delete_group(self, group: UUID) -> GroupState:
        """Delete a server group; its members stay. Returns it as it was. Raises `NotFound`."""
        return await self._one(
            DeleteGroup(id=GroupId(group), project=self.project),
            GroupsFound,
            lambda page: page.groups,
            "server group",
            group,
        )

    async def show_group(self, group: UUID) -> GroupState:
        """A server group with its members and their hosts. Raises `NotFound`."""
        return await self._one(
            AskGroups(id=GroupId(group), project=self.project),
            GroupsFound,
            lambda page: page.groups,
            "server group",
            group,
        )

    def list_groups(self) -> AsyncGenerator[GroupState, None]:
        """All server groups, without their members."""
        return self._items(AskGroups(project=self.project, limit=PAGE), GroupsFound, lambda page: page.groups)
