"""Server groups, whose instances are kept apart or together."""

from collections.abc import AsyncGenerator
from uuid import UUID, uuid4

from bus.message import GroupId
from bus.messages.groups import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState
from bus.messages.placement import GroupPolicy
from moor.client.errors import NotFound
from moor.client.session import ClientSession

GROUPS_PAGE = 200


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
        return await self._one_group(DeleteGroup(id=GroupId(group), project=self.project), group)

    async def show_group(self, group: UUID) -> GroupState:
        """A server group with its members and their hosts. Raises `NotFound`."""
        return await self._one_group(AskGroups(id=GroupId(group), project=self.project), group)

    async def list_groups(self) -> AsyncGenerator[GroupState, None]:
        """All server groups, without their members."""
        question = AskGroups(project=self.project, limit=GROUPS_PAGE)
        async for each in self._items(question, GroupsFound, lambda page: page.groups):
            yield each

    async def _one_group(self, question: DeleteGroup | AskGroups, group: UUID) -> GroupState:
        found = (await self._ask(question, GroupsFound)).groups
        if not found:
            raise NotFound("server group", group)
        return found[0]
