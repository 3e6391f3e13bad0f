"""Messages about named flavors, which schedulers store: a build request may name them in place of the whole flavor."""

from typing import Annotated

from msgspec import Meta

from bus.message import Message, ProjectMessage, StrictMessage
from bus.messages.build import Flavor
from bus.messages.placement import Label

FlavorName = Annotated[str, Meta(min_length=1, max_length=255, description="the flavor's name")]


class CreateFlavor(StrictMessage, frozen=True, tag="flavor.create"):
    """Store a flavor under its name. A repeated order with the same content is not done twice. Other content under the same name
    is rejected, with the first field that differs: delete the flavor first.
    """

    flavor: Flavor


class DeleteFlavor(StrictMessage, frozen=True, tag="flavor.delete"):
    """Delete a flavor: no request may name it any more. Instances stay as they are. The answer has the deleted flavor; it is
    empty if there was none.
    """

    name: FlavorName


class AskFlavors(ProjectMessage, frozen=True, tag="flavor.query"):
    """Asks for one flavor, or for a page of all, in the order of their names, after `after`. Flavors are for all projects:
    `project` only says who asks.
    """

    name: Annotated[Label, Meta(description="only the flavor of this name")] = ""
    after: Label = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 200


class FlavorsFound(Message, frozen=True, tag="flavor.found"):
    """The flavors that were asked for, created or deleted. `next` is where the next page begins, empty on the last page."""

    flavors: tuple[Flavor, ...]
    next: Label = ""
