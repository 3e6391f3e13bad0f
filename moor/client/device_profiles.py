"""Device profiles that are stored under names, for all projects."""

from collections.abc import AsyncGenerator

from bus.messages.device_profiles import (
    AskDeviceProfiles,
    CreateDeviceProfile,
    DeleteDeviceProfile,
    DeviceProfile,
    DeviceProfilesFound,
)
from moor.client.errors import NotFound
from moor.client.session import ClientSession

PROFILES_PAGE = 200


class DeviceProfileCalls(ClientSession):
    """The client's methods about stored device profiles."""

    async def create_device_profile(self, profile: DeviceProfile) -> DeviceProfile:
        """Store a device profile under its name, for all projects: a flavor names it by `accel:device_profile`. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another profile has this name: delete that one first.
        """
        return (await self._ask(CreateDeviceProfile(profile=profile), DeviceProfilesFound)).profiles[0]

    async def delete_device_profile(self, name: str) -> DeviceProfile:
        """Delete a stored device profile; instances keep their devices. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_device_profile(DeleteDeviceProfile(name=name), name)

    async def show_device_profile(self, name: str) -> DeviceProfile:
        """The device profile that is stored under this name. Raises `NotFound`."""
        return await self._one_device_profile(AskDeviceProfiles(name=name, project=self.project), name)

    async def list_device_profiles(self) -> AsyncGenerator[DeviceProfile, None]:
        """All stored device profiles in the order of their names."""
        question = AskDeviceProfiles(project=self.project, limit=PROFILES_PAGE)
        async for each in self._items(question, DeviceProfilesFound, lambda page: page.profiles):
            yield each

    async def _one_device_profile(
        self, question: DeleteDeviceProfile | AskDeviceProfiles, name: str
    ) -> DeviceProfile:
        # Without a name the question would be for all of them.
        found = (await self._ask(question, DeviceProfilesFound)).profiles if name else ()
        if not found:
            raise NotFound("device profile", name)
        return found[0]
