"""Flavors that are stored under names, for all projects."""

from collections.abc import AsyncGenerator

from bus.messages.build import Flavor
from bus.messages.flavors import AskFlavors, CreateFlavor, DeleteFlavor, FlavorsFound
from moor.client.errors import NotFound
from moor.client.session import ClientSession

FLAVORS_PAGE = 200


class FlavorCalls(ClientSession):
    """The client's methods about stored flavors."""

    async def create_flavor(self, flavor: Flavor) -> Flavor:
        """Store a flavor under its name, for all projects: `boot("NAME")` uses it. For operators.

        To repeat it with the same content is harmless. Raises `Rejected` if another flavor has this name: delete that one first.
        """
        return (await self._ask(CreateFlavor(flavor=flavor), FlavorsFound)).flavors[0]

    async def delete_flavor(self, name: str) -> Flavor:
        """Delete a stored flavor; instances stay as they are. Returns it as it was. Raises `NotFound`. For operators."""
        return await self._one_flavor(DeleteFlavor(name=name), name)

    async def show_flavor(self, name: str) -> Flavor:
        """The flavor that is stored under this name. Raises `NotFound`."""
        return await self._one_flavor(AskFlavors(name=name, project=self.project), name)

    async def list_flavors(self) -> AsyncGenerator[Flavor, None]:
        """All stored flavors in the order of their names."""
        question = AskFlavors(project=self.project, limit=FLAVORS_PAGE)
        async for each in self._items(question, FlavorsFound, lambda page: page.flavors):
            yield each

    async def _one_flavor(self, question: DeleteFlavor | AskFlavors, name: str) -> Flavor:
        # Without a name the question would be for all of them.
        found = (await self._ask(question, FlavorsFound)).flavors if name else ()
        if not found:
            raise NotFound("flavor", name)
        return found[0]
